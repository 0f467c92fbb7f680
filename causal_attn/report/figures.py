"""The figures of the report. Each function draws on the Axes it is given and returns it, so each can be used alone.

Only the object-oriented API is used: pyplot keeps global state, and a library must not touch its user's. What is drawn
is in the results directory; counting rows into bins is the only arithmetic here.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from causal_attn.plots import palette
from causal_attn.report.drawing import (
    PRIOR_DASH,
    beside,
    class_rows,
    estimates,
    heap,
    log_axis,
    log_edges,
    mean_tick,
    outline,
    plain,
    point,
    prior_mark,
    scheme_rows,
)
from causal_attn.report.read import Results

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
    """How the weights w = P(y)/P(y|m) spread, one row per class; w = 1 and the smallest possible weight are marked."""
    log_w, y = results.arrays["log_w"], results.arrays["y"]
    finite = np.isfinite(log_w)
    edges = log_edges(log_w[finite])
    classes = range(max(len(results.class_names), int(y.max(initial=0)) + 1))
    for k in classes:
        mine = finite & (y == k)
        share = float(np.mean(y == k))
        heap(ax, k, np.exp(log_w[mine]), edges, palette.class_colour(k))
        if share > 0:
            prior_mark(ax, k, share)
        largest = f"largest {np.exp(log_w[mine].max()):.3g}" if mine.any() else ""
        beside(ax, k, f"{largest}\n{int((y == k).sum()):,} rows")
    ax.axvline(1.0, color=palette.MUTED, lw=1)
    ax.set_xlim(min(edges[0] * 0.94, 0.8), max(edges[-1] * 1.06, 1.25))
    log_axis(ax)
    class_rows(ax, results, classes)
    ax.set_xlabel("weight w (log scale, no unit); left of w = 1 a row counts for less, right of it for more")
    marks = [
        Line2D([], [], color=palette.MUTED, lw=1, label="w = 1, no change"),
        Line2D([], [], color=palette.INK, lw=1.4, ls=PRIOR_DASH, label="P(y), the smallest weight possible"),
    ]
    ax.legend(handles=marks, loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=2)
    return ax


def overlap(ax: Axes, results: Results) -> Axes:
    """Held-out P(class | mask), one row per class: filled for that class's rows, outlined for all others."""
    prob, y = np.exp(results.arrays["log_prob"]), results.arrays["y"]
    edges = np.linspace(0.0, 1.0, 41)
    classes = range(prob.shape[1])
    for k in classes:
        heap(ax, k, prob[y == k, k], edges, palette.class_colour(k))
        outline(ax, k, prob[y != k, k], edges)
        prior_mark(ax, k, float(np.mean(y == k)))
    ax.set_xlim(-0.01, 1.01)
    class_rows(ax, results, classes)
    ax.set_xlabel("held-out probability of the row’s class given the mask, P(class | m)")
    handles = [
        Patch(color=palette.MUTED, alpha=0.45, label="rows of the class"),
        Line2D([], [], color=palette.INK, lw=1, label="rows of other classes"),
        Line2D([], [], color=palette.INK, lw=1.4, ls=PRIOR_DASH, label="P(class)"),
    ]
    ax.legend(handles=handles, loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=3)
    return ax


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
