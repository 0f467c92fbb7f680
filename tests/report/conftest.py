"""A results directory per test, and the page made from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.made import write_results


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Two classes, four schemes, one seed."""
    return write_results(tmp_path / "out", n=300)
