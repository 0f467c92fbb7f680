"""The main job: load, train under each scheme, model the selection, measure, and write a directory of results."""

from __future__ import annotations

import hashlib
import platform
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from causal_attn.data import load
from causal_attn.data.splits import Data
from causal_attn.diagnostics import balance_table
from causal_attn.errors import DataError, FitWarning, InputError, OutputError, SupportWarning
from causal_attn.interop.arviz import save_netcdf
from causal_attn.selection import SelectionFit, SelectionModel
from causal_attn.storage import save_arrays, save_json
from causal_attn.study.cells import Cell, CellStore, Evaluators, example_rows, run_cell
from causal_attn.study.config import SCHEMES, StudyConfig
from causal_attn.study.words import summary_in_words
from causal_attn.weights import Weights

DIGESTED = ("details.npz", "examples.json")
"""Files the report reads beside results.json, which holds their SHA-256."""
BALANCE = ("before", "after", "permuted")
MAX_ARVIZ_ENTRIES = 5_000_000
"""Most numbers of a per-row group in an ArviZ file; above it a seeded subset of rows is written."""


@dataclass(frozen=True)
class StudyResult:
    """What a study found.

    Args:
        out: the directory it is in.
        results: the content of `results.json`.
    """

    out: Path
    results: dict[str, Any]


def run_study(config: StudyConfig, out: str | Path, resume: bool = True, progress: bool = True) -> StudyResult:
    """Run the main job and write its results into `out`.

    Results of an earlier run stay until the new ones are complete. Finished cells (scheme and seed) are kept in
    `out/cells` and, with `resume`, used again where nothing they depend on has changed.

    Raises:
        DataError, InputError: data or configuration that cannot be used; nothing is written then.
        OutputError: `out` cannot be written.
    """
    first = _load(config, 0)
    _check_k(config.k, first)
    where = _writable(Path(out))
    with one_thread():
        return _run(config, first, where, resume, progress)


