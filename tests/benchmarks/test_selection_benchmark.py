"""The benchmark script runs, part by part, at its quick sizes. Nothing here asserts a time."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.scripts import loaded


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with loaded("benchmarks/selection.py") as module:
        yield module


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", ["speed", "accuracy", "coverage", "features", "warm", "sbc"])
def test_part_prints_a_table(script, part, tmp_path, capsys):
    out = tmp_path / "out.md"
    script.main(["--part", part, "--quick", "--out", str(out)])
    text = out.read_text(encoding="utf-8")
    assert f"## {part}\n" in text
    assert "| --- |" in text
    assert "scikit-learn" in text  # the machine's line
    assert f"## {part}\n" in capsys.readouterr().out


def test_unknown_part_is_refused(script, capsys):
    with pytest.raises(SystemExit):
        script.main(["--part", "speeed"])
    assert "speed" in capsys.readouterr().err


def test_logistic_world_has_the_stated_spread(script):
    world = script.logistic_world(8, interaction=True)
    phi = world.features(world.sample(50_000, seed=3).masks)
    slope = world.coefficients[1] - world.coefficients[0]
    linear, product = phi[:, :-1] @ slope[:-1], phi[:, -1] * slope[-1]
    assert linear.std() == pytest.approx(1, abs=0.02)
    assert product.std() == pytest.approx(1, abs=0.03)
