"""The page on trust: its script runs, and the page shows what the script makes."""

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
    with loaded("docs/trust.py") as module:
        yield module


def test_every_figure_is_written_and_every_summary_printed(script, tmp_path, capsys) -> None:
    script.main(tmp_path / "images", n=200)
    made = {path.name: path for path in (tmp_path / "images").iterdir()}
    assert set(made) == {f"trust-{name}.png" for name in script.FIGURES}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in made.values())
    printed = capsys.readouterr().out
    assert [line[4:] for line in printed.splitlines() if line.startswith("---")] == list(script.WORLDS)


def test_the_page_shows_every_figure_and_no_other(script) -> None:
    page = (DOCS / "trust.md").read_text("utf-8")
    assert set(re.findall(r"\(images/(trust-[a-z]+\.png)\)", page)) == {f"trust-{name}.png" for name in script.FIGURES}
    sizes = {path.name: path.stat().st_size for path in (DOCS / "images").glob("trust-*.png")}
    assert set(sizes) == {f"trust-{name}.png" for name in script.FIGURES}
    assert max(sizes.values()) < 200_000


def test_the_page_holds_the_printed_summaries(script) -> None:
    """But for the figures' last digits, which may differ between machines."""
    page = (DOCS / "trust.md").read_text("utf-8")
    blocks = re.findall(r"\*\*([a-z-]+)\*\*\n\n```\n(.*?)\n```", page, re.DOTALL)
    assert {name: _shape(text) for name, text in blocks} == {
        name: _shape(script.said(one)) for name, one in script.worlds().items()
    }


def _shape(text: str) -> str:
    return " ".join(re.sub(r"[\d.,]*\d", "#", text).split())
