"""The small pieces of the figures that compare schemes: point estimates with intervals, and a row per scheme."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from causal_attn.plots import palette
from causal_attn.plots.parts import wrapped
from causal_attn.report.read import Results, Run


def estimates(ax: Axes, row: int, runs: Sequence[Run], key: str, *, centre: float, filled: bool) -> None:
    """One point with its interval per run, spread around `row + centre`; a tick at the mean of several runs."""
    found = [run for run in runs if key in run.figures]
    if not found:
        note = f"{key.replace('_', ' ')} not computed"
        where = ax.get_yaxis_transform()
        ax.text(0.99, row + centre, note, transform=where, ha="right", va="center", color=palette.MUTED, size=8)
        return
    offsets = np.linspace(-0.1, 0.1, len(found)) if len(found) > 1 else np.zeros(1)
    for run, offset in zip(found, offsets, strict=True):
        size = (6.5 if len(found) == 1 else 4.6) - (0 if filled else 0.8)
        _estimate(ax, row, row + centre + float(offset), run, key, size=size, filled=filled)
    if len(found) > 1:
        mean = sum(run.figures[key] for run in found) / len(found)
        ax.plot([mean, mean], [row + centre - 0.14, row + centre + 0.14], color=palette.INK, lw=1.6, zorder=4)


def _estimate(ax: Axes, row: int, y: float, run: Run, key: str, *, size: float, filled: bool) -> None:
    colour = palette.scheme_colour(row)
    if key in run.intervals:
        ax.plot(run.intervals[key], [y, y], color=colour, lw=1.6 if filled else 1.1, solid_capstyle="butt", zorder=2)
    ax.plot(
        run.figures[key],
        y,
        palette.scheme_marker(row),
        ms=size,
        mec=colour,
        mfc=colour if filled else "white",
        mew=1.3,
        zorder=3,
    )


def point(label: str, filled: bool) -> Line2D:
    """A legend entry for `estimates`."""
    face = palette.MUTED if filled else "white"
    return Line2D([], [], marker="o", ls="-", lw=1.2, color=palette.MUTED, mfc=face, ms=6, label=label)


def mean_tick() -> Line2D:
    """A legend entry for the tick at the mean over seeds."""
    return Line2D([], [], marker="|", ls="", color=palette.INK, ms=10, mew=1.6, label="mean over seeds")


def scheme_rows(ax: Axes, results: Results, *, reference: float) -> None:
    """A row per scheme, first on top, and a line at the value that means "nothing found"."""
    rows = range(len(results.schemes))
    ax.set_yticks(list(rows), [wrapped(scheme.label) for scheme in results.schemes])
    ax.set_ylim(len(results.schemes) - 0.5, -0.5)
    for row in list(rows)[:-1]:
        ax.axhline(row + 0.5, color=palette.GRID, lw=0.8, zorder=0)
    ax.axvline(reference, color=palette.MUTED, lw=1, ls=(0, (4, 2)), zorder=1)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
