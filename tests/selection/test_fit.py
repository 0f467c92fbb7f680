"""The fit against worlds whose weights are known, and the identities its draws must obey."""

import math

import numpy as np
import pyro
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from causal_attn.data.worlds import Concentration, DeterministicLeak, Ends, Gaussian, Logistic, Null, Tabular
from causal_attn.errors import InputError, SupportWarning
from causal_attn.masks import MaskSample, centred_log_ratio
from causal_attn.selection import SelectionModel, network, sampling
from causal_attn.selection import estimator as estimator_module


def fitted(world, n, seed=0, model=None, **options):
    sample = world.sample(n, seed)
    return sample, (model or SelectionModel()).fit(sample, seed=0, progress=False, **options)


@pytest.fixture(scope="module")
def regular():
    """A world, a sample and a fit that several tests read."""
    world = Gaussian(n_classes=3, n_positions=4, strength=0.7, seed=2)
    return (world, *fitted(world, 400, n_draws=30))


# ------------------------------------------------------------------------------------------------ right weights


def log_w_error(world, n, seed=0):
    sample, fit = fitted(world, n, seed, n_draws=40)
    return float((fit.weights().log_w - world.log_w(sample)).square().mean().sqrt()), fit


WORLDS = [
    Gaussian(n_positions=6, seed=1),
    Gaussian(n_classes=3, seed=3),
    Logistic(n_classes=3, n_positions=5),
    Logistic(n_classes=2),
]


@pytest.mark.parametrize("world", WORLDS, ids=lambda w: f"{type(w).__name__}-{w.n_classes}")
def test_log_weights_come_near_the_truth_as_rows_are_added(world):
    few, _ = log_w_error(world, 400)
    many, fit = log_w_error(world, 5000)
    # Each of P parameters costs about 1/n of mean squared error of log r (more where a class is rare).
    expected = math.sqrt(fit.final.theta[0].numel() / (0.8 * 5000))
    assert many < 1.6 * expected
    assert many < 0.6 * few


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_log_weights_at_full_size(seed):
    error, _ = log_w_error(Gaussian(n_positions=29, strength=0.2, seed=seed), 20_000, seed)
    assert error < 0.06


def test_no_dependence_gives_equal_weights():
    sample, fit = fitted(Null(), 2000, n_draws=40)
    weights = fit.weights()
    assert weights.log_w.abs().max() < 0.15
    assert weights.ess > 0.99 * sample.n
    assert fit.held_out_log_loss == pytest.approx(fit.prior_log_loss, abs=0.005)


def test_the_held_out_moments_are_right():
    world = Tabular(n_classes=3, n_types=5, kind="one-hot", seed=1)
    sample, fit = fitted(world, 6000, n_draws=40)
    w = fit.weights().log_w.exp()
    error = float(world.log_w(sample).exp().std()) / math.sqrt(sample.n)
    assert abs(float(w.mean()) - 1) < 5 * error
    for k in range(3):  # identity 7 with g = 1{m = type 0}
        hit = (sample.y == k) & (sample.masks[:, 0] > 0.5)
        truth = float(world.prior[k] * world.type_prior[0])
        spread = float((w * hit).std()) / math.sqrt(sample.n)
        assert abs(float((w * hit).mean()) - truth) < 5 * spread


@pytest.mark.parametrize("seed", range(4))
def test_a_partial_leak_is_found_by_the_automatic_features(seed):
    """A quarter of Q is unseen. Centred log-ratios alone rank these masks so badly that they find 0.005 of it."""
    sample = DeterministicLeak(share=0.5).sample(2000, seed)
    weights = SelectionModel().fit(sample, progress=False, n_draws=20).weights()
    low, high = weights.support_deficit_interval
    assert low <= 0.25 <= high
    assert high - low < 0.25
    assert abs(weights.support_deficit - 0.25) < 0.05


