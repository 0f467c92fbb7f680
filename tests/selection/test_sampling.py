"""SVI and NUTS against the Laplace approximation, on problems small enough for it to be right."""

import pyro
import pytest
import torch
from pyro.infer import autoguide

from causal_attn.data.worlds import Gaussian
from causal_attn.errors import FitWarning, InputError
from causal_attn.masks import MaskSample
from causal_attn.selection import SelectionModel, sampling
from causal_attn.selection.fits import Inference, OutcomeFit
from causal_attn.selection.response import with_intercept
from causal_attn.selection.sampling import guide_class

N = 80


@pytest.fixture(scope="module")
def rows():
    """φ (80, 2) and classes of a logistic law."""
    generator = torch.Generator().manual_seed(0)
    phi = torch.randn(N, 2, generator=generator, dtype=torch.float64)
    y = (torch.rand(N, generator=generator, dtype=torch.float64) < (phi[:, 0] - 0.5 * phi[:, 1]).sigmoid()).long()
    return phi, y


def fit_of(rows, method, n_draws=100, guide="auto", scale=1.0):
    phi, y = rows
    shares = (torch.bincount(y).double() / len(y)).log()
    return OutcomeFit.on(with_intercept(phi), y, shares, Inference(method, guide, scale**-2), n_draws, 0)


def close(one, two, mean_sd, low, high):
    """Weights: means within `mean_sd` posterior sds, sds within a ratio of `low` to `high`."""
    a, b = one.theta[:, :2, 0], two.theta[:, :2, 0]
    assert ((a.mean(0) - b.mean(0)).abs() < mean_sd * a.std(0)).all()
    ratio = b.std(0) / a.std(0)
    assert (ratio > low).all()
    assert (ratio < high).all()


def test_svi_with_the_full_gaussian_is_near_laplace(rows, monkeypatch):
    monkeypatch.setattr(sampling, "SVI_STEPS", 300)
    before = torch.get_rng_state()
    pyro.param("mine", torch.ones(1))
    svi = fit_of(rows, "svi")
    assert torch.equal(torch.get_rng_state(), before)
    assert list(pyro.get_param_store().keys()) == ["mine"]
    close(fit_of(rows, "laplace", 2000), svi, 0.6, 0.6, 1.5)
    # the bound is that of the analytical fit, which is the best Gaussian's
    assert float(svi.elbo[-1]) == pytest.approx(float(fit_of(rows, "laplace").elbo[-1]), abs=0.6)
    assert svi.khat(*rows) < 0.7
    assert len(svi.elbo) == 1 + 300 // sampling.ELBO_EVERY + 1


def test_the_elbo_rises_from_a_poor_start(rows, monkeypatch):
    monkeypatch.setattr(sampling, "SVI_STEPS", 200)
    phi, y = rows
    story = sampling.SelectionStory(torch.tensor([0.5, 0.5]).log(), 1.0, lambda m, v: m)
    _, elbo, _ = sampling.svi_draws(story, phi, y, torch.full((3, 1), 2.0), "auto", 20, 0)
    assert elbo[-1] > elbo[0] + 20


def test_a_diagonal_guide_on_correlated_features_is_caught(monkeypatch):
    monkeypatch.setattr(sampling, "SVI_STEPS", 400)
    world = Gaussian(n_positions=4, seed=1)
    sample = world.sample(150, 0)

    def correlated(masks, valid):
        base = masks.double().log()[:, :1] - masks.double().log()[:, 3:]
        return base + 0.03 * masks.double()[:, :3].log()

    model = SelectionModel(inference="svi", guide="AutoNormal", features=correlated, prior_scale=5.0)
    fit = model.fit(sample, folds=2, progress=False, n_draws=200)
    with pytest.warns(FitWarning, match="the variational fit is poor"):
        assert fit.vi_khat > 0.7


def test_mini_batches_run_and_land_near_the_same_place(rows, monkeypatch):
    monkeypatch.setattr(sampling, "SVI_STEPS", 300)
    monkeypatch.setattr(sampling, "BATCH_ROWS", 30)
    seen = []
    real = sampling.SelectionStory.on_features

    def spy(self, phi, y=None, s=None, batch=None):
        seen.append(batch)
        return real(self, phi, y, s, batch)

    monkeypatch.setattr(sampling.SelectionStory, "on_features", spy)
    close(fit_of(rows, "laplace", 2000), fit_of(rows, "svi"), 1.0, 0.5, 1.7)
    assert seen.count(30) >= 300


@pytest.mark.parametrize("method", ["svi", "nuts"])
def test_pytorchs_default_precision_does_not_matter(rows, method, monkeypatch):
    monkeypatch.setattr(sampling, "SVI_STEPS", 5)
    monkeypatch.setattr(sampling, "WARMUP", 5)
    double = fit_of(rows, method, 3)
    torch.set_default_dtype(torch.float32)
    single = fit_of(rows, method, 3)
    assert single.theta.dtype == torch.float64
    assert torch.isfinite(single.theta).all()
    assert torch.isfinite(double.theta).all()


@pytest.mark.slow
def test_nuts_agrees_with_laplace(rows):
    before = torch.get_rng_state()
    nuts = fit_of(rows, "nuts", 300)
    assert torch.equal(torch.get_rng_state(), before)
    close(fit_of(rows, "laplace", 2000), nuts, 0.4, 0.75, 1.35)
    assert nuts.khat(*rows) != nuts.khat(*rows)  # NaN: there is no guide
    assert len(nuts.elbo) == 0


@pytest.mark.slow
def test_nuts_runs_through_the_model(monkeypatch):
    monkeypatch.setattr(sampling, "WARMUP", 15)
    sample = Gaussian(n_positions=2).sample(40, 0)
    sample = MaskSample(sample.masks, sample.y)
    fit = SelectionModel(inference="nuts", features=lambda m, v: m[:, :1], prior_scale=1.0).fit(
        sample, 2, progress=False, n_draws=8
    )
    assert fit.log_prob(sample.masks).shape == (8, 40, 2)
    assert (fit.log_prob(sample.masks).exp().mean(1) - sample.prior).abs().max() < 1e-6
    assert fit.vi_khat != fit.vi_khat


def test_guides_by_name_and_class():
    assert guide_class("auto") is autoguide.AutoMultivariateNormal
    assert guide_class("AutoNormal") is autoguide.AutoNormal
    assert guide_class(autoguide.AutoDiagonalNormal) is autoguide.AutoDiagonalNormal
    for bad in ("AutoNothing", "init_to_value", 3, dict):
        with pytest.raises(InputError, match="guide: expected"):
            guide_class(bad)


@pytest.mark.parametrize("guide", ["AutoContinuous", autoguide.AutoGuide, "AutoGuideList", 3])
def test_guides_that_cannot_be_fitted_are_refused_at_once(guide):
    with pytest.raises(InputError, match="guide: expected"):
        SelectionModel(inference="svi", guide=guide)
