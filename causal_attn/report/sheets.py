"""Whole figures: the Axes of `figures.py` laid out, rendered to bytes in both formats, and put into words."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from causal_attn.plots import palette
from causal_attn.plots.parts import plain
from causal_attn.report import figures
from causal_attn.report.read import Results, Scheme

DPI = 160
WIDTH = 11.0
"""Inches; the page shows a figure no wider than this."""

STYLE: dict[str, object] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": palette.INK,
    "axes.edgecolor": "#9aa3b2",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": palette.INK,
    "xtick.color": "#9aa3b2",
    "ytick.color": "#9aa3b2",
    "xtick.labelcolor": palette.INK,
    "ytick.labelcolor": palette.INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.fonttype": "path",
    "svg.hashsalt": "causal_attn",
}


@dataclass(frozen=True)
class Sheet:
    """A finished figure: its bytes in both formats and what it says, for those who cannot see it."""

    name: str
    svg: bytes
    png: bytes
    alt: str


def draw_all(results: Results) -> dict[str, Sheet]:
    """Every figure that the results have the numbers for, by name; nothing is written yet."""
    makers: dict[str, Callable[[Results], tuple[Figure, str] | None]] = {
        "shortcut": _shortcut,
        "profiles": _profiles,
        "weights": _weights,
        "overlap": _overlap,
        "balance": _balance,
        "training": _training,
        "elbo": _elbo,
    }
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        made = {name: make(results) for name, make in makers.items()}
        return {name: _sheet(name, *drawn) for name, drawn in made.items() if drawn}


def _sheet(name: str, figure: Figure, alt: str) -> Sheet:
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once, not again for each format
    return Sheet(name, _bytes(figure, "svg"), _bytes(figure, "png"), alt)


def _bytes(figure: Figure, suffix: str) -> bytes:
    buffer = io.BytesIO()
    metadata = {"Date": None} if suffix == "svg" else None  # the same numbers give the same file
    figure.savefig(buffer, format=suffix, dpi=DPI, facecolor="white", metadata=metadata)
    return buffer.getvalue()


def _figure(height: float, width: float = WIDTH) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _shortcut(results: Results) -> tuple[Figure, str]:
    figure = _figure(1.1 + (0.62 + 0.07 * min(results.n_seeds - 1, 4)) * len(results.schemes))
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1.25, 1))
    figures.reliance(left, results)
    figures.leakage(right, results)
    right.tick_params(labelleft=False)
    return figure, "Reliance and leakage by scheme. " + " ".join(_shortcut_words(s) for s in results.schemes)


def _shortcut_words(scheme: Scheme) -> str:
    keys = {"excess_reliance": "excess reliance", "reliance": "raw reliance", "leakage_auc": "leakage AUC"}
    found = {words: [r.figures[k] for r in scheme.runs if k in r.figures] for k, words in keys.items()}
    said = [f"{words} {' and '.join(f'{v:.2f}' for v in values) or 'not computed'}" for words, values in found.items()]
    return f"{scheme.label}: {', '.join(said)}."


def _weights(results: Results) -> tuple[Figure, str] | None:
    if not {"log_w", "y"} <= results.arrays.keys() or not len(results.arrays["y"]):
        return None
    classes = max(len(results.class_names), int(results.arrays["y"].max()) + 1)
    figure = _figure(1.05 + 0.62 * max(classes, 2) if classes <= 6 else 1.05 + 0.46 * classes)
    figures.weights(figure.subplots(), results)
    return figure, f"Histograms of the weights w on a logarithmic axis, one row for each of {classes} classes."


def _overlap(results: Results) -> tuple[Figure, str] | None:
    if not {"log_prob", "y"} <= results.arrays.keys() or not len(results.arrays["y"]):
        return None
    classes = results.arrays["log_prob"].shape[1]
    figure = _figure(1.05 + 0.62 * max(classes, 2) if classes <= 6 else 1.05 + 0.46 * classes)
    figures.overlap(figure.subplots(), results)
    words = "Histograms of the held-out probability of a class given the mask: rows of the class against all others"
    return figure, f"{words}, one row for each of {classes} classes."


def _balance(results: Results) -> tuple[Figure, str] | None:
    if not {"balance", "calibration"} <= results.arrays.keys():
        return None
    rows = min(len(results.arrays["balance"]), figures.TOP_POSITIONS + len(figures.CONCENTRATION))
    figure = _figure(1.6 + 0.2 * max(rows, 12))
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    figures.balance(left, results)
    figures.calibration(right, results)
    words = "Left: how far apart the classes' mean masks are at each position before and after weighting. Right: "
    return figure, words + "predicted against observed class shares on held-out rows."


def _profiles(results: Results) -> tuple[Figure, str] | None:
    schemes = [s for s in results.schemes if results.arrays.get(f"profile_{s.name}") is not None]
    if not schemes:
        return None
    classes = max(len(results.arrays[f"profile_{s.name}"]) for s in schemes)
    columns = min(len(schemes), 2 if len(schemes) in (2, 4) else 3)
    rows = math.ceil(len(schemes) / columns)
    figure = _figure(0.7 + 2.15 * rows + 0.2 * math.ceil(classes / 5))
    grid = figure.subplots(rows, columns, sharey=True, sharex=True, squeeze=False)
    _fill_profiles(grid.ravel().tolist(), columns, results, schemes)
    figure.supxlabel("position in the text, from the start", size=9.5)
    figure.supylabel("mean mask (share of attention)", size=9.5)
    _class_legend(figure, results, classes)
    names = ", ".join(s.label for s in schemes)
    return figure, f"Mean attention at each position by class, one panel per scheme: {names}."


def _fill_profiles(panels: Sequence[Axes], columns: int, results: Results, schemes: Sequence[Scheme]) -> None:
    for i, (ax, scheme) in enumerate(zip(panels, schemes, strict=False)):
        figures.profile(ax, results, scheme.name)
        ax.tick_params(labelbottom=i + columns >= len(schemes))  # above an empty place too
    for ax in panels[len(schemes) :]:
        ax.set_visible(False)


def _class_legend(figure: Figure, results: Results, classes: int) -> None:
    handles = [Line2D([], [], color=palette.class_colour(k), ls=palette.class_line(k), lw=1.8) for k in range(classes)]
    labels = [plain(results.class_name(k)) for k in range(classes)]
    figure.legend(handles, labels, loc="outside upper center", ncols=min(classes, 5), handlelength=2.6)


def _training(results: Results) -> tuple[Figure, str] | None:
    kinds = {"loss": "history_", "accuracy": "history_", "deficit": "deficit_history_"}
    found = [k for k, p in kinds.items() if any(len(results.arrays.get(p + s.name, ())) for s in results.schemes)]
    if not found:
        return None
    figure = _figure(3.1 + 0.22 * math.ceil(len(results.schemes) / 3))
    panels = figure.subplots(1, len(found), squeeze=False).ravel().tolist()
    for ax, what in zip(panels, found, strict=True):
        figures.history(ax, results, what)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3)
    return figure, f"Course of training over epochs, one line per scheme; panels: {', '.join(found)}."


def _elbo(results: Results) -> tuple[Figure, str] | None:
    values = results.arrays.get("elbo")
    if values is None or len(values) < 2:
        return None
    figure = _figure(2.5, width=7.4)
    figures.elbo(figure.subplots(), results)
    return figure, f"ELBO of the selection model over {len(values)} steps, ending at {float(values[-1]):.4g} nats."