def test_a_leak_is_reported_as_missing_support():
    world = DeterministicLeak()
    _, fit = fitted(world, 1500, n_draws=20)
    with pytest.warns(SupportWarning, match="cannot repair"):
        weights = fit.weights()
    low, high = weights.support_deficit_interval
    assert low <= 0.5 <= high
    assert low > 0.25
    assert "cannot repair" in weights.words
    assert torch.isfinite(weights.log_w).all()


@pytest.mark.parametrize("world", [DeterministicLeak(n_classes=5), Logistic(n_classes=5, strength=4.0, n_positions=20)])
def test_small_separable_samples_are_fitted(world):
    """Draws far from the class margin: full Newton steps on the offsets were singular here."""
    sample = world.sample(40, 1)
    fit = SelectionModel().fit(sample, seed=0, progress=False, n_draws=50)
    assert torch.isfinite(fit.weights().log_w).all()
    r = fit.final.log_prob(fit.phi).exp()
    assert (r.mean(1) - sample.prior).abs().max() < 1e-6


# ------------------------------------------------------------------------------------------------ features


def held_out_auc(fit, sample):
    return roc_auc_score(sample.y, fit.held_out_log_prob()[:, 1])


def test_features_see_concentration_where_the_log_ratios_alone_do_not():
    sample, fit = fitted(Concentration(), 1000, n_draws=20)
    assert held_out_auc(fit, sample) > 0.95
    _, blind = fitted(Concentration(), 1000, model=SelectionModel(features=centred_log_ratio), n_draws=20)
    assert held_out_auc(blind, sample) == pytest.approx(0.5, abs=0.08)


def test_features_see_places_counted_from_the_end():
    world = Ends(flip=0.01)
    sample, fit = fitted(world, 1000, n_draws=20)
    assert held_out_auc(fit, sample) > 0.95
    from_start = SelectionModel(features=lambda m, v: torch.cat([centred_log_ratio(m, v), v.double()], -1))
    _, blind = fitted(world, 1000, model=from_start, n_draws=20)
    assert held_out_auc(blind, sample) < 0.9


# ------------------------------------------------------------------------------------------------ cross-fitting


def relabelled(monkeypatch, model, y, row, new, folds=4, n_positions=4):
    """Held-out log P(k|m) before and after one row's label changes, the folds held."""
    masks = np.random.default_rng(3).dirichlet(np.ones(n_positions), len(y))
    fold = torch.arange(len(y)) % folds
    monkeypatch.setattr(estimator_module, "assign_folds", lambda *_: fold)
    other = np.array(y)
    other[row] = new
    k = max(y) + 1
    before, after = (
        model.fit(MaskSample(masks, labels, n_classes=k), folds=folds, progress=False, n_draws=20).held_out_log_prob()
        for labels in (y, other)
    )
    return before, after, fold == fold[row]


MODELS = {
    "laplace": SelectionModel(),
    "stated prior": SelectionModel(prior=[0.5, 0.3, 0.2]),
    "fixed scale": SelectionModel(prior_scale=0.5),
    "network": SelectionModel(response="mlp"),
    "svi": SelectionModel(inference="svi"),
    "permutation": SelectionModel(estimator="permutation"),
    "plug-in": SelectionModel(estimator=LogisticRegression()),
}


@pytest.fixture
def few_steps(monkeypatch):
    """What is tested is which rows a fit saw, not how well it learnt from them."""
    monkeypatch.setattr(sampling, "SVI_STEPS", 100)
    monkeypatch.setattr(network, "STEPS", 100)


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("name", MODELS)
def test_a_rows_own_label_does_not_touch_its_weight(monkeypatch, name):
    y = np.array([2] + [i % 2 for i in range(1, 120)])
    y[[5, 50, 77]] = 2  # a rare class: one label more or less moves its share by a quarter
    before, after, unseen = relabelled(monkeypatch, MODELS[name], y, 0, 0)
    torch.testing.assert_close(before[unseen], after[unseen], rtol=0, atol=1e-7)
    assert (before[~unseen] - after[~unseen]).abs().max() > 0.1


