"""What a study found, for people: one self-contained HTML page, figures as files, and a table for the terminal.

Reads a directory of results and computes nothing that is not in it, so a report can be made again at any time, on any
machine, without the models: neither torch nor Pyro nor ArviZ is loaded.
"""

from __future__ import annotations

from pathlib import Path

from causal_attn.errors import OutputError
from causal_attn.report.diagnosis import draw_diagnosis
from causal_attn.report.page import render
from causal_attn.report.read import Results, read_results
from causal_attn.report.sheets import draw_all
from causal_attn.report.tables import html_table, text_table, text_verdict
from causal_attn.storage import whole_file

__all__ = ["Results", "draw_diagnosis", "html_table", "read_results", "text_table", "text_verdict", "write"]


def write(out: str | Path) -> Path:
    """Make `out/report.html` and `out/figures/` from the results in `out`; returns the page's path.

    Everything is rendered before the first byte is written, and each file appears whole: a report that fails leaves
    an earlier one as it was.

    Raises:
        InputError: `out/results.json` is missing or unusable, or a file beside it is damaged.
        OutputError: the directory cannot be written to.
    """
    results = read_results(out)
    sheets = draw_all(results)
    page = render(results, sheets)
    folder = results.folder / "figures"
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be made ({error.strerror})") from error
    for sheet in sheets.values():
        _write(folder / f"{sheet.name}.svg", sheet.svg)
        _write(folder / f"{sheet.name}.png", sheet.png)
    target = results.folder / "report.html"
    _write(target, page.encode("utf-8"))
    return target


def _write(path: Path, content: bytes) -> None:
    with whole_file(path) as temporary:
        temporary.write_bytes(content)
