"""The outcome of a study in one or two sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from causal_attn.faithfulness.shortcut import LEAKAGE_LEVEL

Schemes = Mapping[str, Mapping[str, Any]]


def summary_in_words(schemes: Schemes) -> str:
    """What the first scheme built, and what became of it under the others."""
    names = list(schemes)
    first = names[0]
    sentences = [_first(first, schemes[first]["runs"])]
    others = [_other(name, schemes[name]["runs"], schemes[first]["runs"]) for name in names[1:]]
    return " ".join([*sentences, *others])


def _mean(runs: list[dict[str, Any]], figure: str) -> float:
    values = [run[figure] for run in runs if run.get(figure) is not None]
    return float(np.mean(values)) if values else float("nan")


def _number(runs: list[dict[str, Any]], figure: str) -> str:
    """The mean with two decimals, and no minus before a zero."""
    return f"{round(_mean(runs, figure), 2) + 0.0:.2f}"


def _leakage(runs: list[dict[str, Any]]) -> str:
    """What the leakage test found, as its p-value has it on most seeds."""
    known = [run["p_value"] for run in runs if run.get("p_value") is not None]
    tells = sum(p <= LEAKAGE_LEVEL for p in known) > len(known) / 2
    verb = "tells" if tells else "does not tell" if known else "may tell"
    return f"the mask {verb} the class (AUC {_number(runs, 'leakage_auc')})"


def _heads(runs: list[dict[str, Any]]) -> list[str]:
    return [run["verdict"].split(":")[0] for run in runs]


def _first(name: str, runs: list[dict[str, Any]]) -> str:
    heads = _heads(runs)
    hits = heads.count("shortcut")
    facts = (
        f"{_leakage(runs)}, and another class's mask moves the prediction by {_number(runs, 'reliance')} "
        f"(excess {_number(runs, 'excess_reliance')})"
    )
    if hits == len(heads):
        return f"Under {name} the attention carries a combinatorial shortcut: {facts}."
    if hits:
        return f"Under {name} {hits} of {len(heads)} seeds carry a combinatorial shortcut: on average {facts}."
    if "undecided" in heads:
        return f"Whether {name} carries a combinatorial shortcut is undecided: {facts}."
    return f"Under {name} no combinatorial shortcut was found: {facts}."


def _other(name: str, runs: list[dict[str, Any]], base: list[dict[str, Any]]) -> str:
    heads = _heads(runs)
    hits = heads.count("shortcut")
    what = {0: "shows no shortcut", len(heads): "still shows a shortcut"}.get(
        hits, f"shows one on {hits} of {len(heads)} seeds"
    )
    if "undecided" in heads and not hits:
        what = "is undecided"
    change = 100 * (_mean(runs, "accuracy") - _mean(base, "accuracy"))
    return (
        f"{name} {what} (AUC {_number(runs, 'leakage_auc')}, excess reliance {_number(runs, 'excess_reliance')}) "
        f"at {change:+.1f} points of accuracy."
    )