@pytest.mark.parametrize("name", ["laplace", "permutation"])
def test_nor_with_so_many_rows_that_folds_could_share_the_search(monkeypatch, name):
    """A rare class: by one label the fit on all rows may or may not gain from variational steps."""
    y = np.array([2] + [i % 2 for i in range(1, 6000)])
    y[[5, 50, 77, 1203, 4001, 5902]] = 2
    before, after, unseen = relabelled(monkeypatch, MODELS[name], y, 0, 0)
    torch.testing.assert_close(before[unseen], after[unseen], rtol=0, atol=1e-7)
    assert (before[~unseen] - after[~unseen]).abs().max() > 0.1


def test_nor_beyond_the_tolerance_where_they_do(monkeypatch):
    before, after, unseen = relabelled(monkeypatch, SelectionModel(), np.arange(6000) % 2, 0, 1)
    assert (before[unseen] - after[unseen]).abs().max() < 1e-4
    assert (before[~unseen] - after[~unseen]).abs().max() > 1e-4


def weighted_shares(weights):
    w = weights.log_w.exp()
    return torch.stack([w[weights.y == k].sum() / w.sum() for k in range(int(weights.y.max()) + 1)])


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("response", ["linear", "mlp"])
def test_a_stated_prior_asks_for_other_classes_and_leaves_the_law_of_the_rows_alone(response):
    world = Logistic(n_classes=3, n_positions=5, strength=0.7, intercept=[0.0, -1.0, -2.5])
    sample, q = world.sample(3000, 1), [0.2, 0.3, 0.5]
    plain, stated = (
        SelectionModel(prior=prior, response=response).fit(sample, progress=False, n_draws=100) for prior in (None, q)
    )
    # r is P(y|m) of the rows: the flat intercept takes up whatever Q(y) is
    torch.testing.assert_close(plain._held_out, stated._held_out, rtol=0, atol=2e-2 if response == "mlp" else 1e-6)
    assert (stated.final.mean_log_prob(stated.phi).exp().mean(0) - sample.prior).abs().max() < 1e-4
    ours, target = stated.weights(), plain.weights(target_prior=q)
    torch.testing.assert_close(ours.log_w, target.log_w, rtol=0, atol=2e-2 if response == "mlp" else 1e-6)
    exact = torch.tensor(q).log()[sample.y] - world.log_prob(sample.masks).gather(-1, sample.y[:, None])[:, 0]
    error = exact.exp()[sample.y == 2].std() / (sample.y == 2).sum().sqrt() / 3000 * (sample.y == 2).sum()
    assert (weighted_shares(ours) - torch.tensor(q)).abs().max() < 0.03 + 3 * error


def test_a_stated_prior_means_the_same_to_every_estimator():
    world = Logistic(n_classes=2, n_positions=6, strength=0.5, intercept=[0.0, -2.2])
    sample = world.sample(4000, 0)
    for estimator in ("outcome", "permutation", LogisticRegression()):
        model = SelectionModel(estimator=estimator, prior=[0.5, 0.5])
        weights = model.fit(sample, progress=False, n_draws=50).weights()
        assert (weighted_shares(weights) - 0.5).abs().max() < 0.05


def test_each_row_is_predicted_by_the_model_without_its_fold(regular):
    _, _, fit = regular
    rows = fit.fold == 2
    expected = fit.fold_fits[2].log_prob(fit.phi[rows]).exp().mean(0).log()
    torch.testing.assert_close(fit.held_out_log_prob()[rows], expected)


# ------------------------------------------------------------------------------------------------ identities


