"""The benchmark script runs, part by part, at its quick sizes. Nothing here asserts a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.scripts import loaded


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with loaded("benchmarks/diagnostics.py") as module:
        yield module


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "part", ["deterministic", "null", "partial", "bound", "rare", "stretch", "tails", "balance", "summary"]
)
def test_part_prints_a_table(script, part, tmp_path, capsys):
    out = tmp_path / "out.md"
    script.main(["--part", part, "--quick", "--out", str(out)])
    text = out.read_text(encoding="utf-8")
    assert f"## {part}\n" in text
    assert "| --- |" in text
    assert "scikit-learn" in text  # the machine's line
    assert f"## {part}\n" in capsys.readouterr().out


def test_two_normal_classes_move_the_residual_as_stated(script):
    """E[w] at logits times c is (1 + exp(c(c − 1)Δ²/2))/2 for two even classes N(±Δ/2, 1)."""
    moves = [1 - (1 + math.exp(c * (c - 1) * script.APART**2 / 2)) / 2 for c in script.FACTORS]
    assert moves == pytest.approx([0.27, -0.85], abs=0.01)


def test_with_two_classes_the_deficit_cannot_move(script):
    (before, _), *others = script._stretched(script.Logistic(n_classes=2, n_positions=8, strength=2.0), 300, 0)
    assert before > 0
    assert [after for after, _ in others] == pytest.approx([before] * len(others), abs=1e-12)
