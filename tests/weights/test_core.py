import math
from functools import partial

import arviz as az
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta
from sklearn.isotonic import IsotonicRegression

from causal_attn.data.worlds import DeterministicLeak, Gaussian, Logistic, Null, Tabular
from causal_attn.errors import InputError, NotEstimableError, PositivityError
from causal_attn.weights import (
    Weights,
    effective_sample_size,
    stabilised_log_weights,
    support_deficit,
)
from causal_attn.weights.recalibration import recalibrated

quick = settings(deadline=None, max_examples=40)
P = torch.tensor([[0.30, 0.10], [0.15, 0.45]], dtype=torch.float64)  # axes [y, m]


@st.composite
def tables(draw):
    """A positive K×J matrix of any margins, summing to 1."""
    shape = draw(st.integers(2, 5)), draw(st.integers(1, 6))
    logs = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).normal(size=shape) * draw(st.sampled_from([0, 1, 3]))
    return torch.from_numpy(logs).flatten().softmax(0).reshape(shape)


def log_w_of(joint):
    """log w of every cell, shape (K, J), through the function under test."""
    log_prior = joint.sum(1).log()[:, None].expand_as(joint)
    log_prob = (joint / joint.sum(0)).log()
    return stabilised_log_weights(log_prior.reshape(-1), log_prob.reshape(-1)).reshape(joint.shape)


def weights_of(world, n, seed, **changes):
    """Weights of n rows with the exact log P(k|m)."""
    sample = world.sample(n, seed)
    return Weights.from_log(
        world.log_w(sample), sample.y, log_prob=world.log_prob(sample.masks), prior=world.prior, **changes
    )


# ------------------------------------------------------------------------------------------------ the identities


def test_weights_turn_the_joint_into_the_product_of_its_margins():
    torch.testing.assert_close(P * log_w_of(P).exp(), torch.outer(P.sum(1), P.sum(0)))


@quick
@given(tables())
def test_the_identities_hold_by_enumeration(joint):
    log_w = log_w_of(joint)
    w, p_y, p_m = log_w.exp(), joint.sum(1), joint.sum(0)
    product = torch.outer(p_y, p_m)
    close = lambda a, b: torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)  # noqa: E731
    close(joint * w, product)
    close((joint * w).sum(), torch.tensor(1.0))  # 1
    close((joint * w).sum(0) / p_m, torch.ones_like(p_m))
    close((joint * w).sum(1) / p_y, torch.ones_like(p_y))
    close((joint / p_m * w).sum(0), torch.ones_like(p_m))  # 2
    close((p_y[:, None] / w).sum(0), torch.ones_like(p_m))  # 3
    assert (w >= p_y[:, None] * (1 - 1e-12)).all()  # 4
    information = (joint * (joint / product).log()).sum()
    close((joint * log_w).sum(), -information)  # 5
    close((joint * w**2).sum(), 1 + ((product - joint) ** 2 / joint).sum())  # 6
    g = torch.linspace(-1, 2, len(p_m))
    close((joint * w * g).sum(1), p_y * (p_m * g).sum())  # 7
    close((product / w).sum(), torch.tensor(1.0))  # 8
    close((joint / w).sum(), 1 + ((joint - product) ** 2 / product).sum())  # 9


def test_the_world_and_the_function_agree():
    world = Tabular(n_classes=3, n_types=5, seed=4)
    torch.testing.assert_close(log_w_of(world.joint), -world.ratio.log())
    sample = world.sample(50, 0)
    torch.testing.assert_close(world.log_w(sample), log_w_of(world.joint)[sample.y, world.type_of(sample.masks)])


def test_draws_are_weighted_one_by_one_and_a_zero_names_its_row():
    log_prior = torch.tensor([0.5, 0.5]).log()
    draws = torch.tensor([[0.2, 0.9], [0.4, 0.1]]).log()
    torch.testing.assert_close(stabilised_log_weights(log_prior, draws), log_prior - draws)
    draws[1, 0] = -math.inf
    with pytest.raises(PositivityError, match=r"log_prob_y.*row 0"):
        stabilised_log_weights(log_prior, draws)
    with pytest.raises(PositivityError, match="row 2"):
        stabilised_log_weights(torch.zeros(3), torch.tensor([0.0, 0.0, -math.inf]))


