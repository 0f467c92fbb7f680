import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from causal_attn.selection import newton
from causal_attn.selection.curvature import Curvature, curvature, log_likelihood
from causal_attn.selection.evidence import LOG_PRECISION_RANGE, evidence_precision
from causal_attn.selection.newton import find_mode
from causal_attn.selection.prior import log_weight_prior, penalty, penalty_diagonal
from causal_attn.selection.response import linear_log_prob, with_intercept


@pytest.fixture
def one_scale(monkeypatch):
    """No class gets a scale of its own, which would come on top of the λ in question."""
    monkeypatch.setattr(newton, "wider_classes", lambda *_: None)


def problem(k, n=80, d=3, strength=1.0, seed=0):
    """x with its ones column, labels of a logistic law, and a log prior that is not uniform."""
    rng = np.random.default_rng(seed)
    phi = torch.from_numpy(rng.normal(size=(n, d)))
    prior = torch.arange(1, k + 1).double()
    log_prior = (prior / prior.sum()).log()
    logits = log_prior + strength * phi @ torch.from_numpy(rng.normal(size=(d, k)))
    y = (logits.softmax(-1).cumsum(-1) < torch.from_numpy(rng.random((n, 1)))).sum(-1)
    return with_intercept(phi), y, log_prior


def random_theta(x, k):
    return torch.from_numpy(np.random.default_rng(7).normal(size=(x.shape[1], k - 1)))


@pytest.mark.parametrize("k", [2, 3])
def test_value_gradient_and_curvature_agree_with_autograd(k):
    x, y, log_prior = problem(k)
    theta = random_theta(x, k)
    like = lambda flat: log_likelihood(flat.reshape(theta.shape), x, y, log_prior)  # noqa: E731
    local = curvature(theta, x, y, log_prior)
    by_hand = linear_log_prob(theta, x[:, :-1], log_prior).gather(1, y[:, None]).sum()
    assert local.value == pytest.approx(float(by_hand))
    assert float(like(theta.reshape(-1))) == pytest.approx(float(by_hand))
    flat = theta.reshape(-1)
    torch.testing.assert_close(local.gradient.reshape(-1), torch.autograd.functional.jacobian(like, flat))
    torch.testing.assert_close(local.precision, -torch.autograd.functional.hessian(like, flat))


def test_curvature_averages_over_draws():
    x, y, log_prior = problem(3)
    thetas = torch.stack([random_theta(x, 3), torch.zeros(4, 2)])
    together = curvature(thetas, x, y, log_prior)
    one, two = (curvature(t, x, y, log_prior) for t in thetas)
    assert together.value == pytest.approx((one.value + two.value) / 2)
    torch.testing.assert_close(together.gradient, (one.gradient + two.gradient) / 2)
    torch.testing.assert_close(together.precision, (one.precision + two.precision) / 2)


def test_the_penalty_leaves_the_intercept_free():
    theta = torch.ones(3, 2)
    assert penalty_diagonal(theta, 4.0).tolist() == [4, 4, 4, 4, 0, 0]
    assert float(log_weight_prior(theta, 4.0)) == -0.5 * 4 * 4


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("lam", [0.3, 5.0])
def test_the_mode_is_scikit_learns(k, lam):
    x, y, log_prior = problem(k, n=200)
    mode = find_mode(x, y, log_prior, prior_precision=lam)
    # K = 2: scikit-learn penalises the one logit, whose coefficient is √2 W; K > 2: the scores W H, as long as W.
    inverse = (2 if k == 2 else 1) / lam
    other = LogisticRegression(C=inverse, tol=1e-12, max_iter=10_000).fit(x[:, :-1].numpy(), y.numpy())
    mine = linear_log_prob(mode.theta, x[:, :-1], log_prior).exp()
    np.testing.assert_allclose(mine, other.predict_proba(x[:, :-1].numpy()), atol=1e-5)


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("lam", [None, 1.0])
def test_the_mode_meets_the_class_margin_and_has_no_gradient(k, lam):
    x, y, _ = problem(k, n=300)
    shares = torch.bincount(y).double() / len(y)
    mode = find_mode(x, y, shares.log(), lam)
    r = linear_log_prob(mode.theta, x[:, :-1], shares.log()).exp()
    assert (r.mean(0) - shares).abs().max() <= 1e-6
    local = curvature(mode.theta, x, y, shares.log())
    penalty = penalty_diagonal(mode.theta, mode.prior_precision)
    slope = local.gradient.reshape(-1) - penalty * mode.theta.reshape(-1)
    assert slope.abs().max() < 1e-3
    assert (mode.precision - local.precision - penalty.diag()).abs().max() < 1e-2


