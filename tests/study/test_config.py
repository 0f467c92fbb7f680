"""A configuration is checked before any work, and its key holds all that a cell depends on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from causal_attn.data import load
from causal_attn.errors import InputError
from causal_attn.study import SCHEMES, StudyConfig

from .conftest import write_reviews


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("downstream", "deep"), ("downstream", None), ("schemes", ("erm", "odd")), ("schemes", ()),
        ("schemes", ("erm", "erm")), ("schemes", ("",)), ("default_tokens", -1), ("default_tokens", 1.0),
        ("word_dropout", 1.0), ("word_dropout", 1.5), ("word_dropout", -0.1), ("word_dropout", float("nan")),
        ("word_dropout", True), ("word_dropout", "half"), ("seeds", 0), ("seeds", True), ("epochs", 0),
        ("epochs", "10"), ("limit", 0), ("limit", 2.5), ("max_tokens", 0), ("k", 0), ("n_permutations", -1),
        ("device", "abacus"), ("device", 3.5),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_named(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{name}: expected"):
        StudyConfig(**{name: value})


def test_every_scheme_can_be_made_and_goes_into_the_results() -> None:
    config = StudyConfig(schemes=tuple(SCHEMES))
    assert json.loads(json.dumps(config.as_dict()))["schemes"] == list(SCHEMES)
    for label, make in SCHEMES.values():
        assert label
        assert make().phases()


def test_the_key_changes_with_all_a_cell_depends_on_and_nothing_else(tmp_path: Path) -> None:
    path = write_reviews(tmp_path / "a.csv", 100)
    config = StudyConfig(data=str(path))
    key = config.cell_key(load(path))
    assert config.cell_key(load(path)) == key
    assert replace(config, schemes=("warm",), seeds=3).cell_key(load(path)) == key
    changes: dict[str, Any] = {
        "downstream": "pooled", "default_tokens": 0, "word_dropout": 0.1, "epochs": config.epochs + 1, "limit": 90,
        "max_tokens": 5, "k": 2, "n_permutations": 7, "device": "cpu", "data": "elsewhere.csv",
    }  # fmt: skip
    keys = {replace(config, **{name: value}).cell_key(load(path)) for name, value in changes.items()}
    assert len(keys | {key}) == len(changes) + 1
    assert config.cell_key(load(path, seed=1)) != key  # another split
    path.write_text(path.read_text("utf-8").replace("great", "grand", 1), encoding="utf-8")
    assert config.cell_key(load(path)) != key
