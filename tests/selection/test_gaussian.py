import math

import numpy as np
import pytest
import torch

from causal_attn.selection.gaussian import fit_posterior, log_joint, margin_offsets
from causal_attn.selection.response import linear_log_prob, with_intercept


def data(k=3, n=120, d=2, seed=0, strength=1.0):
    rng = np.random.default_rng(seed)
    phi = torch.from_numpy(rng.normal(size=(n, d)))
    logits = strength * phi @ torch.from_numpy(rng.normal(size=(d, k)))
    y = (logits.softmax(-1).cumsum(-1) < torch.from_numpy(rng.random((n, 1)))).sum(-1)
    return phi, y, (torch.bincount(y, minlength=k).double() / n).log()


def fit_on(phi, *rest, **options):
    return fit_posterior(with_intercept(phi), *rest, **options)


def test_draws_have_the_inverse_precision_for_covariance():
    posterior = fit_on(*data())
    theta = posterior.draws(40_000, 0).reshape(40_000, -1)
    covariance = posterior.factor @ posterior.factor.T
    error = ((covariance**2 + torch.outer(covariance.diag(), covariance.diag())) / len(theta)).sqrt()
    assert ((torch.cov(theta.T) - covariance).abs() < 5 * error).all()
    assert ((theta.mean(0) - posterior.mean.reshape(-1)).abs() < 5 * (covariance.diag() / len(theta)).sqrt()).all()
    laplace = torch.linalg.inv(posterior.mode.precision)
    assert (covariance - laplace).abs().max() < 0.35 * laplace.diag().max()


def test_without_variational_steps_it_is_laplaces(monkeypatch):
    monkeypatch.setattr("causal_attn.selection.gaussian.MAX_VI_STEPS", 0)
    posterior = fit_on(*data())
    torch.testing.assert_close(posterior.factor @ posterior.factor.T, torch.linalg.inv(posterior.mode.precision))
    assert torch.equal(posterior.mean, posterior.mode.theta)
    assert len(posterior.elbo) == 1


def test_log_density_is_the_multivariate_normals():
    posterior = fit_on(*data())
    theta = posterior.draws(50, 1)
    law = torch.distributions.MultivariateNormal(posterior.mean.reshape(-1), posterior.factor @ posterior.factor.T)
    torch.testing.assert_close(posterior.log_density(theta), law.log_prob(theta.reshape(50, -1)))


def test_log_joint_is_likelihood_and_normal_prior():
    phi, y, log_prior = data()
    theta = torch.randn(4, 3, 2)
    like = linear_log_prob(theta, phi, log_prior)[:, torch.arange(len(y)), y].sum(-1)
    prior = torch.distributions.Normal(0, 2.0).log_prob(theta[:, :-1]).sum((1, 2))
    torch.testing.assert_close(log_joint(theta, with_intercept(phi), y, log_prior, 0.25), like + prior)


@pytest.mark.parametrize(("k", "n"), [(2, 15), (3, 30), (3, 400)])
def test_the_elbo_never_falls_and_is_what_monte_carlo_says(k, n):
    phi, y, log_prior = data(k, n)
    posterior = fit_on(phi, y, log_prior, prior_precision=0.5)
    assert (posterior.elbo.diff() > 0).all()
    theta = posterior.draws(20_000, 5)
    terms = log_joint(theta, with_intercept(phi), y, log_prior, 0.5) - posterior.log_density(theta)
    few = terms.std() / math.sqrt(8)  # 8 antithetic pairs, at most as noisy as 8 draws
    assert abs(float(posterior.elbo[-1] - terms.mean())) < 4 * float(few)


def quadrature(phi, y, log_prior, lam, width=10.0, points=401):
    """log evidence, posterior mean of (w, b) and predictive P(y|m) by a grid, for K = 2 and one feature."""
    grid = torch.linspace(-width, width, points)
    w, b = torch.meshgrid(grid, grid, indexing="ij")
    theta = torch.stack([w.reshape(-1), b.reshape(-1)], 1)[..., None]
    joint = log_joint_fast(theta, phi, y, log_prior, lam)
    mass = joint.softmax(0)
    log_r = linear_log_prob(theta, phi, log_prior)
    evidence = joint.logsumexp(0) + 2 * math.log(float(grid[1] - grid[0]))
    return evidence, (mass[:, None] * theta[..., 0]).sum(0), torch.einsum("s,snk->nk", mass, log_r.exp())


def log_joint_fast(theta, phi, y, log_prior, lam):
    like = linear_log_prob(theta, phi, log_prior)[:, torch.arange(len(y)), y].sum(-1)
    return like + torch.distributions.Normal(0, lam**-0.5).log_prob(theta[:, 0, 0])


