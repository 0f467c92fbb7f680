"""The numeric arguments that loading and the simulated worlds share, checked in one place."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from causal_attn.errors import InputError
from causal_attn.masks import as_tensor

LARGEST_SEED = 2**32 - 1
"""What NumPy's and scikit-learn's seeds may be at most."""


def whole(value: Any, name: str, least: int, most: int | None = None) -> int:
    """`value` as an int between `least` and `most`; InputError for bools, fractions and numbers outside."""
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least or (most is not None and number > most):
        raise InputError(f"{name}: expected an integer {bounds}, got {value!r}")
    return number


def seed_of(seed: Any) -> int:
    """A seed from 0 to 2³²−1."""
    return whole(seed, "seed", 0, LARGEST_SEED)


def fraction(value: Any, name: str, low: float, high: float) -> float:
    """`value` as a float in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise InputError(f"{name}: expected a number from {low:g} to {high:g}, got {value!r}")
    return float(value)


def table_of(values: Any, name: str, shape: tuple[int | None, ...], positive: bool = False) -> Tensor:
    """`values` as a finite float64 tensor of `shape` (None: any size), a copy; optionally all above 0."""
    table = as_tensor(values, name)
    if table.is_complex() or table.ndim != len(shape) or any(b not in (None, a) for a, b in zip(table.shape, shape)):
        wanted = "(" + ", ".join("any" if size is None else str(size) for size in shape) + ")"
        raise InputError(f"{name}: expected real numbers of shape {wanted}, got {tuple(table.shape)}")
    table = table.double()
    bad = ~torch.isfinite(table) | ((table <= 0) if positive else torch.zeros_like(table, dtype=torch.bool))
    if bad.any():
        place = tuple(int(i) for i in bad.nonzero()[0])
        kind = "positive" if positive else "finite"
        raise InputError(f"{name}: expected {kind} numbers, entry {place} is {table[place].item():g}")
    return table


def margin(values: Any, name: str, size: int) -> Tensor:
    """Positive probabilities that sum to 1, shape (size,), float64; None means uniform."""
    if values is None:
        return torch.full((size,), 1 / size, dtype=torch.float64)
    probs = table_of(values, name, (size,), positive=True)
    if abs(float(probs.sum()) - 1) > 1e-6:
        raise InputError(f"{name}: expected probabilities that sum to 1, got a sum of {float(probs.sum()):.6g}")
    return probs / probs.sum()