def test_log_weights_stay_finite_at_the_extremes_of_probability():
    log_p = torch.tensor([-700.0, -1e4, -0.0])
    log_w = stabilised_log_weights(torch.full((3,), math.log(0.5)), log_p)
    torch.testing.assert_close(log_w, math.log(0.5) - log_p)
    assert effective_sample_size(log_w) == pytest.approx(1.0)


# ------------------------------------------------------------------------------------------------ sizes


@given(st.integers(1, 200), st.floats(0, 3), st.floats(-500, 500))
@quick
def test_effective_sample_size_is_kishs_at_any_scale(n, spread, shift):
    log_w = torch.from_numpy(np.random.default_rng(n).normal(size=n) * spread)
    w = log_w.exp()
    assert float(effective_sample_size(log_w + shift)) == pytest.approx(float(w.sum() ** 2 / (w**2).sum()))


def test_effective_sample_size_tends_to_the_inverse_second_moment():
    world, n = Tabular(n_classes=3, seed=1), 200_000
    weights = weights_of(world, n, 0)
    w, second = weights.log_w.exp(), world.second_moment()
    # The share is (Σw/n)² / (Σw²/n); by the delta method its influence on row i is 2(w−1)/s − (w²−s)/s², s = E w².
    influence = 2 * (w - 1) / second - (w**2 - second) / second**2
    assert abs(weights.ess / n - 1 / second) < 4 * float(influence.std()) / math.sqrt(n)
    assert abs(weights.mean - 1) < 4 * float(w.std()) / math.sqrt(n)
    assert weights.calibration_residual == pytest.approx(1 - weights.mean)


def test_figures_by_hand():
    weights = Weights.from_log(torch.tensor([1.0, 3.0, 4.0]).log(), [0, 1, 1])
    assert weights.mean == pytest.approx(8 / 3)
    assert weights.ess == pytest.approx(64 / 26)
    assert weights.largest_share == pytest.approx(0.5)
    torch.testing.assert_close(weights.ess_per_class, torch.tensor([1.0, 49 / 25]))


def test_constant_weights_have_a_finite_tail_index():
    weights = Weights.from_log(torch.zeros(500), [0, 1] * 250)
    assert weights.khat == 0
    assert weights.ess == pytest.approx(500)


# ------------------------------------------------------------------------------------------------ support deficit


@pytest.mark.parametrize("n_classes", [2, 3, 5])
@pytest.mark.parametrize("noise", [0.0, 2.0])
def test_a_deterministic_leak_misses_all_but_one_class_of_q(n_classes, noise):
    world = DeterministicLeak(n_classes=n_classes)
    sample = world.sample(5000, 0)
    log_prob = world.log_prob(sample.masks).clamp(min=-20)
    log_prob += noise * torch.randn(log_prob.shape)
    deficit = support_deficit(log_prob, sample.y, sample.prior)
    assert deficit.estimate == pytest.approx(1 - 1 / n_classes, abs=0.05)
    assert deficit.low <= world.support_deficit() <= deficit.high


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
def test_a_partial_leak_is_covered(share):
    world = DeterministicLeak(share=share)
    for seed in range(10):
        sample = world.sample(3000, seed)
        for noise in (0.0, 0.5):  # exact ranks, all of them tied; and rows ranked one by one
            log_prob = world.log_prob(sample.masks).clamp(min=-20) + noise * torch.randn(3000, 2)
            deficit = support_deficit(log_prob, sample.y, sample.prior)
            assert deficit.low <= world.support_deficit() <= deficit.high
            assert deficit.low <= deficit.estimate <= deficit.high
            assert deficit.estimate == pytest.approx(world.support_deficit(), abs=0.04)


@pytest.mark.parametrize(
    "world", [Logistic(n_classes=2, strength=3.0), Gaussian(strength=1.0)], ids=["logistic", "gaussian"]
)
def test_smooth_dependence_has_its_pointwise_deficit_covered(world):
    probe = world.sample(100_000, 99)
    truth = float(world.prior @ (world.log_prob(probe.masks) <= (world.prior / 10).log()).double().mean(0))
    estimates = []
    for seed in range(20):
        sample = world.sample(3000, seed)
        deficit = support_deficit(world.log_prob(sample.masks), sample.y, world.prior)
        assert deficit.low <= truth <= deficit.high
        estimates.append(deficit.estimate)
    error = np.std(estimates) / math.sqrt(20)
    assert abs(np.mean(estimates) - truth) < 4 * error + 0.01  # the isotonic cut leans outwards, less and less with n


