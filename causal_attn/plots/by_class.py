"""A row per class: how the weights spread, and how far the mask gives each class away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from causal_attn.plots import palette
from causal_attn.plots.checks import checked_log_prob, checked_names, checked_weights
from causal_attn.plots.parts import (
    PRIOR_DASH,
    TWO_LINES,
    axes_or_new,
    beside,
    broken,
    class_rows,
    fitting,
    heap,
    legend_above,
    log_axis,
    log_edges,
    outline,
    prior_mark,
    row_points,
)

if TYPE_CHECKING:
    from causal_attn.weights import Weights

WIDTH = 8.5
"""Inches of a figure made here."""
N_BINS = 40
"""Bins of a probability."""


def weight_histogram(weights: Weights, ax: Axes | None = None, class_names: Sequence[str] | None = None) -> Axes:
    """How the weights w = P(y)/P(y|m) spread, one row per class, on a logarithmic axis.

    Each row is scaled to its own peak. The line is w = 1, the dashes the smallest weight that can be, P(y).

    Args:
        weights: of n rows in K classes.
        ax: where to draw; None: in a figure made here, `ax.figure.savefig(...)` writes it.
        class_names: K names.

    Returns:
        The Axes drawn on.

    Raises:
        InputError: an argument is of another kind, or there are not K names.
    """
    log_w, y, prior = checked_weights(weights)
    names = checked_names(class_names, len(prior))
    return draw_weights(axes_or_new(ax, WIDTH, _height(len(prior))), log_w, y, prior, names)


def overlap(weights: Weights, ax: Axes | None = None, class_names: Sequence[str] | None = None) -> Axes:
    """Held-out P(class | m), one row per class: filled for that class's rows, outlined for all others.

    Where filled and outline lie apart there is no overlap: masks that only one class has, which no weight can repair.
    With many classes the axis may end below 1 (`shown_to`).

    Args:
        weights: of n rows in K classes, with `log_prob`; with K = 2 the weights say it themselves.
        ax: where to draw; None: in a figure made here.
        class_names: K names.

    Returns:
        The Axes drawn on.

    Raises:
        InputError: the weights hold no P(class | m); an argument of another kind; not K names.
    """
    log_prob = checked_log_prob(weights)
    names = checked_names(class_names, log_prob.shape[1])
    ax = axes_or_new(ax, WIDTH, _height(len(names)))
    return draw_overlap(ax, log_prob, np.asarray(weights.y), names, shown_to(log_prob))


def draw_weights(ax: Axes, log_w: np.ndarray, y: np.ndarray, floor: np.ndarray, names: Sequence[str]) -> Axes:
    """`weight_histogram` of plain arrays.

    Args:
        log_w: log-weights, shape (n,); rows that are not finite are left out.
        y: classes, shape (n,).
        floor: P(y), the smallest weight possible, shape (K,); no mark where 0.
        names: of the K classes.
    """
    finite = np.isfinite(log_w)
    edges = log_edges(log_w[finite])
    space = row_points(ax, len(names)) >= TWO_LINES
    size = fitting(ax, len(names), 8) or 8.0
    for k in range(len(names)):
        mine = finite & (y == k)
        heap(ax, k, np.exp(log_w[mine]), edges, palette.class_colour(k))
        if floor[k] > 0:
            prior_mark(ax, k, float(floor[k]))
        largest = f"largest {np.exp(log_w[mine].max()):.3g}" if mine.any() else ""
        beside(ax, k, f"{largest}{chr(10) if space else ', ' * bool(largest)}{int((y == k).sum()):,} rows", size)
    ax.axvline(1.0, color=palette.MUTED, lw=1)
    least = min((float(p) for p in floor if p > 0), default=1.0)  # every class's dashes are within
    ax.set_xlim(min(edges[0], least) * 0.94, max(edges[-1] * 1.06, 1.25))
    log_axis(ax)
    class_rows(ax, names)
    ax.set_xlabel(
        broken(ax, "weight w (log scale, no unit); left of w = 1 a row counts for less, right of it for more")
    )
    marks = [
        Line2D([], [], color=palette.MUTED, lw=1, label="w = 1, no change"),
        Line2D([], [], color=palette.INK, lw=1.4, ls=PRIOR_DASH, label="P(y), the smallest weight possible"),
    ]
    legend_above(ax, marks)
    return ax


def shown_to(log_prob: np.ndarray) -> float:
    """Where the axis of P(class | m) ends: 1, or sooner where all but a hundredth of the rows are below 1/2."""
    most = float(np.exp(np.quantile(log_prob.max(-1), 0.99)))
    return 1.0 if most > 0.5 else float(np.ceil(20 * most - 1e-9)) / 20


def draw_overlap(ax: Axes, log_prob: np.ndarray, y: np.ndarray, names: Sequence[str], upper: float = 1.0) -> Axes:
    """`overlap` of plain arrays.

    Args:
        log_prob: held-out log P(k|m), nats, shape (n, K).
        y: classes, shape (n,).
        names: of the K classes.
        upper: where the axis of probabilities ends.
    """
    prob = np.exp(log_prob)
    edges = np.linspace(0.0, upper, N_BINS + 1)
    for k in range(prob.shape[1]):
        heap(ax, k, prob[y == k, k], edges, palette.class_colour(k))
        outline(ax, k, prob[y != k, k], edges)
        prior_mark(ax, k, float(np.mean(y == k)))
    ax.set_xlim(-0.01 * upper, 1.01 * upper)
    class_rows(ax, names)
    label = "held-out probability of the row’s class given the mask, P(class | m)"
    ax.set_xlabel(broken(ax, label + ("; larger ones stand at the end" if prob.max(initial=0) > upper else "")))
    handles: list[Line2D | Patch] = [
        Patch(color=palette.MUTED, alpha=0.45, label="rows of the class"),
        Line2D([], [], color=palette.INK, lw=1, label="rows of other classes"),
        Line2D([], [], color=palette.INK, lw=1.4, ls=PRIOR_DASH, label="P(class)"),
    ]
    legend_above(ax, handles)
    return ax


def _height(n_classes: int) -> float:
    return 1.05 + (0.62 * max(n_classes, 2) if n_classes <= 6 else 0.36 * n_classes)
