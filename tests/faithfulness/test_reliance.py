"""Swapping masks: which pairs, what a swap does, and models whose reliance is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from causal_attn.data import Data
from causal_attn.errors import InputError
from causal_attn.faithfulness.reliance import NEIGHBOURS, Reliance, draw_swaps, reliance, swap_effects
from causal_attn.masks import MaskSample
from causal_attn.training.collect import collect_masks
from tests.training.toys import Fixed, bag_data, fixed_data, small_text, token_data, wrapped


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def classes(*counts: int) -> Tensor:
    y = torch.cat([torch.full((count,), k) for k, count in enumerate(counts)])
    return y[torch.randperm(len(y), generator=torch.Generator().manual_seed(1))]


# ------------------------------------------------------------------------------------------------ the pairs


def test_pairs_are_of_different_classes_and_the_other_mask_of_ones_own() -> None:
    y = classes(5, 2, 30)
    swaps = draw_swaps(y, torch.arange(37) % 4, 4000, rng())
    assert (y[swaps.i] != y[swaps.j]).all()
    assert torch.equal(y[swaps.own], y[swaps.i])
    assert (swaps.own != swaps.i).all()
    for rows in (swaps.i, swaps.j, swaps.own):
        assert rows.unique().tolist() == list(range(37))  # nobody is left out


def test_pairs_of_classes_come_in_proportion_to_their_pairs_of_rows() -> None:
    y = classes(90, 10, 40)
    swaps = draw_swaps(y, torch.ones(140), 20_000, rng())
    counts = torch.bincount(3 * y[swaps.i] + y[swaps.j], minlength=9).reshape(3, 3).double().numpy()
    n = np.bincount(y.numpy())
    off = ~np.eye(3, dtype=bool)
    expected = np.outer(n, n)[off] / np.outer(n, n)[off].sum() * 20_000
    assert counts[~off].sum() == 0
    assert chisquare(counts[off], expected).pvalue > 1e-3
    assert chisquare(torch.bincount(swaps.i, minlength=140)[y == 0].numpy()).pvalue > 1e-3


def test_partners_are_neighbours_in_length() -> None:
    y = classes(300, 300)
    lengths = torch.from_numpy(rng(2).permutation(600)) + 1  # all different
    swaps = draw_swaps(y, lengths, 5000, rng())
    for partner in (swaps.j, swaps.own):
        for i, j in zip(swaps.i.tolist()[:500], partner.tolist(), strict=False):
            mates = lengths[y == y[j]]
            between = (mates > min(lengths[i], lengths[j])) & (mates < max(lengths[i], lengths[j]))
            at_an_end = min(int((mates < lengths[i]).sum()), int((mates > lengths[i]).sum())) < NEIGHBOURS
            assert int(between.sum()) <= (NEIGHBOURS if at_an_end else NEIGHBOURS // 2)


def test_rows_of_one_length_are_all_used_as_partners() -> None:
    y = classes(200, 100)
    swaps = draw_swaps(y, torch.full((300,), 9), 30_000, rng())
    for partner in (swaps.j, swaps.own):
        for k in (0, 1):
            assert chisquare(torch.bincount(partner, minlength=300)[y == k].numpy()).pvalue > 1e-3


def test_few_rows_or_classes_are_refused() -> None:
    with pytest.raises(InputError, match="at least two classes"):
        draw_swaps(torch.zeros(4, dtype=torch.long), torch.ones(4), 10, rng())
    with pytest.raises(InputError, match="class 2 has 1"):
        draw_swaps(torch.tensor([0, 0, 1, 1, 2]), torch.ones(5), 10, rng())
    swaps = draw_swaps(torch.tensor([0, 1, 0, 1]), torch.ones(4), 50, rng())
    assert (swaps.own != swaps.i).all()


# ------------------------------------------------------------------------------------------------ what a swap does


@pytest.mark.parametrize("kind", ["text", "bags"])
def test_effects_equal_a_loop_over_pairs(kind: str) -> None:
    data = token_data() if kind == "text" else bag_data()
    model = small_text("recurrent") if kind == "text" else wrapped()
    for parameter in model.parameters():
        parameter.data.mul_(3)  # effects worth comparing
    masks, valid = collect_masks(model, data.test)
    sample = MaskSample(masks, data.test.y, valid)
    swaps = draw_swaps(sample.y, valid.sum(-1), 60, rng())
    effects = swap_effects(model, data.test, sample, swaps)
    model.eval()
    for place in range(60):
        i, j = int(swaps.i[place]), int(swaps.j[place])
        x, length = data.test.batch([i])[0], int(valid[i].sum())
        p = []
        for donor in (j, int(swaps.own[place])):
            m = masks[donor, :length]
            with torch.no_grad():
                logits = model.predict(x, (m / m.sum())[None]).double()
            p.append(float(logits.softmax(-1)[0, int(sample.y[j])]))
        assert float(effects[place]) == pytest.approx(p[0] - p[1], abs=1e-5)
    assert float(effects.abs().max()) > 0.01


def world(n: int, seed: int = 0, shares: tuple[float, float] = (0.5, 0.5), t: int = 4) -> tuple[Data, MaskSample]:
    """Masks that look at position y more often than not; evidence ±1 stands at position y, nothing elsewhere."""
    y = classes(round(n * shares[0]), round(n * shares[1]))
    g = torch.Generator().manual_seed(seed)
    noise = torch.randn(n, t, generator=g, dtype=torch.float64)
    masks = (noise + 1.5 * torch.nn.functional.one_hot(y, t)).softmax(-1).float()
    evidence = torch.zeros(n, t)
    evidence[torch.arange(n), y] = 2.0 * y - 1
    data = fixed_data(masks, evidence, y)
    return data, MaskSample(masks, y)


def measured(model: Fixed, evaluator: Fixed, n: int = 400, **kwargs: tuple[float, float]) -> Reliance:
    data, sample = world(n, **kwargs)  # type: ignore[arg-type]
    return reliance(model, evaluator, data.test, sample)


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.9, 0.1)])
def test_a_constant_prediction_has_no_reliance_whatever_the_classes(shares: tuple[float, float]) -> None:
    found = measured(Fixed("nothing"), Fixed("nothing"), shares=shares)
    assert (found.reliance, found.excess, found.evaluator) == (0, 0, 0)
    assert found.excess_interval == found.reliance_interval == (0, 0)
    by_words = measured(Fixed("evidence", 5.0), Fixed("nothing"), shares=shares)
    assert by_words.reliance == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.9, 0.1)])
def test_a_model_that_reads_the_class_off_the_mask_has_its_known_reliance(shares: tuple[float, float]) -> None:
    n, c = 1000, -3.0
    data, sample = world(n, shares=shares)
    p = torch.sigmoid(c * (sample.masks[:, 0] - sample.masks[:, 1]).double())
    # E p(y_j|m_j) − p(y_j|m_j′) over pairs of classes (0, 1) and (1, 0), equally many
    known = float(p[sample.y == 1].mean() - p[sample.y == 0].mean())
    found = reliance(Fixed("mask", c), Fixed("evidence"), data.test, sample)
    assert known > 0.3
    assert found.reliance == pytest.approx(known, abs=0.04)
    assert found.evaluator == pytest.approx(0, abs=1e-12)
    assert found.excess == found.reliance
    assert found.reliance_interval[0] < known < found.reliance_interval[1]
    assert found.n_pairs == 4 * n


def test_a_mask_that_gives_the_class_away_has_reliance_tanh() -> None:
    y = classes(30, 70)
    masks = torch.tensor([[0.9, 0.1], [0.1, 0.9]])[y]
    data, c = fixed_data(masks, torch.zeros(100, 2), y), -2.5
    found = reliance(Fixed("mask", c), Fixed("evidence"), data.test, MaskSample(masks, y))
    assert found.reliance == pytest.approx(np.tanh(-c * 0.8 / 2), abs=1e-6)  # σ(.8c) − σ(−.8c)


def test_a_faithful_model_relies_on_its_mask_but_no_more_than_the_evaluator() -> None:
    y = classes(50, 50)
    masks = torch.nn.functional.one_hot(y, 3).float()
    evidence = masks * (2.0 * y - 1)[:, None]
    data = fixed_data(masks, evidence, y)
    model = Fixed("evidence under the mask", 20.0)
    found = reliance(model, Fixed("evidence under the mask", 20.0), data.test, MaskSample(masks, y, kind="simplex"))
    assert found.reliance == pytest.approx(0.5, abs=1e-6)  # theory, section 9
    assert found.excess == 0
    assert found.excess_interval == (0, 0)


def test_an_evaluator_below_nothing_takes_nothing_off() -> None:
    found = measured(Fixed("mask", -3.0), Fixed("mask", 3.0))
    assert found.evaluator < -0.2
    assert found.excess == found.reliance
    half = measured(Fixed("mask", -3.0), Fixed("mask", -1.0))
    assert half.excess == pytest.approx(half.reliance - half.evaluator, abs=1e-12)
    assert 0 < half.excess < half.reliance


def test_intervals_hold_the_point_and_shrink_with_the_rows() -> None:
    widths = {}
    for n in (200, 3200):
        found = measured(Fixed("mask", -3.0), Fixed("mask", -1.0), n)
        for point, (low, high) in (
            (found.reliance, found.reliance_interval),
            (found.excess, found.excess_interval),
        ):
            assert low < point < high
        widths[n] = found.reliance_interval[1] - found.reliance_interval[0]
    assert widths[3200] < 0.4 * widths[200]  # 0.25 in theory


@pytest.mark.slow
@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.8, 0.2)])
def test_intervals_cover_the_law_the_rows_come_from(shares: tuple[float, float]) -> None:
    data, sample = world(40_000, seed=99)
    p = torch.sigmoid(-3.0 * (sample.masks[:, 0] - sample.masks[:, 1]).double())
    known = float(p[sample.y == 1].mean() - p[sample.y == 0].mean())
    hits = 0
    for seed in range(100):
        data, sample = world(200, seed=seed, shares=shares)
        low, high = reliance(Fixed("mask", -3.0), Fixed("evidence"), data.test, sample, seed).reliance_interval
        hits += low <= known <= high
    assert hits >= 88  # weights of two rows in place of three: 82 and 69


def test_seeds_reproduce() -> None:
    data, sample = world(200)
    one, two, other = (reliance(Fixed("mask"), Fixed("evidence"), data.test, sample, seed) for seed in (1, 1, 2))
    assert one == two
    assert one != other