def log_evidence(local, theta, lam):
    """log ∫ exp(quadratic model) p(W) dθ by one Gaussian integral over everything, and log p(scale) = log scale."""
    n_weights = theta.numel() - theta.shape[1]
    linear = local.precision @ theta.reshape(-1) + local.gradient.reshape(-1)
    total = local.precision + penalty_diagonal(theta, lam).diag()
    evidence = n_weights * math.log(lam) - torch.logdet(total) + linear @ torch.linalg.solve(total, linear)
    return 0.5 * float(evidence) - 0.5 * math.log(lam)


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("strength", [0.3, 2.0])
def test_the_precision_maximises_the_evidence_of_the_quadratic(k, strength):
    x, y, log_prior = problem(k, n=150, strength=strength)
    theta = find_mode(x, y, log_prior, prior_precision=1.0).theta
    local = curvature(theta, x, y, log_prior)
    fine = np.linspace(*LOG_PRECISION_RANGE, 2001)
    best = fine[np.argmax([log_evidence(local, theta, math.exp(g)) for g in fine])]
    assert math.log(evidence_precision(local, theta)) == pytest.approx(best, abs=0.051)


def test_the_automatic_precision_is_its_own_optimum():
    x, y, log_prior = problem(3, n=300)
    mode = find_mode(x, y, log_prior)
    again = evidence_precision(curvature(mode.theta, x, y, log_prior), mode.theta)
    assert math.log(again / mode.prior_precision) == pytest.approx(0, abs=0.06)
    fixed = find_mode(x, y, log_prior, prior_precision=mode.prior_precision)
    torch.testing.assert_close(fixed.theta, mode.theta, atol=1e-4, rtol=1e-4)


def test_noise_alone_is_shrunk_but_not_to_certainty():
    """Closed form for d equal curvatures h and no signal: h / (h + λ) = 1 / √d on average, not λ = ∞."""
    ratios = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x = with_intercept(torch.from_numpy(rng.normal(size=(400, 25))))
        y = torch.from_numpy(rng.integers(0, 2, 400))
        mode = find_mode(x, y, torch.tensor([0.5, 0.5]).double().log())
        ratios.append(1 / (1 + mode.prior_precision / 200))  # h = n · 2 r₀ r₁
        assert mode.theta[:-1].abs().max() < 0.15
    assert max(ratios) < 0.7
    assert min(ratios) > 0.05
    assert np.median(ratios) == pytest.approx(0.2, abs=0.1)


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("lam", [None, 1e-2])
def test_perfect_separation_gives_finite_parameters(k, lam):
    y = torch.arange(60) % k
    phi = torch.nn.functional.one_hot(y, k).double() * 2 - 1
    mode = find_mode(with_intercept(phi), y, torch.full((k,), 1 / k).log(), lam)
    assert torch.isfinite(mode.theta).all()
    r = linear_log_prob(mode.theta, phi, torch.full((k,), 1 / k).log())
    assert (r.argmax(-1) == y).all()
    assert torch.linalg.eigvalsh(mode.precision).min() > 0


