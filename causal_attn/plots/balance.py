"""The love plot: how far apart the classes' masks lie before and after weighting, a row per position.

Each row shows the absolute standardised mean difference |mean over a class − mean over the others| / pooled standard
deviation, pooled over classes: 0 where the mean mask is the same for all of them. The line at 0.1 is the customary
bound of "balanced" (Austin 2009).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from causal_attn.errors import InputError
from causal_attn.plots import palette
from causal_attn.plots.checks import checked_count, checked_table
from causal_attn.plots.parts import axes_or_new, broken, fitting, legend_above, open_box, plain

if TYPE_CHECKING:
    import pandas as pd

BALANCED = 0.1
"""|SMD| below this is conventionally called balanced."""
WIDTH = 7.5
COLUMNS = ("measure", "of", "position", "class", "before", "after", "permuted")
NUMBERS = ("position", "before", "after", "permuted")


def love(table: pd.DataFrame, ax: Axes | None = None, top: int = 30) -> Axes:
    """|SMD| of every position and of the mask's concentration, before (hollow) and after weighting (filled).

    Positions are sorted by their difference before weighting, the largest on top; the concentration of the mask (mean
    log m, entropy, log Σm²) stands below them. The grey bar is what shuffled classes show: nothing real is smaller.
    A difference that is infinite (constant within the classes, not between them) stands at the right edge, marked ∞.

    Args:
        table: of `balance_table`; its rows with measure "smd" and class "pooled" are drawn.
        ax: where to draw; None: in a figure made here.
        top: most positions shown; where there are more, the title says so. Low Axes want fewer than 30.

    Returns:
        The Axes drawn on.

    Raises:
        InputError: the table lacks columns or such rows; `top` is not a whole number of at least 1.
    """
    rows = pooled_rows(table)
    shown = shown_rows(rows, checked_count(top, "top"))
    ax = axes_or_new(ax, WIDTH, 1.35 + 0.21 * max(len(shown), 4))
    _rows(ax, shown)
    lines = _points(ax, shown)
    ax.set_title(_title(rows, int(shown["position"].notna().sum())), loc="left", size=10, pad=6 + 16 * lines)
    return ax


def pooled_rows(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of |SMD| pooled over classes: of, position (NaN: concentration), before, after, permuted."""
    found = checked_table(table, COLUMNS, NUMBERS, "causal_attn.balance_table")
    rows = found[(found["measure"] == "smd") & (found["class"].astype(str) == "pooled")]
    if rows.empty:
        raise InputError("table: expected rows of measure 'smd' and class 'pooled', found none")
    numbers = rows[["before", "after", "permuted"]].abs()
    return rows[["of", "position"]].join(numbers).reset_index(drop=True)


def shown_rows(rows: pd.DataFrame, top: int) -> pd.DataFrame:
    """The `top` positions furthest apart before weighting, the furthest first; then all rows without a position."""
    import pandas as pd

    at = rows["position"].notna()
    positions = rows[at].sort_values("before", ascending=False, kind="stable", na_position="last")
    return pd.concat([positions.head(top), rows[~at]], ignore_index=True)


def _rows(ax: Axes, shown: pd.DataFrame) -> None:
    """A named row each, the first on top, and a line where the positions end."""
    size = fitting(ax, len(shown), 8.5) or 8.5
    ax.set_yticks(np.arange(len(shown)), [plain(str(name)) for name in shown["of"]], size=size)
    ax.set_ylim(len(shown) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    open_box(ax, "left")
    positions = int(shown["position"].notna().sum())
    if 0 < positions < len(shown):
        ax.axhline(positions - 0.5, color=palette.FAINT, lw=0.8)


def _points(ax: Axes, shown: pd.DataFrame) -> int:
    """Bars, points and their legend; returns the legend's lines."""
    y = np.arange(len(shown))
    before, after, permuted = (shown[c].to_numpy() for c in ("before", "after", "permuted"))
    weighted, shuffled = bool(np.isfinite(after).any()), bool(np.isfinite(permuted).any())
    size = min(6.0, max(2.5, (fitting(ax, len(shown), 8.5) or 8.5) * 0.7))
    everything = np.concatenate([before, after, permuted])
    finite = everything[np.isfinite(everything)]
    end = max(1.05 * float(finite.max(initial=0.0)), 1.5 * BALANCED)
    beyond = np.isposinf(np.stack([before, after]))  # a mass that is constant within classes: stands at the edge
    before, after = (np.where(out, end, values) for out, values in zip(beyond, (before, after)))
    for row in np.flatnonzero(beyond.any(0)):
        ax.annotate("∞", (end, row), (5, 0), textcoords="offset points", va="center", size=9, annotation_clip=False)
    ax.barh(y, np.nan_to_num(permuted, posinf=end), height=0.9, color=palette.GRID, lw=0, zorder=0)
    ax.hlines(y, before, after, color=palette.FAINT, lw=1.2, zorder=2)
    # a ring around the filled point stays seen where weighting changes nothing
    ax.plot(before, y, "o", ms=size + 2, mfc="white", mec=palette.INK, mew=1.1, clip_on=False, zorder=3)
    ax.plot(after, y, "o", ms=size, mfc=palette.ACCENT, mec=palette.ACCENT, clip_on=False, zorder=4)
    ax.axvline(BALANCED, color=palette.MUTED, lw=1, ls=(0, (4, 2)), zorder=1)
    ax.set_xlim(0, end)
    ax.set_xlabel(broken(ax, "|standardised mean difference| between classes (standard deviations)"))
    marks: list[Line2D | Patch] = [Line2D([], [], marker="o", ls="", mfc="white", mec=palette.INK, label="before")]
    marks += [Line2D([], [], marker="o", ls="", color=palette.ACCENT, label="after weighting")] if weighted else []
    marks += [Patch(color=palette.GRID, label="classes shuffled")] if shuffled else []
    marks += [Line2D([], [], color=palette.MUTED, lw=1, ls=(0, (4, 2)), label=f"{BALANCED:g}")]
    return legend_above(ax, marks, 8.5)


def _title(rows: pd.DataFrame, shown: int) -> str:
    """How many positions there are, are shown, and are out of balance."""
    positions = rows[rows["position"].notna()]
    total = len(positions)
    said = f"{shown} of {total} positions, the furthest apart" if shown < total else f"{total} positions"
    over = [int((positions[c] > BALANCED).sum()) for c in ("before", "after")]
    after = f", {over[1]} after" if positions["after"].notna().any() else ""
    return f"{said}\nabove {BALANCED:g}: {over[0]} of {total} before{after}"
