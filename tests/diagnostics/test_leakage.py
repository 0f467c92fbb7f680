import math

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from causal_attn.data.worlds import DeterministicLeak, Gaussian, Null, Tabular
from causal_attn.diagnostics.leakage import (
    _fast_auc,
    leakage_test,
    macro_auc,
)
from causal_attn.diagnostics.many_fits import BoundSolver, held_out_losses, with_ones
from causal_attn.diagnostics.permuting import conditional_permutations, permutations
from causal_attn.errors import InputError
from causal_attn.masks import MaskSample
from causal_attn.selection.crossfit import assign_folds
from causal_attn.selection.newton import find_mode
from causal_attn.selection.response import linear_log_prob, with_intercept

ONES = torch.ones(200, 1, dtype=torch.float64)


def null_p_values(replicates, n=40, permutations=39, world=None):
    world = world or Null(n_positions=4)
    return np.array([leakage_test(world.sample(n, seed), permutations, seed=seed).p_value for seed in replicates])


def test_a_few_null_p_values_are_not_small():
    p = null_p_values(range(15))
    assert (p <= 0.1).sum() <= 6  # Binomial(15, 0.1) exceeds 6 once in 3,000
    assert p.max() > 0.5
    assert ((p * 40) % 1 < 1e-9).all()


@pytest.mark.slow
@pytest.mark.parametrize("world", [Null(n_positions=4), Null(n_classes=3, kind="subset", prior=[0.2, 0.3, 0.5])])
def test_the_type_one_error_is_the_level(world):
    p = null_p_values(range(200), n=60, permutations=99, world=world)
    assert 0.01 <= (p <= 0.05).mean() <= 0.10
    assert 0.05 <= (p <= 0.10).mean() <= 0.16


def test_a_strong_leak_has_the_smallest_p_value_there_is():
    sample = DeterministicLeak().sample(120, 0)
    test = leakage_test(sample, 49)
    assert test.p_value == pytest.approx(1 / 50)
    assert test.auc == 1.0
    assert test.bits == pytest.approx(1.0, abs=0.2)
    assert test.bits_interval[0] <= test.bits <= test.bits_interval[1]
    shuffled = leakage_test(sample.rows(torch.randperm(120)), 49, seed=1)
    assert shuffled.p_value == test.p_value
    assert shuffled.bits == pytest.approx(test.bits, abs=0.1)


@pytest.mark.parametrize("k", [2, 3])
def test_bits_are_the_mutual_information(k):
    world, n = Tabular(n_classes=k, n_types=5, kind="one-hot", seed=2), 6000
    sample = world.sample(n, 0)
    test = leakage_test(sample, 0)
    log_w = world.log_w(sample)
    information = -float((world.joint * -world.ratio.log()).sum()) / math.log(2)  # identity 5
    error = float(log_w.std()) / math.sqrt(n) / math.log(2)
    parameters = 4 * (k - 1) / (2 * 0.8 * n * math.log(2))
    assert abs(test.bits + parameters - information) < 4 * error
    assert math.isnan(test.p_value)
    low, high = test.bits_interval
    assert low < information < high
    assert (high - low) / (2 * 1.96) == pytest.approx(error, rel=0.3)


@pytest.mark.parametrize("k", [2, 3])
def test_auc_is_scikit_learns(k):
    log_prob = torch.randn(80, k).log_softmax(-1)
    y = torch.arange(80) % k
    scores = log_prob.exp().numpy()
    expected = roc_auc_score(y, scores[:, 1] if k == 2 else scores, multi_class="ovr", average="macro")
    assert macro_auc(log_prob, y) == pytest.approx(expected)
    assert _fast_auc(log_prob, y) == pytest.approx(expected)
    tied = (log_prob * 2).round() / 2
    assert _fast_auc(tied, y) == pytest.approx(macro_auc(tied, y))


def test_bits_are_those_of_the_held_out_probabilities():
    sample = Gaussian(n_classes=3).sample(150, 0)
    test = leakage_test(sample, 0)
    torch.testing.assert_close(test.log_prob.logsumexp(-1), torch.zeros(150))
    own = test.log_prob[torch.arange(150), sample.y].mean()
    entropy = -(sample.prior * sample.prior.log()).sum()
    assert test.bits == pytest.approx(float(entropy + own) / math.log(2))
    assert test.auc == pytest.approx(macro_auc(test.log_prob, sample.y))


def test_every_permutation_is_refitted_from_scratch():
    sample = Gaussian(strength=1.0).sample(90, 0)
    fold = assign_folds(sample, 5, 0)
    labels = permutations(sample.y, fold, 3, np.random.default_rng(0))
    loss, log_prob = held_out_losses(sample.masks, labels, fold, 2, False)
    for row in range(4):
        alone, its_own = held_out_losses(sample.masks, labels[row : row + 1], fold, 2, False)
        assert float(alone) == pytest.approx(float(loss[row]), abs=1e-6)
        by_hand = -its_own[torch.arange(90), labels[row]].mean()
        assert float(by_hand) == pytest.approx(float(alone))
    torch.testing.assert_close(log_prob, held_out_losses(sample.masks, labels[:1], fold, 2, False)[1])


