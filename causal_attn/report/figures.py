"""The figures of the report. Each function draws on the Axes it is given and returns it, so each can be used alone.

Only the object-oriented API is used: pyplot keeps global state, and a library must not touch its user's. What is drawn
is in the results directory; counting rows into bins is the only arithmetic here.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from causal_attn.plots import calibration as draw_calibration
from causal_attn.plots import love, palette
from causal_attn.plots.by_class import draw_overlap, draw_weights
from causal_attn.plots.parts import plain
from causal_attn.report.drawing import estimates, mean_tick, point, scheme_rows
from causal_attn.report.read import Results

CONCENTRATION = ("mean log m", "entropy", "log sum m^2")
TOP_POSITIONS = 15
HISTORY_COLUMN = {"loss": 0, "accuracy": 2}
"""Columns of `history_*`: training loss, training accuracy, validation accuracy."""

HISTORY_TITLES = {
    "loss": ("Training loss", "mean loss (nats)"),
    "accuracy": ("Accuracy: validation; dotted: training", "share classed rightly"),
    "deficit": ("Support deficit at each refresh", "D (share of Q)"),
}


def reliance(ax: Axes, results: Results) -> Axes:
    """Excess reliance (filled) and raw reliance (hollow) of each scheme, with 95% intervals; 0 is marked."""
    for i, scheme in enumerate(results.schemes):
        estimates(ax, i, scheme.runs, "excess_reliance", centre=-0.14, filled=True)
        estimates(ax, i, scheme.runs, "reliance", centre=0.16, filled=False)
    low, high = ax.get_xlim()
    ax.set_xlim(min(low, -0.05), max(high, 0.25))
    scheme_rows(ax, results, reference=0.0)
    ax.set_xlabel("reliance (change in probability when masks are swapped)")
    handles = [point("excess (the verdict uses it)", True), point("raw", False)]
    handles += [mean_tick()] if results.n_seeds > 1 else []
    ax.legend(handles=handles, loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=3, handletextpad=0.4)
    return ax


def leakage(ax: Axes, results: Results) -> Axes:
    """AUC of the class told from the mask alone, with 95% intervals; 1/2, no leakage, is marked."""
    for i, scheme in enumerate(results.schemes):
        estimates(ax, i, scheme.runs, "leakage_auc", centre=0.0, filled=True)
    low, high = ax.get_xlim()
    ax.set_xlim(min(low, 0.46), max(min(high, 1.02), 0.7))
    scheme_rows(ax, results, reference=0.5)
    ax.set_xlabel("leakage AUC (class told from the mask; ½ = not at all)")
    return ax


def weights(ax: Axes, results: Results) -> Axes:
    """How the weights w = P(y)/P(y|m) spread, one row per class; see `plots.weight_histogram`."""
    log_w, y = results.arrays["log_w"], results.arrays["y"]
    names = _class_names(results, max(len(results.class_names), int(y.max(initial=0)) + 1))
    shares = np.bincount(y.astype(int), minlength=len(names)) / max(len(y), 1)
    return draw_weights(ax, log_w, y, shares, names)


def overlap(ax: Axes, results: Results) -> Axes:
    """Held-out P(class | mask), one row per class; see `plots.overlap`."""
    log_prob = results.arrays["log_prob"]
    return draw_overlap(ax, log_prob, results.arrays["y"], _class_names(results, log_prob.shape[1]))


def balance(ax: Axes, results: Results) -> Axes:
    """Standardised mean differences between classes, before and after weighting; see `plots.love`."""
    values = results.arrays["balance"]
    positions = len(values) - len(CONCENTRATION)
    names = [*(f"m[{t}]" for t in range(positions)), *CONCENTRATION]
    table = pd.DataFrame(values, columns=["before", "after", "permuted"]).assign(of=names, measure="smd")
    table["position"] = pd.array([*range(positions), None, None, None], dtype="Int64")
    return love(table.assign(**{"class": "pooled"}), ax, top=TOP_POSITIONS)


def calibration(ax: Axes, results: Results) -> Axes:
    """Predicted against observed shares of each class on held-out rows; see `plots.calibration`."""
    columns = ["class", "rows", "predicted", "observed", "low", "high"]
    table = pd.DataFrame(results.arrays["calibration"], columns=columns).astype({"class": int, "rows": int})
    gap = (table["predicted"] - table["observed"]).abs()
    table.attrs["expected_calibration_error"] = float(np.average(gap, weights=table["rows"]))
    facts = results.selection.figures if results.selection else {}
    names = {"held_out_log_loss": "log_loss_nats", "prior_log_loss": "prior_log_loss_nats"}
    table.attrs |= {new: facts[old] for old, new in names.items() if old in facts}
    return draw_calibration(table, ax, _class_names(results, int(table["class"].max()) + 1))


def profile(ax: Axes, results: Results, scheme: str) -> Axes:
    """Mean mask at each position from the start, one line per class; default-token positions are shaded."""
    values = results.arrays[f"profile_{scheme}"]
    shown = _shown_positions(results, values.shape[1])
    positions = np.arange(1, shown + 1)
    for k, row in enumerate(values):
        style = palette.class_line(k)
        ax.plot(positions, row[:shown], color=palette.class_colour(k), ls=style, lw=1.6)
    index = [s.name for s in results.schemes].index(scheme) if scheme in [s.name for s in results.schemes] else 0
    ax.set_title(plain(results.label(scheme), 40), x=0.05)
    _badge(ax, index)
    ax.set_xlim(0.5, shown + 0.5)
    ax.margins(y=0.16)
    ax.set_ylim(bottom=0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    ax.grid(axis="y", color=palette.GRID, lw=0.8)
    ax.set_axisbelow(True)
    if results.default_tokens:
        _default_positions(ax, min(results.default_tokens, shown))
    return ax


def history(ax: Axes, results: Results, what: str = "accuracy") -> Axes:
    """One line per scheme over epochs; `what` is "loss", "accuracy" (validation; training dotted) or "deficit"."""
    prefix = "deficit_history_" if what == "deficit" else "history_"
    for i, scheme in enumerate(results.schemes):
        values = results.arrays.get(prefix + scheme.name)
        if values is None or not len(values):
            continue
        epochs = np.arange(1, len(values) + 1)
        colour, marker = palette.scheme_colour(i), palette.scheme_marker(i)
        main = values if what == "deficit" else values[:, HISTORY_COLUMN[what]]
        ax.plot(epochs, main, color=colour, marker=marker, ms=4.5, lw=1.6, label=plain(scheme.label, 40))
        if what == "accuracy":
            ax.plot(epochs, values[:, 1], color=colour, lw=1.1, ls=":")
    title, unit = HISTORY_TITLES[what]
    ax.set(title=title, ylabel=unit, xlabel="epoch")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    ax.grid(axis="y", color=palette.GRID, lw=0.8)
    return ax


def elbo(ax: Axes, results: Results) -> Axes:
    """The evidence lower bound of the selection model at each step of its fit."""
    values = results.arrays["elbo"]
    ax.plot(np.arange(1, len(values) + 1), values, color=palette.INK, lw=1.1)
    ax.set(xlabel="step", ylabel="ELBO (nats)", title="Fit of the selection model")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    ax.grid(axis="y", color=palette.GRID, lw=0.8)
    return ax


def _class_names(results: Results, n_classes: int) -> list[str]:
    return [results.class_name(k) for k in range(n_classes)]


def _shown_positions(results: Results, available: int) -> int:
    """Positions that at least one text in fifty has: means over a handful of long texts are noise."""
    count = results.arrays.get("profile_count")
    if count is None or not len(count):
        return available
    enough = np.flatnonzero(count[:available] >= max(1.0, 0.02 * float(count[0])))
    return int(enough[-1]) + 1 if len(enough) else available


def _badge(ax: Axes, index: int) -> None:
    """The scheme's marker before the title of its panel."""
    marker, colour = palette.scheme_marker(index), palette.scheme_colour(index)
    ax.plot([0.012], [1.07], marker=marker, color=colour, ls="", ms=6.5, clip_on=False, transform=ax.transAxes)


def _default_positions(ax: Axes, last: int) -> None:
    """Shade and name the positions that hold the same tokens in every text."""
    ax.axvspan(0.5, last + 0.5, color=palette.SHADE, lw=0, zorder=0)
    where = ax.get_xaxis_transform()
    ax.text(0.7, 0.98, "default tokens", transform=where, va="top", size=8, color="#6b5a33", zorder=5)
