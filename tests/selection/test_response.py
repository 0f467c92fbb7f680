import numpy as np
import pytest
import torch

from causal_attn.selection.response import contrasts, linear_log_prob, with_intercept


@pytest.mark.parametrize("k", [2, 3, 7])
def test_contrasts_are_orthonormal_and_orthogonal_to_the_ones(k):
    h = contrasts(k)
    torch.testing.assert_close(h @ h.T, torch.eye(k - 1))
    torch.testing.assert_close(h.sum(1), torch.zeros(k - 1))


def test_the_response_is_the_normalised_product_of_prior_and_exponential():
    rng = np.random.default_rng(0)
    theta, phi = torch.from_numpy(rng.normal(size=(4, 3))), torch.from_numpy(rng.normal(size=(5, 3)))
    prior = torch.tensor([0.1, 0.2, 0.3, 0.4])
    score = prior.numpy() * np.exp((phi.numpy() @ theta.numpy()[:-1] + theta.numpy()[-1]) @ contrasts(4).numpy())
    got = linear_log_prob(theta, phi, prior.log()).exp()
    np.testing.assert_allclose(got, score / score.sum(1, keepdims=True), rtol=1e-12)
    torch.testing.assert_close(got, ((with_intercept(phi) @ theta) @ contrasts(4) + prior.log()).softmax(-1))


def test_draws_of_theta_are_a_leading_axis():
    theta, phi, log_prior = torch.randn(6, 3, 2), torch.randn(5, 2), torch.tensor([0.2, 0.3, 0.5]).log()
    together = linear_log_prob(theta, phi, log_prior)
    torch.testing.assert_close(together, torch.stack([linear_log_prob(t, phi, log_prior) for t in theta]))


def test_zero_coefficients_give_the_prior_and_huge_ones_stay_finite():
    log_prior = torch.tensor([0.2, 0.8]).log()
    phi = torch.randn(3, 2)
    torch.testing.assert_close(linear_log_prob(torch.zeros(3, 1), phi, log_prior), log_prior.expand(3, 2))
    theta = torch.full((3, 1), 1e5, requires_grad=True)
    log_r = linear_log_prob(theta, phi, log_prior)
    log_r.sum().backward()
    assert torch.isfinite(log_r).all()
    assert torch.isfinite(theta.grad).all()


def test_relabelling_classes_does_not_change_what_the_prior_on_weights_says():
    """An isotropic prior on W is isotropic on the centred class scores, so no class is special."""
    w = torch.randn(20_000, 3)
    scores = w @ contrasts(4)
    covariance = scores.T @ scores / len(w)
    torch.testing.assert_close(contrasts(4).T @ contrasts(4), torch.eye(4) - 0.25)
    assert (covariance - (torch.eye(4) - 0.25)).abs().max() < 5 * (2 / len(w)) ** 0.5