def test_the_deficit_counts_cells_whose_weight_would_exceed_tau():
    joint = torch.tensor([[0.24, 0.25, 0.01], [0.01, 0.25, 0.24]])
    world = Tabular(matrix=joint, prior=[0.5, 0.5], type_prior=[0.25, 0.5, 0.25])
    weights = weights_of(world, 20_000, 0)  # w = 12.5 in two cells of Q-mass 1/8 each
    assert weights.support_deficit == pytest.approx(0.25, abs=0.03)
    low, high = weights.support_deficit_interval
    assert low <= 0.25 <= high
    assert weights_of(world, 20_000, 0, tau=20.0).support_deficit < 0.03


def test_no_leak_has_no_deficit():
    world = Null()
    sample = world.sample(3000, 0)
    noisy = (world.log_prob(sample.masks) + torch.randn(3000, 2)).log_softmax(-1)
    deficit = support_deficit(noisy, sample.y, sample.prior)
    assert deficit.low == pytest.approx(0, abs=1e-3)
    assert deficit.high < 0.05
    assert "Support is good" in Weights.from_log(torch.zeros(3000), sample.y, log_prob=noisy).words


@pytest.mark.parametrize("stretch", [0.5, 1.25])
def test_the_deficit_needs_the_ranking_alone(stretch):
    world = Tabular(n_classes=2, strength=2.5, seed=3)
    sample = world.sample(4000, 0)
    noisy = world.log_prob(sample.masks) + 0.1 * torch.randn(4000, 2)
    logit = noisy[:, 1] - noisy[:, 0]
    both = [torch.nn.functional.logsigmoid(torch.stack([-logit, logit], -1) * s) for s in (1.0, stretch)]
    first, second = (support_deficit(lp, sample.y, sample.prior) for lp in both)
    for name in ("estimate", "low", "high"):
        assert abs(getattr(first, name) - getattr(second, name)) < 0.02
    assert first.estimate > 0.02


def test_ties_are_never_split():
    n = 1000  # every row has the same score: the first rows in order must not count as the lowest-ranked
    y = (torch.arange(n) >= 500).long()
    deficit = support_deficit(torch.full((n, 2), math.log(0.5)), y, torch.tensor([0.5, 0.5]))
    assert (deficit.estimate, deficit.low) == (0, 0)
    assert deficit.high < 0.01
    order = torch.randperm(n)
    score = torch.linspace(-3, -0.1, 5).repeat_interleave(200)
    log_prob = torch.stack([score, torch.log1p(-score.exp())], -1)
    again = support_deficit(log_prob[order], y[order], torch.tensor([0.5, 0.5]))
    assert support_deficit(log_prob, y, torch.tensor([0.5, 0.5])) == again


def by_clopper_pearson(score, hit, bound, alpha):
    """(estimate, low, high) by isotonic regression, and by inverting the beta law at every cut."""
    n, order = len(score), np.argsort(score)
    limits = partial(clopper_pearson, alpha=alpha / 4)
    isotonic = IsotonicRegression().fit_transform(np.arange(n), hit[order].astype(float))
    cut = int((isotonic <= bound).sum())
    x = np.append(0, np.cumsum(hit[order]))
    last = max(t for t in range(n + 1) if t == 0 or limits(x[t], t)[0] <= bound)
    low, lengths = 0, block_lengths(n, bound, alpha / 4)
    for s in range(n):  # upwards until the first rank that no block below the bound starts at
        ends = [int(s + length) for length in lengths if s + length <= n]
        if not any(clopper_pearson(x[t] - x[s], t - s, alpha / 4 / len(lengths))[1] <= bound for t in ends):
            break
        low = s + 1
    return cut / n, limits(low, n)[0], limits(last, n)[1]


def block_lengths(n, bound, alpha):
    """From the shortest that passes without a hit at alpha over the number of lengths, each half as long again."""
    for count in range(1, 100):
        first = math.log(count / alpha) / -math.log(1 - bound)
        lengths = [math.ceil(first * 1.5**j) for j in range(count)]
        if lengths[-1] * 1.5 > n:
            return [length for length in lengths if length <= n]
    raise AssertionError