def test_a_warm_start_reaches_the_same_mode_in_fewer_steps():
    x, y, log_prior = problem(3, n=300, strength=2.0)
    cold = find_mode(x, y, log_prior)
    warm = find_mode(x, y, log_prior, start=cold)
    assert warm.n_steps < cold.n_steps
    torch.testing.assert_close(warm.theta, cold.theta, atol=1e-3, rtol=1e-3)
    assert warm.prior_precision == pytest.approx(cold.prior_precision, rel=0.05)


def test_a_far_start_is_brought_back():
    x, y, log_prior = problem(3, n=200)
    near = find_mode(x, y, log_prior, prior_precision=1.0)
    far = find_mode(
        x, y, log_prior, prior_precision=1.0, start=type(near)(50 * random_theta(x, 3), 1.0, near.precision, 0)
    )
    torch.testing.assert_close(far.theta, near.theta, atol=1e-5, rtol=1e-5)


def test_constant_features_are_harmless():
    x, y, log_prior = problem(2)
    x = torch.cat([torch.zeros(len(x), 1), x], 1)
    mode = find_mode(x, y, log_prior)
    assert mode.theta[0].abs().max() < 1e-12


def test_groups_of_features_get_scales_of_their_own():
    """Group 0 matters, group 1 is noise; a λ is the brute-force maximum of the evidence given the other."""
    g = torch.Generator().manual_seed(0)
    phi = torch.randn(600, 6, generator=g, dtype=torch.float64)
    y = (torch.rand(600, generator=g, dtype=torch.float64) < (phi[:, :3].sum(1)).sigmoid()).long()
    x, log_prior = torch.cat([phi, torch.ones(600, 1, dtype=torch.float64)], 1), torch.tensor([0.5, 0.5]).double().log()
    groups = torch.tensor([0, 0, 0, 1, 1, 1])
    mode = find_mode(x, y, log_prior, groups=groups)
    found = mode.prior_precision
    assert found.shape == (6,)
    assert found[0] < 3 < 30 < found[5]
    assert (found[:3] == found[0]).all()

    local = curvature(mode.theta, x, y, log_prior)
    linear = local.precision @ mode.theta[:, 0] + local.gradient[:, 0]

    def evidence(log_lam: float) -> float:
        lam = torch.cat([torch.full((3,), math.exp(log_lam)).double(), found[3:]])
        total = local.precision + torch.cat([lam, torch.zeros(1).double()]).diag()
        evidence = lam.log().sum() - torch.logdet(total) + linear @ torch.linalg.solve(total, linear)
        return 0.5 * float(evidence) - 0.5 * log_lam

    grid = np.linspace(-3, 4, 1401)
    best = grid[np.argmax([evidence(v) for v in grid])]
    assert abs(best - math.log(float(found[0]))) < 0.02


def test_shared_curvature_of_a_fold_and_steps_with_it_reach_the_fold_s_own_mode(one_scale):
    """Many rows: λ and θ without the fold, by the curvature at the mode of all rows, against a search from nothing."""
    x, y, log_prior = problem(3, n=8000, d=20)
    whole = find_mode(x, y, log_prior)
    parts = [curvature(whole.theta, x[f::5], y[f::5], log_prior) for f in range(5)]
    kept = torch.arange(len(x)) % 5 != 0
    known = Curvature.total(parts[1:])
    torch.testing.assert_close(known.precision, curvature(whole.theta, x[kept], y[kept], log_prior).precision)
    short = find_mode(x[kept], y[kept], log_prior, start=whole, known=known)
    long = find_mode(x[kept], y[kept], log_prior)
    assert short.n_steps == 1
    assert math.log(short.prior_precision / long.prior_precision) == pytest.approx(0, abs=0.05)
    spread = torch.linalg.inv(long.precision).diagonal().sqrt().reshape(short.theta.shape)
    assert ((short.theta - long.theta).abs() / spread).max() < 0.05  # λ's last percents, not waited for
    ratio = torch.linalg.inv(short.precision).diagonal() / torch.linalg.inv(long.precision).diagonal()
    assert (ratio.log().abs() < 0.05).all()


