"""The small pieces that the figures are put together from: heaps of rows, axes of names, names drawn as they are."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

from causal_attn.errors import InputError
from causal_attn.plots import palette

PRIOR_DASH = (0, (2.0, 1.2))
"""Dashes of every mark that stands for P(y)."""

HEAP = 0.84
"""Height of the tallest bar in a row of the ridge plots, where rows are 1 apart."""

TWO_LINES = 22.0
"""Points that a row needs for a note of two lines beside it."""

LETTER = 0.58
"""Width of a letter as a share of the font's size, about."""

TALLEST = 40.0
"""Inches; a figure made here is no taller, however many rows it has."""


# ---------------------------------------------------------------------------------------------- axes


def axes_or_new(ax: Axes | None, width: float, height: float) -> Axes:
    """The Axes given, or one in a new Figure of `width` x `height` inches that pyplot knows nothing of."""
    if ax is None:
        return Figure(figsize=(width, min(height, TALLEST)), layout="constrained").subplots()
    if not isinstance(ax, Axes):
        raise InputError(f"ax: expected a matplotlib Axes or None, got {type(ax).__name__}")
    return ax


def open_box(ax: Axes, *sides: str) -> None:
    """Take away the frame's top and right, and the `sides` named."""
    for side in ("top", "right", *sides):
        ax.spines[side].set_visible(False)


def size_points(ax: Axes) -> tuple[float, float]:
    """Width and height in points, before any layout."""
    extent = ax.get_window_extent()
    return float(extent.width / ax.figure.dpi * 72), float(extent.height / ax.figure.dpi * 72)


def row_points(ax: Axes, rows: int) -> float:
    """Height of one of `rows` rows, in points."""
    return size_points(ax)[1] / max(rows, 1)


def fitting(ax: Axes, rows: int, size: float) -> float | None:
    """A font size at which `rows` lines do not touch; None where the usual one, about `size` points, fits."""
    room = row_points(ax, rows)
    return None if room >= 1.25 * size else max(room / 1.6, 4.0)  # labels and legend will take some of the room


def broken(ax: Axes, text: str, size: float = 10) -> str:
    """`text` on as many lines as keep it within the width of the Axes."""
    return textwrap.fill(text, max(16, int(size_points(ax)[0] / (LETTER * size))))


def legend_above(ax: Axes, handles: Sequence[Line2D | Patch], size: float = 9) -> int:
    """A legend between the Axes and its title, in as many lines as its width asks for; returns how many."""
    widths = [(len(str(handle.get_label())) * LETTER + 4) * size for handle in handles]
    room = size_points(ax)[0] + 4 * size
    columns = len(handles) if sum(widths) <= room else max(1, min(len(handles) - 1, int(room // max(widths))))
    ax.legend(
        handles=list(handles), loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=columns, frameon=False,
        fontsize=size,
    )  # fmt: skip
    return math.ceil(len(handles) / columns)


def class_rows(ax: Axes, names: Sequence[str]) -> None:
    """A row per class, first on top, named at the left."""
    found = range(len(names))
    size = fitting(ax, len(names), 10)
    ax.set_yticks([k - 0.4 for k in found], [wrapped(name, 18) for name in names], size=size)
    ax.set_ylim(len(names) - 1 + 0.06, -1.02)
    ax.tick_params(axis="y", length=0)
    open_box(ax, "left")
    for k in found:
        ax.axhline(k, color=palette.FAINT, lw=0.8, zorder=1)


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


# ---------------------------------------------------------------------------------------------- rows of a ridge plot


def heap(ax: Axes, row: int, values: np.ndarray, edges: np.ndarray, colour: str) -> None:
    """A filled histogram standing on line `row`, scaled to its own peak (rows of few and of many stay readable)."""
    heights = bar_heights(values, edges)
    ax.stairs(row - heights, edges, baseline=row, fill=True, color=colour, alpha=0.5, lw=0, zorder=2)
    ax.stairs(row - heights, edges, baseline=row, color=colour, lw=1.2, zorder=3)


def outline(ax: Axes, row: int, values: np.ndarray, edges: np.ndarray) -> None:
    """The same, unfilled and in ink, to lie over a heap."""
    ax.stairs(row - bar_heights(values, edges), edges, baseline=row, color=palette.INK, lw=1.0, zorder=4)


def bar_heights(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Counts of the finite `values` per bin, the largest scaled to `HEAP`; values beyond the edges count at the end."""
    inside = np.clip(values[np.isfinite(values)], edges[0], edges[-1])
    counts = np.histogram(inside, bins=edges)[0].astype(float)
    return HEAP * counts / max(counts.max(initial=0.0), 1.0)


def prior_mark(ax: Axes, row: int, share: float) -> None:
    """A dashed upright at P(y) on line `row`."""
    ax.plot([share, share], [row, row - 0.93], color=palette.INK, lw=1.4, ls=PRIOR_DASH, zorder=5)


def beside(ax: Axes, row: int, text: str, size: float = 8) -> None:
    """A small note to the right of line `row`, outside the axes, where nothing can lie under it."""
    where = ax.get_yaxis_transform()
    ax.text(1.012, row - 0.4, text, transform=where, ha="left", va="center", size=size, color=palette.MUTED)


def log_edges(log_values: np.ndarray, bins: int = 48) -> np.ndarray:
    """Bin edges even in the logarithm, from the smallest value up; a factor of four at least, for equal weights."""
    low, high = (float(log_values.min()), float(log_values.max())) if len(log_values) else (0.0, 0.0)
    spare = max(0.0, (math.log(4.0) - (high - low)) / 2)
    return np.exp(np.linspace(low - spare, high + spare, bins + 1))


# ---------------------------------------------------------------------------------------------- names


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