def test_blocks_of_permutations_change_nothing(monkeypatch):
    sample = Gaussian().sample(60, 0)
    whole = leakage_test(sample, 19)
    monkeypatch.setattr("causal_attn.diagnostics.many_fits.CHUNK_ENTRIES", 500)
    parts = leakage_test(sample, 19)
    assert parts.p_value == whole.p_value
    torch.testing.assert_close(parts.log_prob, whole.log_prob)


def test_labels_move_within_their_fold():
    y, fold = np.arange(50) % 3, np.arange(50) % 5
    labels = permutations(torch.from_numpy(y), torch.from_numpy(fold), 20, np.random.default_rng(0)).numpy()
    assert (labels[0] == y).all()
    assert all((labels[i] != y).any() for i in range(1, 21))
    for number in range(5):
        assert (np.sort(labels[:, fold == number], axis=1) == np.sort(y[fold == number])).all()


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("lam", [0.5, 20.0])
def test_the_bound_solver_reaches_newtons_fit(monkeypatch, k, lam):
    world = Gaussian(n_classes=k, n_positions=4, strength=0.6, seed=5)
    sample = world.sample(250, 0)
    phi = world.features(sample.masks)
    monkeypatch.setattr(BoundSolver, "_evidence_precision", lambda self, g, w, bend: torch.full((len(g), 1, 1), lam))
    got = BoundSolver.on(phi[:200], k, ONES[:200]).fit_predict(sample.y[None, :200], phi[200:], ONES[:50])[0]
    uniform = torch.full((k,), 1 / k).log()
    mode = find_mode(with_intercept(phi[:200]), sample.y[:200], uniform, prior_precision=lam)
    torch.testing.assert_close(got.exp(), linear_log_prob(mode.theta, phi[200:], uniform).exp(), atol=1e-3, rtol=0)


def test_the_solvers_precision_maximises_the_evidence_about_its_weights():
    phi = torch.randn(60, 3)
    solver = BoundSolver.on(phi, 3, ONES[:60])
    gradient, w, bend = torch.randn(4, 3, 2) * 20, torch.randn(4, 3, 2), torch.tensor([0.1, 0.2, 0.3, 0.33])
    got = solver._evidence_precision(gradient, w, bend).reshape(-1).log()
    grid = torch.linspace(-2, 14, 1601)
    curvature = bend[:, None, None, None] * solver.values[:, None, None]  # (R, d, 1, 1)
    linear = gradient[..., None] + curvature * w[..., None]
    terms = 0.5 * (grid - (curvature + grid.exp()).log() + linear.square() / (curvature + grid.exp()))
    best = grid[terms.sum((1, 2)).argmax(-1)]
    assert (got - best).abs().max() <= 0.11


