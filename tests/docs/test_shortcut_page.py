"""The page on the shortcut tests: its script runs, and the page says what the script prints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.scripts import loaded

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with loaded("docs/shortcut.py") as module:
        yield module


def test_the_page_says_what_the_script_prints(script, tmp_path, capsys) -> None:
    """But for digits, which may differ between machines; the verdicts may not."""
    script.main(tmp_path / "images")
    assert [path.name for path in (tmp_path / "images").iterdir()] == ["shortcut-tests.png"]
    printed = dict(re.findall(r"--- (\w+)\n(.*?)\n\n", capsys.readouterr().out, re.DOTALL))
    page = (DOCS / "shortcut.md").read_text("utf-8")
    blocks = dict(re.findall(r"\*\*(\w+)\*\*\n\n```\n(.*?)\n```", page, re.DOTALL))
    assert {name: _shape(text) for name, text in blocks.items()} == {n: _shape(text) for n, text in printed.items()}
    assert list(printed) == ["independent", "innocent", "planted", "skewed"]
    said = [text.split("verdict: ")[1].split(":")[0] for text in printed.values()]
    assert said == ["no shortcut", "no shortcut", "shortcut", "shortcut"]
    assert "(images/shortcut-tests.png)" in page
    assert (DOCS / "images" / "shortcut-tests.png").stat().st_size < 200_000


def _shape(text: str) -> str:
    return " ".join(re.sub(r"-?[\d.,]*\d", "#", text).split())
