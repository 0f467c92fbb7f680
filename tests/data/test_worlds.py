"""The worlds' closed forms, against enumeration, SciPy's densities and simulation (tolerances in standard errors)."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import Tensor

from causal_attn.data import worlds
from causal_attn.data.worlds.tabular import scale_to_margins
from causal_attn.errors import InputError
from causal_attn.masks import MaskSample

N = 20_000
FULL_SUPPORT = [
    worlds.Tabular(prior=[0.5, 0.3, 0.2], type_prior=[0.1, 0.3, 0.2, 0.2, 0.1, 0.1]),
    worlds.Tabular(kind="subset", seed=1),
    worlds.Tabular(kind="one-hot", strength=0.5),
    worlds.Gaussian(prior=[0.7, 0.3]),
    worlds.Logistic(strength=0.5),
    worlds.Logistic(law="logistic-normal", interaction=True, strength=0.5, intercept=[1.0, 0.0, -0.5]),
    worlds.DirichletByClass([[3.0, 3.5, 3.0], [3.5, 3.0, 3.0]], prior=[0.6, 0.4]),
    worlds.Concentration((2.0, 3.0), n_positions=4),
    worlds.Null(3, prior=[0.2, 0.3, 0.5]),
    worlds.Null(kind="subset"),
    worlds.DeterministicLeak(share=1.0, prior=[0.7, 0.3]),
    worlds.Ends(flip=0.2, prior=[0.6, 0.4]),
]
LEAKS = [worlds.DeterministicLeak(), worlds.DeterministicLeak(3, 7, share=0.5, prior=[0.5, 0.3, 0.2])]
HEAVY = [worlds.DirichletByClass(), worlds.Concentration()]


def name(world: Any) -> str:
    return f"{type(world).__name__}-{getattr(world, 'kind', getattr(world, 'law', ''))}"


def assert_mean(values: Tensor, expected: float, z: float = 4.5) -> None:
    """The mean of `values` is `expected`, within z standard errors."""
    error = float(values.std()) / math.sqrt(len(values))
    assert abs(float(values.mean()) - expected) <= z * error + 1e-12


# ---------------------------------------------------------------------------------------------- all worlds


@pytest.mark.parametrize("world", [*FULL_SUPPORT, *LEAKS, *HEAVY], ids=name)
def test_probabilities_sum_to_one_and_samples_are_float64_and_reproducible(world: Any) -> None:
    sample, again, other = (world.sample(500, seed) for seed in (1, 1, 2))
    assert sample.masks.dtype == torch.float64
    assert torch.equal(sample.masks, again.masks)
    assert torch.equal(sample.y, again.y)
    assert not torch.equal(sample.y, other.y)
    log_prob = world.log_prob(sample.masks, sample.valid)
    assert log_prob.shape == (500, world.n_classes)
    torch.testing.assert_close(log_prob.exp().sum(-1), torch.ones(500, dtype=torch.float64))
    torch.testing.assert_close(world.prior.sum(), torch.ones((), dtype=torch.float64))
    expected = world.prior[sample.y].log() - log_prob[torch.arange(500), sample.y]
    assert torch.equal(world.log_w(sample), expected)
    with pytest.raises(dataclasses.FrozenInstanceError):
        world.prior = None


@pytest.mark.parametrize("world", FULL_SUPPORT, ids=name)
def test_weights_average_one_overall_and_within_each_class(world: Any) -> None:
    sample = world.sample(N, seed=0)
    w = world.log_w(sample).exp()
    assert_mean(w, 1)
    for k in range(world.n_classes):
        assert_mean(w[sample.y == k], 1)
        assert_mean((sample.y == k).double(), float(world.prior[k]))


@pytest.mark.parametrize("world", [*FULL_SUPPORT, *LEAKS], ids=name)
def test_the_classes_follow_the_law_that_log_prob_states(world: Any) -> None:
    """E[1{y=k} − P(k|m) | m] = 0: right on average, and where P(k|m) is high or low, and where position 0 is."""
    sample = world.sample(N, seed=3)
    prob = world.log_prob(sample.masks, sample.valid).exp()
    for k in range(world.n_classes):
        residual = (sample.y == k).double() - prob[:, k]
        for g in (torch.ones(N), prob[:, k], sample.masks[:, 0], sample.masks.amax(-1)):
            assert_mean(residual * g, 0)


@pytest.mark.parametrize("world", [w for w in [*FULL_SUPPORT, *LEAKS] if hasattr(w, "second_moment")], ids=name)
def test_second_moment_against_simulation(world: Any) -> None:
    w = world.log_w(world.sample(N, seed=5)).exp()
    assert_mean(w.square(), world.second_moment())


@pytest.mark.parametrize("world", [worlds.Gaussian(), worlds.Tabular(), worlds.Null(), worlds.Ends()], ids=name)
def test_masks_a_world_never_shows_are_refused_by_row(world: Any) -> None:
    sample = world.sample(4, seed=0)
    masks = sample.masks.clone()
    masks[2] = -1
    with pytest.raises(InputError, match=r"masks: expected .* row 2"):
        world.log_prob(masks, sample.valid)
    with pytest.raises(InputError, match=r"masks: expected shape \(n, "):
        world.log_prob(masks[:, 1:])
    with pytest.raises(InputError, match="n: expected an integer of at least 1, got 0"):
        world.sample(0, 0)
    with pytest.raises(InputError, match="seed: expected an integer"):
        world.sample(1, -1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: worlds.Tabular(matrix=[[1.0, 0.0], [1.0, 1.0]]), r"matrix: expected positive numbers, entry \(0, 1\)"),
        (lambda: worlds.Tabular(prior=[0.5, 0.5]), r"prior: expected real numbers of shape \(3\)"),
        (lambda: worlds.Tabular(kind="other"), "kind: expected"),  # type: ignore[arg-type]
        (lambda: worlds.Tabular(kind="one-hot", n_types=9), "n_types: expected at most 8"),
        (lambda: worlds.Gaussian(prior=[0.5, 0.6]), "prior: expected probabilities that sum to 1"),
        (lambda: worlds.Gaussian(means=[[0.0, float("nan")]]), "means: expected finite numbers"),
        (lambda: worlds.Logistic(law="uniform"), "law: expected"),  # type: ignore[arg-type]
        (lambda: worlds.Logistic(coefficients=[[1.0]]), r"coefficients: expected real numbers of shape \(3, 6\)"),
        (lambda: worlds.DirichletByClass([[1.0, -1.0], [1.0, 1.0]]), "alpha: expected positive numbers"),
        (lambda: worlds.DeterministicLeak(3, 3, share=0.5), "n_positions: expected an integer of at least 4, got 3"),
        (lambda: worlds.DeterministicLeak(share=1.5), "share: expected a number from 0 to 1, got 1.5"),
        (lambda: worlds.Null(kind="subset", chosen=7), "chosen: expected an integer from 1 to 6, got 7"),
        (lambda: worlds.Ends(shortest=5, longest=4), "longest: expected an integer of at least 5, got 4"),
    ],
)
def test_arguments_out_of_range_are_named(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


# ---------------------------------------------------------------------------------------------- Tabular


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 4), st.integers(2, 6), st.integers(0, 10_000))
def test_scaling_meets_both_margins_and_keeps_odds_ratios(K: int, J: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = torch.from_numpy(rng.gamma(2, size=(K, J)) + 0.05)
    rows, columns = (torch.from_numpy(rng.dirichlet(np.full(size, 3.0))) for size in (K, J))
    joint = scale_to_margins(matrix, rows, columns)
    torch.testing.assert_close(joint.sum(1), rows, atol=1e-13, rtol=0)
    torch.testing.assert_close(joint.sum(0), columns, atol=1e-13, rtol=0)
    odds = lambda m: m[1:, 1:] * m[:1, :1] / (m[1:, :1] * m[:1, 1:])  # noqa: E731
    torch.testing.assert_close(odds(joint), odds(matrix), rtol=1e-9, atol=0)


def test_the_identities_by_enumeration() -> None:
    world = FULL_SUPPORT[0]
    P, w = world.joint, 1 / world.ratio
    p_y, p_m = world.prior, world.type_prior
    torch.testing.assert_close(P * w, torch.outer(p_y, p_m))  # the weights turn P into Q
    torch.testing.assert_close((P * w).sum(0) / p_m, torch.ones_like(p_m))  # E[w | m] = 1
    torch.testing.assert_close((P * w).sum(1) / p_y, torch.ones_like(p_y))  # E[w | y] = 1
    torch.testing.assert_close((p_y[:, None] / w).sum(0), torch.ones_like(p_m))  # Σ_y P(y)/w = 1
    assert (w >= p_y[:, None] - 1e-12).all()
    assert world.second_moment() == pytest.approx(float((P * w**2).sum()))
    torch.testing.assert_close(world.log_prob(world.types).T, (P / p_m).log())


def test_selection_run_forwards_gives_p_with_acceptance_rate_c() -> None:
    world = FULL_SUPPORT[0]
    for c in (None, 0.1):
        chosen = world.sample_with_selection(4 * N, seed=2, base_rate=c)
        rate = float(world.prior.min()) if c is None else c
        assert_mean(chosen.s.double(), rate)
        cells = (chosen.y * world.n_types + chosen.type_index)[chosen.s == 1]
        counts = torch.bincount(cells, minlength=world.joint.numel())
        assert stats.chisquare(counts, world.joint.flatten() * len(cells)).pvalue > 1e-4
        everyone = torch.bincount(chosen.y * world.n_types + chosen.type_index, minlength=world.joint.numel())
        assert stats.chisquare(everyone, torch.outer(world.prior, world.type_prior).flatten() * 4 * N).pvalue > 1e-4


def test_propensities_are_probabilities_with_both_margins() -> None:
    world = FULL_SUPPORT[0]
    propensity = world.propensity()
    assert ((propensity > 0) & (propensity <= 1)).all()
    c = float(world.prior.min())
    torch.testing.assert_close(world.prior @ propensity, torch.full((6,), c, dtype=torch.float64))
    torch.testing.assert_close(propensity @ world.type_prior, torch.full((3,), c, dtype=torch.float64))
    for bad in (0.0, -0.1, 0.99, float("nan")):
        with pytest.raises(InputError, match="base_rate: expected a number above 0 and at most"):
            world.propensity(bad)


def test_a_matrix_of_the_users_is_not_written_to() -> None:
    matrix = np.array([[3.0, 1.0], [1.5, 4.5]])
    world = worlds.Tabular(matrix=matrix, prior=[0.4, 0.6], type_prior=[0.45, 0.55])
    assert (matrix == [[3.0, 1.0], [1.5, 4.5]]).all()
    torch.testing.assert_close(world.joint, torch.tensor([[0.30, 0.10], [0.15, 0.45]], dtype=torch.float64))


def test_no_dependence_at_strength_zero() -> None:
    world = worlds.Tabular(strength=0.0)
    torch.testing.assert_close(world.ratio, torch.ones(3, 6, dtype=torch.float64))


# ---------------------------------------------------------------------------------------------- densities


def test_gaussian_against_scipys_densities_of_the_mask() -> None:
    world = worlds.Gaussian(3, 4, prior=[0.5, 0.3, 0.2])
    sample = world.sample(200, seed=0)
    f = (sample.masks[:, :-1] / sample.masks[:, -1:]).log().numpy()
    laws = zip(world.prior.tolist(), world.means.numpy())
    density = np.stack([p * stats.multivariate_normal.pdf(f, mu) for p, mu in laws], -1)
    expected = torch.from_numpy(density / density.sum(-1, keepdims=True)).log()
    torch.testing.assert_close(world.log_prob(sample.masks), expected)


def test_gaussian_second_moment_of_two_classes_in_one_dimension_by_quadrature() -> None:
    world = worlds.Gaussian(means=[[0.0], [1.0]], prior=[0.7, 0.3])
    p = lambda f: 0.7 * stats.norm.pdf(f) + 0.3 * stats.norm.pdf(f, 1)  # noqa: E731
    terms = [integrate.quad(lambda f, m=m: p(f) ** 2 / stats.norm.pdf(f, m), -12, 12)[0] for m in (0, 1)]
    assert world.second_moment() == pytest.approx(0.7 * terms[0] + 0.3 * terms[1], rel=1e-8)


@pytest.mark.parametrize("world", HEAVY, ids=name)
def test_dirichlets_against_scipys_densities(world: Any) -> None:
    sample = world.sample(200, seed=0)
    logs = np.stack([stats.dirichlet.logpdf(sample.masks.T.numpy(), a) for a in world.alpha.numpy()], -1)
    expected = (torch.from_numpy(logs) + world.prior.log()).log_softmax(-1)
    torch.testing.assert_close(world.log_prob(sample.masks), expected)


def test_dirichlet_second_moment_by_quadrature_and_where_it_is_infinite() -> None:
    world = worlds.DirichletByClass([[1.5, 2.5], [2.5, 1.5]], prior=[0.7, 0.3])
    a, b = stats.beta(1.5, 2.5).pdf, stats.beta(2.5, 1.5).pdf
    p = lambda m: 0.7 * a(m) + 0.3 * b(m)  # noqa: E731
    terms = [integrate.quad(lambda m, d=d: p(m) ** 2 / d(m), 0, 1, limit=200)[0] for d in (a, b)]
    assert world.second_moment() == pytest.approx(0.7 * terms[0] + 0.3 * terms[1], rel=1e-5)
    assert worlds.DirichletByClass([[1.0, 1.0], [2.0, 1.0]]).second_moment() == math.inf
    assert worlds.Concentration((0.5, 2.0)).second_moment() == math.inf


def test_log_prob_is_finite_at_extreme_masks() -> None:
    masks = torch.tensor([[1e-300, 1e-300, 1e-300, 1.0], [0.25, 0.25, 0.25, 0.25]], dtype=torch.float64)
    for world in (worlds.DirichletByClass(), worlds.Gaussian(n_positions=4), worlds.Logistic(n_positions=4)):
        assert torch.isfinite(world.log_prob(masks)).all()
    tiny = worlds.DirichletByClass([[0.02, 0.02], [0.05, 0.02]]).sample(2000, seed=0)
    assert (tiny.masks > 0).all()


def test_concentration_is_hidden_from_each_positions_mean() -> None:
    sample = worlds.Concentration().sample(N, seed=0)
    for k in (0, 1):
        for position in range(sample.T):
            assert_mean(sample.masks[sample.y == k, position], 1 / 8)
    assert sample.masks[sample.y == 0].amax(-1).mean() > sample.masks[sample.y == 1].amax(-1).mean() + 0.1


@pytest.mark.parametrize("law", ["dirichlet", "logistic-normal"])
def test_logistic_features_are_standardised_and_the_logits_linear_in_them(law: Any) -> None:
    world = worlds.Logistic(law=law, alpha=0.7, interaction=True, intercept=[0.5, 0.0, -0.5])
    sample = world.sample(N, seed=0)
    phi = world.features(sample.masks)
    for j in range(phi.shape[1]):
        assert_mean(phi[:, j], 0)
    for j in range(world.n_positions):
        assert_mean(phi[:, j].square(), 1)
    logits = phi @ world.coefficients.T + world.intercept
    torch.testing.assert_close(world.log_prob(sample.masks).diff(dim=-1), logits.diff(dim=-1))
    assert worlds.Logistic(intercept=[2.0, 0.0, 0.0]).prior[0] > 0.6


# ---------------------------------------------------------------------------------------------- leaks and ends


@pytest.mark.parametrize(
    ("world", "deficit"),
    [
        (worlds.DeterministicLeak(), 0.5),
        (worlds.DeterministicLeak(share=0.5), 0.25),
        (worlds.DeterministicLeak(share=1.0), 0.0),
        (worlds.DeterministicLeak(3, 7, share=0.25, prior=[0.5, 0.3, 0.2]), 0.75 * (1 - 0.25 - 0.09 - 0.04)),
    ],
)
def test_support_deficit_is_the_q_mass_p_never_shows(world: Any, deficit: float) -> None:
    assert world.support_deficit() == pytest.approx(deficit)
    sample = world.sample(N, seed=0)
    never = (world.log_prob(sample.masks) == -math.inf).double() @ world.prior  # Q draws y apart from m
    assert_mean(never, deficit)
    assert_mean(world.log_w(sample).exp(), 1 - deficit)  # E[w] = 1 − D


def test_a_leaking_mask_names_its_class_and_a_shared_one_none() -> None:
    world = worlds.DeterministicLeak(2, 4, share=0.5, prior=[0.9, 0.1])
    sample = world.sample(2000, seed=1)
    shared = sample.masks.argmax(-1) >= 2
    assert torch.equal(sample.masks.argmax(-1)[~shared], sample.y[~shared])
    assert_mean(shared.double(), 0.5)
    assert world.log_w(sample)[shared].abs().max() < 1e-12
    other = MaskSample(sample.masks, 1 - sample.y, n_classes=2)
    assert torch.isposinf(world.log_w(other)[~shared]).all()


def test_null_subsets_choose_uniformly() -> None:
    sample = worlds.Null(n_positions=5, kind="subset", chosen=2).sample(N, seed=0)
    assert sample.kind == "subset"
    assert (sample.masks.sum(-1) == 2).all()
    codes = (sample.masks @ torch.tensor([1.0, 2, 4, 8, 16]).double()).long()
    counts = codes.unique(return_counts=True)[1]
    assert len(counts) == 10
    assert stats.chisquare(counts).pvalue > 1e-4


def test_ends_lengths_vary_and_the_place_from_the_end_tells_the_class() -> None:
    world = worlds.Ends(shortest=3, longest=9, flip=0.1, prior=[0.6, 0.4])
    sample = world.sample(N, seed=0)
    assert sample.valid is not None
    lengths = sample.valid.sum(-1)
    assert lengths.unique().tolist() == list(range(3, 10))
    last = sample.masks.argmax(-1) == lengths - 1
    given_last = 0.4 * 0.9 / (0.4 * 0.9 + 0.6 * 0.1)
    torch.testing.assert_close(
        world.log_prob(sample.masks, sample.valid)[last, 1].exp(),
        torch.full((int(last.sum()),), given_last, dtype=torch.float64),
    )
    assert_mean((sample.y[last] == 1).double(), given_last)
    assert_mean(last[sample.y == 0].double(), 0.1)
