"""The HTML page: one file, nothing fetched from anywhere, every name and word from the results escaped."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from causal_attn.plots import palette
from causal_attn.report.read import Results, Run, Selection
from causal_attn.report.sheets import Sheet
from causal_attn.report.tables import (
    COLUMNS,
    NULL,
    brackets,
    environment,
    html_table,
    null_reasons,
    number,
    span,
)
from causal_attn.report.words import texts

WHAT_FILES_HOLD = {
    "results": "all figures of this page, for programs",
    "selection": "posterior of the selection model, for ArviZ",
    "weights": "posterior draws of the weights and their diagnostics, for ArviZ",
    "details": "weights, labels, probabilities, attention by position, training history (NumPy)",
    "examples": "the texts shown above with every mask",
}

CONFIG_WORDS = {
    "data": "Data set",
    "downstream": "Downstream part",
    "schemes": "Training schemes",
    "default_tokens": "Default tokens before every text",
    "word_dropout": "Word dropout on the downstream input",
    "seeds": "Seeds",
    "epochs": "Epochs",
    "limit": "Limit on rows",
    "k": "k of EVAL-X",
}

# Key, name, digits, what it says. ESS and the support deficit have rows of their own.
SELECTION_ROWS = (
    ("mean_weight", "Mean weight", 3, "1 when the weights are calibrated and nothing of Q is missing"),
    ("calibration_residual", "Calibration residual", 3, "1 − mean weight; no estimate of the support deficit"),
    ("largest_share", "Largest share", 4, "share of all weight that the heaviest single row carries"),
    ("khat", "k̂ of the weights", 2, "tail of the weights (PSIS); reliable below min(1 − 1/log₁₀ n, 0.7)"),
    (
        "vi_khat",
        "k̂ of the posterior",
        2,
        "below 0.7 the draws’ intervals can be trusted, above not",
    ),
    ("held_out_log_loss", "Held-out log-loss (nats)", 3, "of the class given the mask, on rows the model did not see"),
    (
        "prior_log_loss",
        "The prior’s log-loss (nats)",
        3,
        "the same without the mask; the difference is leakage",
    ),
)


def render(results: Results, sheets: Mapping[str, Sheet]) -> str:
    """The whole page as text."""
    template = environment().get_template("report.html.j2")
    return template.render(
        title=_title(results),
        facts=_facts(results),
        summary=results.summary,
        verdicts=_verdicts(results),
        table=html_table(results),
        columns=[(c.title(results), c.better, c.unit, c.meaning) for c in COLUMNS],
        reasons=null_reasons(results),
        runs=_runs(results),
        brackets=brackets(results),
        figures={name: (_embedded(sheet), sheet.alt) for name, sheet in sheets.items()},
        texts=texts(results),
        selection=_selection(results.selection, results) if results.selection else None,
        config=[(CONFIG_WORDS.get(k, k.replace("_", " ")), _shown(v)) for k, v in results.config.items()],
        versions=sorted((str(k), str(v)) for k, v in results.versions.items()),
        data=_data(results),
        files=_files(results, sheets),
        missing=results.missing,
        defaults=results.default_tokens,
        columns_for=_columns_for,
    )


def _columns_for(n: int) -> int:
    """Columns that leave no lone card in the last row: six in two rows of three, eight in two of four."""
    return n if n <= 4 else 3 if n in (5, 6, 9) else 4


def _embedded(sheet: Sheet) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(sheet.svg).decode("ascii")


def _title(results: Results) -> str:
    name = results.data.get("name") or results.config.get("data") or "these texts"
    return f"Does attention give the class away? {_shown(name)}"


def _facts(results: Results) -> str:
    """One line under the title: what was trained on what."""
    parts = []
    if results.config.get("downstream"):
        parts.append(f"{_shown(results.config['downstream'])} downstream part")
    parts.append(_count(len(results.schemes), "training scheme"))
    parts.append(_count(results.n_seeds, "seed"))
    if results.class_names:
        parts.append(_count(len(results.class_names), "class", "classes"))
    if results.default_tokens:
        parts.append(_count(results.default_tokens, "default token") + " before every text")
    return " · ".join(parts)


def _count(n: int, one: str, many: str = "") -> str:
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def _shown(value: Any) -> str:
    """A value of the configuration as people write it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(_shown(v) for v in value)
    if isinstance(value, dict):
        return ", ".join(f"{k}: {_shown(v)}" for k, v in value.items())
    return str(value)


def _verdicts(results: Results) -> list[dict[str, str]]:
    return [
        {
            "label": scheme.label,
            "glyph": palette.scheme_glyph(i),
            "colour": palette.scheme_colour(i),
            **_split(results.verdict.get(scheme.name) or _of_runs(scheme.runs)),
        }
        for i, scheme in enumerate(results.schemes)
    ]