def test_the_point_weight_is_the_prior_over_the_posterior_predictive_mean(regular):
    _, sample, fit = regular
    weights = fit.weights()
    log_p = fit._fold_draws(30, slice(0, sample.n)).double()  # draws are float32 by contract: compared at its precision
    predictive = log_p.exp().mean(0)[torch.arange(sample.n), sample.y]
    torch.testing.assert_close(weights.log_w.exp(), sample.prior[sample.y] / predictive, rtol=1e-6, atol=1e-6)
    own = log_p[:, torch.arange(sample.n), sample.y]
    torch.testing.assert_close(weights.draws.double(), sample.prior.log()[sample.y] - own, atol=1e-5, rtol=1e-5)
    assert (weights.log_w.exp() <= weights.draws.exp().mean(0) * (1 + 1e-5)).all()  # Jensen
    assert weights.n_draws == 30  # all there are, although 200 is the default


def test_identities_2_to_4_hold_in_every_draw(regular):
    _, sample, fit = regular
    p = fit.log_prob(sample.masks).exp()
    w = sample.prior / p
    torch.testing.assert_close((p * w).sum(-1), torch.ones(p.shape[:2]))
    torch.testing.assert_close((sample.prior / w).sum(-1), torch.ones(p.shape[:2]))
    assert (w >= sample.prior * (1 - 1e-12)).all()
    weights = fit.weights()
    assert (weights.draws >= sample.prior.log()[sample.y] - 1e-5).all()
    assert (weights.log_w >= sample.prior.log()[sample.y] - 1e-12).all()


def test_every_draw_meets_the_class_margin(regular):
    _, sample, fit = regular
    assert (fit.log_prob(sample.masks).exp().mean(1) - sample.prior).abs().max() < 1e-6
    for number, part in enumerate(fit.fold_fits):
        rows = fit.fold != number
        shares = torch.bincount(sample.y[rows]) / rows.sum()  # its own rows': those held out must not count
        assert (part.log_prob(fit.phi[rows]).exp().mean(1) - shares).abs().max() < 1e-6


def test_the_propensity_never_exceeds_one(regular):
    _, sample, fit = regular
    sharp = torch.rand(50, 4).pow(20) + 1e-9
    masks = torch.cat([sample.masks, sharp / sharp.sum(1, keepdim=True)])
    for k in range(3):
        log_pi = fit.log_propensity(masks, torch.full((len(masks),), k))
        assert log_pi.shape == (30, len(masks))
        assert (log_pi <= 1e-12).all()
    y = torch.zeros(len(masks), dtype=torch.long)
    expected = math.log(0.01) + fit.log_prob(masks)[..., 0] - sample.prior[0].log()
    torch.testing.assert_close(fit.log_propensity(masks, y, base_rate=0.01), expected)
    with pytest.raises(InputError, match="base_rate"):
        fit.log_propensity(masks, y, base_rate=0.0)


def test_a_target_prior_rescales_the_weights(regular):
    _, sample, fit = regular
    q = torch.tensor([0.5, 0.3, 0.2])
    plain, aimed = fit.weights(), fit.weights(target_prior=q)
    torch.testing.assert_close(aimed.log_w, plain.log_w + (q / sample.prior).log()[sample.y])
    assert "target prior" in aimed.words
    with pytest.raises(InputError, match="target_prior: expected 3 positive"):
        fit.weights(target_prior=[0.5, 0.5])


# ------------------------------------------------------------------------------------------------ the story


def test_the_fitted_story_gives_the_classifiers_log_density(regular):
    _, sample, fit = regular
    theta = fit.final.theta[0]
    model = pyro.poutine.condition(fit.model, data={"weights": theta[:-1], "intercept": theta[-1]})
    trace = pyro.poutine.trace(model).get_trace(sample.masks, sample.y, torch.ones(sample.n), sample.valid)
    trace.compute_log_prob()
    total = sum(trace.nodes[name]["log_prob"] for name in ("y", "s", "selected"))
    own = fit.log_prob(sample.masks)[0][torch.arange(sample.n), sample.y]
    torch.testing.assert_close(total, own, atol=1e-10, rtol=0)


