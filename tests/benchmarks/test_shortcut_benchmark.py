"""The benchmark script runs, part by part, at its quick sizes. Nothing here asserts a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.scripts import loaded


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with loaded("benchmarks/shortcut.py") as module:
        yield module


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", ["verdict", "reliance", "encoding", "metrics"])
def test_part_prints_a_table(script, part, tmp_path, capsys):
    out, raw = tmp_path / "out.md", tmp_path / "raw.json"
    script.main(["--part", part, "--quick", "--out", str(out), "--raw", str(raw)])
    text = out.read_text(encoding="utf-8")
    assert f"## {part}\n" in text
    assert "| --- |" in text
    assert f"## {part}\n" in capsys.readouterr().out
    if part == "verdict":
        found = json.loads(raw.read_text(encoding="utf-8"))
        assert len(found) == 2
        assert sum(name.startswith("faithful") for name in found[0]) == 4
        assert sum(name.startswith("shortcut") for name in found[0]) == 2
