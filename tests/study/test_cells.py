"""Cells are kept whole, and come back as they were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from causal_attn.attention import TextAttention
from causal_attn.data import load
from causal_attn.masks import MaskSample
from causal_attn.study import StudyConfig, cells
from causal_attn.study.cells import Cell, CellStore, Evaluators, example_rows, model_for


@pytest.fixture
def store(config: StudyConfig, reviews: Path, tmp_path: Path) -> CellStore:
    return CellStore(tmp_path, config, load(reviews))


CELL = Cell(
    {"accuracy": 0.5, "ess": None, "verdict": "no shortcut: ½"},
    {name: np.array([[0.1, np.nan]]) for name in cells.ARRAYS},
    MaskSample([[0.5, 0.5], [1.0, 0.0]], [0, 1]),
)


def test_a_cell_comes_back_as_it_was(store: CellStore) -> None:
    assert store.load("erm", 0) is None
    store.save(CELL, "erm", 0)
    again = store.load("erm", 0)
    assert again is not None
    assert again.row == CELL.row
    np.testing.assert_array_equal(again.arrays["history"], CELL.arrays["history"])
    assert torch.equal(again.masks.masks, CELL.masks.masks)
    assert store.load("erm", 1) is None
    assert store.load("warm", 0) is None
    assert not [path for path in store.folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("part", [".json", ".npz", "-masks.npz"])
def test_half_a_cell_is_none(store: CellStore, part: str) -> None:
    store.save(CELL, "erm", 0)
    (store.folder / f"erm-seed0{part}").unlink()
    assert store.load("erm", 0) is None


def test_the_figures_are_written_last(store: CellStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: object) -> None:
        raise KeyboardInterrupt

    for write in ("save_arrays", "save_json"):
        with monkeypatch.context() as patch:
            patch.setattr(cells, write, stop)
            with pytest.raises(KeyboardInterrupt):
                store.save(CELL, "erm", 0)
        assert not (store.folder / "erm-seed0.json").exists()
        assert store.load("erm", 0) is None


def test_an_evaluator_is_trained_once_a_seed(
    config: StudyConfig, reviews: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def trained(model: object, data: object, seed: int, progress: bool, **settings: object) -> object:
        asked.append((seed, settings))
        return object()

    monkeypatch.setattr(cells, "train_evaluator", trained)
    evaluators = Evaluators(replace(config, epochs=4), load(reviews), 2, False)
    assert not asked
    assert evaluators.get() is evaluators.get()
    assert asked == [(2, {"epochs": 4, "device": "cpu"})]


def test_the_model_is_that_of_the_configuration(config: StudyConfig, reviews: Path) -> None:
    data = load(reviews)
    model = model_for(replace(config, word_dropout=0.25), data, 1)
    same = TextAttention.for_data(data, "pooled", word_dropout=0.25, seed=1)
    assert model.config == same.config
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), same.parameters(), strict=True))


def test_examples_are_of_every_class_and_of_readable_length_first(reviews: Path) -> None:
    data = load(reviews, default_tokens=6)
    rows = example_rows(data)
    assert torch.equal(rows, example_rows(data))
    assert len(rows.unique()) == len(rows) == 12
    assert torch.bincount(data.test.y[rows]).tolist() == [6, 6]
    lengths = data.test.lengths
    assert lengths is not None
    for k in (0, 1):
        fits = int(((lengths >= 12) & (data.test.y == k)).sum())
        shown = lengths[rows][data.test.y[rows] == k]
        assert int((shown >= 12).sum()) == min(6, fits)


@pytest.mark.parametrize("junk", ["", "{", "[]", "{}", '{"cell": ["warm", 0], "row": {}}'])
def test_a_damaged_or_foreign_row_is_made_anew(store: CellStore, junk: str) -> None:
    store.save(CELL, "erm", 0)
    (store.folder / "erm-seed0.json").write_text(junk)
    assert store.load("erm", 0) is None


@pytest.mark.parametrize("part", [".npz", "-masks.npz"])
def test_damaged_arrays_are_made_anew(store: CellStore, part: str) -> None:
    store.save(CELL, "erm", 0)
    path = store.folder / f"erm-seed0{part}"
    path.write_bytes(path.read_bytes()[:40])
    assert store.load("erm", 0) is None
