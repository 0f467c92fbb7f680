"""A results directory, read and checked once: everything after this file trusts what it gets.

The study writes `results.json` and, beside it, `details.npz` and `examples.json`. Only the first is required. What is
absent is named in `Results.missing`, so that the page can say what it does not show.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from causal_attn.errors import InputError
from causal_attn.storage import load_arrays

VERSION = 1
"""The version of `results.json` that this package writes and reads."""

DEFAULT_FILES = {"details": "details.npz", "examples": "examples.json"}

Interval = tuple[float, float]


@dataclass(frozen=True)
class Run:
    """One scheme trained with one seed: its figures, their 95% intervals, and why a figure is missing."""

    seed: int
    figures: Mapping[str, float]
    intervals: Mapping[str, Interval]
    nulls: Mapping[str, str]
    """Figures that could not be computed, each with its reason."""
    default_token_mass: tuple[float | None, ...] = ()
    verdict: str = ""


@dataclass(frozen=True)
class Scheme:
    """A training scheme and its runs, one per seed."""

    name: str
    label: str
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Selection:
    """What the selection model's fit and its weights look like."""

    scheme: str
    figures: Mapping[str, float]
    intervals: Mapping[str, Interval]
    nulls: Mapping[str, str]
    ess_per_class: tuple[float | None, ...]
    words: str


@dataclass(frozen=True)
class Shown:
    """One scheme's mask on one text, and what the model then said."""

    mask: tuple[float, ...]
    prediction: int | None
    probability: float | None


@dataclass(frozen=True)
class Example:
    """A test text with every scheme's mask; each mask has one number per token."""

    tokens: tuple[str, ...]
    label: int | None
    schemes: Mapping[str, Shown]


@dataclass(frozen=True)
class Results:
    """Everything the report shows. Nothing in it was computed here."""

    folder: Path
    config: Mapping[str, Any]
    data: Mapping[str, Any]
    schemes: tuple[Scheme, ...]
    verdict: Mapping[str, str]
    summary: str
    selection: Selection | None
    arrays: Mapping[str, np.ndarray]
    examples: tuple[Example, ...]
    files: Mapping[str, str]
    versions: Mapping[str, Any]
    missing: tuple[str, ...] = field(default=())

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names as the data set gave them; empty when it gave none."""
        names = self.data.get("class_names")
        return tuple(one_line(name) for name in names) if isinstance(names, list) else ()

    @property
    def default_tokens(self) -> int:
        """How many tokens were put before every text."""
        n = self.config.get("default_tokens")
        return n if isinstance(n, int) and n > 0 else 0

    @property
    def n_seeds(self) -> int:
        """The largest number of runs any scheme has."""
        return max((len(scheme.runs) for scheme in self.schemes), default=0)

    @property
    def evalx_k(self) -> int | None:
        """The k of "EVAL-X at k", where all runs agree on it."""
        found = {run.figures["evalx_k"] for s in self.schemes for run in s.runs if "evalx_k" in run.figures}
        return int(found.pop()) if len(found) == 1 else None

    def class_name(self, k: int | None) -> str:
        """A name people can read: "class 3" where the data set only numbers its classes."""
        if k is None:
            return "unknown"
        name = self.class_names[k] if 0 <= k < len(self.class_names) else str(k)
        return f"class {name}" if name.lstrip("-").isdigit() or not name else name

    def label(self, scheme: str) -> str:
        """A scheme's name for people; the name itself for one without runs here."""
        return next((s.label for s in self.schemes if s.name == scheme), scheme)


def read_results(out: str | Path) -> Results:
    """Read the directory `out` that a study wrote.

    Raises:
        InputError: `results.json` is missing, is not JSON, or has another version; or a file beside it is damaged.
    """
    folder = Path(out)
    path = folder / "results.json"
    raw = _mapping(_json(path), path, "the file")
    if raw.get("version") != VERSION:
        raise InputError(f"{path}: expected version {VERSION}, got {raw.get('version')!r}")
    files = DEFAULT_FILES | _files(raw.get("files"))
    _check_digests(folder, _optional(raw, "digests"))
    missing = list(_absent_sections(raw))
    arrays = _arrays(folder / files["details"], missing)
    examples = _examples(folder / files["examples"], missing)
    versions = raw.get("versions") or _optional(raw, "config").get("versions")
    return Results(
        folder=folder,
        config={k: v for k, v in _optional(raw, "config").items() if k != "versions"},
        data=_optional(raw, "data"),
        schemes=_schemes(raw, path),
        verdict={name: one_line(words) for name, words in _optional(raw, "verdict").items() if words},
        summary=one_line(raw.get("summary") or ""),
        selection=_selection(_optional(raw, "selection")),
        arrays=arrays,
        examples=examples,
        files=files,
        versions=versions if isinstance(versions, dict) else {},
        missing=tuple(missing),
    )


