"""Reliance: how far the downstream part follows the mask of another class, by swapping masks (do(m)).

    reliance = mean[ p(y_j | x_i, m_j) − p(y_j | x_i, m_j′) ],      y_i ≠ y_j,  y_j′ = y_i

over pairs (i, j) drawn jointly among rows of different classes; m_j′ is another row's mask of x_i's own class, so what
a swap does by itself cancels. Where the place of the evidence depends on the class a faithful model relies on the mask
too; so the verdict uses the *excess* over what an EVAL-X evaluator does with the same swaps (theory section 9).

    excess reliance = reliance − max(0, reliance of the evaluator)

Swaps are made between rows of like length, on the common valid prefix, renormalised. Cost: 2 predictions per pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from causal_attn.data.splits import Split
from causal_attn.diagnostics.intervals import percentile_interval, widened
from causal_attn.errors import InputError
from causal_attn.masks import MaskSample, moved
from causal_attn.training.collect import collect_logits

PAIRS_PER_ROW = 4
MIN_PAIRS = 2000
MAX_PAIRS = 20_000
NEIGHBOURS = 24
"""Partners are drawn among this many rows of the needed class with the nearest lengths."""
N_BOOTSTRAP = 1000


@dataclass(frozen=True)
class Swaps:
    """Row indices of the swaps: x_i, the other class's mask j, and the mask j′ of x_i's own class. Each (p,)."""

    i: Tensor
    j: Tensor
    own: Tensor


@dataclass(frozen=True)
class Reliance:
    """Reliance with its interval, and the same beyond the evaluator's, in probability."""

    reliance: float
    excess: float
    evaluator: float
    reliance_interval: tuple[float, float]
    excess_interval: tuple[float, float]
    n_pairs: int


def draw_swaps(y: Tensor, lengths: Tensor, n_pairs: int, rng: np.random.Generator) -> Swaps:
    """Pairs with y_i ≠ y_j, every such pair of classes in proportion to its pairs of rows, partners of like length.

    Raises:
        InputError: fewer than two classes, or a class with a single row (it has no other mask of its own class).
    """
    counts = np.bincount(y.numpy())
    present = np.flatnonzero(counts)
    if len(present) < 2:
        raise InputError("y: expected at least two classes in the split to swap masks between")
    if (counts[present] < 2).any():
        k = int(present[counts[present] < 2][0])
        raise InputError(f"y: expected at least 2 rows of every class in the split, class {k} has 1")
    pairs = np.outer(counts, counts).astype(float)
    np.fill_diagonal(pairs, 0)
    a, b = np.unravel_index(rng.choice(pairs.size, n_pairs, p=pairs.ravel() / pairs.sum()), pairs.shape)
    order = {k: _by_length(y, lengths, k) for k in present.tolist()}
    i, j, own = (np.empty(n_pairs, dtype=np.int64) for _ in range(3))
    for k, rows in order.items():
        i[a == k] = rows[rng.integers(0, len(rows), int((a == k).sum()))]
    length_i = lengths.numpy()[i]
    for k, rows in order.items():
        j[b == k] = _near(rows, lengths.numpy(), length_i[b == k], rng)
        own[a == k] = _near(rows, lengths.numpy(), length_i[a == k], rng, other_than=i[a == k])
    return Swaps(torch.from_numpy(i), torch.from_numpy(j), torch.from_numpy(own))


def _by_length(y: Tensor, lengths: Tensor, k: int) -> np.ndarray:
    rows = np.flatnonzero(y.numpy() == k)
    return rows[np.argsort(lengths.numpy()[rows], kind="stable")]


def _near(
    rows: np.ndarray, lengths: np.ndarray, wanted: np.ndarray, rng: np.random.Generator,
    other_than: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """For each wanted length, one of the NEIGHBOURS rows (sorted by length) around it, evenly; never `other_than`.

    Where more rows than that have just this length, one of them all.
    """
    known = lengths[rows]
    left, right = np.searchsorted(known, wanted, "left"), np.searchsorted(known, wanted, "right")
    width = np.maximum(min(NEIGHBOURS, len(rows)), right - left)
    start = np.clip((left + right) // 2 - width // 2, 0, len(rows) - width)
    if other_than is None:
        return rows[start + rng.integers(0, width)]
    place = np.empty(len(lengths), dtype=np.int64)
    place[rows] = np.arange(len(rows))
    inside = place[other_than] - start  # where the row itself stands in its window, which holds its length whole
    step = rng.integers(1, width)
    return rows[start + (inside + step) % width]


def swap_effects(model: Any, split: Split, sample: MaskSample, swaps: Swaps) -> Tensor:
    """p(y_j | x_i, m_j) − p(y_j | x_i, m_j′) for each swap, shape (p,), probability."""
    valid = sample.valid[swaps.i]
    y_j = sample.y[swaps.j][:, None]
    p = [
        collect_logits(model, split, moved(sample.masks[rows], valid, sample.kind), swaps.i).softmax(-1)
        for rows in (swaps.j, swaps.own)
    ]
    return (p[0] - p[1]).gather(-1, y_j)[:, 0]


def reliance(model: Any, evaluator: Any, split: Split, sample: MaskSample, seed: int = 0) -> Reliance:
    """Reliance of `model` on its masks `sample` over `split`, and its excess over the evaluator's on the same swaps.

    Intervals: 95%, Bayesian bootstrap over rows, each swap weighted by the product of its three rows' weights, and
    wider where the rarest class has few rows.
    """
    rng = np.random.default_rng([seed, 2])
    n_pairs = int(np.clip(PAIRS_PER_ROW * sample.n, MIN_PAIRS, MAX_PAIRS))
    swaps = draw_swaps(sample.y, sample.valid.sum(-1), n_pairs, rng)
    own = swap_effects(model, split, sample, swaps).numpy()
    base = swap_effects(evaluator, split, sample, swaps).numpy()
    draws = np.array([_resampled(own, base, swaps, sample.n, rng) for _ in range(N_BOOTSTRAP)])
    excess = draws[:, 0] - np.maximum(0, draws[:, 1])
    point = float(own.mean()), float(base.mean())
    beyond = point[0] - max(0.0, point[1])
    few = int(sample.y.bincount()[sample.y.unique()].min())
    intervals = [
        widened(p, percentile_interval(d), few, -1.0, 1.0) for p, d in ((point[0], draws[:, 0]), (beyond, excess))
    ]
    return Reliance(point[0], beyond, point[1], intervals[0], intervals[1], n_pairs)


def _resampled(
    own: np.ndarray, base: np.ndarray, swaps: Swaps, n: int, rng: np.random.Generator
) -> tuple[float, float]:
    weight = rng.standard_exponential(n)
    pair = weight[swaps.i.numpy()] * weight[swaps.j.numpy()] * weight[swaps.own.numpy()]
    return float(pair @ own / pair.sum()), float(pair @ base / pair.sum())