def clopper_pearson(x, n, alpha):
    return beta.ppf(alpha, x, n - x + 1) if x else 0.0, beta.ppf(1 - alpha, x + 1, n - x) if x < n else 1.0


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_interval_is_clopper_and_pearsons(n_classes):
    rng = np.random.default_rng(n_classes)
    logits = rng.normal(size=(400, n_classes)) * 3
    log_prob = torch.from_numpy(logits).log_softmax(-1)
    y = torch.distributions.Categorical(logits=log_prob).sample()
    prior = torch.bincount(y, minlength=n_classes).double() / len(y)
    parts = [
        by_clopper_pearson(log_prob[:, k].numpy(), (y == k).numpy(), float(p) / 10, 0.05 / n_classes)
        for k, p in enumerate(prior)
    ]
    expected = (prior.numpy()[:, None] * np.array(parts)).sum(0)
    got = support_deficit(log_prob, y, prior, recalibrate=False)
    np.testing.assert_allclose([got.estimate, got.low, got.high], expected, atol=1e-12)


@pytest.mark.parametrize("factor", [0.5, 0.9, 1.25, 3.0])
@pytest.mark.parametrize("n_classes", [2, 3, 6])
def test_a_factor_on_the_logits_changes_nothing(n_classes, factor):
    rng = np.random.default_rng(n_classes)
    logits = torch.from_numpy(rng.normal(size=(600, n_classes)) * 2)
    log_prob = logits.log_softmax(-1)
    y = torch.distributions.Categorical(logits=log_prob).sample()
    prior = torch.bincount(y, minlength=n_classes).double() / len(y)
    one, other = (support_deficit(p, y, prior) for p in (log_prob, (factor * log_prob).log_softmax(-1)))
    np.testing.assert_allclose(
        [one.estimate, one.low, one.high], [other.estimate, other.low, other.high], atol=3e-3
    )  # a tie of rounding may split
    if n_classes > 2 and factor in (0.5, 3.0):
        raw = support_deficit((factor * log_prob).log_softmax(-1), y, prior, recalibrate=False)
        assert raw.estimate != pytest.approx(one.estimate, abs=1e-4)


def test_recalibration_finds_the_factor_and_leaves_its_input_alone():
    rng = np.random.default_rng(0)
    log_prob = torch.from_numpy(rng.normal(size=(20_000, 4)) * 1.5).log_softmax(-1)
    y = torch.distributions.Categorical(logits=log_prob).sample()
    stretched = (2.5 * log_prob).log_softmax(-1)
    before = stretched.clone()
    torch.testing.assert_close(recalibrated(stretched, y), log_prob, atol=0.25, rtol=0.03)
    assert torch.equal(stretched, before)
    noise = torch.from_numpy(rng.normal(size=(500, 3))).log_softmax(-1)
    labels = noise.argmin(-1)  # the logits say the opposite: their order is kept
    assert torch.equal(recalibrated(noise, labels), noise)
    certain = torch.eye(3).double().log()[torch.arange(90) % 3]
    assert torch.isfinite(recalibrated(certain, torch.arange(90) % 3)).all()


@pytest.mark.parametrize("factor", [1.0, 1.1, 1.3])
def test_probabilities_just_above_the_bound_are_not_taken_for_missing_support(factor):
    """On half the masks P(1|m) is `factor` times the bound. Blocks chosen to look low erred in 14 to 26% of samples."""
    errors = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        p = np.where(rng.random(2000) < 0.5, 0.05 * factor, 1 - 0.05 * factor) + 1e-4 * rng.normal(size=2000)
        y = torch.from_numpy((rng.random(2000) < p).astype(np.int64))
        log_prob = torch.from_numpy(np.stack([1 - p, p], 1)).log()
        low = support_deficit(log_prob, y, torch.tensor([0.5, 0.5])).low
        errors += low > (0.25 if factor == 1 else 0.0)
    assert errors <= 2.5 + 3 * math.sqrt(100 * 0.025 * 0.975)


