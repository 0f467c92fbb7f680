"""A scale of its own for the one class that depends on the mask: the gain by brute force, and what it is for."""

import math

import numpy as np
import pytest
import torch

from causal_attn.data.worlds import Logistic, Null
from causal_attn.masks import MaskSample
from causal_attn.selection import SelectionFit, SelectionModel, class_scales
from causal_attn.selection.class_scales import LOG_VARIANCES, wider_classes
from causal_attn.selection.curvature import curvature
from causal_attn.selection.gaussian import log_joint
from causal_attn.selection.newton import find_mode
from causal_attn.selection.prior import (
    ClassPrior,
    log_prior_constant,
    log_weight_prior,
    penalty,
    penalty_diagonal,
    scale_of,
)
from causal_attn.selection.response import contrasts, with_intercept


def one_class_depends(n=3000, k=3, share=0.01, seed=0, d=6):
    """Features that tell only the last, rare class; x with its ones column, and labels."""
    rng = np.random.default_rng(seed)
    phi = torch.from_numpy(rng.standard_normal((n, d)))
    logits = torch.zeros(n, k).double()
    logits[:, -1] = math.log(share * (k - 1)) + 1.2 * phi[:, 0]
    y = torch.from_numpy((logits.softmax(-1).cumsum(-1).numpy() < rng.random((n, 1))).sum(1))
    return with_intercept(phi), y, (torch.bincount(y, minlength=k).double() / n).log()


def evidence(bend, linear, theta, prior):
    """log ∫ exp(−½ θ'Pθ + l'θ) p(θ) dθ, with a flat intercept, up to a constant: directly."""
    weight = penalty(theta, prior)
    total = bend + weight
    constant = log_prior_constant(prior, len(theta) - 1, theta.shape[1])
    return float(constant - 0.5 * torch.logdet(total) + 0.5 * linear @ torch.linalg.solve(total, linear))


@pytest.mark.parametrize("groups", [None, torch.tensor([0, 0, 0, 1, 1, 1])])
@pytest.mark.parametrize("present", [0.0, 0.2])
def test_the_gain_is_the_change_of_the_evidence(groups, present):
    x, y, log_prior = one_class_depends()
    base, extra = torch.linspace(20.0, 60.0, 6).double(), torch.full((6, 3), present).double()
    theta = find_mode(x, y, log_prior, ClassPrior(base, extra)).theta
    bend = curvature(theta, x, y, log_prior).precision
    weight = penalty(theta, ClassPrior(base, extra))
    linear = (bend + weight) @ theta.reshape(-1)
    for group in [torch.ones(6, dtype=torch.bool)] if groups is None else [groups == 0, groups == 1]:
        for k in range(3):
            without = extra.clone()
            without[group, k] = 0
            gain = class_scales._gains(bend, linear, theta, ClassPrior(base, without), group, k)
            zero = evidence(bend, linear, theta, ClassPrior(base, without))
            for i in (0, 90, 140, 200):
                changed = without.clone()
                changed[group, k] = float(LOG_VARIANCES[i].exp())
                direct = evidence(bend, linear, theta, ClassPrior(base, changed)) - zero
                assert float(gain[i]) == pytest.approx(direct, abs=1e-8)


def test_the_class_that_depends_is_found_and_nothing_is_where_none_does():
    x, y, log_prior = one_class_depends()
    prior = find_mode(x, y, log_prior).prior_precision
    assert isinstance(prior, ClassPrior)
    assert (prior.extra[:, :2] == 0).all()
    assert (prior.extra[:, 2] > 0.02).all()
    found = [find_mode(x, y[torch.randperm(len(y))], log_prior).prior_precision for _ in range(10)]
    assert sum(isinstance(p, ClassPrior) for p in found) <= 5  # 0.3 nats are soon found, and then mean little


def test_at_the_end_no_class_asks_for_more():
    x, y, log_prior = one_class_depends()
    mode = find_mode(x, y, log_prior)
    exact = curvature(mode.theta, x, y, log_prior)
    slope = exact.gradient.reshape(-1) - penalty(mode.theta, mode.prior_precision) @ mode.theta.reshape(-1)
    assert slope.abs().max() < 1e-3
    prior = mode.prior_precision
    assert wider_classes(exact.precision, mode.theta, prior, None, 3) is None


def test_two_classes_have_one_contrast_and_need_none():
    x, y, log_prior = one_class_depends(k=2)
    assert isinstance(find_mode(x, y, log_prior).prior_precision, float)


def test_the_prior_is_that_of_its_covariance():
    torch.manual_seed(0)
    theta, base, extra = torch.randn(4, 2).double(), torch.tensor([2.0, 3.0, 4.0]).double(), torch.rand(3, 3).double()
    prior, h = ClassPrior(base, extra), contrasts(3)
    total = 0.0
    for d in range(3):
        covariance = torch.eye(2).double() / base[d] + sum(
            extra[d, k] * torch.outer(h[:, k], h[:, k]) for k in range(3)
        )
        total += torch.distributions.MultivariateNormal(torch.zeros(2).double(), covariance).log_prob(theta[d])
    assert float(log_weight_prior(theta, prior) + log_prior_constant(prior, 3, 2)) == pytest.approx(float(total))
    one = theta.reshape(-1) @ penalty(theta, prior) @ theta.reshape(-1)
    assert float(log_weight_prior(theta, prior)) == pytest.approx(-0.5 * float(one))
    plain = ClassPrior(base, torch.zeros(3, 3).double())
    torch.testing.assert_close(penalty(theta, plain), penalty_diagonal(theta, base).diag())
    factor = scale_of(prior)
    torch.testing.assert_close(factor @ factor.mT, prior.covariance)


