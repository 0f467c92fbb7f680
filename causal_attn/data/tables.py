"""Raw texts and labels, checked once into texts and classes; a row is never dropped, a bad one is named."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from causal_attn.data.files import RawRows, where
from causal_attn.errors import DataError

INTEGER = re.compile(r"[+-]?[0-9]+")
NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class Table:
    """Texts with their classes.

    Attributes:
        name: of the data set.
        texts: as written, n of them.
        y: classes 0..K-1 in the sorted order of the labels, int64, shape (n,).
        class_names: the labels, K of them; whole numbers in numeric order, others alphabetically.
        lines: the line of the file a row starts on, where known.
    """

    name: str
    texts: tuple[str, ...]
    y: np.ndarray
    class_names: tuple[str, ...]
    lines: tuple[int, ...] | None = None

    @staticmethod
    def from_rows(name: str, rows: RawRows) -> Table:
        """Check the texts and labels of `rows`.

        Raises:
            DataError: a text that is missing or not a string; a label that is missing, a fraction or neither integer
                nor string; one class only; a label with one row. Names the row.
        """
        for row, text in enumerate(rows.texts):
            _check_text(name, text, where(row, rows.lines))
        labels = [_label(name, label, where(row, rows.lines)) for row, label in enumerate(rows.labels)]
        class_names = _sorted_labels(labels)
        numbers = {label: k for k, label in enumerate(class_names)}
        y = np.array([numbers[label] for label in labels], dtype=np.int64)
        _check_counts(name, y, class_names, rows.lines)
        lines = None if rows.lines is None else tuple(rows.lines)
        return Table(name, tuple(rows.texts), y, class_names, lines)

    def rows(self, index: np.ndarray) -> Table:
        """The rows at `index`, all classes kept."""
        lines = None if self.lines is None else tuple(self.lines[i] for i in index)
        return Table(self.name, tuple(self.texts[i] for i in index), self.y[index], self.class_names, lines)

    def where(self, row: int) -> str:
        """How a person finds row `row` (from 0)."""
        return where(row, self.lines)


MAX_DIGITS = 300
"""A label of more digits is a name, not a number: Python will not read it as one."""


def _missing(value: Any) -> bool:
    """None, NaN, pandas' NA and NaT, and the empty field of a CSV."""
    odd = type(value).__name__ in ("NAType", "NaTType")
    return value is None or odd or value == "" or (isinstance(value, float) and math.isnan(value))


def _check_text(name: str, text: Any, place: str) -> None:
    if _missing(text):
        raise DataError(f"{name}: {place}: text is missing; expected a string")
    if not isinstance(text, str):
        raise DataError(f"{name}: {place}: text is {text!r}; expected a string, got {type(text).__name__}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"{name}: {place}: text has half a surrogate pair at character {error.start}") from error


def _label(name: str, label: Any, place: str) -> str:
    """A label's name: integers and whole floats as "3", strings as written without outer spaces."""
    written = label.strip() if isinstance(label, str) else label
    if _missing(written) or (isinstance(written, str) and written.lower() == "nan"):
        raise DataError(f"{name}: {place}: label is missing; expected an integer or a string")
    if isinstance(written, bool) or not isinstance(written, (int, float, str)):
        raise DataError(f"{name}: {place}: label is {label!r}; expected an integer or a string")
    if isinstance(written, str) and (len(written) > MAX_DIGITS or not NUMBER.fullmatch(written)):
        return written
    if isinstance(written, int) or (isinstance(written, str) and INTEGER.fullmatch(written)):
        return str(int(written))
    if not float(written).is_integer():  # infinity is none either
        raise DataError(f"{name}: {place}: label is {label!r}; expected a whole number or a string")
    return str(int(float(written)))


def _sorted_labels(labels: Sequence[str]) -> tuple[str, ...]:
    different = set(labels)
    if all(len(label) <= MAX_DIGITS and INTEGER.fullmatch(label) for label in different):
        return tuple(sorted(different, key=int))
    return tuple(sorted(different))


def _check_counts(name: str, y: np.ndarray, class_names: Sequence[str], lines: Sequence[int] | None) -> None:
    if len(class_names) < 2:
        raise DataError(f"{name}: expected at least two different labels, every row has {class_names[0]!r}")
    counts = np.bincount(y)
    if counts.min() == 1:
        row = int(np.flatnonzero(counts[y] == 1)[0])
        raise DataError(
            f"{name}: {where(row, lines)}: label {class_names[y[row]]!r} has this row alone; "
            "expected several rows of each label"
        )