def test_a_tiny_sample_agrees_with_quadrature():
    phi, y, log_prior = data(k=2, n=14, d=1, strength=0.7, seed=1)
    evidence, mean, predictive = quadrature(phi, y, log_prior, lam=1.0)
    posterior = fit_on(phi, y, log_prior, prior_precision=1.0)
    theta = posterior.draws(4000, 0)
    spread = (posterior.factor @ posterior.factor.T).diag().sqrt()
    assert ((posterior.mean.reshape(-1) - mean).abs() < 0.2 * spread).all()
    got = linear_log_prob(theta, phi, log_prior).exp().mean(0)
    assert (got - predictive).abs().max() < 0.02
    elbo = (log_joint(theta, with_intercept(phi), y, log_prior, 1.0) - posterior.log_density(theta)).mean()
    assert evidence - 0.3 < elbo < evidence + 0.02  # a lower bound, and a close one


def test_the_posterior_mode_is_a_stationary_point_of_the_joint():
    phi, y, log_prior = data(k=3)
    posterior = fit_on(phi, y, log_prior, prior_precision=2.0)
    theta = posterior.mode.theta.clone().requires_grad_()
    log_joint(theta[None], with_intercept(phi), y, log_prior, 2.0).sum().backward()
    assert theta.grad.abs().max() < 1e-3


@pytest.mark.parametrize(
    ("k", "scale", "shift", "prior"),
    [
        (2, 0.5, 0.0, [0.5, 0.5]),
        (4, 0.5, 0.0, [0.25] * 4),
        (2, 0.1, 6.0, [0.5, 0.5]),
        (2, 20.0, 0.0, [0.03, 0.97]),
        (4, 5.0, 5.0, [0.1, 0.2, 0.3, 0.4]),
        (3, 2.0, 3.0, [0.01, 0.01, 0.98]),
    ],
)
def test_offsets_meet_the_margin_in_every_draw(k, scale, shift, prior):
    phi, theta = torch.randn(300, 3), scale * torch.randn(50, 4, k - 1)
    theta[:, -1] += shift
    log_prior = torch.tensor(prior).log()
    before = theta.clone()
    shares = log_prior.exp().flip(0)  # the rows' own, whatever Q(k) is
    offset = margin_offsets(theta, with_intercept(phi), log_prior, shares)
    assert torch.equal(theta, before)
    theta[:, -1] += offset
    r = linear_log_prob(theta, phi, log_prior).exp()
    assert (r.mean(1) - shares).abs().max() < 1e-6


@pytest.mark.parametrize("n", [5000, 20_000])
@pytest.mark.parametrize("marked", [False, True], ids=["smooth", "marked"])
def test_offsets_are_exact_for_a_rare_class_among_many_rows(n, marked):
    """Every row counts: few hold a rare class's mass, the fewer where a feature marks half of them."""
    log_prior = torch.tensor([0.0, 0.0, -6.5]).log_softmax(-1)
    phi, theta = torch.randn(n, 6), 0.3 * torch.randn(7, 2)
    y = torch.distributions.Categorical(logits=linear_log_prob(theta, phi, log_prior)).sample()
    if marked:
        phi[:, 0] = ((y == 2) & (torch.rand(n) < 0.5)).double()
    shares = torch.bincount(y, minlength=3).double() / n
    draws = theta + 0.3 * torch.randn(40, 7, 2)
    draws[:, -1] += margin_offsets(draws, with_intercept(phi), log_prior, shares)
    for draw in draws:
        r = linear_log_prob(draw, phi, log_prior).exp().mean(0)
        assert (r / shares - 1).abs().max() < 2e-4


@pytest.mark.parametrize("rare", [0, 1])
def test_either_of_two_classes_may_be_the_rare_one(rare):
    """In float32 1 − r loses a class whose r is nearly 1 for the other."""
    n, share = 30_000, 1e-4
    shares = torch.tensor([share, 1 - share] if rare == 0 else [1 - share, share])
    phi, theta = torch.randn(n, 4), torch.randn(1, 5, 1) + 0.5 * torch.randn(10, 5, 1)
    theta[:, -1] += margin_offsets(theta, with_intercept(phi), shares.log(), shares)
    r = linear_log_prob(theta, phi, shares.log()).exp().mean(1)
    assert (r / shares - 1).abs().max() < 2e-5


def test_offsets_are_those_of_the_scaling_iteration():
    """Theory, section 4: a_k += log(P(k) / mean_i softmax(logits + a)_k)."""
    phi, theta, log_prior = torch.randn(200, 2), torch.randn(5, 3, 2), torch.tensor([0.2, 0.3, 0.5]).log()
    logits = linear_log_prob(theta, phi, log_prior)
    a = torch.zeros(5, 3)
    for _ in range(400):
        a = a + log_prior - (logits + a[:, None]).softmax(-1).mean(1).log()
    offset = margin_offsets(theta, with_intercept(phi), log_prior, log_prior.exp())
    theta[:, -1] += offset
    torch.testing.assert_close(
        linear_log_prob(theta, phi, log_prior), (logits + a[:, None]).log_softmax(-1), atol=1e-6, rtol=0
    )


def test_a_start_from_an_earlier_posterior_gives_the_same():
    phi, y, log_prior = data(n=300)
    cold = fit_on(phi, y, log_prior)
    warm = fit_on(phi, y, log_prior, start=cold)
    torch.testing.assert_close(warm.mean, cold.mean, atol=1e-2, rtol=1e-2)
    assert warm.mode.n_steps < cold.mode.n_steps
