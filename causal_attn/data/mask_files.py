"""Masks and labels from any other program: .npz, .safetensors, .csv, .tsv or .parquet, read into a `MaskSample`.

A table has a column `label`, one column per position, `m0`, `m1`, ... (or `m[0]`, `mask_0`), and perhaps `group`. An
empty cell is a position that the row does not have. Arrays are called masks, y and, where wanted, valid, x_features,
groups.
"""

from __future__ import annotations

import csv
import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from causal_attn.errors import DataError, InputError, MissingExtraError
from causal_attn.masks import MaskSample
from causal_attn.storage import load_arrays

ARRAYS = ("masks", "y", "valid", "x_features", "groups")
POSITION = re.compile(r"m(?:ask)?(?:_?(\d+)|\[(\d+)\])")
LARGEST_MISS = 0.02
"""How far from 1 the sum of a row may be for `normalise` to take it for rounding."""


def read_masks(path: str | Path, normalise: bool = False) -> tuple[MaskSample, tuple[str, ...]]:
    """The masks of a file, and the names of their classes in the order of 0..K-1.

    Args:
        path: the file.
        normalise: divide each row by its sum where that is 1 within 2%, as numbers written with few digits need.

    Raises:
        DataError: no such file, a suffix or columns that are not known, or cells that are not numbers.
        InputError: masks or labels that `MaskSample` refuses.
        MissingExtraError: a Parquet file without pyarrow.
    """
    place = Path(path)
    suffix = place.suffix.lower()
    if not place.is_file():
        raise DataError(f"{place}: no such file")
    try:
        return _read(place, suffix, normalise)
    except InputError as error:
        if "expected rows that sum to 1" in str(error) and not normalise:
            raise InputError(
                f"{error}; for numbers written with few digits use --normalise (normalise=True)"
            ) from error
        raise


def _read(place: Path, suffix: str, normalise: bool) -> tuple[MaskSample, tuple[str, ...]]:
    if suffix in (".npz", ".safetensors"):
        return _from_arrays(place, normalise)
    if suffix not in (".csv", ".tsv", ".parquet"):
        raise DataError(
            f"{place}: expected a name ending in .npz, .safetensors, .csv, .tsv or .parquet, got "
            f"{suffix or 'no suffix'!r}"
        )
    return _from_table(place, _table(place, suffix), normalise)


def _from_arrays(path: Path, normalise: bool) -> tuple[MaskSample, tuple[str, ...]]:
    arrays, meta = load_arrays(path)
    unknown = sorted(set(arrays) - set(ARRAYS))
    if unknown or not {"masks", "y"} <= set(arrays):
        what = f"unknown: {', '.join(unknown)}" if unknown else f"found {', '.join(sorted(arrays)) or 'none'}"
        raise DataError(f"{path}: expected arrays masks, y and perhaps valid, x_features, groups; {what}")
    if normalise:
        arrays["masks"] = _normalised(arrays["masks"])
    n_classes = int(meta["n_classes"]) if "n_classes" in meta else None
    sample = MaskSample(kind=meta.get("kind"), n_classes=n_classes, **arrays)  # type: ignore[arg-type]
    return sample, tuple(str(k) for k in range(sample.n_classes))


def _table(path: Path, suffix: str) -> pd.DataFrame:
    if suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise MissingExtraError(f"{path}: Parquet files need pyarrow; install it with pip install causal-attn[parquet]")
    try:
        if suffix == ".parquet":
            return pd.read_parquet(path, engine="pyarrow")
        separator = "\t" if suffix == ".tsv" else ","
        _check_widths(path, separator)
        return pd.read_csv(
            path, sep=separator, dtype={"label": str, "group": str}, keep_default_na=False, na_values=[""],
            index_col=False,
        )  # fmt: skip
    except DataError:
        raise
    except (
        OSError,
        ValueError,
        UnicodeDecodeError,
        NotImplementedError,
    ) as error:  # pandas' own errors are ValueErrors
        raise DataError(f"{path}: cannot be read as a table ({str(error).splitlines()[0]})") from error


