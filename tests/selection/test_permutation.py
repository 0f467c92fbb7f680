"""Permutation weighting against enumeration, and what it conditions on."""

import numpy as np
import pytest
import torch

from causal_attn.data.worlds import DeterministicLeak, Gaussian, Tabular
from causal_attn.errors import InputError, NotEstimableError, PositivityError
from causal_attn.masks import MaskSample, centred_log_ratio
from causal_attn.selection import SelectionModel, estimator, permutation
from causal_attn.selection.permutation import Pairs, RatioFit, pair_features, ratio_deficit
from causal_attn.selection.response import contrasts

PERMUTATION = SelectionModel(estimator="permutation")


def fitted(sample, n_draws=20, model=PERMUTATION, **options):
    return model.fit(sample, seed=0, progress=False, n_draws=n_draws, **({"folds": 3} | options))


@pytest.fixture(scope="module")
def three():
    """A three-class world, a sample and its fit."""
    world = Gaussian(n_classes=3, n_positions=4, strength=0.7, seed=2, prior=[0.2, 0.3, 0.5])
    sample = world.sample(400, 0)
    return world, sample, fitted(sample)


@pytest.mark.parametrize("copies", [1, 3])
def test_weights_are_the_product_over_the_joint_and_not_the_inverse(copies):
    world = Tabular(n_classes=3, n_types=4, n_positions=4, kind="one-hot", seed=1, prior=[0.2, 0.3, 0.5])
    fit = fitted(world.sample(3000, 0), model=SelectionModel(estimator="permutation", copies=copies))
    got = -torch.stack([fit.log_prob(world.types).exp().mean(0)[:, k].log() - world.prior[k].log() for k in range(3)])
    truth = -world.ratio.log()  # log P(y)P(m)/P(y,m), shape (K, J)
    error = (got - truth).square().mean().sqrt()
    assert error < 0.2
    assert (got + truth).square().mean().sqrt() > 5 * error


def test_identity_3_holds_per_draw_and_mask(three):
    _, sample, fit = three
    codes = contrasts(3).T
    new = torch.rand(7, 4).double() + 0.01
    phi = fit.features(new / new.sum(1, keepdim=True))
    total = 0
    for k in range(3):  # through the ratio itself, not through the normalised log_prob
        total = total + sample.prior[k] * fit.final.log_ratio(phi, codes[k].expand(7, 2)).exp()
    torch.testing.assert_close(total, torch.ones(20, 7))
    torch.testing.assert_close(
        fit.final.log_ratio(phi, codes[1].expand(7, 2)), fit.final.log_prob(phi)[..., 1] - sample.prior[1].log()
    )


def test_log_weights_come_near_the_truth(three):
    world, sample, fit = three
    error = fit.weights().log_w - world.log_w(sample)
    assert error.square().mean().sqrt() < 0.35
    big = world.sample(3000, 1)
    assert (fitted(big, 10).weights().log_w - world.log_w(big)).square().mean().sqrt() < 0.15


def test_pair_features_are_products_then_each_alone():
    phi, codes = torch.tensor([[2.0, 3.0]]), torch.tensor([[5.0, 7.0]])
    assert pair_features(phi, codes).tolist() == [[10, 14, 15, 21, 2, 3, 5, 7]]


def test_rows_are_permuted_only_within_the_training_fold(monkeypatch):
    seen = []
    real = permutation.fit_posterior

    def spy(u, c, *rest):
        seen.append((u, c))
        return real(u, c, *rest)

    monkeypatch.setattr(permutation, "fit_posterior", spy)
    sample = Gaussian(n_classes=3, n_positions=3).sample(60, 0)
    # an x-feature that tells rows apart shows which were used
    sample = MaskSample(sample.masks, sample.y, x_features=torch.arange(60.0)[:, None])
    fit = fitted(sample, 3, SelectionModel(estimator="permutation", copies=2))
    ids = Pairs.of(sample.y, 3, sample.x_features).codes[:, -1]
    for number, (u, c) in enumerate(seen[1:]):
        allowed = ids[fit.fold != number]
        assert len(u) == 3 * len(allowed)
        for part in u[:, -2].split(len(allowed)):  # the observed ones, and each copy: every row once
            torch.testing.assert_close(part.sort().values, allowed.sort().values)
        assert not torch.equal(u[c == 0][:, -2], u[c == 1][:, -2].repeat(2))


