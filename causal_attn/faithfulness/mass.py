"""How much of the attention lies on given positions: default tokens, a lexicon's words, rationales."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from causal_attn.data.splits import Split
from causal_attn.errors import InputError
from causal_attn.masks import MaskSample


def mass_on(sample: MaskSample, positions: Tensor) -> Tensor:
    """Share of each row's mask on `positions` (n, T) bool. Shape (n,), probability."""
    if positions.shape != sample.masks.shape:
        raise InputError(f"positions: expected shape {tuple(sample.masks.shape)}, got {tuple(positions.shape)}")
    masks = sample.masks.double()
    return (masks * positions).sum(-1) / masks.sum(-1)


def by_class(values: Tensor, sample: MaskSample) -> Tensor:
    """Mean of `values` (n,) within each class, NaN for an absent one. Shape (K,)."""
    return torch.stack([values[sample.y == k].mean() for k in range(sample.n_classes)])


def first_positions(sample: MaskSample, n: int) -> Tensor:
    """The first n positions of every row, (n, T) bool: where default tokens stand."""
    return (torch.arange(sample.T) < n).expand(sample.n, -1)


def word_positions(split: Split, words: Collection[str], width: int) -> Tensor:
    """Where the split's tokens are among `words`, (n, width) bool."""
    where = torch.zeros(len(split), width, dtype=torch.bool)
    for i in range(len(split)):
        hits = [t for t, token in enumerate(split.tokens(i)) if token in words]
        where[i, hits] = True
    return where


def profile(sample: MaskSample, n_positions: int) -> tuple[Tensor, Tensor]:
    """Mean mask at each of the first positions by class, (K, P), over rows that have it; and their number, (P,)."""
    p = min(n_positions, sample.T)
    masks, valid = sample.masks[:, :p].double(), sample.valid[:, :p].double()
    onehot = torch.nn.functional.one_hot(sample.y, sample.n_classes).double()
    counts = onehot.T @ valid
    return (onehot.T @ (masks * valid)) / counts, valid.sum(0).long()
