"""k̂ of every observation: which single masks the fit of P(y | m) hangs on."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from causal_attn.interop.arviz import khat_threshold, loo_khat, n_draws
from causal_attn.plots import palette
from causal_attn.plots.parts import axes_or_new, open_box

BAD = 0.7
"""k̂ above this: leaving the observation out would change the posterior too much for its draws to tell how."""


def khat(data: Any, ax: Axes | None = None) -> Axes:
    """Pareto k̂ of leaving each observation out (PSIS-LOO), by its index.

    Above min(1 − 1/log₁₀ S, 0.7), S draws, the importance weights of that observation are unreliable (Vehtari et al.
    2024): an unusual mask that the fit bends to, or too few draws. An infinite k̂ is drawn as a triangle at the top.

    Args:
        data: of `fit.to_arviz()`, with the group log_likelihood.
        ax: where to draw; None: in a figure made here.

    Returns:
        The Axes drawn on.

    Raises:
        InputError: `data` has no pointwise log-likelihood, or is something else.
    """
    values, draws = loo_khat(data), n_draws(data)
    return draw_khat(axes_or_new(ax, 7.5, 3.4), values, khat_threshold(draws))


def draw_khat(ax: Axes, values: np.ndarray, threshold: float) -> Axes:
    """`khat` of plain arrays: k̂, shape (n,), and the threshold at that number of draws."""
    index = np.arange(len(values))
    over, bad = values > threshold, values > BAD
    ceiling = 1.08 * max(float(np.max(values[np.isfinite(values)], initial=0.0)), 1.0)
    size = 16 if len(values) <= 500 else 7 if len(values) <= 5000 else 2.5
    for pick, colour, scale in ((~over, palette.MUTED, 1), (over & ~bad, palette.WARN, 2), (bad, palette.BAD, 2)):
        pick = pick & np.isfinite(values)
        ax.scatter(index[pick], values[pick], s=scale * size, color=colour, lw=0, rasterized=True, zorder=2 + scale)
    endless = np.isposinf(values)
    if endless.any():
        y = np.full(endless.sum(), ceiling)
        ax.scatter(index[endless], y, s=30, color=palette.BAD, marker="^", lw=0, clip_on=False, zorder=5)
    lower = [(threshold, palette.WARN)] if threshold < BAD else []
    for level, colour in [*lower, (BAD, palette.BAD)]:
        ax.axhline(level, color=colour, lw=1, ls=(0, (4, 2)), zorder=1)
        ax.annotate(
            f"{level:.2g}", (1.0, level), xycoords=("axes fraction", "data"), xytext=(3, 0), color=colour, size=8,
            textcoords="offset points", va="center",
        )  # fmt: skip
    ax.set_xlim(-0.01 * len(values) - 0.5, 1.01 * len(values) - 0.5)
    ax.set_ylim(top=ceiling)
    ax.set(xlabel="observation", ylabel="Pareto k̂ of leaving it out")
    open_box(ax)
    ax.set_title(_title(values, threshold), loc="left", size=10)
    return ax


def _title(values: np.ndarray, threshold: float) -> str:
    """Counts of the points above the lines, and of those that could not be drawn in place."""
    parts = [f"{int((values > threshold).sum()):,} of {len(values):,} above {threshold:.2g}"]
    parts += [f"{int((values > BAD).sum()):,} above {BAD:g}"] if threshold < BAD else []
    parts += [f"{int(np.isposinf(values).sum()):,} infinite"] if np.isposinf(values).any() else []
    parts += [f"{int(np.isnan(values).sum()):,} unknown"] if np.isnan(values).any() else []
    return ", ".join(parts)