def test_long_samples_are_cut_at_fewer_places():
    world = DeterministicLeak(share=0.5)
    sample = world.sample(30_000, 0)
    log_prob = world.log_prob(sample.masks).clamp(min=-20) + 0.1 * torch.randn(30_000, 2)
    deficit = support_deficit(log_prob, sample.y, sample.prior)
    assert deficit.estimate == pytest.approx(0.25, abs=0.04)
    assert deficit.low <= 0.25 <= deficit.high


# ------------------------------------------------------------------------------------------------ made elsewhere


def test_two_classes_give_the_deficit_from_the_weights_alone():
    world = Tabular(n_classes=2, strength=2.5, seed=3)
    full = weights_of(world, 3000, 0)
    bare = Weights.from_log(full.log_w, full.y, prior=world.prior)
    assert bare.support_deficit == pytest.approx(full.support_deficit)
    assert bare.support_deficit_interval == pytest.approx(full.support_deficit_interval)


def test_three_classes_without_probabilities_have_an_unknown_deficit():
    weights = Weights.from_log(torch.zeros(6), [0, 1, 2] * 2)
    assert math.isnan(weights.support_deficit)
    assert all(math.isnan(v) for v in weights.support_deficit_interval)
    assert "log_prob" in weights.words


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"log_w": [0.0, math.inf, 0.0, 0.0]}, "log_w: expected finite numbers, row 1 is inf"),
        ({"log_w": [[0.0] * 4]}, r"log_w: expected shape \(n,\)"),
        ({"log_w": []}, r"log_w: expected shape \(n,\)"),
        ({"y": [0, 1]}, r"y: expected shape \(4,\)"),
        ({"log_prob": torch.zeros(4)}, r"log_prob: expected shape \(4, K\)"),
        ({"log_prob": torch.zeros(3, 2)}, r"log_prob: expected shape \(4, K\)"),
        ({"log_prob": torch.full((4, 2), math.nan)}, "log_prob: .*row 0 sums to nan"),
        ({"draws": torch.zeros(4)}, r"draws: expected shape \(S, 4\)"),
        ({"draws": torch.tensor([[0.0, 0.0, math.nan, 0.0]])}, "draws: .*row 2"),
        ({"prior": [0.5, 0.4]}, "prior: expected 2 positive numbers that sum to 1"),
        ({"tau": 1.0}, "tau: expected a weight above 1"),
    ],
)
def test_bad_weights_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        Weights.from_log(**{"log_w": torch.zeros(4), "y": [0, 1, 0, 1], **change})


def test_truncation_and_smoothing_return_new_objects_that_remember():
    log_w = torch.from_numpy(np.random.default_rng(0).normal(size=400))
    weights = Weights.from_log(log_w, [0, 1] * 200)
    cut = weights.truncated(at=2.0)
    assert torch.equal(weights.log_w, log_w)
    torch.testing.assert_close(cut.log_w.exp(), log_w.exp().clamp(max=2.0))
    over = int((log_w.exp() > 2).sum())
    assert cut.record == (f"truncated at 2 ({over} rows)",)
    assert cut.support_deficit == pytest.approx(weights.support_deficit)
    assert "truncated at 2" in cut.words
    smooth = weights.smoothed()
    assert smooth.mean == pytest.approx(weights.mean)
    assert smooth.truncated(at=1.0).record == (
        "Pareto-smoothed",
        f"truncated at 1 ({int((smooth.log_w > 0).sum())} rows)",
    )
    top, rest = log_w.argsort(descending=True)[:60], log_w.argsort()[:340]
    assert not torch.allclose(smooth.log_w[top], log_w[top])
    ratio = smooth.log_w[rest] - log_w[rest]
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio))


@pytest.mark.parametrize("at", [0.0, -1.0, math.nan, 1.5])
def test_truncation_without_effect_or_meaning_is_refused(at):
    with pytest.raises(InputError, match="at: "):
        Weights.from_log(torch.zeros(4), [0, 1] * 2).truncated(at=at)


# ------------------------------------------------------------------------------------------------ draws


def lazy_weights(n=23, n_draws=7):
    """Weights whose draws come from a source that counts its calls."""
    log_prob = torch.randn(n_draws, n, 3).log_softmax(-1)
    calls = []

    def source(rows):
        calls.append(rows)
        return log_prob[:, rows]

    y, prior = torch.arange(n) % 3, torch.tensor([0.2, 0.3, 0.5])
    mean = log_prob.logsumexp(0) - math.log(n_draws)
    log_w = prior.log()[y] - mean[torch.arange(n), y]
    weights = Weights(log_w, y, prior, mean, torch.arange(n) % 2, draw_source=source, n_draws=n_draws)
    return weights, log_prob, calls


