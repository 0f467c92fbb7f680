"""Training, validation and test rows: how they are divided, held and put into batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, default_collate

from causal_attn.data.checks import seed_of, whole
from causal_attn.data.text import PAD_ID, TextReader, Vocabulary
from causal_attn.errors import DataError, InputError

SHARES = (0.8, 0.1, 0.1)
"""Default shares of training, validation and test rows."""

Batch = tuple[Any, Tensor]
Collate = Callable[[list[Any]], Any]


class Rows(Protocol):
    """Anything with a length that gives a row by its place."""

    def __len__(self) -> int: ...

    def __getitem__(self, i: int, /) -> Any: ...


def pad_collate(rows: Sequence[tuple[Tensor, Any]]) -> tuple[Tensor, Tensor]:
    """Token ids padded with 0 on the right, int64 of shape (B, T), and classes, int64 of shape (B,)."""
    ids = pad_sequence([x.long() for x, _ in rows], batch_first=True, padding_value=PAD_ID)
    return ids, torch.tensor([int(y) for _, y in rows], dtype=torch.int64)


def stack_collate(rows: Sequence[tuple[Any, Any]]) -> Batch:
    """Inputs as torch's `default_collate` stacks them, tensors or mappings, and classes, int64 of shape (B,)."""
    return default_collate([x for x, _ in rows]), torch.tensor([int(y) for _, y in rows], dtype=torch.int64)


class Split(Dataset[Any]):
    """Rows (x_i, y_i) of one split, in a fixed order.

    Args:
        rows: gives (x_i, y_i) by place.
        y: classes 0..K-1, int64, shape (n,).
        collate: a list of rows to (x, y).
        lengths: tokens of each row, int64, shape (n,); None where x is not a 1-D token sequence.
        texts: the original texts; None where there are none.
        reader: turns a text into tokens; needed for `tokens`.
        rationales: which positions carry the evidence, bool, shape (n, T_max); known for planted worlds alone.
    """

    def __init__(
        self,
        rows: Rows,
        y: Tensor,
        collate: Collate,
        *,
        lengths: Tensor | None = None,
        texts: tuple[str, ...] | None = None,
        reader: TextReader | None = None,
        rationales: Tensor | None = None,
    ) -> None:
        self._rows, self.y, self.collate = rows, y, collate
        self.lengths, self.texts, self.rationales, self._reader = lengths, texts, rationales, reader

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        place = i + len(self) if i < 0 else i
        if not 0 <= place < len(self):
            raise IndexError(f"i: expected a row from 0 to {len(self) - 1}, got {i}")
        return self._rows[place]

    def __repr__(self) -> str:
        return f"Split(n={len(self)}, classes={torch.bincount(self.y).tolist()})"

    def tokens(self, i: int) -> list[str]:
        """The tokens of row i as a model is shown them: default tokens first, unknown words as written, nothing padded.

        Raises:
            InputError: the split holds no text.
        """
        if self.texts is None or self._reader is None:
            raise InputError("tokens: expected a split made from text, this one holds none")
        return self._reader(self.texts[i])

    def batch(self, index: Any) -> Batch:
        """The rows at `index`, collated.

        Args:
            index: places, an integer tensor or list, or a bool tensor of shape (n,).

        Returns:
            x as `collate` gives it, and y, int64, shape (B,).

        Raises:
            InputError: `index` is empty, not of integers, or out of range.
        """
        x, y = self.collate([self[i] for i in self._places(index)])
        return x, torch.as_tensor(y).long()

    def _places(self, index: Any) -> list[int]:
        places = torch.as_tensor(index)
        if places.dtype == torch.bool and places.shape == (len(self),):
            places = places.nonzero()[:, 0]
        if places.ndim != 1 or not len(places) or places.is_floating_point() or places.dtype == torch.bool:
            raise InputError(f"index: expected one or more row numbers, got {places.dtype} of {tuple(places.shape)}")
        bad = (places < -len(self)) | (places >= len(self))
        if bad.any():
            raise InputError(f"index: expected rows 0..{len(self) - 1}, got {int(places[bad][0])}")
        return [int(place) for place in places]