def test_the_unfitted_model_runs_forwards_and_is_conditioned():
    sample = Gaussian().sample(30, 0)
    rows = SelectionModel(prior=[0.3, 0.7]).model(sample.masks)
    assert set(rows) == {"y", "s"}
    assert rows["y"].shape == (30,)
    trace = pyro.poutine.trace(SelectionModel().model).get_trace(sample.masks, sample.y, torch.ones(30))
    assert torch.isfinite(trace.log_prob_sum())
    with pytest.raises(InputError, match="prior: expected Q"):
        SelectionModel().model(sample.masks)


# ------------------------------------------------------------------------------------------------ quality


def test_the_gaussian_stands_in_well_on_a_regular_problem(regular):
    _, _, fit = regular
    assert fit.vi_khat < 0.7
    ratio = fit.final.log_density_ratio(fit.phi, fit.sample.y)  # its mean over draws of q is the ELBO
    assert abs(float(ratio.mean() - fit.elbo[-1])) < 4 * float(ratio.std()) * (1 / 30 + 1 / 8) ** 0.5
    assert ratio.std() < 1.5
    assert (fit.elbo.diff() > 0).all()
    own = fit.held_out_log_prob()[torch.arange(400), fit.sample.y]
    assert fit.held_out_log_loss == pytest.approx(-float(own.mean()))
    assert fit.held_out_log_loss < fit.prior_log_loss


def test_the_same_seed_gives_the_same_weights():
    sample = Gaussian().sample(150, 0)
    one, two, other = (SelectionModel().fit(sample, seed=s, progress=False, n_draws=10).weights() for s in (4, 4, 5))
    assert torch.equal(one.log_w, two.log_w)
    assert torch.equal(one.draws, two.draws)
    assert not torch.equal(one.log_w, other.log_w)


def test_global_state_does_not_matter():
    sample = Gaussian().sample(100, 0)
    before = torch.get_rng_state()
    first = SelectionModel().fit(sample, progress=False, n_draws=10).weights().log_w
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    torch.set_default_dtype(torch.float32)
    assert torch.equal(SelectionModel().fit(sample, progress=False, n_draws=10).weights().log_w, first)


def test_a_warm_start_gives_the_same_weights_and_a_foreign_one_is_ignored():
    sample = Gaussian().sample(300, 0)
    cold = SelectionModel().fit(sample, progress=False)
    warm = SelectionModel().fit(sample, progress=False, warm_start=cold)
    torch.testing.assert_close(warm.weights().log_w, cold.weights().log_w, atol=0.02, rtol=0)
    assert warm.final.posterior.mode.n_steps <= cold.final.posterior.mode.n_steps
    three = Gaussian(n_classes=3).sample(300, 0)
    torch.testing.assert_close(
        SelectionModel().fit(three, progress=False, warm_start=cold).weights().log_w,
        SelectionModel().fit(three, progress=False).weights().log_w,
    )


def test_float32_and_half_masks_give_nearly_the_same_weights():
    sample = Gaussian().sample(200, 0)
    truth = SelectionModel().fit(sample, progress=False).weights().log_w
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float16, 0.05)):
        coarse = type(sample)(sample.masks.to(dtype), sample.y)
        fit = SelectionModel().fit(coarse, progress=False)
        assert (fit.weights().log_w - truth).abs().max() < tolerance
        assert torch.isfinite(fit.log_prob(coarse.masks)).all()


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("estimator", "nonsense"),
        ("response", "cubic"),
        ("inference", "guess"),
        ("prior_scale", 0.0),
        ("prior_scale", -1.0),
        ("prior_scale", math.nan),
        ("prior_scale", math.inf),
        ("prior_scale", "wide"),
        ("tau", 1.0),
        ("tau", math.nan),
    ],
)
def test_bad_options_are_refused(option, value):
    with pytest.raises(InputError, match=f"{option}: expected"):
        SelectionModel(**{option: value})


