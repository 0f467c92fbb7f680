"""Calibration: does a class come as often as the model of P(class | mask) says?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes

from causal_attn.errors import InputError
from causal_attn.plots import palette
from causal_attn.plots.checks import checked_names, checked_table
from causal_attn.plots.parts import axes_or_new, open_box, plain

if TYPE_CHECKING:
    import pandas as pd

FEW = 6
"""Up to this many classes, all are named and coloured; with more, only the worst are."""
WORST = 4
NUMBERS = ("class", "rows", "predicted", "observed", "low", "high")


def calibration(table: pd.DataFrame, ax: Axes | None = None, class_names: Sequence[str] | None = None) -> Axes:
    """Predicted against observed share of each class, with 95% intervals; on the diagonal the model is right.

    With more than six classes all lines are grey but those of the four with the largest error.

    Args:
        table: of `SelectionFit.calibration()`; the title shows what its `.attrs` hold: the expected calibration error
            (probability), and the held-out log-loss against that of the class shares alone (nats).
        ax: where to draw; None: in a figure made here.
        class_names: names of the classes from 0 on.

    Returns:
        The Axes drawn on.

    Raises:
        InputError: the table lacks columns or rows, or has other than numbers there; too few names.
    """
    rows = checked_table(table, NUMBERS, NUMBERS, "SelectionFit.calibration()")
    if rows.empty:
        raise InputError("table: expected at least one row, found none")
    classes = sorted(rows["class"].astype(int).unique())
    names = checked_names(class_names, classes[-1] + 1, more=True)
    ax = axes_or_new(ax, 5.2, 5.2)
    error = {k: class_error(rows[rows["class"] == k]) for k in classes}
    worst = sorted(classes, key=lambda k: -error[k])[:WORST]
    for k in classes:
        mine = rows[rows["class"] == k].sort_values("predicted", kind="stable")
        if len(classes) <= FEW or k in worst:
            _line(ax, mine, k, f"{plain(names[k], 22)} ({error[k]:.3f})")
        else:
            ax.plot(mine["predicted"], mine["observed"], color=palette.FAINT, lw=0.9, zorder=1)
    if len(classes) > FEW:
        ax.plot([], [], color=palette.FAINT, lw=0.9, label=f"{len(classes) - len(worst)} other classes")
    _frame(ax, float(rows[["predicted", "high"]].to_numpy().max()))
    _title(ax, table)
    return ax


def class_error(rows: pd.DataFrame) -> float:
    """Mean |predicted − observed| of one class over its rows, probability."""
    gap = (rows["predicted"] - rows["observed"]).abs()
    return float(np.average(gap, weights=rows["rows"])) if rows["rows"].sum() > 0 else 0.0


def _line(ax: Axes, rows: pd.DataFrame, k: int, label: str) -> None:
    colour = palette.class_colour(k)
    x, y = rows["predicted"].to_numpy(), rows["observed"].to_numpy()
    ax.vlines(x, rows["low"], rows["high"], color=colour, lw=1.1, alpha=0.6, zorder=3)
    ax.plot(x, y, color=colour, ls=palette.class_line(k), lw=1.3, marker="o", ms=4, label=label, zorder=4)


def _frame(ax: Axes, largest: float) -> None:
    """Both axes from 0 to the same end: 1, or the next twentieth above all that is drawn, where that is below 1/2."""
    end = 1.0 if largest > 0.5 else float(np.ceil(20 * largest + 1e-9) / 20)
    ax.plot([0, end], [0, end], color=palette.MUTED, lw=1, ls=(0, (4, 2)), zorder=2)
    ax.set(xlim=(-0.02 * end, 1.02 * end), ylim=(-0.02 * end, 1.02 * end), aspect="equal")
    ax.set_xlabel("predicted, held-out P(class | m)")
    ax.set_ylabel("observed share of the class")
    open_box(ax)
    legend = ax.legend(loc="upper left", frameon=False, fontsize=8.5, title="class (its error)", alignment="left")
    legend.get_title().set_fontsize(8.5)


def _title(ax: Axes, table: pd.DataFrame) -> None:
    """What the table says of itself; nothing of it is computed here."""
    error, loss, prior = (
        table.attrs.get(name) for name in ("expected_calibration_error", "log_loss_nats", "prior_log_loss_nats")
    )
    lines = [] if error is None else [f"expected calibration error {error:.3f}"]
    lines += [] if loss is None or prior is None else [f"log-loss {loss:.3f} nats, without the mask {prior:.3f}"]
    ax.set_title("\n".join(lines), loc="left", size=10)