def test_draws_are_made_on_access_and_in_blocks():
    weights, log_prob, calls = lazy_weights()
    assert weights.mean > 0
    assert weights.words
    assert calls == []
    own = log_prob[:, torch.arange(23), weights.y]
    expected = (weights.prior.log()[weights.y] - own).float()
    assert torch.equal(weights.draws, expected)
    assert weights.draws.dtype == torch.float32
    blocks = list(weights.iter_draws(chunk=5))
    assert [rows.stop - rows.start for rows, _ in blocks] == [5, 5, 5, 5, 3]
    assert torch.equal(torch.cat([part for _, part in blocks], -1), expected)
    with pytest.raises(InputError, match="chunk"):
        next(weights.iter_draws(0))


def test_too_many_draws_are_not_kept(monkeypatch):
    weights, _, _ = lazy_weights()
    monkeypatch.setattr("causal_attn.weights.core.MAX_DRAW_ENTRIES", 100)
    with pytest.raises(NotEstimableError, match="iter_draws"):
        _ = weights.draws
    assert sum(part.shape[1] for _, part in weights.iter_draws(5)) == 23


def test_weights_without_draws_say_so():
    weights = Weights.from_log(torch.zeros(4), [0, 1] * 2)
    with pytest.raises(NotEstimableError, match="no posterior draws"):
        _ = weights.draws


def test_to_arviz_has_the_groups_and_dims_of_the_interface():
    weights, log_prob, _ = lazy_weights()
    data = weights.to_arviz()
    posterior = data.posterior
    assert set(data.groups()) == {"posterior", "constant_data"}
    scalars = ("mean_weight", "ess", "largest_share", "support_deficit")
    assert {name: posterior[name].dims for name in posterior} == {
        **dict.fromkeys(scalars, ("chain", "draw")),
        "ess_per_class": ("chain", "draw", "label"),
        "log_w": ("chain", "draw", "obs_id"),
    }
    assert {name: data.constant_data[name].dims for name in data.constant_data} == {
        "y": ("obs_id",),
        "fold": ("obs_id",),
    }
    log_w = weights.prior.log()[weights.y] - log_prob[:, torch.arange(23), weights.y]
    np.testing.assert_allclose(posterior.mean_weight[0], log_w.exp().mean(1), rtol=1e-5)
    np.testing.assert_allclose(posterior.log_w[0], log_w, rtol=1e-4, atol=1e-6)
    for name, index in (("ess", slice(None)), ("ess_per_class", weights.y == 1)):
        w = log_w.exp()[:, index]
        got = posterior[name][0] if name == "ess" else posterior[name][0, :, 1]
        np.testing.assert_allclose(got, w.sum(1) ** 2 / (w**2).sum(1), rtol=1e-4)
    deficits = [support_deficit(lp, weights.y, weights.prior, recalibrate=False).estimate for lp in log_prob]
    np.testing.assert_allclose(posterior.support_deficit[0], deficits)
    assert len(az.summary(data, var_names=["ess", "mean_weight"])) == 2


@pytest.mark.parametrize("obs", [[3, 0], np.arange(23) == 4])
def test_to_arviz_takes_the_rows_asked_for(obs):
    weights, _, _ = lazy_weights()
    data = weights.to_arviz(obs=obs)
    rows = np.arange(23)[np.asarray(obs)]
    assert data.posterior.obs_id.to_numpy().tolist() == rows.tolist()
    np.testing.assert_array_equal(data.posterior.log_w[0], weights.draws[:, rows])
    np.testing.assert_array_equal(data.constant_data.y, weights.y[rows])
    np.testing.assert_allclose(data.posterior.ess[0], effective_sample_size(weights.draws.double()), rtol=1e-6)


def test_given_draws_of_two_classes_have_a_deficit_each():
    world = DeterministicLeak(share=0.5)
    full = weights_of(world, 400, 0)
    bare = Weights.from_log(full.log_w, full.y, draws=full.log_w.expand(3, -1), prior=world.prior)
    np.testing.assert_allclose(bare.to_arviz().posterior.support_deficit[0], bare.support_deficit, atol=1e-6)


