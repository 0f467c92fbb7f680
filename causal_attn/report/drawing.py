"""The small pieces that the figures are put together from: point estimates, heaps of rows, axes of names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

from causal_attn.plots import palette
from causal_attn.report.read import Results, Run

PRIOR_DASH = (0, (2.0, 1.2))
"""Dashes of every mark that stands for P(y)."""

HEAP = 0.84
"""Height of the tallest bar in a row of the ridge plots, where rows are 1 apart."""


def plain(text: str, width: int = 26) -> str:
    """`text` cut to `width`, drawn as it is: dollars do not start mathematics, a leading underscore hides nothing."""
    cut = text if len(text) <= width else text[: width - 1].rstrip() + "…"
    return (" " if cut.startswith("_") else "") + cut.replace("$", r"\$")


def wrapped(text: str, width: int = 22) -> str:
    """`text` on two lines at most, broken at a word, for the names beside a row."""
    if len(text) <= width or " " not in text[:width]:
        return plain(text, width)
    cut = text.rindex(" ", 0, width + 1)
    return plain(text[:cut], width) + "\n" + plain(text[cut + 1 :], width)


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


def class_rows(ax: Axes, results: Results, classes: Iterable[int]) -> None:
    """A row per class, first on top, named at the left."""
    found = list(classes)
    ax.set_yticks([k - 0.4 for k in found], [wrapped(results.class_name(k), 18) for k in found])
    ax.set_ylim(len(found) - 1 + 0.06, -1.02)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    for k in found:
        ax.axhline(k, color="#c4cad4", lw=0.8, zorder=1)


def heap(ax: Axes, row: int, values: np.ndarray, edges: np.ndarray, colour: str) -> None:
    """A filled histogram standing on line `row`, scaled to its own peak (rows of few and of many stay readable)."""
    heights = _heights(values, edges)
    ax.stairs(row - heights, edges, baseline=row, fill=True, color=colour, alpha=0.5, lw=0, zorder=2)
    ax.stairs(row - heights, edges, baseline=row, color=colour, lw=1.2, zorder=3)


def outline(ax: Axes, row: int, values: np.ndarray, edges: np.ndarray) -> None:
    """The same, unfilled and in ink, to lie over a heap."""
    ax.stairs(row - _heights(values, edges), edges, baseline=row, color=palette.INK, lw=1.0, zorder=4)


def _heights(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    inside = np.clip(values[np.isfinite(values)], edges[0], edges[-1])
    counts = np.histogram(inside, bins=edges)[0].astype(float)
    return HEAP * counts / max(counts.max(initial=0.0), 1.0)


def prior_mark(ax: Axes, row: int, share: float) -> None:
    """A dashed upright at P(y) on line `row`."""
    ax.plot([share, share], [row, row - 0.93], color=palette.INK, lw=1.4, ls=PRIOR_DASH, zorder=5)


def beside(ax: Axes, row: int, text: str) -> None:
    """A small note to the right of line `row`, outside the axes, where nothing can lie under it."""
    where = ax.get_yaxis_transform()
    ax.text(1.012, row - 0.4, text, transform=where, ha="left", va="center", size=8, color=palette.MUTED)


def log_edges(log_values: np.ndarray, bins: int = 48) -> np.ndarray:
    """Bin edges even in the logarithm, from the smallest value up; a factor of four at least, for equal weights."""
    low, high = (float(log_values.min()), float(log_values.max())) if len(log_values) else (0.0, 0.0)
    spare = max(0.0, (math.log(4.0) - (high - low)) / 2)
    return np.exp(np.linspace(low - spare, high + spare, bins + 1))


def log_axis(ax: Axes) -> None:
    """Ticks at 1, 2, 5 times powers of ten inside the axis, written out, thinned when there are many."""
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(powers) <= 5 else (1,)
    ticks = [s * 10.0**p for p in powers for s in steps if low <= s * 10.0**p <= high]
    ticks = ticks[:: max(1, len(ticks) // 12)]
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
