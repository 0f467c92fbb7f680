"""The main table: its width, what is in a cell, and the reasons for what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from causal_attn.report import html_table, read_results, text_table, text_verdict
from causal_attn.report.tables import COLUMNS, cell, null_reasons, number
from tests.report.made import LABELS, edit, write_results

BY_KEY = {column.key: column for column in COLUMNS}


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("classes", [2, 3, 20])
def test_no_line_is_wider_than_a_terminal(tmp_path: Path, classes: int, seeds: int) -> None:
    names = [f"class number {i}" for i in range(classes)]
    out = write_results(tmp_path / "out", schemes=list(LABELS), class_names=names, seeds=seeds, n=60)
    edit(out, lambda raw: raw["schemes"]["erm"].update(label="A label that somebody made a good deal too long " * 3))
    lines = text_table(read_results(out)).splitlines()
    assert max(map(len, lines)) <= 100


def test_one_seed_shows_its_interval(out: Path) -> None:
    scheme = read_results(out).schemes[0]
    run = scheme.runs[0]
    low, high = run.intervals["reliance"]
    shown = cell(scheme, BY_KEY["reliance"])
    assert shown.value == f"{run.figures['reliance']:.3f}"
    assert shown.under == (f"[{low:.3f}, {high:.3f}]",)


def test_several_seeds_show_mean_and_range_and_say_so(tmp_path: Path) -> None:
    results = read_results(write_results(tmp_path / "out", seeds=3, n=60))
    values = [run.figures["accuracy"] for run in results.schemes[0].runs]
    shown = cell(results.schemes[0], BY_KEY["accuracy"])
    assert shown.value == f"{sum(values) / 3:.3f}"
    assert shown.under == (f"[{min(values):.3f}, {max(values):.3f}]",)
    assert "lowest and the highest of 3 seeds" in text_table(results)


def test_a_figure_that_some_seeds_lack_says_how_many_have_it(tmp_path: Path) -> None:
    out = write_results(tmp_path / "out", seeds=3, n=60)
    edit(out, lambda raw: raw["schemes"]["erm"]["runs"][1].update(reliance=None, notes={"reliance": "too few pairs"}))
    results = read_results(out)
    assert cell(results.schemes[0], BY_KEY["reliance"]).under[-1] == "2 of 3 seeds"
    assert ("reliance (erm seed 1)", "too few pairs") in null_reasons(results)


def test_a_null_is_a_dash_with_its_reason_below(out: Path) -> None:
    results = read_results(out)
    assert cell(results.schemes[2], BY_KEY["gap"]).value == "–"
    assert "gap (random): EVAL-X did not converge" in text_table(results)


def test_default_tokens_by_class(tmp_path: Path) -> None:
    out = write_results(tmp_path / "out", n=60)
    edit(out, lambda raw: raw["schemes"]["erm"]["runs"][0].update(default_token_mass=[0.81, 0.07]))
    assert cell(read_results(out).schemes[0], BY_KEY["default_token_mass"]).value == "0.81 / 0.07"
    edit(out, lambda raw: raw["schemes"]["erm"]["runs"][0].update(default_token_mass=[0.8, None, 0.1, 0.2]))
    assert cell(read_results(out).schemes[0], BY_KEY["default_token_mass"]).value == "0.10 to 0.80"
    edit(out, lambda raw: raw["schemes"]["erm"]["runs"][0].update(default_token_mass=None))
    assert cell(read_results(out).schemes[0], BY_KEY["default_token_mass"]).value == "–"


def test_a_scheme_without_runs_is_shown_as_such(out: Path) -> None:
    edit(out, lambda raw: raw["schemes"].update(later={"label": "Not run yet", "runs": []}))
    text = text_table(read_results(out))
    assert "Not run yet" in text
    assert "all figures (later): no run of this scheme" in text


def test_control_characters_never_reach_the_terminal(out: Path) -> None:
    edit(out, lambda raw: raw["schemes"]["erm"].update(label="red\x1b[31m\nnext"))
    text = text_table(read_results(out))
    assert "\x1b" not in text
    assert "red[31m next" in text


def test_verdicts_for_a_terminal(out: Path) -> None:
    text = text_verdict(read_results(out))
    assert "  ERM (ordinary joint training): shortcut: the mask tells the class" in text
    assert max(map(len, text.splitlines())) <= 100
    edit(out, lambda raw: [raw.pop("verdict"), raw.pop("summary")])
    assert text_verdict(read_results(out)) == ""


def test_html_table_is_escaped_and_has_scopes(out: Path) -> None:
    edit(out, lambda raw: raw["schemes"]["erm"].update(label="<script>x</script>"))
    html = str(html_table(read_results(out)))
    assert "<script" not in html
    assert html.count('scope="row"') == 4
    assert html.count('scope="col"') == len(COLUMNS) + 1


@pytest.mark.parametrize(("value", "shown"), [(-0.0001, "0.000"), (-0.0126, "-0.013"), (1.0, "1.000")])
def test_no_negative_zero(value: float, shown: str) -> None:
    assert number(value) == shown


def test_directions_are_those_of_the_metrics() -> None:
    higher = {c.key for c in COLUMNS if c.better == "higher is better"}
    lower = {c.key for c in COLUMNS if c.better == "lower is better"}
    assert higher == {"accuracy", "evalx_accuracy", "lexicon_mass"}
    assert lower == {"leakage_bits", "excess_reliance", "gap", "default_token_mass"}