def _check_widths(path: Path, separator: str) -> None:
    """DataError where a row has more or fewer fields than the header: pandas would shift or fill them."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=separator)
        width = len(next(reader, []))
        row = 0
        for fields in reader:
            if not fields:  # an empty line is none
                continue
            row += 1
            if len(fields) != width:
                raise DataError(f"{path}: row {row}: expected {width} fields as in the header, got {len(fields)}")


def _from_table(path: Path, table: pd.DataFrame, normalise: bool) -> tuple[MaskSample, tuple[str, ...]]:
    names = [str(name).strip() for name in table.columns]
    found = {name: POSITION.fullmatch(name) for name in names}
    places = {name: int(match[1] or match[2]) for name, match in found.items() if match}
    unknown = [name for name in names if name not in places and name not in ("label", "group")]
    if unknown or "label" not in names or not places:
        what = f"unknown: {_some(unknown)}" if unknown else f"found {', '.join(names[:8]) or 'none'}"
        raise DataError(f"{path}: expected columns label, m0, m1, ... and perhaps group; {what}")
    order = sorted(places, key=places.__getitem__)
    if [places[name] for name in order] != list(range(len(order))):
        wanted = set(range(max(places.values()) + 1)) - set(places.values())
        what = f"missing: {_some([f'm{t}' for t in sorted(wanted)])}" if wanted else "one of them comes twice"
        raise DataError(f"{path}: expected one column for each of m0 to m{max(places.values())}; {what}")
    table = table.set_axis(names, axis=1)
    if not len(table):
        raise DataError(f"{path}: there are no rows")
    values = np.stack([_numbers(path, table[name]) for name in order], 1)
    valid = ~np.isnan(values)
    masks = np.where(valid, values, 0.0)
    labels, classes = _labels(path, table["label"])
    groups = None
    if "group" in names:
        missing = table["group"].isna()
        if missing.any():
            raise DataError(f"{path}: row {int(np.flatnonzero(missing)[0]) + 1}: the group is empty")
        groups = table["group"].to_numpy().astype(str)
    sample = MaskSample(
        _normalised(masks) if normalise else masks, labels, None if valid.all() else valid, n_classes=len(classes),
        groups=groups,
    )  # fmt: skip
    return sample, classes


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _numbers(path: Path, column: pd.Series[Any]) -> np.ndarray:
    """A column as float64, empty cells as NaN; a cell that is written as "nan" or text is refused."""
    numbers = pd.to_numeric(column, errors="coerce")
    bad = (numbers.isna() & column.notna()) | np.isinf(numbers.fillna(0.0))
    if bad.any():
        row = int(np.flatnonzero(bad.to_numpy())[0])
        raise DataError(f"{path}: row {row + 1}, column {column.name}: expected a number, got {column.iloc[row]!r}")
    return numbers.to_numpy(dtype=np.float64)


def _labels(path: Path, column: pd.Series[Any]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Classes 0..K-1 in the order of their names, numbers by size."""
    if column.isna().any():
        raise DataError(f"{path}: row {int(np.flatnonzero(column.isna())[0]) + 1}: the label is empty")
    texts = column.astype(str).str.strip()
    named = sorted(set(texts), key=lambda name: (0, float(name), name) if _is_number(name) else (1, 0.0, name))
    return texts.map({name: k for k, name in enumerate(named)}).to_numpy(), tuple(named)


def _is_number(text: str) -> bool:
    try:
        return np.isfinite(float(text))
    except ValueError:
        return False


def _normalised(masks: np.ndarray) -> np.ndarray:
    total = np.asarray(masks, dtype=np.float64).sum(-1, keepdims=True)
    off = np.abs(total[:, 0] - 1) > LARGEST_MISS
    if off.any():
        row = int(np.flatnonzero(off)[0])
        raise InputError(
            f"normalise: expected rows that sum to 1 within {LARGEST_MISS:g}, row {row} sums to {total[row, 0]:.6g}"
        )
    return masks / total