def test_steps_with_a_curvature_that_is_wrong_are_given_up():
    x, y, log_prior = problem(2, n=6000)
    right = find_mode(x, y, log_prior)
    false = curvature(right.theta, x, y, log_prior)
    false = Curvature(false.value, false.gradient + 100.0, false.precision / 30)
    found = find_mode(x, y, log_prior, right.prior_precision, start=right, known=false)
    torch.testing.assert_close(found.theta, right.theta, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("n", [60, 6000])
def test_a_row_of_weight_two_is_that_row_twice(k, n):
    x, y, log_prior = problem(k, n=n)
    w = 1.0 + (torch.arange(n) % 3 == 0).double()
    twice = torch.arange(n).repeat_interleave(w.long())
    weighted = find_mode(x, y, log_prior, row_weights=w)
    doubled = find_mode(x[twice], y[twice], log_prior)
    tolerance, same = (1e-6, 1e-3) if n < 5000 else (5e-3, 0.1)  # λ's last percents are not waited for
    torch.testing.assert_close(weighted.theta, doubled.theta, atol=tolerance, rtol=tolerance)
    assert weighted.prior_precision == pytest.approx(doubled.prior_precision, rel=same)
    torch.testing.assert_close(weighted.precision, doubled.precision, rtol=5e-2, atol=1.0)


def rare_rows(n, seed=0):
    """Three classes, one of about 14 rows, with a feature that marks few rows."""
    rng = np.random.default_rng(seed)
    phi = torch.from_numpy(rng.standard_normal((n, 5)))
    phi[:, 4] = torch.from_numpy((rng.random(n) < 12 / n).astype(float))
    phi = (phi - phi.mean(0)) / phi.std(0, correction=0)
    y = torch.from_numpy((rng.random(n) < 0.5).astype(np.int64) + (phi[:, 0].numpy() > 1) * 0)
    rare = torch.from_numpy(rng.choice(n, 14, replace=False))
    y[rare] = 2
    phi[rare[:5], 4] = phi[:, 4].max()
    return with_intercept(phi), y


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("fold", range(3))
def test_the_spread_of_a_rare_class_is_that_at_the_mode(one_scale, seed, fold):
    """With many rows the search ends by steps with a fixed curvature; the one it reports must still be the mode's."""
    x, y = rare_rows(6000, seed)
    log_prior = torch.tensor([0.5, 0.49, 0.01]).log()
    whole = find_mode(x, y, log_prior)
    kept = torch.arange(len(y)) % 3 != fold
    local = curvature(whole.theta, x[kept], y[kept], log_prior)
    for found in (
        find_mode(x[kept], y[kept], log_prior),
        find_mode(x[kept], y[kept], log_prior, start=whole, known=local),
    ):
        exact = curvature(found.theta, x[kept], y[kept], log_prior)
        precision = exact.precision + penalty(found.theta, found.prior_precision)
        ratio = torch.linalg.inv(found.precision).diagonal() / torch.linalg.inv(precision).diagonal()
        assert (ratio - 1).abs().max() < 0.06
        assert evidence_precision(exact, found.theta) == pytest.approx(found.prior_precision, rel=0.05)


@pytest.mark.parametrize("scale", [100.0, 1e4])
def test_a_wide_prior_needs_more_digits_than_float32_has(scale):
    phi = torch.from_numpy(np.random.default_rng(0).standard_normal((12_000, 4)))
    phi = phi - phi.mean(1, keepdim=True)  # as centred log-ratios are: no information along the ones
    y = (phi[:, 0] > 0).long() ^ (torch.arange(12_000) % 3 == 0).long()
    log_prior = torch.tensor([0.5, 0.5]).log()
    mode = find_mode(with_intercept(phi), y, log_prior, prior_precision=scale**-2)
    ones = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0]) / 2
    assert float(ones @ torch.linalg.inv(mode.precision) @ ones) == pytest.approx(scale**2, rel=1e-3)