def _check_digests(folder: Path, digests: Mapping[str, Any]) -> None:
    """The files beside results.json must be the ones it was written with; a run killed while moving them mixes two."""
    for name, expected in digests.items():
        path = folder / Path(name).name
        if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() != expected:
            raise InputError(f"{path}: expected the file that results.json was written with; run the study again")


def one_line(value: Any) -> str:
    """`value` as printable text on one line: names come from users' files and end up in terminals."""
    return "".join(c for c in " ".join(str(value).split()) if c.isprintable())


def _json(path: Path) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not a JSON value")

    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; expected a directory that `causal-attn study` wrote") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON ({error})") from error


def _mapping(value: Any, path: Path, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected {what} to be a JSON object, got {type(value).__name__}")
    return value


def _optional(raw: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = raw.get(key)
    return value if isinstance(value, dict) else {}


def _files(raw: Any) -> dict[str, str]:
    """Names inside the directory only: a path that leads elsewhere is ignored."""
    entries = raw.items() if isinstance(raw, dict) else ()
    return {k: v for k, v in entries if isinstance(v, str) and v and Path(v).name == v}


def _absent_sections(raw: Mapping[str, Any]) -> Iterator[str]:
    what = {
        "config": "how the study was run",
        "data": "the data set's description",
        "verdict": "the verdict in words",
        "summary": "the summary in words",
        "selection": "the selection model and its support deficit",
    }
    for key, words in what.items():
        if not raw.get(key):
            yield f"{words}: results.json has no “{key}”"


def _number(value: Any) -> float | None:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if usable else None


def _numbers(value: Any) -> tuple[float | None, ...]:
    return tuple(_number(v) for v in value) if isinstance(value, list) else ()


def _interval(value: Any) -> Interval | None:
    ends = _numbers(value)
    if len(ends) != 2 or ends[0] is None or ends[1] is None:
        return None
    return ends[0], ends[1]


def _intervals(raw: Mapping[str, Any]) -> dict[str, Interval]:
    found = {name: _interval(value) for name, value in raw.items()}
    return {name: ends for name, ends in found.items() if ends is not None}


def _figures(raw: Mapping[str, Any]) -> dict[str, float]:
    found = {name: _number(value) for name, value in raw.items()}
    return {name: value for name, value in found.items() if value is not None}


def _nulls(raw: Mapping[str, Any]) -> dict[str, str]:
    """Every null with its reason, and every noted reason even where the figure is not listed at all."""
    notes = _optional(raw, "notes")
    names = [k for k, v in raw.items() if v is None] + [k for k in notes if k not in raw]
    names += [k for k, v in raw.items() if isinstance(v, list) and None in v]
    return {name: one_line(notes.get(name) or "no reason given") for name in names}


def _schemes(raw: Mapping[str, Any], path: Path) -> tuple[Scheme, ...]:
    entries = _mapping(raw.get("schemes"), path, "“schemes”")
    if not entries:
        raise InputError(f"{path}: “schemes” is empty; expected at least one scheme with its runs")
    return tuple(_scheme(name, entry, path) for name, entry in entries.items())


def _scheme(name: str, raw: Any, path: Path) -> Scheme:
    entry = _mapping(raw, path, f"scheme {one_line(name)!r}")
    runs = entry.get("runs")
    if not isinstance(runs, list):
        raise InputError(f"{path}: scheme {one_line(name)!r}: expected a list of “runs”, got {type(runs).__name__}")
    checked = [_mapping(run, path, f"run {i} of scheme {one_line(name)!r}") for i, run in enumerate(runs)]
    return Scheme(name, one_line(entry.get("label") or name), tuple(_run(run, i) for i, run in enumerate(checked)))


def _run(raw: Mapping[str, Any], position: int) -> Run:
    seed = raw.get("seed")
    return Run(
        seed=seed if isinstance(seed, int) else position,
        figures=_figures(raw),
        intervals=_intervals(_optional(raw, "intervals")),
        nulls=_nulls(raw),
        default_token_mass=_numbers(raw.get("default_token_mass")),
        verdict=one_line(raw.get("verdict") or ""),
    )


def _selection(raw: Mapping[str, Any]) -> Selection | None:
    if not raw:
        return None
    beside = {"support_deficit": raw.get("support_deficit_interval")}
    return Selection(
        scheme=one_line(raw.get("scheme") or ""),
        figures=_figures(raw),
        intervals=_intervals(beside | _optional(raw, "intervals")),
        nulls=_nulls(raw),
        ess_per_class=_numbers(raw.get("ess_per_class")),
        words=one_line(raw.get("words") or ""),
    )


def _arrays(path: Path, missing: list[str]) -> dict[str, np.ndarray]:
    if not path.is_file():
        missing.append(f"weights, overlap, positions and training history: there is no {path.name}")
        return {}
    arrays, _ = load_arrays(path)
    for name, array in arrays.items():
        _check_shape(path, name, array, arrays)
    return arrays


def _check_shape(path: Path, name: str, array: np.ndarray, arrays: Mapping[str, np.ndarray]) -> None:
    n = len(arrays["y"]) if "y" in arrays and arrays["y"].ndim == 1 else None
    expected: dict[str, tuple[int, int | None]] = {
        "log_w": (1, n), "log_prob": (2, n), "y": (1, n), "elbo": (1, None), "balance": (2, None),
        "calibration": (2, None),
    }  # fmt: skip
    rank, length = expected.get(name, (None, None))
    if name.startswith("profile_"):
        rank = 1 if name == "profile_count" else 2
    elif name.startswith(("history_", "deficit_history_")):
        rank = 2 if name.startswith("history_") else 1
    if rank is None:
        return
    bad = array.dtype.kind not in "fiub" or array.ndim != rank or (length is not None and len(array) != length)
    if name.startswith("history_") and not bad and array.shape[1] < 3:
        raise InputError(
            f"{path}: {name}: expected 3 columns (loss, training and validation accuracy), got {array.shape[1]}"
        )
    columns = {"balance": 3, "calibration": 6}.get(name)
    if columns is not None and not bad and array.shape[1] != columns:
        raise InputError(f"{path}: {name}: expected {columns} columns, got {array.shape[1]}")
    if bad:
        want = f"numbers with {rank} axes" + (f" and {length} rows" if length is not None else "")
        raise InputError(f"{path}: {name}: expected {want}, got {array.dtype} of shape {array.shape}")


def _examples(path: Path, missing: list[str]) -> tuple[Example, ...]:
    if not path.is_file():
        missing.append(f"texts with their masks: there is no {path.name}")
        return ()
    raw = _json(path)
    if not isinstance(raw, list):
        raise InputError(f"{path}: expected a JSON list of texts, got {type(raw).__name__}")
    if not raw:
        missing.append(f"texts with their masks: {path.name} is empty")
    return tuple(_example(_mapping(entry, path, f"text {i}"), path, i) for i, entry in enumerate(raw))


def _example(raw: Mapping[str, Any], path: Path, i: int) -> Example:
    tokens = raw.get("tokens")
    if not isinstance(tokens, list):
        raise InputError(f"{path}: text {i}: expected a list of “tokens”, got {type(tokens).__name__}")
    label = raw.get("label")
    shown = _optional(raw, "schemes").items()
    return Example(
        tokens=tuple(one_line(token) for token in tokens),
        label=label if isinstance(label, int) else None,
        schemes={name: _shown(entry, tokens, path, f"text {i}, scheme {one_line(name)!r}") for name, entry in shown},
    )


def _shown(raw: Any, tokens: Sequence[Any], path: Path, where: str) -> Shown:
    entry = _mapping(raw, path, where)
    mask = _numbers(entry.get("mask"))
    values = tuple(v for v in mask if v is not None)
    if len(values) != len(tokens):
        raise InputError(f"{path}: {where}: expected a mask of {len(tokens)} numbers, got {len(values)}")
    prediction = entry.get("prediction")
    return Shown(values, prediction if isinstance(prediction, int) else None, _number(entry.get("probability")))
