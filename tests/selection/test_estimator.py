"""The configuration: what it refuses, warm starts, and sizes at the edges."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC

from causal_attn.data.worlds import DeterministicLeak, Gaussian, Null
from causal_attn.errors import InputError, SupportWarning
from causal_attn.masks import MaskSample
from causal_attn.selection import SelectionModel, fits, network, sampling

LOGISTIC = LogisticRegression()


@pytest.mark.parametrize(
    "options",
    [
        {"response": "mlp", "estimator": "permutation"},
        {"response": "mlp", "estimator": LOGISTIC},
        {"inference": "svi", "estimator": "permutation"},
        {"inference": "nuts", "estimator": LOGISTIC},
        {"inference": "laplace", "estimator": LOGISTIC},
        {"guide": "AutoNormal"},
        {"guide": "AutoNormal", "inference": "nuts"},
        {"prior_scale": 1.0, "estimator": LOGISTIC},
        {"copies": 2},
        {"copies": 2, "estimator": LOGISTIC},
        {"probability_floor": 0.01},
        {"probability_floor": 0.01, "estimator": "permutation"},
    ],
    ids=lambda o: "-".join(f"{k}={v if isinstance(v, (str, int, float)) else 'plugin'}" for k, v in o.items()),
)
def test_an_option_without_effect_is_refused(options):
    with pytest.raises(InputError, match=f"{next(iter(options))}: .* has no effect with estimator="):
        SelectionModel(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"estimator": None},
        {"estimator": 3},
        {"estimator": SVC()},
        {"estimator": LogisticRegression},
        {"guide": "AutoNothing", "inference": "svi"},
        {"copies": 0, "estimator": "permutation"},
        {"copies": 1.5, "estimator": "permutation"},
        {"copies": True + 1.0, "estimator": "permutation"},
        {"probability_floor": 0.0, "estimator": LOGISTIC},
        {"probability_floor": 0.6, "estimator": LOGISTIC},
        {"probability_floor": "low", "estimator": LOGISTIC},
        {"prior_scale": True},
        {"tau": "ten"},
        {"tau": 0.5},
    ],
    ids=str,
)
def test_a_bad_option_is_named(options):
    with pytest.raises(InputError, match=f"{next(iter(options))}: expected"):
        SelectionModel(**options)


@pytest.mark.parametrize(
    ("options", "name"),
    [({"seed": -1}, "seed"), ({"seed": 0.5}, "seed"), ({"folds": 1}, "folds"), ({"n_draws": 1.5}, "n_draws")],
)
def test_a_bad_argument_of_fit_is_named(options, name):
    with pytest.raises(InputError, match=f"{name}: expected"):
        SelectionModel().fit(Null().sample(40, 0), progress=False, **options)


@pytest.mark.parametrize("estimator", ["outcome", "permutation", LOGISTIC], ids=["outcome", "permutation", "plugin"])
def test_a_target_prior_takes_the_place_of_the_classes_share(estimator):
    sample = Gaussian(n_classes=3, seed=2, prior=[0.2, 0.3, 0.5]).sample(150, 0)
    fit = SelectionModel(estimator=estimator).fit(sample, folds=2, progress=False, n_draws=8)
    q = torch.tensor([0.6, 0.3, 0.1])
    own = fit.held_out_log_prob()[torch.arange(150), sample.y]
    torch.testing.assert_close(fit.weights(target_prior=q).log_w, q.log()[sample.y] - own)
    torch.testing.assert_close(fit.weights().log_w, sample.prior.log()[sample.y] - own)


KINDS = {
    "linear": {},
    "mlp": {"response": "mlp"},
    "permutation": {"estimator": "permutation"},
    "svi": {"inference": "svi"},
    "plugin": {"estimator": LOGISTIC},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_warm_start_changes_nothing_but_the_time(kind, monkeypatch):
    monkeypatch.setattr(network, "STEPS", 30)
    monkeypatch.setattr(fits, "N_MEMBERS", 2)
    monkeypatch.setattr(sampling, "SVI_STEPS", 20)
    sample = Gaussian(n_positions=3, strength=0.8, seed=1).sample(120, 0)
    model = SelectionModel(**KINDS[kind])
    cold = model.fit(sample, folds=2, progress=False, n_draws=20)
    warm = model.fit(sample, folds=2, progress=False, n_draws=20, warm_start=cold)
    torch.testing.assert_close(warm.weights().log_w, cold.weights().log_w, atol=0.05, rtol=0)


def test_a_warm_start_of_another_kind_is_ignored():
    sample = Gaussian(seed=1).sample(100, 0)
    other = SelectionModel(estimator="permutation").fit(sample, folds=2, progress=False, n_draws=5)
    cold = SelectionModel().fit(sample, folds=2, progress=False, n_draws=5)
    warm = SelectionModel().fit(sample, folds=2, progress=False, n_draws=5, warm_start=other)
    assert torch.equal(warm.weights().log_w, cold.weights().log_w)


@pytest.mark.parametrize(
    ("estimator", "k", "T", "n"),
    [
        ("outcome", 2, 512, 120),
        ("outcome", 20, 5, 200),
        ("permutation", 20, 5, 200),
        pytest.param("permutation", 2, 512, 120, marks=pytest.mark.slow),
    ],
)
def test_many_positions_and_many_classes_fit(estimator, k, T, n):
    rng = np.random.default_rng(0)
    sample = MaskSample(rng.dirichlet(np.ones(T), n), np.arange(n) % k)
    fit = SelectionModel(estimator=estimator).fit(sample, folds=2, progress=False, n_draws=3)
    assert torch.isfinite(fit.weights().log_w).all()
    assert fit.log_prob(sample.masks).shape == (3, n, k)


@pytest.mark.parametrize("options", [{}, {"prior_scale": 5.0}], ids=str)
def test_perfect_separation_warns_and_stays_finite(options):
    fit = SelectionModel(**options).fit(DeterministicLeak().sample(900, 0), folds=3, progress=False, n_draws=10)
    with pytest.warns(SupportWarning):
        weights = fit.weights()
    assert torch.isfinite(weights.log_w).all()
    assert torch.isfinite(weights.draws).all()
    assert weights.support_deficit_interval == fit.deficit_interval
    assert fit.deficit_interval[0] > 0.25
    assert fit.deficit_interval[1] >= 0.5


@pytest.mark.parametrize("estimator", ["outcome", "permutation"])
def test_no_dependence_has_no_deficit(estimator):
    fit = SelectionModel(estimator=estimator).fit(Null().sample(300, 0), folds=3, progress=False, n_draws=10)
    assert fit.deficit_interval[0] < 0.01