def test_x_features_that_are_the_masks_own_have_no_overlap():
    sample = Gaussian(n_positions=8, strength=0.3, seed=1).sample(300, 0)
    own = centred_log_ratio(sample.masks, sample.valid)
    with pytest.raises(PositivityError, match="these x-features leave"):
        fitted(MaskSample(sample.masks, sample.y, x_features=own), 5)


def test_a_leak_is_refused_only_where_the_deficit_is_above_the_limit(monkeypatch):
    sample = DeterministicLeak(n_classes=4, n_positions=4).sample(600, 0)
    low, high = fitted(sample, 5).deficit_interval
    assert 0.25 < low < 0.5
    assert high > 0.75
    monkeypatch.setattr(estimator, "REFUSE_DEFICIT", 0.2)
    with pytest.raises(PositivityError, match="these masks leave"):
        fitted(sample, 5)


def test_independent_x_features_change_little(three):
    _, sample, fit = three
    noise = torch.from_numpy(np.random.default_rng(0).normal(size=(400, 2)))
    given = fitted(MaskSample(sample.masks, sample.y, n_classes=3, x_features=noise))
    weights = given.weights()
    assert (weights.log_w - fit.weights().log_w).square().mean().sqrt() < 0.4
    assert weights.draws.shape == (20, 400)
    assert weights.words.count("given x-features") == 1
    # the point weight is that of the draws' average probability
    torch.testing.assert_close(weights.log_w, -((-weights.draws.double()).exp().mean(0).log()), atol=1e-4, rtol=1e-4)
    assert "held_out_log_loss" not in repr(given)
    for call in (given.held_out_log_prob, lambda: given.log_prob(sample.masks), given.calibration):
        with pytest.raises(NotEstimableError):
            call()
    with pytest.raises(InputError, match="target_prior: has no effect"):
        given.weights(target_prior=[0.2, 0.3, 0.5])
    assert "log_likelihood" not in given.to_arviz().groups()
    # a warm start with another number of x-features is ignored
    again = fitted(MaskSample(sample.masks, sample.y, x_features=noise), warm_start=fit).weights()
    torch.testing.assert_close(again.log_w, weights.log_w, atol=0.02, rtol=0)


def test_x_ratios_average_to_one_over_the_reference():
    sample = Gaussian(n_positions=3).sample(80, 0)
    pairs = Pairs.of(sample.y, 2, torch.randn(80, 2))
    phi = torch.randn(80, 3)
    fit = RatioFit.on(phi, sample.y, pairs, 1, 1.0, 4, 0)
    assert len(fit.reference) == 80
    ratios = torch.stack([fit.log_ratio(phi[:1], z[None])[:, 0] for z in fit.reference])
    torch.testing.assert_close(ratios.exp().mean(0), torch.ones(4))


def test_the_deficit_of_pairs_is_nothing_under_independence_and_all_where_they_never_meet():
    rng = np.random.default_rng(0)
    a, b = (torch.from_numpy(rng.normal(size=1000)) for _ in range(2))
    assert ratio_deficit(a, b, 10.0).low < 0.02
    apart = ratio_deficit(a + 100, b - 100, 10.0)
    assert apart.low > 0.75
    assert apart.high <= 1


def test_too_many_products_are_refused():
    sample = Gaussian(n_positions=3).sample(40, 0)
    with pytest.raises(InputError, match="x_features: expected at most 3000 products"):
        fitted(MaskSample(sample.masks, sample.y, x_features=torch.randn(40, 600)))


@pytest.mark.parametrize("unit", [1e-10, 1e-100, 1e9])
def test_the_unit_of_x_features_does_not_matter(unit):
    world = Gaussian(seed=1)
    sample = world.sample(400, 0)
    x = np.random.default_rng(0).normal(size=(400, 2))
    one, other = (
        SelectionModel(estimator="permutation")
        .fit(MaskSample(sample.masks, sample.y, x_features=v), progress=False, n_draws=20)
        .weights()
        .log_w
        for v in (x, x * unit)
    )
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