def rare_leak(n, seed, n_positions=16):
    rng = np.random.default_rng(seed)
    b = rng.standard_normal(n_positions)
    b -= b.mean()
    coefficients = np.stack([0 * b, 0 * b, b / np.linalg.norm(b)])
    world = Logistic(
        n_classes=3, n_positions=n_positions, law="logistic-normal", coefficients=coefficients,
        intercept=[0.0, 0.0, -5.0], seed=seed,
    )  # fmt: skip
    return world, world.sample(n, seed)


@pytest.fixture(scope="module")
def leaking():
    world, sample = rare_leak(4000, 1)
    return world, sample, SelectionModel().fit(sample, progress=False, n_draws=200)


def test_the_pyro_model_has_that_prior(leaking):
    import pyro.poutine as poutine

    _, sample, fit = leaking
    prior = fit.final.posterior.mode.prior_precision
    assert isinstance(prior, ClassPrior)
    theta = fit.final.posterior.mode.theta
    values = {"weights": theta[:-1], "intercept": theta[-1]}
    trace = poutine.trace(poutine.condition(fit.story.on_features, values)).get_trace(
        fit.phi, sample.y, torch.ones(sample.n)
    )
    trace.compute_log_prob()
    weights = trace.nodes["weights"]["log_prob_sum"]
    joint = log_joint(theta[None], with_intercept(fit.phi), sample.y, fit.log_prior, prior)
    assert float(trace.log_prob_sum()) == pytest.approx(float(joint), abs=1e-6)
    assert float(weights) == pytest.approx(
        float(log_weight_prior(theta, prior)) + log_prior_constant(prior, len(theta) - 1, 2)
    )


def test_it_is_kept_on_disk(leaking, tmp_path):
    _, sample, fit = leaking
    fit.save(tmp_path / "fit.npz")
    again = SelectionFit.load(tmp_path / "fit.npz")
    before, after = (f.final.posterior.mode.prior_precision for f in (fit, again))
    assert torch.equal(before.extra, after.extra)
    assert torch.equal(fit.log_prob(sample.masks[:9]), again.log_prob(sample.masks[:9]))
    assert again.vi_khat == fit.vi_khat


def test_a_rare_class_that_alone_depends_on_the_mask_is_not_shrunk_away():
    """With one scale for all classes, 90% intervals of its log-probability covered 11%."""
    covered = []
    for seed in range(6):
        world, sample = rare_leak(5000, seed)
        probes = world.sample(200, 100 + seed).masks
        draws = SelectionModel().fit(sample, folds=2, progress=False, n_draws=200).log_prob(probes)[..., 2]
        truth = world.log_prob(probes)[:, 2]
        inside = (truth > draws.quantile(0.05, 0)) & (truth < draws.quantile(0.95, 0))
        covered.append(float(inside.double().mean()))
    assert np.mean(covered) > 0.6


def test_an_independent_mask_still_gives_no_weights_to_speak_of():
    sample = Null(n_classes=4, n_positions=10).sample(1500, 0)
    weights = SelectionModel().fit(sample, progress=False, n_draws=20).weights()
    assert float(weights.log_w.abs().max()) < 0.3


def test_more_classes_than_features():
    rng = np.random.default_rng(0)
    y = np.arange(600) % 12
    masks = rng.dirichlet(np.ones(3), 600)
    masks[y == 4] = rng.dirichlet([8, 1, 1], 50)
    fit = SelectionModel().fit(MaskSample(masks, y), progress=False, n_draws=20)
    prior = fit.final.posterior.mode.prior_precision
    assert isinstance(prior, ClassPrior)
    assert prior.extra[:, 4].max() > 0


@pytest.mark.parametrize("n", [2000, 8000])
def test_a_search_that_starts_from_wider_classes_ends_where_one_from_nothing_does(n):
    x, y, log_prior = one_class_depends(n, share=20 / n)
    cold = find_mode(x, y, log_prior)
    assert isinstance(cold.prior_precision, ClassPrior)
    warm = find_mode(x, y, log_prior, start=cold)
    spread = torch.linalg.inv(cold.precision).diagonal().sqrt().reshape(cold.theta.shape)
    assert ((warm.theta - cold.theta).abs() / spread).max() < 0.1
    exact = curvature(warm.theta, x, y, log_prior).precision + penalty(warm.theta, warm.prior_precision)
    ratio = torch.linalg.inv(warm.precision).diagonal() / torch.linalg.inv(exact).diagonal()
    assert (ratio - 1).abs().max() < 0.06
