"""Random masks: on the simplex over what exists, by the law their name says, and by nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import chisquare, kstest

from causal_attn.errors import InputError
from causal_attn.training import RandomAttentionPretraining, laws, train
from tests.training.toys import small_text, token_data

VALID = torch.arange(7) < torch.tensor([1, 2, 5, 7, 3])[:, None]


def of_length(n_rows: int, length: int, width: int) -> torch.Tensor:
    return (torch.arange(width) < length).expand(n_rows, -1)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("law", laws.LAWS.values(), ids=laws.LAWS)
def test_rows_sum_to_one_on_what_exists_and_seeds_reproduce(law: laws.Law) -> None:
    valid = VALID.repeat(200, 1)
    before = torch.get_rng_state()
    m = law(valid, generator())
    torch.testing.assert_close(m.sum(-1), torch.ones(1000, dtype=torch.float64))
    assert (m >= 0).all()
    assert (m[~valid] == 0).all()
    assert torch.equal(m, law(valid, generator()))
    assert not torch.equal(m, law(valid, generator(1)))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_hole_in_the_middle_gets_nothing() -> None:
    valid = torch.tensor([[True, False, True, True]]).expand(500, -1)
    for law in laws.LAWS.values():
        m = law(valid, generator())
        assert (m[:, 1] == 0).all()
        assert (m.sum(0)[[0, 2, 3]] > 100).all()


def test_subset_size_is_uniform_and_every_position_as_likely() -> None:
    m = laws.subset(of_length(20_000, 5, 7), generator())[:, :5]
    k = (m > 0).sum(-1)
    assert chisquare(torch.bincount(k, minlength=6)[1:].numpy()).pvalue > 1e-3
    torch.testing.assert_close(m, (m > 0) / k[:, None].double())
    for size in range(1, 5):
        # of C(5, k) equally likely sets, so all pairs of positions are tried, not the margins alone
        codes = ((m[k == size] > 0) * 2 ** torch.arange(5)).sum(-1)
        counts = codes.unique(return_counts=True)[1].numpy()
        assert len(counts) == {1: 5, 2: 10, 3: 10, 4: 5}[size]
        assert chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("alpha", [0.1, 1.0, 3.0])
def test_dirichlet_moments_at_one_concentration(alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laws, "CONCENTRATIONS", (alpha, alpha))
    n, t = 40_000, 4
    m = laws.dirichlet(of_length(n, t, 6), generator())[:, :t]
    variance = (t - 1) / (t**2 * (t * alpha + 1))
    covariance = -1 / (t**2 * (t * alpha + 1))
    deviations = m - 1 / t
    for values, expected in (
        (m, 1 / t),
        (deviations**2, variance),
        (deviations[:, :1] * deviations[:, 1:], covariance),
    ):
        error = values.std(0) / n**0.5
        assert ((values.mean(0) - expected).abs() < 4.5 * error).all()


def test_dirichlet_concentration_is_log_uniform_over_its_range() -> None:
    t, (low, high) = 5, laws.CONCENTRATIONS
    m = laws.dirichlet(of_length(40_000, t, t), generator())
    squares = m.square().sum(-1)  # E[Σ m²] = (α+1)/(tα+1) at concentration α
    expected = quad(lambda u: (np.exp(u) + 1) / (t * np.exp(u) + 1), np.log(low), np.log(high))[0] / np.log(high / low)
    assert abs(float(squares.mean()) - expected) < 4.5 * float(squares.std()) / 200


def test_tiny_concentrations_do_not_underflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laws, "CONCENTRATIONS", (1e-4, 1e-4))
    m = laws.dirichlet(of_length(1000, 6, 6), generator())
    assert torch.isfinite(m).all()
    torch.testing.assert_close(m.sum(-1), torch.ones(1000, dtype=torch.float64))


def test_the_mixture_is_half_soft_half_choices() -> None:
    n = 10_000
    m = laws.mixture(of_length(n, 6, 6), generator())
    equal = torch.stack([(row[row > 0] - row.max()).abs().max() < 1e-12 for row in m])
    assert abs(float(equal.double().mean()) - 0.5) < 4.5 * 0.5 / n**0.5


def test_laws_by_name_or_as_they_are() -> None:
    def own(valid: torch.Tensor, g: torch.Generator) -> torch.Tensor:
        return valid / valid.sum(-1, keepdim=True)

    assert laws.law_named("subset") is laws.subset
    assert laws.law_named(own) is own
    with pytest.raises(
        InputError,
        match=r"law: expected one of mixture, .*, matched or a callable, got 'odd'",
    ):
        laws.law_named("odd")


def test_bernoulli_chooses_each_position_with_a_half_given_that_one_is() -> None:
    m = laws.bernoulli(of_length(20_000, 5, 7), generator())[:, :5]
    codes = ((m > 0) * 2 ** torch.arange(5)).sum(-1)
    counts = torch.bincount(codes, minlength=32).numpy()
    assert counts[0] == 0  # an empty choice becomes one of a single position, each as likely
    expected = np.full(32, 1 / 32)
    expected[[1, 2, 4, 8, 16]] += 1 / 32 / 5
    assert chisquare(counts[1:], 20_000 * expected[1:]).pvalue > 1e-3


def test_softmax_normal_has_normal_log_ratios_of_its_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laws, "SPREADS", (1.5, 1.5))
    m = laws.softmax_normal(of_length(20_000, 4, 6), generator())[:, :4]
    ratio = (m[:, 0] / m[:, 1]).log() / (1.5 * np.sqrt(2))
    assert kstest(ratio.numpy(), "norm").pvalue > 1e-3


@pytest.mark.parametrize("k", [1, 3, 9])
def test_subsets_have_their_size_or_all_there_is(k: int) -> None:
    m = laws.Subsets(k)(VALID.repeat(100, 1), generator())
    assert torch.equal((m > 0).sum(-1), VALID.sum(-1).clamp(max=k).repeat(100))


@pytest.mark.parametrize("alpha", [0.05, 0.7, 20.0])
def test_a_matched_law_finds_the_concentration_masks_came_from(alpha: float) -> None:
    valid = torch.arange(12) < torch.arange(20_000)[:, None] % 12 + 1
    masks = laws.Dirichlet(alpha)(valid, generator(3))
    found = laws.matched_to(masks, valid, choices=False)
    assert isinstance(found, laws.Dirichlet)
    assert found.alpha == pytest.approx(alpha, rel=0.1)  # twice the error of a mean of 20,000 Σm²
    chosen = (laws.Subsets(4)(of_length(50, 12, 12), generator()) > 0).double()
    assert laws.matched_to(chosen, of_length(50, 12, 12), choices=True) == laws.Subsets(4)


def test_a_matched_law_of_masks_beyond_the_range_is_at_its_end() -> None:
    valid = of_length(5, 4, 4)
    even, single = valid / 4, torch.eye(4)[[0, 1, 2, 3, 0]]
    assert laws.matched_to(even, valid, False) == laws.Dirichlet(laws.MOST_ALPHA)
    assert laws.matched_to(single, valid, False) == laws.Dirichlet(laws.LEAST_ALPHA)


def test_choices_are_shown_choices() -> None:
    m = laws.choices_law(laws.mixture)(VALID.repeat(100, 1), generator())
    assert set(m.unique().tolist()) == {0.0, 1.0}
    for soft in (laws.dirichlet, laws.softmax_normal, laws.Dirichlet(0.3)):
        with pytest.raises(InputError, match="law: expected a law of choices"):
            laws.choices_law(soft)


@pytest.mark.parametrize(
    ("law", "message"),
    [
        (
            lambda valid, g: 3.0 * valid / valid.sum(-1, keepdim=True),
            "law: expected rows that sum to 1, .* row 0 sums to 3",
        ),
        (lambda valid, g: torch.full(valid.shape, torch.nan), "law: expected mass on valid positions only .* row 0"),
    ],
)
def test_a_law_that_gives_no_masks_is_named(law: laws.Law, message: str) -> None:
    with pytest.raises(InputError, match=message):
        train(small_text(), token_data(), RandomAttentionPretraining(law=law), epochs=1, progress=False)
