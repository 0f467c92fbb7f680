"""The main table: what each figure means and which way is better, the cells, and the table as text and as HTML."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from causal_attn.plots import palette
from causal_attn.report.read import Results, Run, Scheme

NULL = "–"
WIDTH = 100
"""Columns of a terminal that the text table never goes beyond."""


@dataclass(frozen=True)
class Column:
    """A figure of the table. `better` is data, so that the page and the terminal cannot contradict the code."""

    key: str
    head: str
    better: str
    unit: str
    meaning: str

    def title(self, results: Results) -> str:
        """The heading, with the k of EVAL-X filled in where all runs share one."""
        return self.head.replace("@k", f"@{results.evalx_k or 'k'}")


@dataclass(frozen=True)
class Cell:
    """A figure ready to be shown: the value, and what belongs under it (interval, range, number of seeds)."""

    value: str
    under: tuple[str, ...] = ()


COLUMNS = (
    Column(
        "leakage_auc",
        "Leakage AUC",
        "nearer ½ is better",
        "probability",
        "How well the class can be told from the mask alone, without the words: ½ is not at all, 1 is perfectly.",
    ),
    Column(
        "leakage_bits",
        "Leakage",
        "lower is better",
        "bits",
        "What the mask alone tells about the class, in bits, on held-out texts. By itself no proof of a shortcut.",
    ),
    Column(
        "reliance",
        "Reliance",
        "context only",
        "change in probability",
        "How far the prediction moves towards another class when the text gets the mask of a text of that class.",
    ),
    Column(
        "excess_reliance",
        "Excess reliance",
        "lower is better",
        "change in probability",
        "Reliance beyond that of an evaluator trained on random masks, which cannot read them. The verdict uses it.",
    ),
    Column(
        "default_token_mass",
        "Default-token mass",
        "lower is better",
        "share of attention, by class",
        "Attention on the meaningless tokens put before every text. Unequal classes mean the class is written there.",
    ),
    Column(
        "accuracy",
        "Accuracy",
        "higher is better",
        "share of test texts",
        "Test texts classed rightly, each with the model’s own mask.",
    ),
    Column(
        "evalx_accuracy",
        "EVAL-X@k",
        "higher is better",
        "share of test texts",
        "Accuracy of that evaluator when it sees only the k words of most attention: are they worth reading?",
    ),
    Column(
        "gap",
        "Gap",
        "lower is better",
        "difference in accuracy",
        "The model’s own accuracy on its top k words minus EVAL-X’s. What is left over came through the mask.",
    ),
    Column(
        "lexicon_mass",
        "Lexicon mass (even)",
        "higher is better",
        "share of attention",
        "Attention on words of a sentiment lexicon; in parentheses, what even attention over all words would give.",
    ),
)

NAMES = {
    "ess": "effective sample size",
    "khat": "k̂ of the weights",
    "vi_khat": "k̂ of the posterior",
    "p_value": "p-value of leakage",
    "evalx_accuracy": "EVAL-X accuracy",
    "leakage_auc": "leakage AUC",
    "leakage_bits": "leakage bits",
}
"""Names of figures for people, where the key with spaces would not do."""

SHORTCUT, USE = COLUMNS[:5], COLUMNS[5:]


def text_table(results: Results) -> str:
    """The main table for a terminal, at most 100 columns wide, with the reasons for missing figures under it."""
    blocks = [
        _text_block("Is there a shortcut?", SHORTCUT, results),
        _text_block("Does attention find the words that matter?", USE, results),
        textwrap.fill(f"In brackets: {brackets(results)}.", WIDTH),
    ]
    shown = {"all figures", *(column.key for column in COLUMNS)}
    reasons = [f"{where}: {why}" for where, why in null_reasons(results, shown)]
    if reasons:
        listed = [textwrap.fill(r, WIDTH, initial_indent="  ", subsequent_indent="    ") for r in reasons]
        blocks.append("\n".join([f"{NULL} not computed:", *listed]))
    return "\n\n".join(blocks)


def text_verdict(results: Results) -> str:
    """The summary and each scheme's verdict for a terminal, at most 100 columns wide; empty when there is none."""
    paragraphs = [textwrap.fill(results.summary, WIDTH)] if results.summary else []
    for scheme in results.schemes:
        if scheme.name in results.verdict:
            words = f"{scheme.label}: {results.verdict[scheme.name]}"
            paragraphs.append(textwrap.fill(words, WIDTH, initial_indent="  ", subsequent_indent="    "))
    return "\n".join(paragraphs)


def html_table(results: Results) -> Markup:
    """The main table as HTML, everything in it escaped."""
    rows = [
        {
            "label": scheme.label,
            "name": scheme.name,
            "glyph": palette.scheme_glyph(i),
            "colour": palette.scheme_colour(i),
            "cells": [cell(scheme, column) for column in COLUMNS],
        }
        for i, scheme in enumerate(results.schemes)
    ]
    heads = [(column.title(results), column.better, column.unit) for column in COLUMNS]
    template = environment().get_template("table.html.j2")
    return Markup(template.render(heads=heads, rows=rows, brackets=brackets(results), groups=(len(SHORTCUT), len(USE))))


def environment() -> Environment:
    """Jinja with autoescaping for every template, and an error for a name that a template misspells."""
    loader = PackageLoader("causal_attn.report", "templates")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters["minus"] = lambda text: str(text).replace("-", "−")
    return made


def brackets(results: Results) -> str:
    """What the bracketed numbers are, which depends on how many seeds there are."""
    if results.n_seeds > 1:
        return f"the lowest and the highest of {results.n_seeds} seeds; before them the mean over seeds"
    return "95% interval over test texts, one seed"