# ------------------------------------------------------------------------------------------------ for people


def test_the_summary_has_a_row_per_class_and_one_for_all():
    weights, _, _ = lazy_weights()
    table = weights.summary()
    assert list(table.index) == ["class 0", "class 1", "class 2", "all"]
    assert table.loc["all", "rows"] == 23
    np.testing.assert_allclose(table["ess"], [*weights.ess_per_class, weights.ess])
    np.testing.assert_allclose(table.loc["all", ["support_deficit", "khat"]].astype(float), [
        weights.support_deficit, weights.khat,
    ])  # fmt: skip
    assert table.attrs["words"] == weights.words
    np.testing.assert_allclose(table["ess_share"], table["ess"] / table["rows"])


def test_a_class_without_rows_keeps_its_place_in_the_summary():
    weights = Weights.from_log(torch.zeros(4), [0, 2, 0, 2], log_prob=torch.full((4, 3), math.log(1 / 3)))
    table = weights.summary()
    assert table.loc["class 1", "rows"] == 0
    assert weights.ess_per_class.tolist() == pytest.approx([2, 0, 2])


def test_words_do_not_call_a_small_sample_good():
    words = weights_of(Tabular(n_classes=2, strength=2.5, seed=3), 40, 0).words
    assert "uncertain" in words


def test_words_tell_a_leak_that_weights_cannot_repair():
    words = weights_of(DeterministicLeak(), 1000, 0).words
    assert "cannot repair" in words
    assert "above 0.95 on 100% of rows" in words
    assert "a part only" in weights_of(DeterministicLeak(share=0.8), 2000, 0).words


def test_entropy_and_posterior_spread_by_hand():
    weights = Weights.from_log(np.log([1.0, 1.0, 2.0]), [0, 1, 1], draws=[[0.0, 1.0, 2.0], [0.0, 3.0, 2.0]])
    assert weights.entropy == pytest.approx(-(0.5 * math.log(0.25) + 0.5 * math.log(0.5)))
    assert weights.log_w_sd.tolist() == [0.0, 1.0, 0.0]
    assert weights.summary().loc["class 1", "log_w_sd_nats"] == pytest.approx(0.5)
    assert Weights.from_log([0.0] * 8, [0, 1] * 4).entropy == pytest.approx(math.log(8))


def test_a_summary_prints_its_words_and_fits_a_terminal():
    summary = weights_of(Gaussian(n_classes=3), 500, 0).summary()
    lines = str(summary).splitlines()
    assert max(map(len, lines[: lines.index("")])) <= 88
    assert summary.attrs["words"] == lines[-1]
    assert summary.attrs["words"] in summary._repr_html_()
    assert summary.index.tolist() == ["class 0", "class 1", "class 2", "all"]


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("lazy", [False, True])
def test_weights_come_back_from_disk_as_they_were(tmp_path, suffix, lazy):
    weights = lazy_weights()[0] if lazy else weights_of(Gaussian(n_classes=3), 60, 1).truncated(at=1.2)
    path = tmp_path / f"w{suffix}"
    weights.save(path)
    again = Weights.load(path)
    pd.testing.assert_frame_equal(again.summary(), weights.summary())
    assert again.words == weights.words
    assert again.record == weights.record
    if lazy:
        assert torch.equal(again.draws, weights.draws)
        assert torch.equal(again.fold, weights.fold)
        torch.testing.assert_close(again.deficit_draws(), weights.deficit_draws())
        weights.save(path, draws=False)
        assert Weights.load(path).n_draws == 0


def test_files_that_hold_no_weights_are_refused(tmp_path, monkeypatch):
    sample = Gaussian().sample(20, 0)
    sample.save(tmp_path / "m.npz")
    with pytest.raises(InputError, match="holds no weights"):
        Weights.load(tmp_path / "m.npz")
    weights = lazy_weights()[0]
    monkeypatch.setattr("causal_attn.weights.store.MAX_DRAW_ENTRIES", 10)
    with pytest.raises(InputError, match="draws: expected at most"):
        weights.save(tmp_path / "w.npz")
    assert not (tmp_path / "w.npz").exists()


