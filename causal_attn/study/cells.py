"""One cell of a study: a scheme under a seed, trained and measured, as plain numbers that can be kept and reused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from causal_attn.attention import TextAttention
from causal_attn.data.splits import Data
from causal_attn.errors import InputError
from causal_attn.faithfulness import train_evaluator
from causal_attn.faithfulness.compare import measure
from causal_attn.faithfulness.mass import profile
from causal_attn.masks import MaskSample
from causal_attn.storage import load_arrays, save_arrays, save_json
from causal_attn.study.config import SCHEMES, StudyConfig
from causal_attn.training import TrainResult, train

PROFILE_POSITIONS = 40
ARRAYS = ("profile", "profile_count", "history", "deficit_history", "example_masks", "example_p")
N_EXAMPLES = 12
EXAMPLE_LENGTHS = (12, 45)
"""Shortest and longest text, in tokens, shown as an example where there are enough."""


@dataclass(frozen=True)
class Cell:
    """Figures (`row`, JSON), arrays for the figures, and the training masks the selection model reads."""

    row: dict[str, Any]
    arrays: dict[str, np.ndarray]
    masks: MaskSample


class Evaluators:
    """The EVAL-X evaluator of a seed, trained when first needed."""

    def __init__(self, config: StudyConfig, data: Data, seed: int, progress: bool) -> None:
        self.config, self.data, self.seed, self.progress = config, data, seed, progress
        self._model: Any = None

    def get(self) -> Any:
        """The evaluator."""
        if self._model is None:
            self._model = train_evaluator(
                model_for(self.config, self.data, self.seed), self.data, self.seed, self.progress,
                epochs=self.config.epochs, device=self.config.device,
            )  # fmt: skip
        return self._model


def model_for(config: StudyConfig, data: Data, seed: int) -> TextAttention:
    """The study's classifier, drawn from the seed."""
    return TextAttention.for_data(data, config.downstream, word_dropout=config.word_dropout, seed=seed)  # type: ignore[arg-type]


def run_cell(
    config: StudyConfig, data: Data, scheme: str, seed: int, evaluators: Evaluators, progress: bool
) -> Cell:  # fmt: skip
    """Train and measure one scheme under one seed."""
    result = train(
        model_for(config, data, seed), data, SCHEMES[scheme][1](), epochs=config.epochs, seed=seed, progress=progress,
        device=config.device,
    )  # fmt: skip
    k = min(config.k, result.masks("test").T)
    row = measure(
        result, "test", evaluator=evaluators.get(), k=k, n_permutations=config.n_permutations, seed=seed,
        progress=progress,
    )  # fmt: skip
    return Cell(row, _arrays(result), result.masks("train"))


def _arrays(result: TrainResult) -> dict[str, np.ndarray]:
    """Profiles and history for the figures; masks and predictions of the example texts."""
    test = result.masks("test")
    means, counts = profile(test, PROFILE_POSITIONS)
    rows = example_rows(result.data)
    history = result.history
    p = result.logits("test").softmax(-1)[rows]
    return {
        "profile": means.numpy(), "profile_count": counts.numpy(),
        "history": history[["loss_nats", "train_accuracy", "valid_accuracy"]].to_numpy(float),
        "deficit_history": history["support_deficit"].to_numpy(float),
        "example_masks": test.masks[rows].double().numpy(), "example_p": p.numpy(),
    }  # fmt: skip


def example_rows(data: Data) -> Tensor:
    """Some test rows of readable length, as many of each class, the same for every scheme."""
    lengths = data.test.lengths
    assert lengths is not None
    rng = np.random.default_rng(0)
    fits = ((lengths >= EXAMPLE_LENGTHS[0]) & (lengths <= EXAMPLE_LENGTHS[1])).numpy()
    picked = []
    for k in range(data.n_classes):
        rows = rng.permutation(np.flatnonzero(data.test.y.numpy() == k))
        picked.append(rows[np.argsort(~fits[rows], kind="stable")][: max(1, N_EXAMPLES // data.n_classes)])
    in_turn = [rows[i] for i in range(max(map(len, picked))) for rows in picked if i < len(rows)]
    return torch.tensor(in_turn[:N_EXAMPLES])


class CellStore:
    """Cells on disk, each written whole, in a folder of the configuration they depend on."""

    def __init__(self, out: Path, config: StudyConfig, data: Data) -> None:
        self.folder = out / "cells" / config.cell_key(data)

    def _paths(self, scheme: str, seed: int) -> tuple[Path, Path, Path]:
        stem = f"{scheme}-seed{seed}"
        return self.folder / f"{stem}.json", self.folder / f"{stem}.npz", self.folder / f"{stem}-masks.npz"

    def save(self, cell: Cell, scheme: str, seed: int) -> None:
        """Keep a cell; the JSON comes last, so that a cell with it is complete."""
        self.folder.mkdir(parents=True, exist_ok=True)
        row, arrays, masks = self._paths(scheme, seed)
        save_arrays(arrays, cell.arrays, {})
        cell.masks.save(masks)
        save_json(row, {"cell": [scheme, seed], "row": cell.row})

    def load(self, scheme: str, seed: int) -> Cell | None:
        """The kept cell, or None where there is none, or it is damaged or another's: it is then made anew."""
        row, arrays, masks = self._paths(scheme, seed)
        if not (row.is_file() and arrays.is_file() and masks.is_file()):
            return None
        try:
            kept = json.loads(row.read_text("utf-8"))
            if not isinstance(kept, dict) or kept.get("cell") != [scheme, seed]:
                return None
            cell = Cell(kept["row"], load_arrays(arrays)[0], MaskSample.load(masks))
        except (ValueError, KeyError, InputError):  # JSON and Unicode errors are ValueErrors
            return None
        return cell if {*ARRAYS} <= cell.arrays.keys() else None