@pytest.mark.parametrize("prior", [[0.5, 0.4], [1.0, 0.0], [0.2, 0.3, 0.5], [math.nan, 1.0]])
def test_bad_priors_are_refused(prior):
    with pytest.raises(InputError, match="prior: expected 2 positive numbers"):
        SelectionModel(prior=prior).fit(Gaussian().sample(40, 0), progress=False)


def test_bad_arguments_of_fit_and_weights_are_refused(regular):
    _, sample, fit = regular
    with pytest.raises(InputError, match="sample: expected a MaskSample, got Tensor"):
        SelectionModel().fit(sample.masks)
    for call in (lambda: SelectionModel().fit(sample, n_draws=0), lambda: fit.weights(n_draws=0)):
        with pytest.raises(InputError, match="n_draws: expected"):
            call()
    with pytest.raises(InputError, match="one for each of the 400 rows"):
        fit.held_out_log_prob(sample.masks[:10])
    with pytest.raises(InputError, match="features: expected 'auto'"):
        SelectionModel(features="clr").fit(sample, progress=False)


def test_intervals_hold_the_truth_where_the_signal_is_weak():
    """Logits of standard deviation 0.1: the bare evidence took the scale to 0 in every third sample, and the 90%
    intervals of log w covered 56%."""
    rng = np.random.default_rng(0)
    b = rng.standard_normal(16)
    b = 0.1 * (b - b.mean()) / np.linalg.norm(b - b.mean())
    world = Logistic(
        n_classes=2, n_positions=16, law="logistic-normal", coefficients=torch.from_numpy(np.stack([0 * b, b]))
    )
    shares = []
    for seed in range(12):
        new = world.sample(100, seed=1000 + seed)
        fit = SelectionModel().fit(world.sample(1500, seed=seed), folds=2, seed=seed, progress=False)
        log_p = fit.log_prob(new.masks)
        log_w = fit.log_prior[new.y] - log_p.gather(-1, new.y.expand(len(log_p), -1)[..., None])[..., 0]
        low, high = log_w.quantile(0.05, dim=0), log_w.quantile(0.95, dim=0)
        truth = world.log_w(new)
        shares.append(float(((low <= truth) & (truth <= high)).double().mean()))
    error = np.std(shares) / np.sqrt(len(shares))
    assert np.mean(shares) + 3 * error > 0.86
    assert np.mean(shares) > 0.75


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: f.log_propensity(f.sample.masks, f.sample.y, base_rate="a"), "base_rate: expected a number"),
        (lambda f: f.log_propensity(f.sample.masks, f.sample.y, base_rate=0), "base_rate: expected a probability"),
        (lambda f: f.log_propensity(f.sample.masks, [0]), r"y: expected shape \(400,\)"),
        (lambda f: f.log_prob(5), "masks: expected shape"),
        (lambda f: f.log_prob(None), "masks: expected an array of numbers"),
        (lambda f: f.model([[2.0, 1.0, 0.0, 0.0]]), "masks: expected rows that sum to 1"),
        (lambda f: f.weights(target_prior=[0.5, 0.6, 0.1]), "target_prior: expected 3 positive"),
        (lambda f: f.weights(n_draws="3"), "n_draws: expected an integer"),
        (lambda f: f.calibration(n_bins=0), "n_bins: expected an integer"),
        (lambda f: f.save(5), "path: expected a file's name"),
    ],
)
def test_wrong_arguments_of_a_fit_are_named(regular, call, message):
    with pytest.raises(InputError, match=message):
        call(regular[2])


def test_a_prior_without_effect_is_refused():
    sample = Null().sample(60, 0)
    sample = MaskSample(sample.masks, sample.y, x_features=torch.randn(60, 2))
    with pytest.raises(InputError, match="prior: has no effect with x-features"):
        SelectionModel(estimator="permutation", prior=[0.5, 0.5]).fit(sample, progress=False)