@dataclass(frozen=True)
class Data:
    """One data set: three splits and what a model has to know of them.

    Attributes:
        train, valid, test: the splits.
        n_classes: K.
        vocabulary: of text; None otherwise.
        name: for tables and reports.
        class_names: K names, in the order of the classes.
        default_tokens: how many tokens, the same in every text, come first.
        collate: a list of rows to (x, y), for a DataLoader.
        n_tokens_cut: tokens that `max_tokens` cut, over all splits.
    """

    train: Split
    valid: Split
    test: Split
    n_classes: int
    vocabulary: Vocabulary | None
    name: str
    class_names: tuple[str, ...]
    collate: Collate = field(repr=False)
    default_tokens: int = 0
    n_tokens_cut: int = 0

    @property
    def splits(self) -> Mapping[str, Split]:
        """The three splits by name."""
        return {"train": self.train, "valid": self.valid, "test": self.test}

    def split(self, name: str) -> Split:
        """The split called `name`; InputError for another name."""
        if name not in self.splits:
            raise InputError(f"split: expected 'train', 'valid' or 'test', got {name!r}")
        return self.splits[name]


# ---------------------------------------------------------------------------------------------- dividing the rows


def least_per_class(shares: Sequence[float] = SHARES) -> int:
    """How many different texts of a class suffice to put one on every side: 10 for the default shares."""
    held, smallest = shares[1] + shares[2], min(shares[1], shares[2])
    rows = 2
    while math.floor(round(rows * held, 9)) * smallest < held - 1e-9:
        rows += 1
    return rows


def subsample(y: np.ndarray, limit: int, seed: int) -> np.ndarray:
    """Places of `limit` rows with the classes' shares kept, in their old order; all rows where there are no more.

    Raises:
        InputError: `limit` is too small for a split with every class on every side.
    """
    least = least_per_class() * len(np.unique(y))
    if whole(limit, "limit", 1) < least:
        raise InputError(
            f"limit: expected at least {least} rows ({least_per_class()} for each of {len(np.unique(y))} classes), "
            f"got {limit}"
        )
    if limit >= len(y):
        return np.arange(len(y))
    exact = np.bincount(y) * limit / len(y)
    take = np.floor(exact).astype(int)
    take[np.argsort(take - exact, kind="stable")[: limit - take.sum()]] += 1  # the largest remainders
    rng = np.random.default_rng(seed)
    chosen = [rng.choice(np.flatnonzero(y == k), size, replace=False) for k, size in enumerate(take)]
    return np.sort(np.concatenate(chosen))


def stratified_split(
    y: Any,
    keys: Sequence[Hashable],
    seed: int = 0,
    shares: Sequence[float] = SHARES,
    class_names: Sequence[str] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places of the training, validation and test rows.

    Different keys are divided, stratified by class, and then expanded, so that rows with the same key (the same text)
    are never on two sides. A key that comes with several classes counts as one of its first row's class. The order
    inside a split is shuffled, since files are often sorted by label.

    Args:
        y: classes, shape (n,).
        keys: what makes two rows the same, for instance the normalised text; n of them.
        seed: of the division and of the order.
        shares: of train, valid and test; they sum to 1.
        class_names: for messages.

    Returns:
        Three arrays of row numbers from 0; together every row once.

    Raises:
        DataError: a class has too few different texts to be on every side; names it and the least number needed.
    """
    labels, groups = np.asarray(y), _group_numbers(keys)
    first = np.unique(groups, return_index=True)[1]
    names = [str(k) for k in range(int(labels.max()) + 1)] if class_names is None else class_names
    n_held = math.ceil(round(len(first) * (shares[1] + shares[2]), 9))
    n_test = math.ceil(round(n_held * shares[2] / (shares[1] + shares[2]), 9))
    try:
        train, held = _divide(np.arange(len(first)), labels[first], n_held, seed_of(seed))
        valid, test = _divide(held, labels[first][held], n_test, seed)
    except ValueError as error:  # scikit-learn: fewer places than classes, or a class of one
        raise _too_few(labels[first], names, shares) from error
    rng = np.random.default_rng(seed)
    train, valid, test = (rng.permutation(np.flatnonzero(np.isin(groups, side))) for side in (train, valid, test))
    if any(len(np.unique(labels[side])) < len(np.unique(labels)) for side in (train, valid, test)):
        raise _too_few(labels[first], names, shares)
    return train, valid, test


def _divide(places: np.ndarray, y: np.ndarray, n_second: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    first, second = train_test_split(places, test_size=n_second, random_state=seed, stratify=y)
    return first, second


def _group_numbers(keys: Sequence[Hashable]) -> np.ndarray:
    """Keys numbered by first appearance, shape (n,)."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _too_few(y: np.ndarray, names: Sequence[str], shares: Sequence[float]) -> DataError:
    counts = np.bincount(y, minlength=len(names))
    rarest = int(counts.argmin())
    return DataError(
        f"label {names[rarest]!r}: too few rows to put every class into train, valid and test; expected at least "
        f"{least_per_class(shares)} different texts of each class, got {counts[rarest]}"
    )
