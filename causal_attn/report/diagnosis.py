"""The figures of a diagnosis, one file each: weights, overlap, balance, calibration, and k̂ per row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from causal_attn import plots
from causal_attn.errors import OutputError
from causal_attn.storage import whole_file

if TYPE_CHECKING:
    from causal_attn.study import Diagnosis

MAX_KHAT_ROWS = 5000
"""Rows up to which k̂ of leaving each out is drawn; it takes a good second for so many."""
ROW_HEIGHT = 0.42
"""Inches that a class or a position adds to a figure's height."""


def draw_diagnosis(diagnosis: Diagnosis, out: str | Path) -> Path:
    """Write `out/figures/*.png`; returns that folder. k̂ per row needs a posterior and at most 5,000 rows."""
    folder = Path(out) / "figures"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be made ({error.strerror})") from error
    found, names = diagnosis, diagnosis.class_names
    by_class = 1.6 + ROW_HEIGHT * max(2, len(names))
    figures: dict[str, tuple[Callable[[Axes], Axes], float]] = {
        "weights": (lambda ax: plots.weight_histogram(found.weights, ax, names), by_class),
        "overlap": (lambda ax: plots.overlap(found.weights, ax, names), by_class),
        "balance": (lambda ax: plots.love(found.balance, ax), 1.6 + 0.22 * min(33, found.sample.T + 3)),
        "calibration": (lambda ax: plots.calibration(found.calibration, ax, names), 5.0),
    }
    if found.fit.final.n_draws and found.sample.n <= MAX_KHAT_ROWS:
        figures["khat"] = (lambda ax: plots.khat(found.fit.to_arviz(posterior_predictive=False), ax), 3.4)
    for name, (draw, height) in figures.items():
        figure = Figure(figsize=(7.5, height), layout="constrained")
        draw(figure.add_subplot())
        with whole_file(folder / f"{name}.png") as temporary:
            figure.savefig(temporary, dpi=140)
    return folder