@contextmanager
def one_thread() -> Iterator[None]:
    """torch on one thread: small recurrent steps gain nothing from two and stall on a busy machine (3.5 against 55 s
    an epoch), and sums in one order make a seed's results the same on every machine of a kind."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run(config: StudyConfig, first: Data, where: Path, resume: bool, progress: bool) -> StudyResult:
    cells: dict[str, list[Cell]] = {name: [] for name in config.schemes}
    for seed in range(config.seeds):
        data = first if seed == 0 else _load(config, seed)
        store = CellStore(where, config, data)  # each seed's rows are its own: its cells depend on those
        evaluators = Evaluators(config, data, seed, progress)
        for scheme in config.schemes:
            cell = store.load(scheme, seed) if resume else None
            if cell is None:
                _say(f"seed {seed}: {SCHEMES[scheme][0]}", progress)
                cell = run_cell(config, data, scheme, seed, evaluators, progress)
                store.save(cell, scheme, seed)
            cells[scheme].append(cell)
    scheme = config.schemes[0]
    _say(f"selection model of {scheme}'s masks", progress)
    fit = SelectionModel().fit(cells[scheme][0].masks, seed=0, progress=progress)
    with warnings.catch_warnings():  # the page says in full what these would say on the way
        warnings.simplefilter("ignore", SupportWarning)
        warnings.simplefilter("ignore", FitWarning)
        weights = fit.weights()
        balance = balance_table(fit.sample, weights, progress=progress)
        results = _results(config, first, cells, fit, weights, balance)
        written = _write(where, results, first, cells, fit, weights, balance)
    return StudyResult(where, written)


def _say(text: str, progress: bool) -> None:
    if progress:
        print(text, file=sys.stderr, flush=True)


def _load(config: StudyConfig, seed: int) -> Data:
    data = load(
        config.data, default_tokens=config.default_tokens, seed=seed, limit=config.limit, max_tokens=config.max_tokens
    )
    counts = np.bincount(data.test.y.numpy(), minlength=data.n_classes)
    if counts.min() < 2:  # masks are swapped within a class
        rarest = data.class_names[int(counts.argmin())]
        raise DataError(
            f"data: expected at least 2 test rows of every class, label {rarest!r} has {counts.min()}; use more rows"
        )
    return data


def _check_k(k: int, data: Data) -> None:
    longest = int(data.test.lengths.max()) if data.test.lengths is not None else k
    if k > longest:
        raise InputError(f"k: expected at most the {longest} positions of the longest test text, got {k}")


def _writable(out: Path) -> Path:
    """`out` as an existing directory that takes files; what was made for the check is gone again on failure."""
    made = False
    try:
        made = not out.exists()
        if (out / "cells").exists() and not (out / "cells").is_dir():
            raise NotADirectoryError(20, "'cells' in it is no directory")
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=out, prefix=".writable"):
            pass
    except OSError as error:
        if made and out.is_dir():
            shutil.rmtree(out, ignore_errors=True)
        raise OutputError(f"out: {str(out)!r} cannot be written ({error.strerror or error})") from error
    return out


# ---------------------------------------------------------------------------------------------------- results.json


def _results(
    config: StudyConfig, data: Data, cells: dict[str, list[Cell]], fit: SelectionFit, weights: Weights,
    balance: pd.DataFrame,
) -> dict[str, Any]:  # fmt: skip
    schemes = {name: {"label": SCHEMES[name][0], "runs": [cell.row for cell in runs]} for name, runs in cells.items()}
    return {
        "version": 1,
        "config": config.as_dict(),
        "data": _data_facts(data),
        "versions": _versions(),
        "summary": summary_in_words(schemes),
        "verdict": {name: runs[0].row["verdict"] for name, runs in cells.items()},
        "schemes": schemes,
        "selection": _selection_facts(fit, weights, next(iter(cells))) | {"balance": _balance_facts(balance)},
        "files": {"selection": "selection.nc", "weights": "weights.nc", "details": "details.npz",
                  "examples": "examples.json"},
    }  # fmt: skip


def _data_facts(data: Data) -> dict[str, Any]:
    return {
        "name": data.name, "rows": {name: len(split) for name, split in data.splits.items()},
        "class_names": list(data.class_names), "vocabulary": len(data.vocabulary or ()),
        "tokens_cut": data.n_tokens_cut,
    }  # fmt: skip


def _versions() -> dict[str, str]:
    packages = ("causal-attn", "torch", "pyro-ppl", "arviz", "numpy", "scikit-learn")
    known = {}
    for name in packages:
        try:
            known[name] = version(name)
        except ModuleNotFoundError:  # run from a source tree that was not installed
            known[name] = "not installed"
    return {"python": platform.python_version(), **known}


def _selection_facts(fit: SelectionFit, weights: Weights, scheme: str) -> dict[str, Any]:
    low, high = weights.support_deficit_interval
    return {
        "scheme": scheme, "n": fit.sample.n, "mean_weight": weights.mean,
        "calibration_residual": weights.calibration_residual, "support_deficit": weights.support_deficit,
        "support_deficit_interval": [low, high], "ess": weights.ess, "ess_per_class": weights.ess_per_class.tolist(),
        "largest_share": weights.largest_share, "khat": weights.khat, "vi_khat": fit.vi_khat,
        "held_out_log_loss": fit.held_out_log_loss, "prior_log_loss": fit.prior_log_loss, "tau": weights.tau,
        "words": weights.words,
    }  # fmt: skip


def _balance_facts(balance: pd.DataFrame) -> dict[str, dict[str, float]]:
    """What the whole mask tells about the class, before and after weighting, and where classes are shuffled."""
    whole = balance[(balance["measure"] != "smd") & (balance["class"] == "pooled")].set_index("measure")
    return {str(name): {c: float(row[c]) for c in BALANCE} for name, row in whole.iterrows()}


# ---------------------------------------------------------------------------------------------------- files


def _write(
    out: Path, results: dict[str, Any], data: Data, cells: dict[str, list[Cell]], fit: SelectionFit, weights: Weights,
    balance: pd.DataFrame,
) -> dict[str, Any]:  # fmt: skip
    """Everything into a hidden folder first, then each file renamed into place, results.json last; its content."""
    _sweep(out)
    with tempfile.TemporaryDirectory(dir=out, prefix=".new-") as name:
        new = Path(name)
        per_row = fit.sample.n * fit.final.n_draws <= MAX_ARVIZ_ENTRIES
        save_netcdf(fit.to_arviz(log_likelihood=per_row, posterior_predictive=per_row), new / "selection.nc")
        save_netcdf(weights.to_arviz(_arviz_rows(weights)), new / "weights.nc")
        save_arrays(new / "details.npz", _details(cells, weights, fit, balance), {})
        save_json(new / "examples.json", _examples(data, cells))
        for scheme, runs in cells.items():
            runs[0].masks.save(new / f"masks-{scheme}.npz")
        digests = {name: hashlib.sha256((new / name).read_bytes()).hexdigest() for name in DIGESTED}
        written = results | {"digests": digests}
        save_json(new / "results.json", written)
        blocked = [path.name for path in new.iterdir() if (out / path.name).is_dir()]
        if blocked:
            raise OutputError(f"out: {blocked[0]!r} in {str(out)!r} is a directory; expected a file or nothing")
        (out / "report.html").unlink(missing_ok=True)  # it shows the earlier run
        for path in sorted(new.iterdir(), key=lambda p: p.name == "results.json"):
            path.replace(out / path.name)
    for scheme in set(SCHEMES) - set(cells):  # of an earlier run with other schemes; they would pass for this one's
        (out / f"masks-{scheme}.npz").unlink(missing_ok=True)
    return written


def _sweep(out: Path) -> None:
    """Remove what a killed run left behind an hour or more ago; a younger folder may be another run's."""
    for left in out.glob(".new-*"):
        if time.time() - left.stat().st_mtime > 3600:
            shutil.rmtree(left, ignore_errors=True)


