"""Plug-in classifiers, by hand; and the identities, for every estimator that has a posterior."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from causal_attn.data.worlds import Gaussian
from causal_attn.errors import InputError, NotEstimableError, PositivityError
from causal_attn.selection import SelectionModel, fits, network, sampling
from causal_attn.selection.fits import PluginFit


class Fixed(ClassifierMixin, BaseEstimator):
    """Gives class 1 one fixed probability."""

    def __init__(self, p=0.0):
        self.p = p

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, X):
        return np.tile([1 - self.p, self.p], (len(X), 1))


def test_plug_in_weights_are_the_prior_over_the_cross_fitted_probability():
    sample = Gaussian(n_classes=3, seed=2, prior=[0.2, 0.3, 0.5]).sample(150, 0)
    fit = SelectionModel(estimator=LogisticRegression(C=0.3)).fit(sample, folds=3, progress=False)
    phi, y, fold = fit.phi.numpy(), sample.y.numpy(), fit.fold.numpy()
    shares = np.bincount(y) / 150
    expected = np.empty(150)
    for number in range(3):
        out = fold == number
        p = LogisticRegression(C=0.3).fit(phi[~out], y[~out]).predict_proba(phi[out])
        expected[out] = shares[y[out]] / p[np.arange(out.sum()), y[out]]
    weights = fit.weights()
    np.testing.assert_allclose(weights.log_w.exp(), expected, rtol=1e-9)
    assert weights.n_draws == 0
    with pytest.raises(NotEstimableError, match="no posterior draws"):
        _ = weights.draws
    for call, error in ((fit.to_arviz, NotEstimableError), (lambda: fit.story, NotEstimableError)):
        with pytest.raises(error):
            call()
    with pytest.raises(InputError, match="draws: a plug-in"):
        fit.final.fast_draws(fit.phi, 3)
    assert np.isnan(fit.vi_khat)
    assert len(fit.elbo) == 0
    assert fit.log_prob(sample.masks).shape == (1, 150, 3)


def test_a_zero_probability_names_the_row_and_a_floor_mends_it():
    sample = Gaussian(seed=1).sample(40, 0)
    row = int((sample.y == 1).nonzero()[0])
    with pytest.raises(PositivityError, match=f"row {row} probability 0"):
        SelectionModel(estimator=Fixed()).fit(sample, folds=2, progress=False)
    fit = SelectionModel(estimator=Fixed(), probability_floor=0.1).fit(sample, folds=2, progress=False)
    p = fit.held_out_log_prob().exp()
    torch.testing.assert_close(p, torch.tensor([1.0, 0.1]).expand(40, 2) / 1.1)
    assert torch.isfinite(fit.weights().log_w).all()
    with pytest.raises(PositivityError):
        SelectionModel(estimator=DecisionTreeClassifier()).fit(Gaussian().sample(60, 0), folds=2, progress=False)


def test_a_class_that_the_rows_lack_has_probability_0():
    phi, y = torch.randn(20, 2), torch.arange(20) % 2 * 2  # classes 0 and 2 of three
    p = PluginFit.on(LogisticRegression(), phi, y, 3, None).mean_log_prob(phi).exp()
    assert (p[:, 1] == 0).all()
    torch.testing.assert_close(p.sum(1), torch.ones(20))
    floored = PluginFit.on(LogisticRegression(), phi, y, 3, 0.01).mean_log_prob(phi).exp()
    assert (floored[:, 1] > 0.009).all()


KINDS = {
    "linear": {},
    "mlp": {"response": "mlp"},
    "permutation": {"estimator": "permutation"},
    "svi": {"inference": "svi", "prior_scale": 0.7},
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**31), k=st.integers(2, 4), strength=st.floats(0, 1.0), n=st.integers(40, 90))
def test_identities_2_to_4_hold_for_every_draw(kind, monkeypatch, seed, k, strength, n):
    monkeypatch.setattr(network, "STEPS", 20)
    monkeypatch.setattr(fits, "N_MEMBERS", 2)
    monkeypatch.setattr(sampling, "SVI_STEPS", 10)
    sample = Gaussian(n_classes=k, n_positions=3, strength=strength, seed=seed).sample(n, seed)
    if torch.bincount(sample.y, minlength=k).min() < 2:
        return
    try:
        fit = SelectionModel(**KINDS[kind]).fit(sample, folds=2, seed=seed, progress=False, n_draws=6)
    except PositivityError:
        return
    sharp = torch.rand(9, 3).pow(8) + 1e-6
    p = fit.log_prob(sharp / sharp.sum(1, keepdim=True)).exp()
    w = (fit.log_prior - p.log()).exp()
    assert p.shape == (6, 9, k)
    torch.testing.assert_close((p * w).sum(-1), torch.ones(6, 9))
    torch.testing.assert_close((fit.log_prior.exp() / w).sum(-1), torch.ones(6, 9))
    assert (w >= fit.log_prior.exp() * (1 - 1e-9)).all()
    weights = fit.weights()
    assert (weights.log_w >= fit.log_prior[sample.y] - 1e-9).all()
    assert (weights.draws >= fit.log_prior[sample.y] - 1e-4).all()
    # the point is P(y) over the mean probability of the very draws
    mean_p = (fit.log_prior[sample.y] - weights.draws.double()).exp().mean(0)
    torch.testing.assert_close(weights.log_w.exp(), fit.log_prior[sample.y].exp() / mean_p, rtol=1e-3, atol=1e-3)