def _of_runs(runs: tuple[Run, ...]) -> str:
    """The runs' verdicts where the scheme has none of its own, each said once."""
    return " / ".join(dict.fromkeys(run.verdict for run in runs if run.verdict)) or "no verdict"


def _split(verdict: str) -> dict[str, str]:
    """ "shortcut: the mask tells …" as a heading and its explanation, with the tone of the heading."""
    head, colon, words = verdict.partition(":")
    if not colon or len(head) > 40:
        head, words = "", verdict
    low = head.lower()
    tone = "bad" if low.startswith("shortcut") else "good" if low.startswith(("no ", "none")) else "plain"
    return {"head": head.strip(), "words": words.strip(), "tone": tone}


def _runs(results: Results) -> list[list[str]]:
    """Every run in a row: what the main table leaves out."""
    return [
        [
            scheme.label,
            str(run.seed),
            _with_interval(run, "excess_reliance"),
            _with_interval(run, "leakage_auc"),
            _value(run.figures, "p_value"),
            _value(run.figures, "own_accuracy_at_k"),
            _value(run.figures, "support_deficit"),
            _value(run.figures, "ess", 0),
            _value(run.figures, "seconds", 0),
        ]
        for scheme in results.schemes
        for run in scheme.runs
    ]


def _value(figures: Mapping[str, float], key: str, digits: int = 3) -> str:
    if key not in figures:
        return NULL
    return f"{figures[key]:,.0f}" if digits == 0 else number(figures[key], digits)


def _with_interval(run: Run, key: str) -> str:
    ends = f" {span(*run.intervals[key])}" if key in run.intervals else ""
    return _value(run.figures, key) + (ends if key in run.figures else "")


def _selection(selection: Selection, results: Results) -> dict[str, Any]:
    figures = selection.figures
    ends = selection.intervals.get("support_deficit")
    return {
        "scheme": results.label(selection.scheme),
        "deficit": _value(figures, "support_deficit", 2),
        "interval": span(*ends, digits=2) if ends else "",
        "share": _percent(figures.get("support_deficit")),
        "low": _percent(ends[0]) if ends else "",
        "width": _percent(ends[1] - ends[0]) if ends else "",
        "why": selection.nulls.get("support_deficit", ""),
        "tau": f"{figures.get('tau', 10):g}",
        "words": selection.words,
        "rows": _selection_rows(selection, results),
    }


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * min(max(share, 0.0), 1.0):.1f}"


def _selection_rows(selection: Selection, results: Results) -> list[tuple[str, str, str]]:
    """Name, value and meaning of each figure of the fit; a missing one says why."""
    figures, rows = selection.figures, []
    if "n" in figures:
        rows.append(("Rows", f"{figures['n']:,.0f}", "masks that the selection model was fitted to"))
    rows.append(("Effective sample size", _ess(figures), "(Σw)²/Σw²: how many equal rows the weighted ones are worth"))
    if selection.ess_per_class:
        values = [NULL if v is None else f"{v:,.0f}" for v in selection.ess_per_class]
        named = ", ".join(f"{results.class_name(k)} {value}" for k, value in enumerate(values))
        rows.append(("… by class", named, "a class far below the others is the one to distrust"))
    rows += [(name, _value(figures, key, digits), meaning) for key, name, digits, meaning in SELECTION_ROWS]
    return rows


def _ess(figures: Mapping[str, float]) -> str:
    if "ess" not in figures:
        return NULL
    share = f" ({100 * figures['ess'] / figures['n']:.0f}% of rows)" if figures.get("n") else ""
    return f"{figures['ess']:,.0f}{share}"


def _data(results: Results) -> list[tuple[str, str]]:
    """The data set in a few lines; whatever else the study says about it is shown as it is."""
    rows = []
    for key, value in results.data.items():
        text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else _shown(value)
        rows.append((key.replace("_", " ").capitalize(), text))
    return rows


def _files(results: Results, sheets: Mapping[str, Sheet]) -> list[tuple[str, str, str]]:
    """Link, name and content of the files beside the page that are really there."""
    named = {"results": "results.json"} | dict(results.files)
    there = {key: name for key, name in named.items() if (results.folder / name).is_file()}
    listed = [(quote(name), name, WHAT_FILES_HOLD.get(key, key.replace("_", " "))) for key, name in there.items()]
    figures = [f"figures/{name}.{suffix}" for name in sheets for suffix in ("svg", "png")]
    return listed + ([("figures/", "figures/", f"{len(figures)} files: each figure as SVG and PNG")] if figures else [])