def cell(scheme: Scheme, column: Column) -> Cell:
    """One figure of one scheme: a run's value with its interval, or the mean and range over seeds."""
    if column.key == "default_token_mass":
        return _by_class(scheme.runs)
    found = [run for run in scheme.runs if column.key in run.figures]
    if not found:
        return Cell(NULL)
    value = number(_mean([run.figures[column.key] for run in found]))
    shares = [run.figures["lexicon_share"] for run in found if "lexicon_share" in run.figures]
    if column.key == "lexicon_mass" and shares:
        value += f" ({number(_mean(shares))})"
    return Cell(value, _spread(found, column.key, len(scheme.runs)))


def null_reasons(results: Results, only: Collection[str] | None = None) -> list[tuple[str, str]]:
    """Every missing figure and why, those with one reason together: ("gap, ess (erm, warm)", "no weights here").

    `only` keeps the figures with these names; by default all are listed, the selection model's among them.
    """
    figures: dict[tuple[str, str], list[str]] = {}
    for key, who, why in _nulls(results):
        if only is None or key in only:
            figures.setdefault((who, why), []).append(NAMES.get(key, key.replace("_", " ")))
    schemes: dict[tuple[str, str], list[str]] = {}
    for (who, why), keys in figures.items():
        schemes.setdefault((", ".join(keys), why), []).append(who)
    return [(f"{keys} ({'; '.join(who)})", why) for (keys, why), who in schemes.items()]


def _nulls(results: Results) -> Iterator[tuple[str, str, str]]:
    """Figure, where it is missing, and why; seeds are named only where some of them have the figure."""
    for scheme in results.schemes:
        seeds: dict[tuple[str, str], list[str]] = {}
        for run in scheme.runs:
            for key, why in run.nulls.items():
                seeds.setdefault((key, why), []).append(str(run.seed))
        for (key, why), missing in seeds.items():
            some = "" if len(missing) == len(scheme.runs) else f" seed {', '.join(missing)}"
            yield key, scheme.name + some, why
        if not scheme.runs:
            yield "all figures", scheme.name, "no run of this scheme"
    for key, why in results.selection.nulls.items() if results.selection else ():
        yield key, "selection model", why


def number(value: float, digits: int = 3) -> str:
    """A figure with three decimals and never a negative zero."""
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text


def span(low: float, high: float, digits: int = 3) -> str:
    """An interval or a range in brackets."""
    return f"[{number(low, digits)}, {number(high, digits)}]"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _spread(found: Sequence[Run], key: str, n_runs: int) -> tuple[str, ...]:
    """A range over seeds where there are several; otherwise the run's own interval, if it has one."""
    if n_runs > 1:
        values = [run.figures[key] for run in found]
        few = () if len(found) == n_runs else (f"{len(found)} of {n_runs} seeds",)
        return (span(min(values), max(values)), *few)
    return (span(*found[0].intervals[key]),) if key in found[0].intervals else ()


def _by_class(runs: Sequence[Run]) -> Cell:
    """Mass per class, averaged over seeds; beyond three classes the smallest and the largest."""
    masses = [run.default_token_mass for run in runs if run.default_token_mass]
    if not masses:
        return Cell(NULL)
    columns = [[v for v in by_class if v is not None] for by_class in zip(*masses, strict=False)]
    means = [_mean(values) if values else None for values in columns]
    if len(means) <= 3:
        return Cell(" / ".join(NULL if v is None else number(v, 2) for v in means))
    known = [v for v in means if v is not None]
    if not known:
        return Cell(NULL)
    return Cell(f"{number(min(known), 2)} to {number(max(known), 2)}", (f"over {len(known)} classes",))


def _text_block(title: str, columns: Sequence[Column], results: Results) -> str:
    cells = [[cell(scheme, column) for column in columns] for scheme in results.schemes]
    heads = [_head(column, results) for column in columns]
    widths = [
        max(map(len, (*h, *(s for row in cells for s in (row[j].value, *row[j].under))))) for j, h in enumerate(heads)
    ]
    longest = max(len(scheme.label) for scheme in results.schemes)
    room = min(longest, max(12, WIDTH - sum(widths) - 2 * len(widths)))
    lines = [title, *_lines([""], heads, widths, room), "-" * (room + sum(widths) + 2 * len(widths))]
    for scheme, row in zip(results.schemes, cells, strict=True):
        lines += _lines(_label_lines(scheme, room), [(c.value, *c.under) for c in row], widths, room)
    return "\n".join(lines)


def _head(column: Column, results: Results) -> tuple[str, ...]:
    """The heading on two lines, and the direction on a third."""
    name = f"{column.title(results)} bits" if column.unit == "bits" else column.title(results)
    first, _, second = name.partition(" ")
    arrows = {"lower is better": "(lower)", "higher is better": "(higher)", "nearer ½ is better": "(to 0.5)"}
    return first, second, arrows.get(column.better, "")


def _label_lines(scheme: Scheme, room: int) -> list[str]:
    lines = textwrap.wrap(scheme.label, room)
    return lines if len(lines) <= 3 else [*lines[:2], textwrap.shorten(" ".join(lines[2:]), room, placeholder="…")]


def _lines(labels: Sequence[str], cells: Sequence[Sequence[str]], widths: Sequence[int], room: int) -> Iterator[str]:
    """A row of the table as lines of text: labels to the left, figures to the right."""
    for i in range(max(len(labels), *(len(c) for c in cells))):
        label = labels[i] if i < len(labels) else ""
        parts = [(c[i] if i < len(c) else "").rjust(w) for c, w in zip(cells, widths, strict=True)]
        yield (label.ljust(room) + "".join("  " + part for part in parts)).rstrip()
