"""A training run on disk after every epoch: tensors as safetensors, numbers as JSON, never pickle.

A checkpoint is a directory that holds one `step-N` directory. A new one is written under a temporary name beside it,
flushed, and renamed; then the older one goes. So at any moment, a kill included, one of them is whole.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from causal_attn.data.splits import Data
from causal_attn.errors import InputError, OutputError
from causal_attn.selection import SelectionFit
from causal_attn.training.schemes import Scheme
from causal_attn.training.settings import Settings

VERSION = 1
"""Raised whenever a change of the loop changes what a state means: older checkpoints are then refused."""
STEP = re.compile(r"step-(\d+)")
TENSORS, NUMBERS, FIT = "tensors.safetensors", "state.json", "selection.safetensors"


@dataclass(frozen=True)
class State:
    """Where a run stands: what comes next, and everything that what comes next depends on.

    Args:
        phase: number of the phase that goes on, or starts.
        epoch: epoch of it that comes next; 0: the phase starts, and only the model and random states matter.
        numbers: JSON values by name, NaN as None inside "history".
        tensors: by name.
        fit: of the last refresh.
    """

    phase: int
    epoch: int
    numbers: dict[str, Any]
    tensors: dict[str, Tensor]
    fit: SelectionFit | None = field(default=None, repr=False)

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin with `prefix`/, without it."""
        return {name[len(prefix) + 1 :]: value for name, value in self.tensors.items() if name.startswith(prefix + "/")}


class Checkpoint:
    """The directory of one run.

    Args:
        path: it is made where it does not exist; its parent must.
        run: what the run is, as `fingerprint` gives it; a checkpoint of another is refused.
    """

    def __init__(self, path: str | Path, run: Mapping[str, Any]) -> None:
        if not isinstance(path, (str, os.PathLike)) or str(path) == "":
            raise InputError(f"checkpoint: expected a directory's name, got {path!r}")
        self.path, self.run = Path(path), dict(run)
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"checkpoint: {str(path)!r} is a file; expected a directory, or a name that is free")
        if not self.path.exists() and not self.path.absolute().parent.is_dir():
            raise InputError(f"checkpoint: no directory at {str(self.path.absolute().parent)!r}")

    def _steps(self) -> list[tuple[int, Path]]:
        if not self.path.is_dir():
            return []
        found = [(STEP.fullmatch(entry.name), entry) for entry in self.path.iterdir()]
        return sorted((int(match[1]), entry) for match, entry in found if match)

    def refuse_existing(self) -> None:
        """InputError where a run was kept here: it would be lost."""
        if self._steps():
            raise InputError(
                f"checkpoint: {str(self.path)!r} holds a run already; give resume=True to go on, or another name"
            )

    def load(self) -> State | None:
        """The last state; None where there is none yet.

        Raises:
            InputError: a checkpoint of another run or version, or a damaged one.
        """
        steps = self._steps()
        if not steps:
            return None
        place = steps[-1][1]
        try:
            stored = json.loads((place / NUMBERS).read_text(encoding="utf-8"))
            self._compare(stored)
            with safe_open(place / TENSORS, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            fit = SelectionFit.load(place / FIT) if (place / FIT).exists() else None
            return State(stored["phase"], stored["epoch"], stored["numbers"], tensors, fit)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"checkpoint: {str(place)!r} cannot be read ({error!r})") from error

    def _compare(self, stored: Any) -> None:
        if stored["version"] != VERSION:
            raise InputError(f"checkpoint: expected version {VERSION}, {str(self.path)!r} has {stored['version']}")
        for name, value in self.run.items():
            if stored["run"].get(name) != value:
                came, now = str(stored["run"].get(name)), str(value)
                raise InputError(
                    f"checkpoint: {str(self.path)!r} is of another run: its {name} is {came:.300}, here {now:.300}"
                )

    def save(self, state: State) -> None:
        """Write `state` whole, then remove the one before.

        Raises:
            OutputError: it cannot be written; the one before is still there.
        """
        steps = self._steps()
        number = steps[-1][0] + 1 if steps else 0
        temporary = None
        try:
            self.path.mkdir(exist_ok=True)
            temporary = Path(tempfile.mkdtemp(prefix=".writing-", dir=self.path))
            save_file(
                {name: value.detach().cpu().clone() for name, value in state.tensors.items()}, temporary / TENSORS
            )
            if state.fit is not None:
                state.fit.save(temporary / FIT)
            meta = {"version": VERSION, "run": self.run, "phase": state.phase, "epoch": state.epoch,
                    "numbers": state.numbers}  # fmt: skip
            (temporary / NUMBERS).write_text(json.dumps(meta, allow_nan=False), encoding="utf-8")
            for entry in temporary.iterdir():
                _flush(entry)
            temporary.rename(self.path / f"step-{number:06d}")
            _flush(self.path)
        except (OSError, SafetensorError) as error:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)  # the error below is the news
            raise OutputError(f"{self.path}: the checkpoint cannot be written ({error})") from error
        kept = self.path / f"step-{number:06d}"
        for entry in self.path.iterdir():  # older states, and what a killed run left half-written
            if entry != kept and (STEP.fullmatch(entry.name) or entry.name.startswith(".writing-")):
                shutil.rmtree(entry, ignore_errors=True)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fingerprint(model: Any, data: Data, scheme: Scheme, settings: Settings, seed: int) -> dict[str, Any]:
    """What a run is: model, parameters it starts from, data, scheme, settings and seed, as JSON values."""
    state = model.state_dict()
    values = hashlib.sha256()
    for name, value in state.items():
        values.update(name.encode())
        values.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    rows = hashlib.sha256()
    for split in data.splits.values():
        rows.update(split.y.numpy().tobytes())
        rows.update("\0".join(split.texts or ()).encode())
    return {
        "model": type(model).__name__,
        "parameters": [f"{name} {tuple(value.shape)} {value.dtype}" for name, value in state.items()],
        "starting values": values.hexdigest()[:16],
        "data": f"{data.name}, {len(data.train)} training rows, {rows.hexdigest()[:16]}",
        "scheme": re.sub(r" at 0x[0-9a-f]+", "", repr(scheme)),
        "settings": asdict(settings),
        "seed": seed,
        "torch": torch.__version__.split("+")[0],
    }


def json_rows(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A history with None for NaN, which JSON has no word for."""
    return [
        {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()} for row in history
    ]  # fmt: skip


def rows_of(stored: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The history again."""
    return [{k: float("nan") if v is None else v for k, v in row.items()} for row in stored]


def require_storable(scheme: Scheme) -> None:
    """InputError for a selection model that only pickle could keep between epochs."""
    for phase in scheme.phases():
        chosen = None if phase.weighting is None else phase.weighting.selection
        if chosen is not None and (not isinstance(chosen.estimator, str) or callable(chosen.features)):
            raise InputError(
                "checkpoint: expected a selection model of this library's own features and estimators, whose fits can "
                "be kept without pickle"
            )


def pack_optimiser(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Its state by parameter number and name: moments and step counts."""
    state = optimiser.state_dict()["state"]
    return {f"{i}/{name}": torch.as_tensor(value) for i, own in state.items() for name, value in own.items()}


def unpack_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put a packed state back."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        number, own = name.split("/")
        state.setdefault(int(number), {})[own] = value
    optimiser.load_state_dict({**optimiser.state_dict(), "state": state})