def test_many_classes_and_positions_do_not_hide_the_leak():
    """With 12 classes the bound on the curvature is six times too large; by its evidence this leak had 0.001 bits."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 12, 1200)
    alpha = np.full((1200, 150), 0.3)
    alpha[np.arange(1200), y * 5] += 1.5
    sample = MaskSample(np.stack([rng.dirichlet(a) for a in alpha]), y)
    assert leakage_test(sample, 0).bits > 0.5


def test_the_same_seed_gives_the_same_test():
    sample = Gaussian().sample(60, 0)
    one, two = leakage_test(sample, 19, seed=3), leakage_test(sample, 19, seed=3)
    assert (one.p_value, one.bits, one.auc_interval) == (two.p_value, two.bits, two.auc_interval)
    assert "LeakageTest(bits=" in repr(one)


@pytest.mark.parametrize("n_permutations", [-1, 2.5, True])
def test_bad_numbers_of_permutations_are_refused(n_permutations):
    with pytest.raises(InputError, match="n_permutations"):
        leakage_test(Null().sample(30, 0), n_permutations)


def test_a_single_class_cannot_be_tested():
    sample = Null().sample(30, 0)
    with pytest.raises(InputError, match="y: expected at least two classes"):
        leakage_test(sample.rows(sample.y == 0))


@pytest.mark.parametrize("width", [1, 4])
def test_masks_that_never_vary_tell_nothing(width):
    sample = MaskSample(torch.full((50, width), 1 / width), torch.arange(50) % 2)
    test = leakage_test(sample, 19)
    assert abs(test.bits) < 1e-6
    assert test.auc == pytest.approx(0.5, abs=1e-9)
    assert test.p_value == 1


def test_one_class_that_leaks_is_seen_behind_the_mean():
    rng = np.random.default_rng(0)
    y = rng.choice(3, 1500, p=[0.48, 0.48, 0.04])
    logits = rng.normal(size=(1500, 5))
    logits[y == 2, 0] += 6
    e = np.exp(logits)
    test = leakage_test(MaskSample(e / e.sum(1, keepdims=True), y), 20)
    assert len(test.auc_per_class) == 3
    assert test.auc_per_class[2] > 0.98
    assert test.auc_per_class[0] < 0.65
    assert test.auc == pytest.approx(np.mean(test.auc_per_class))


@pytest.mark.parametrize("rare", [3, 10])
def test_intervals_are_wide_where_a_class_has_few_rows(rare):
    """Null world: resampling three rows gave an interval of the AUC that left out 1/2 in 24 of 40 samples."""
    missed = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        y = np.arange(600) % 2
        y[:rare] = 2
        low, high = leakage_test(MaskSample(rng.dirichlet(np.ones(4), 600), y), 0, seed=seed).auc_interval
        missed += not low <= 0.5 <= high
        assert 0 <= low <= high <= 1
    assert missed <= 4  # at most a tenth, and what 20 samples can tell of it


# ------------------------------------------------------------------------------------------------ given other features


def content_world(n, seed, beyond):
    """φ tells the class, the mask follows φ (a leak without a code), and with `beyond` above 0 y as well."""
    rng = np.random.default_rng(seed)
    phi = rng.normal(size=n)
    y = (rng.random(n) < 1 / (1 + np.exp(-2 * phi))).astype(int)
    logits = rng.normal(size=(n, 4)) * 0.5
    logits[:, 0] += phi + beyond * (2 * y - 1)
    masks = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return MaskSample(masks, y), phi


def test_a_mask_that_follows_its_content_leaks_nothing_beyond_it():
    sample, phi = content_world(800, 0, 0.0)
    assert leakage_test(sample, 39).p_value == pytest.approx(1 / 40)
    test = leakage_test(sample, 39, given=phi)
    assert test.p_value > 0.05
    assert test.bits == pytest.approx(0, abs=0.01)
    assert test.auc == pytest.approx(test.auc_given, abs=0.01)
    coded, phi = content_world(800, 0, 1.0)
    test = leakage_test(coded, 39, given=phi)
    assert test.p_value == pytest.approx(1 / 40)
    assert test.bits > 0.1
    assert test.auc > test.auc_given + 0.02
    assert f"given features alone {test.auc_given:.3f}" in repr(test)


def conditional_p_values(replicates, n, permutations):
    return np.array([
        leakage_test(*content_world(n, s, 0.0)[:1], permutations, seed=s, given=content_world(n, s, 0.0)[1]).p_value
        for s in replicates
    ])  # fmt: skip


def test_a_few_conditional_null_p_values_are_not_small():
    p = conditional_p_values(range(15), 80, 19)
    assert (p <= 0.1).sum() <= 6
    assert p.max() > 0.5


@pytest.mark.slow
def test_the_conditional_type_one_error_is_the_level():
    p = conditional_p_values(range(200), 150, 99)
    assert 0.01 <= (p <= 0.05).mean() <= 0.10
    assert (p <= 0.10).mean() <= 0.16


def test_conditional_permutations_have_their_law():
    """Three rows, one label 1: where it lies is P(i) ∝ odds_i, by enumeration."""
    rng = np.random.default_rng(0)
    given = torch.from_numpy(rng.normal(size=(60, 1)))
    y = torch.from_numpy((rng.random(60) < 1 / (1 + np.exp(-given[:, 0].numpy()))).astype(int))
    fold = torch.arange(60) // 3
    free = with_ones(given)
    empty = torch.empty(60, 0, dtype=torch.float64)
    log_r = BoundSolver.on(empty, 2, free).fit_predict(y[None], empty, free)[0]
    n = 4000
    labels = conditional_permutations(y, given, fold, 2, n, np.random.default_rng(1))
    assert torch.equal(labels[0], y)
    assert torch.equal(labels.reshape(n + 1, 20, 3).sum(-1), y.reshape(20, 3).sum(-1).expand(n + 1, 20))
    for number in range(20):
        rows = slice(3 * number, 3 * number + 3)
        if int(y[rows].sum()) != 1:
            continue
        odds = (log_r[rows, 1] - log_r[rows, 0]).softmax(0)
        share = labels[1:, rows].double().mean(0)
        assert ((share - odds).abs() < 4.5 * (odds * (1 - odds) / n).sqrt()).all()


def test_unpenalised_features_reach_newtons_fit():
    sample, phi = content_world(300, 1, 0.0)
    given = torch.from_numpy(phi)[:, None]
    empty = torch.empty(300, 0, dtype=torch.float64)
    got = BoundSolver.on(empty, 2, with_ones(given)).fit_predict(sample.y[None], empty, with_ones(given))[0]
    from sklearn.linear_model import LogisticRegression

    want = LogisticRegression(C=1e12, tol=1e-10, max_iter=1000).fit(phi[:, None], sample.y.numpy())
    np.testing.assert_allclose(got.exp().numpy(), want.predict_proba(phi[:, None]), atol=2e-3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.ones(5), r"given: expected features of shape \(30, p\)"),
        (np.full(30, np.nan), "given: expected finite .*row 0"),
    ],
)
def test_wrong_given_features_are_named(given, message):
    with pytest.raises(InputError, match=message):
        leakage_test(Null().sample(30, 0), 0, given=given)