def _arviz_rows(weights: Weights) -> np.ndarray | None:
    n, most = len(weights.y), MAX_ARVIZ_ENTRIES // weights.n_draws
    return None if n <= most else np.sort(np.random.default_rng(0).choice(n, most, replace=False))


def _details(
    cells: dict[str, list[Cell]], weights: Weights, fit: SelectionFit, balance: pd.DataFrame
) -> dict[str, np.ndarray]:
    assert weights.log_prob is not None
    smd = balance[(balance["measure"] == "smd") & (balance["class"] == "pooled")]
    arrays = {
        "balance": smd[list(BALANCE)].to_numpy(dtype=float), "calibration": fit.calibration().to_numpy(dtype=float),
        "log_w": weights.log_w.numpy(), "y": weights.y.numpy(), "log_prob": weights.log_prob.numpy(),
        "elbo": fit.elbo.numpy(),
    }  # fmt: skip
    for scheme, runs in cells.items():
        own = runs[0].arrays
        arrays[f"profile_{scheme}"], arrays["profile_count"] = own["profile"], own["profile_count"]
        arrays[f"history_{scheme}"] = own["history"]
        if np.isfinite(own["deficit_history"]).any():
            arrays[f"deficit_history_{scheme}"] = own["deficit_history"]
    return arrays


def _examples(data: Data, cells: dict[str, list[Cell]]) -> list[dict[str, Any]]:
    out = []
    for place, row in enumerate(example_rows(data).tolist()):
        tokens = data.test.tokens(row)
        schemes = {name: _shown(runs[0].arrays, place, len(tokens)) for name, runs in cells.items()}
        out.append({"tokens": tokens, "label": int(data.test.y[row]), "schemes": schemes})
    return out


def _shown(arrays: dict[str, np.ndarray], place: int, width: int) -> dict[str, Any]:
    p: Sequence[float] = arrays["example_p"][place].tolist()
    mask = [round(float(v), 5) for v in arrays["example_masks"][place][:width]]
    return {"mask": mask, "prediction": int(np.argmax(p)), "probability": round(max(p), 4)}
