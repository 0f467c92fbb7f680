"""What the public figures are given, checked once and turned into plain arrays; the drawing trusts it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from causal_attn.errors import InputError

if TYPE_CHECKING:
    from causal_attn.weights import Weights

PARTS_OF_WEIGHTS = ("log_w", "y", "prior", "known_log_prob")


def checked_weights(weights: Weights) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """log w (n,), classes (n,) and the prior (K,) of a `Weights`, known by its parts: torch need not be loaded here."""
    if not all(hasattr(weights, part) for part in PARTS_OF_WEIGHTS):
        raise InputError(f"weights: expected a causal_attn.Weights, got {type(weights).__name__}")
    return np.asarray(weights.log_w), np.asarray(weights.y), np.asarray(weights.prior)


def checked_log_prob(weights: Weights) -> np.ndarray:
    """Held-out log P(k|m) of a `Weights`, (n, K)."""
    checked_weights(weights)
    known = weights.known_log_prob()
    if known is None:
        raise InputError(
            f"weights: expected ones with log_prob (n, {len(weights.prior)}), got log_prob=None; the weights alone "
            "tell P(class | m) only where K = 2 and they are those of y given m"
        )
    return np.asarray(known)


def checked_names(class_names: Sequence[str] | None, n_classes: int, more: bool = False) -> list[str]:
    """A name for each of `n_classes` classes, "class 3" where none are given; with `more`, further names may follow."""
    if class_names is None:
        return [f"class {k}" for k in range(n_classes)]
    if isinstance(class_names, str) or not isinstance(class_names, Iterable):
        raise InputError(f"class_names: expected a sequence of {n_classes} names, got {class_names!r}")
    names = [str(name) for name in class_names]
    if len(names) < n_classes or (len(names) > n_classes and not more):
        raise InputError(f"class_names: expected {n_classes} names, got {len(names)}")
    return names


def checked_table(table: pd.DataFrame, columns: Sequence[str], numbers: Sequence[str], source: str) -> pd.DataFrame:
    """A copy of `table` with `columns` alone, the `numbers` among them as float64; `source` says where to get one."""
    if not isinstance(table, pd.DataFrame):
        raise InputError(f"table: expected the DataFrame of {source}, got {type(table).__name__}")
    lacking = [c for c in columns if c not in table.columns]
    if lacking:
        raise InputError(f"table: expected the columns of {source}, found no {', '.join(map(repr, lacking))}")
    out = table.loc[:, list(columns)].copy()
    for column in numbers:
        try:
            out[column] = out[column].astype("float64")
        except (TypeError, ValueError) as error:
            raise InputError(f"table: expected numbers in column {column!r} ({error})") from error
    return out


def checked_count(value: Any, name: str) -> int:
    """A whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise InputError(f"{name}: expected a whole number of at least 1, got {value!r}")
    return int(value)
