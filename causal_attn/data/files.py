"""Users' own files, CSV, TSV, JSON lines and Parquet, read into raw rows; what cannot be read is named by its row."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from causal_attn.errors import DataError, MissingExtraError

COLUMNS = ("text", "label")


class RawRows(NamedTuple):
    """Texts and labels as a file holds them, and the line each row starts on where the format has lines."""

    texts: list[Any]
    labels: list[Any]
    lines: list[int] | None


def where(row: int, lines: Sequence[int] | None) -> str:
    """How a person finds row `row` (from 0): "row 3 (line 4 of the file)"."""
    return f"row {row + 1}" + ("" if lines is None else f" (line {lines[row]} of the file)")


def read_file(path: Path) -> RawRows:
    """The columns `text` and `label` of a file, by its suffix: .csv, .tsv, .jsonl or .parquet.

    Raises:
        DataError: the file is absent, a directory, of an unknown suffix, empty, not UTF-8, cannot be parsed, lacks a
            column or has no rows.
        MissingExtraError: a Parquet file without pyarrow.
    """
    raw = _bytes_of(path)
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: expected a name ending in {', '.join(READERS)}, got {path.suffix or 'no suffix'!r}")
    if not raw.strip():
        raise DataError(f"{path}: the file is empty; expected columns {_listed(COLUMNS)}")
    rows = reader(path, raw)
    if not rows.texts:
        raise DataError(f"{path}: there are no rows; expected at least one below the column names")
    return rows


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"name: no file at {str(path)!r}") from error
    except IsADirectoryError as error:
        raise DataError(f"name: expected a file, {str(path)!r} is a directory") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"name: {str(path)!r} cannot be read ({reason})") from error


def _decoded(path: Path, raw: bytes) -> str:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise DataError(f"{path}: expected UTF-8, line {line} has the byte 0x{raw[error.start]:02x}") from error
    if not text.strip():
        raise DataError(f"{path}: the file is empty; expected columns {_listed(COLUMNS)}")
    return text


def _listed(names: Sequence[Any]) -> str:
    return ", ".join(repr(name) for name in names)


def _check_columns(path: Path, came: Sequence[Any]) -> None:
    missing = [name for name in COLUMNS if name not in came]
    if missing:
        raise DataError(f"{path}: expected columns {_listed(COLUMNS)}; no {_listed(missing)} among {_listed(came)}")
    for name in COLUMNS:
        if list(came).count(name) > 1:
            raise DataError(f"{path}: expected one column {name!r}, got {list(came).count(name)}")


# ---------------------------------------------------------------------------------------------- comma and tab


@contextmanager
def _long_fields() -> Iterator[None]:
    """Let a field be longer than csv's default of 131,072 characters, for the length of the block."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _separated(path: Path, raw: bytes, delimiter: str) -> RawRows:
    reader = csv.reader(io.StringIO(_decoded(path, raw), newline=""), delimiter=delimiter, strict=True)
    try:
        with _long_fields():
            return _filled(path, list(_numbered(reader)))
    except csv.Error as error:
        raise DataError(f"{path}: cannot be parsed, line {reader.line_num} of the file: {error}") from error


def _numbered(reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Records with the line they start on; a blank line is no record."""
    start = 1
    for record in reader:
        if record:
            yield start, record
        start = reader.line_num + 1


def _filled(path: Path, records: list[tuple[int, list[str]]]) -> RawRows:
    names = [name.strip() for name in records[0][1]]
    _check_columns(path, names)
    body = records[1:]
    lines = [line for line, _ in body]
    for row, (_, record) in enumerate(body):
        if len(record) != len(names):
            raise DataError(
                f"{path}: {where(row, lines)}: expected {len(names)} fields as in the first line, got {len(record)}"
            )
    text, label = (names.index(name) for name in COLUMNS)
    return RawRows([record[text] for _, record in body], [record[label] for _, record in body], lines)


def _csv(path: Path, raw: bytes) -> RawRows:
    return _separated(path, raw, ",")


def _tsv(path: Path, raw: bytes) -> RawRows:
    return _separated(path, raw, "\t")


# ---------------------------------------------------------------------------------------------- JSON lines, Parquet


def _jsonl(path: Path, raw: bytes) -> RawRows:
    rows = RawRows([], [], [])
    numbered = enumerate(_decoded(path, raw).split("\n"), 1)  # not splitlines: JSON strings may hold U+2028
    for line, written in ((line, written) for line, written in numbered if written.strip()):
        place = f"{path}: row {len(rows.texts) + 1} (line {line} of the file)"
        value = _json_object(place, written)
        for name in COLUMNS:
            if name not in value:
                raise DataError(f"{place}: expected {_listed(COLUMNS)}; no {name!r} among {_listed(list(value))}")
        rows.texts.append(value["text"])
        rows.labels.append(value["label"])
        rows.lines.append(line)  # type: ignore[union-attr]  # a list here
    return rows


def _json_object(place: str, written: str) -> dict[str, Any]:
    try:
        value = json.loads(written)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: cannot be parsed as JSON ({error})") from error
    if not isinstance(value, dict):
        raise DataError(f"{place}: expected a JSON object with {_listed(COLUMNS)}, got {type(value).__name__}")
    return value


def _parquet(path: Path, raw: bytes) -> RawRows:
    if importlib.util.find_spec("pyarrow") is None:
        raise MissingExtraError(f"{path}: Parquet files need pyarrow; install it with pip install causal-attn[parquet]")
    import pandas as pd

    try:
        frame = pd.read_parquet(io.BytesIO(raw), engine="pyarrow")
    except (OSError, ValueError, NotImplementedError) as error:  # ArrowInvalid is a ValueError
        raise DataError(f"{path}: cannot be parsed as Parquet ({str(error).splitlines()[0]})") from error
    _check_columns(path, list(frame.columns))
    return RawRows(frame["text"].tolist(), frame["label"].tolist(), None)


READERS: dict[str, Callable[[Path, bytes], RawRows]] = {
    ".csv": _csv, ".tsv": _tsv, ".jsonl": _jsonl, ".parquet": _parquet,
}  # fmt: skip
"""Suffix to reader."""