def test_wrong_rows_chunks_and_weights_beyond_numbers_are_named():
    weights = lazy_weights()[0]
    for obs, message in (([99], "obs: expected row numbers below 23"), ("a", "obs: expected an array")):
        with pytest.raises(InputError, match=message):
            weights.to_arviz(obs=obs)
    with pytest.raises(InputError, match="chunk: expected an integer"):
        next(weights.iter_draws(2.5))
    with pytest.raises(InputError, match=r"log_w: expected logs from -700 to 700, .* row 1 is 800"):
        Weights.from_log([0.0, 800.0], [0, 1])


def test_words_call_classes_by_name_and_do_not_judge_support_by_three_rows():
    y = torch.tensor([0] * 100 + [1] * 3)
    log_prob = torch.tensor([[0.97, 0.03]]).log().repeat(103, 1)
    weights = Weights.from_log((torch.tensor([100.0, 3.0]) / 103).log()[y] - log_prob[0][y], y, log_prob=log_prob)
    words = weights.summary(["ham", "spam"]).attrs["words"]
    assert "Too few rows to judge support: spam has 3." in words
    assert weights.summary(["ham", "spam"]).index.tolist() == ["ham", "spam", "all"]
    with pytest.raises(InputError, match="class_names: expected 2, got 1"):
        weights.summary(["ham"])
    assert "too few" not in weights_of(Gaussian(n_classes=3), 500, 0).words.lower()


def given_away(share=0.04, n=3000, seed=0):
    """Two classes that the mask does not tell apart, and a rare one that it gives away: (weights, y)."""
    rng = np.random.default_rng(seed)
    y = rng.choice(3, n, p=[(1 - share) / 2, (1 - share) / 2, share])
    log_prob = np.full((n, 3), -12.0)
    log_prob[y < 2, :2] = np.log(0.5)
    log_prob[y == 2, 2] = 0.0
    log_prob = torch.from_numpy(log_prob).log_softmax(-1)
    shares = torch.bincount(torch.from_numpy(y)).double() / n
    log_w = shares.log()[y] - log_prob[torch.arange(n), y]
    return Weights.from_log(log_w, y, log_prob=log_prob), y


def test_a_rare_class_that_is_given_away_is_named_though_it_is_little_of_q():
    weights, _ = given_away()
    assert weights.support_deficit < 0.1  # about 2π(1 − π): small for any rare class
    estimate, low, high = weights.deficit.per_class[2]
    assert estimate == pytest.approx(0.96, abs=0.02)
    assert low > 0.25
    assert estimate <= high
    words = weights.summary(["a", "b", "rare"]).attrs["words"]
    assert "rare 96%" in words
    assert "cannot repair" in words
    assert "Support is good" not in words
    assert float(weights.class_shares[2]) < 0.01
    assert "classes do not have the shares that Q has: rare 0." in words


def test_with_few_rows_of_such_a_class_support_is_uncertain_not_good():
    weights, _ = given_away(share=0.015, n=2100)
    words = weights.words
    assert "Support is good" not in words
    assert any(said in words for said in ("uncertain", "gives away", "Too few rows"))


def test_a_target_that_asks_for_other_classes_is_no_lack_of_support():
    world = Null(n_classes=3, n_positions=4, prior=[0.48, 0.48, 0.04])
    sample = world.sample(3000, 0)
    log_prob, q = world.log_prob(sample.masks), torch.tensor([0.1, 0.1, 0.8])
    log_w = q.log()[sample.y] - log_prob[torch.arange(3000), sample.y]
    weights = Weights.from_log(log_w, sample.y, log_prob=log_prob, prior=q)
    assert float(weights.log_w.exp().max()) == pytest.approx(20)
    assert weights.support_deficit == 0
    assert weights.support_deficit_interval[0] == 0
    assert "cannot repair" not in weights.words
    torch.testing.assert_close(weights.class_shares, q, atol=0.05, rtol=0)


def test_deficit_of_a_target_weighs_the_classes_by_it():
    weights, y = given_away()
    q = torch.tensor([0.2, 0.2, 0.6])
    other = Weights.from_log(
        weights.log_w + (q / weights.prior).log()[torch.from_numpy(y)], y, log_prob=weights.log_prob, prior=q
    )
    per_class = torch.tensor([one[0] for one in weights.deficit.per_class])
    assert other.deficit.per_class == weights.deficit.per_class
    assert other.support_deficit == pytest.approx(float(q @ per_class))
