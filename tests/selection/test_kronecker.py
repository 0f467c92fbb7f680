"""Many parameters without a matrix: the same mode and scales as with one, and a factor that is what it says."""

import math

import pytest
import torch

from causal_attn.data.worlds import Gaussian, Logistic
from causal_attn.masks import FeatureMap, MaskSample
from causal_attn.selection import SelectionFit, SelectionModel, newton
from causal_attn.selection.gaussian import fit_posterior, log_joint
from causal_attn.selection.kronecker import KroneckerFactor
from causal_attn.selection.newton import find_mode
from causal_attn.selection.response import with_intercept

WORLDS = [Logistic(n_classes=4, n_positions=8, strength=2.0), Logistic(n_classes=2, n_positions=8)]


def rows(world, n=900):
    sample = world.sample(n, 0)
    features, phi = FeatureMap.fit_transform(sample)
    return with_intercept(phi), sample.y, sample.prior.log(), features.groups


@pytest.fixture
def without_a_matrix(monkeypatch):
    monkeypatch.setattr(newton, "MAX_DENSE", 0)


@pytest.mark.parametrize("world", WORLDS, ids=["K=4", "K=2"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_mode_is_the_one_found_with_a_matrix(world, weighted, monkeypatch):
    x, y, log_prior, _ = rows(world)
    w = 0.5 + torch.rand(len(y)) if weighted else None
    dense = find_mode(x, y, log_prior, prior_precision=3.0, row_weights=w)
    monkeypatch.setattr(newton, "MAX_DENSE", 0)
    found = find_mode(x, y, log_prior, prior_precision=3.0, row_weights=w)
    torch.testing.assert_close(found.theta, dense.theta, atol=1e-6, rtol=1e-6)
    assert isinstance(found.precision, KroneckerFactor)


def test_scales_of_groups_are_those_of_the_evidence(monkeypatch):
    """MacKay's fixed point drops how the curvature moves with λ, as the quadratic model does; they agree closely."""
    x, y, log_prior, groups = rows(WORLDS[0], 1500)
    monkeypatch.setattr(newton, "wider_classes", lambda *_: None)
    dense = find_mode(x, y, log_prior, groups=groups)
    monkeypatch.setattr(newton, "MAX_DENSE", 0)
    found = find_mode(x, y, log_prior, groups=groups)  # which gives no class a scale of its own
    ratio = (found.prior_precision / dense.prior_precision).log().abs()
    assert ratio[groups == 0].max() < 0.1
    assert ratio[groups == 1].max() < 0.5  # the fainter group's peak is flat


def test_the_factor_is_the_inverse_root_of_the_kronecker_precision(without_a_matrix):
    x, y, log_prior, groups = rows(WORLDS[0], 300)
    factor = find_mode(x, y, log_prior, groups=groups).precision
    width = factor.precision.numel()
    dense = factor.map(torch.eye(width)).reshape(width, width).T
    a = factor.u @ torch.diag(factor.a) @ factor.u.T * torch.outer(factor.root, factor.root)
    b = factor.v @ torch.diag(factor.b) @ factor.v.T
    precision = torch.kron(a, b) + torch.kron(torch.diag(factor.root**2), torch.eye(len(b)))
    torch.testing.assert_close(dense @ dense.T @ precision, torch.eye(width), atol=1e-6, rtol=0)
    assert factor.log_det == pytest.approx(-0.5 * float(torch.logdet(precision)))
    z = torch.randn(3, width)
    torch.testing.assert_close(factor.unmap(factor.map(z)), z, atol=1e-8, rtol=0)
    g = torch.randn(factor.precision.shape)
    solved = torch.linalg.solve(precision, g.flatten()).reshape(g.shape)
    torch.testing.assert_close(factor.solve(g), solved, atol=1e-8, rtol=1e-6)


def test_with_two_classes_the_approximation_is_exact(monkeypatch):
    x, y, log_prior, _ = rows(WORLDS[1])
    dense = fit_posterior(x, y, log_prior, 2.0, refine=False)
    monkeypatch.setattr(newton, "MAX_DENSE", 0)
    found = fit_posterior(x, y, log_prior, 2.0, refine=False)
    theta = dense.draws(20, 0)
    torch.testing.assert_close(found.log_density(theta), dense.log_density(theta), atol=1e-4, rtol=1e-6)


def test_the_elbo_is_what_monte_carlo_says(without_a_matrix):
    x, y, log_prior, _ = rows(WORLDS[0], 400)
    found = fit_posterior(x, y, log_prior, 4.0)
    assert len(found.elbo) == 1
    theta = found.draws(4000, 5)
    terms = log_joint(theta, x, y, log_prior, 4.0) - found.log_density(theta)
    assert abs(float(found.elbo[-1] - terms.mean())) < 4 * float(terms.std()) / math.sqrt(8)


def test_a_whole_fit_with_its_folds_and_file(without_a_matrix, tmp_path):
    world = Gaussian(n_classes=3, n_positions=5, strength=0.7)
    sample = world.sample(600, 0)
    fit = SelectionModel().fit(sample, progress=False, n_draws=40)
    assert isinstance(fit.final.posterior.factor, KroneckerFactor)
    error = float((fit.weights().log_w - world.log_w(sample)).square().mean().sqrt())
    assert error < 0.35
    fit.save(tmp_path / "fit.npz")
    again = SelectionFit.load(tmp_path / "fit.npz")
    torch.testing.assert_close(again.log_prob(sample.masks), fit.log_prob(sample.masks))
    assert again.vi_khat == pytest.approx(fit.vi_khat)


@pytest.mark.slow
def test_twenty_classes_and_512_positions():
    masks = torch.distributions.Dirichlet(torch.ones(512)).sample((1500,))
    sample = MaskSample(masks, torch.arange(1500) % 20)
    weights = SelectionModel().fit(sample, folds=2, progress=False, n_draws=20).weights()
    assert torch.isfinite(weights.log_w).all()