def late_positions(seed, n, k, t, chosen, rare, strength):
    """Subset masks whose late positions are rare, and a last class of about `rare` rows: (x, y, log shares)."""
    rng = np.random.default_rng(seed)
    keys = -2 * np.log(np.arange(1, t + 1)) + rng.gumbel(size=(n, t))
    m = np.zeros((n, t))
    np.put_along_axis(m, np.argsort(-keys, 1)[:, :chosen], 1, 1)
    z = m @ rng.normal(size=(t, k)) * strength
    z[:, -1] -= np.log(n / rare)
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    y = torch.from_numpy((rng.random(n)[:, None] > p.cumsum(1)).sum(1).clip(0, k - 1))
    m = m[:, m.std(0) > 0]
    phi = torch.from_numpy((m - m.mean(0)) / m.std(0))
    return with_intercept(phi), y, (torch.bincount(y, minlength=k).double() / n).log()


@pytest.mark.parametrize(
    ("seed", "setting"),
    [(309, (3000, 3, 10, 2, 60, 2.0)), (54, (1000, 3, 8, 1, 30, 2.0)), (91, (1000, 3, 8, 1, 30, 2.0))],
)
def test_the_scale_does_not_stick_to_the_end_of_its_range(one_scale, seed, setting):
    """Far from the mode a quadratic model asked for λ = e⁻⁴ twice running, which was taken for settled: one weight in
    three thousand then was thirteen million."""
    x, y, log_prior = late_positions(seed, *setting)
    mode = find_mode(x, y, log_prior)
    again = evidence_precision(curvature(mode.theta, x, y, log_prior), mode.theta)
    assert math.log(mode.prior_precision) == pytest.approx(math.log(again), abs=0.02)
    assert math.log(mode.prior_precision) > 0


def test_the_scale_settles_in_small_samples(one_scale):
    gaps = []
    for seed in range(30):
        x, y, log_prior = late_positions(seed, 300, 3, 6, 2, 20, 1.0)
        if torch.isinf(log_prior).any():
            continue
        mode = find_mode(x, y, log_prior)
        again = evidence_precision(curvature(mode.theta, x, y, log_prior), mode.theta)
        gaps.append(abs(math.log(mode.prior_precision / again)))
    assert len(gaps) > 20
    assert max(gaps) < 0.1


@pytest.mark.parametrize("scale", [1.0, 5.0, 30.0, 1000.0])
@pytest.mark.parametrize("n", [3000, 12_000])
def test_the_spread_along_a_feature_set_in_few_rows_is_that_at_the_mode(n, scale):
    """All four rows are of one class: each step towards the far mode shrinks the curvature e-fold."""
    rng = np.random.default_rng(0)
    a, z = rng.normal(size=n), np.zeros(n)
    z[:4] = 1
    y = torch.from_numpy((rng.random(n) < 1 / (1 + np.exp(-a))).astype(np.int64))
    y[:4] = 1
    x = with_intercept(torch.from_numpy(np.stack([a, (z - z.mean()) / z.std()], 1)))
    log_prior = (torch.bincount(y).double() / n).log()
    mode = find_mode(x, y, log_prior, scale**-2)
    theta = mode.theta
    for _ in range(60):
        local, weight = curvature(theta, x, y, log_prior), penalty(theta, scale**-2)
        slope = local.gradient.reshape(-1) - weight @ theta.reshape(-1)
        theta = theta + torch.linalg.solve(local.precision + weight, slope).reshape(theta.shape)
    right = torch.linalg.inv(local.precision + weight)[1, 1]
    assert float((torch.linalg.inv(mode.precision)[1, 1] / right).sqrt()) == pytest.approx(1, abs=0.03)
