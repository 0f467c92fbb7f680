"""From a source to `Data`: tokenise, divide, build the vocabulary, encode; and torch Datasets of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from causal_attn.data.checks import seed_of, whole
from causal_attn.data.sources import read
from causal_attn.data.splits import Data, Rows, Split, pad_collate, stack_collate, stratified_split, subsample
from causal_attn.data.tables import Table
from causal_attn.data.text import TextReader, Vocabulary, has_tokens, tokenise
from causal_attn.errors import DataError
from causal_attn.masks import as_labels


def load(
    name: str | Path,
    *,
    default_tokens: int = 0,
    seed: int = 0,
    limit: int | None = None,
    max_tokens: int | None = None,
    min_count: int = 2,
) -> Data:
    """A named data set, or a file of the user's, as train, valid and test splits of token ids (.8, .1, .1).

    Rows with the same normalised text are on one side; classes keep their shares; nothing is dropped.

    Args:
        name: one of `names()`, or a path to a CSV, TSV, JSONL or Parquet file with columns `text` and `label`.
        default_tokens: how many tokens "[d1]", "[d2]", … to put before every text, the same in each: a place for a
            mask to look at that says nothing about the text.
        seed: of the division, the order and the subsample.
        limit: use this many rows only, drawn with the classes' shares kept. None: all.
        max_tokens: cut a text's own tokens to so many; `n_tokens_cut` counts what went. None: nothing is cut.
        min_count: a word seen less often in the training split is unknown.

    Raises:
        InputError: an argument is out of range.
        DataError: no such set or file, or one that cannot be used; the message names the row.
        MissingExtraError: an optional package is needed; the message names the extra.
    """
    reader = TextReader(
        whole(default_tokens, "default_tokens", 0),
        None if max_tokens is None else whole(max_tokens, "max_tokens", 1),
    )
    whole(min_count, "min_count", 1)
    seed_of(seed)
    if limit is not None:
        whole(limit, "limit", 1)
    table = read(name)
    _check_words(table)
    chosen = np.arange(len(table.y)) if limit is None else subsample(table.y, limit, seed)
    return _text_data(table.rows(chosen), reader, seed, min_count)


def _check_words(table: Table) -> None:
    for row, text in enumerate(table.texts):
        if not has_tokens(text):
            raise DataError(
                f"{table.name}: {table.where(row)}: text has no words; expected at least one, got {text[:40]!r}"
            )


def _text_data(table: Table, reader: TextReader, seed: int, min_count: int) -> Data:
    own = [tokenise(text) for text in table.texts]
    sides = stratified_split(table.y, [" ".join(words) for words in own], seed, class_names=table.class_names)
    training = (own[i][: reader.max_tokens] for i in sides[0])
    vocabulary = Vocabulary.build(training, min_count, reader.default_tokens)
    train, valid, test = (_text_split(table, own, side, reader, vocabulary) for side in sides)
    return Data(
        train, valid, test, len(table.class_names), vocabulary, Path(table.name).stem, table.class_names, pad_collate,
        reader.default_tokens, sum(reader.n_cut(words) for words in own),
    )  # fmt: skip


def _text_split(
    table: Table, own: list[list[str]], side: np.ndarray, reader: TextReader, vocabulary: Vocabulary
) -> Split:
    ids = [vocabulary.encode(reader.shown(own[i])) for i in side]
    y = torch.from_numpy(table.y[side])
    lengths = torch.tensor([len(row) for row in ids], dtype=torch.int64)
    rows = list(zip(ids, y.tolist()))
    return Split(rows, y, pad_collate, lengths=lengths, texts=tuple(table.texts[i] for i in side), reader=reader)


# ---------------------------------------------------------------------------------------------- torch Datasets


def from_datasets(
    train: Any,
    valid: Any,
    test: Any,
    collate: Callable[[list[Any]], Any] | None = None,
    name: str = "user",
    n_classes: int | None = None,
) -> Data:
    """Data from three torch Datasets that give (x, y) by place.

    Args:
        train, valid, test: with `__len__` and `__getitem__`. Each is read through once, to check y.
        collate: a list of (x, y) to (x, y) batched. None: 1-D integer tensors are padded with 0; anything else is
            stacked by torch's `default_collate`, tensors and mappings alike.
        name: for tables and reports.
        n_classes: K. None: the largest label of `train` plus one.

    Returns:
        Data without vocabulary. `lengths` is set where every x is a 1-D integer tensor.

    Raises:
        DataError: an empty set, a row that is not a pair, a label that is no integer of 0..K-1, an empty sequence, a
            class that `train` lacks; names the set and the row, counted from 1.
    """
    sets = {"train": train, "valid": valid, "test": test}
    read_through = {side: _read_through(side, rows) for side, rows in sets.items()}
    k = whole(n_classes, "n_classes", 2) if n_classes is not None else None
    y_train, k = _labels("train", read_through["train"][0], k)
    _check_classes(y_train, k)
    y = {side: y_train if side == "train" else _labels(side, read_through[side][0], k)[0] for side in sets}
    lengths = {side: read_through[side][1] for side in sets}
    sequences = all(value is not None for value in lengths.values())
    used = collate or (pad_collate if sequences else stack_collate)
    first, second, third = (
        Split(rows, y[side], used, lengths=lengths[side] if sequences else None) for side, rows in sets.items()
    )
    return Data(first, second, third, k, None, name, tuple(str(i) for i in range(k)), used)


def _read_through(side: str, rows: Rows) -> tuple[list[Any], Tensor | None]:
    """Labels as given, and lengths where every x is a 1-D integer tensor."""
    if not hasattr(rows, "__len__") or not hasattr(rows, "__getitem__"):
        raise DataError(f"{side}: expected a Dataset with __len__ and __getitem__, got {type(rows).__name__}")
    if not len(rows):
        raise DataError(f"{side}: expected at least one row, got none")
    labels, lengths = [], []
    for i in range(len(rows)):
        x, y = _pair(side, i, rows[i])
        labels.append(y)
        lengths.append(_sequence_length(side, i, x))
    sizes = [length for length in lengths if length is not None]
    return labels, torch.tensor(sizes, dtype=torch.int64) if len(sizes) == len(labels) else None


def _pair(side: str, i: int, row: Any) -> tuple[Any, Any]:
    if not isinstance(row, (tuple, list)) or len(row) != 2:
        raise DataError(f"{side}: row {i + 1}: expected a pair (x, y), got {type(row).__name__}")
    return row[0], row[1]


def _sequence_length(side: str, i: int, x: Any) -> int | None:
    if not isinstance(x, Tensor) or x.ndim != 1 or x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        return None
    if not len(x):
        raise DataError(f"{side}: row {i + 1}: expected a sequence of at least one token, got an empty one")
    return len(x)


def _labels(side: str, labels: Sequence[Any], k: int | None) -> tuple[Tensor, int]:
    numbers = [_whole_label(side, i, label) for i, label in enumerate(labels)]
    top = "K-1" if k is None else k - 1
    for i, number in enumerate(numbers):
        if number < 0 or (k is not None and number >= k):
            raise DataError(f"{side}: row {i + 1}: expected a label in 0..{top}, got {number}")
    return as_labels(numbers, len(numbers), k)


def _whole_label(side: str, i: int, label: Any) -> int:
    """A label as an int: an integer, a whole float, or a one-element tensor or array of either."""
    try:
        value = label.item() if hasattr(label, "item") else label
        if not isinstance(value, (bool, str)) and int(value) == value:
            return int(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        pass
    raise DataError(f"{side}: row {i + 1}: expected an integer label, got {' '.join(repr(label).split())[:80]}")


def _check_classes(y: Tensor, k: int) -> None:
    if k < 2:
        raise DataError("train: expected at least two classes, every row has label 0")
    absent = (torch.bincount(y, minlength=k) == 0).nonzero()
    if len(absent):
        raise DataError(f"train: expected every class of 0..{k - 1}, class {int(absent[0])} has no row")
