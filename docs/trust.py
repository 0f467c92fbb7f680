"""Makes the pictures of docs/trust.md: each diagnostic on three simulated worlds, and prints the worlds' summaries.

python docs/trust.py [FOLDER]    (docs/images when left out; a few seconds)

`fine` has smooth, moderate dependence of the mask on the class. `heavy-tailed` gives a few rows weights of hundreds.
In `deterministic` the mask tells the class for certain, which no weight can repair.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from causal_attn import MaskSample, SelectionFit, SelectionModel, Weights, balance_table, plots
from causal_attn.data.worlds import DeterministicLeak, DirichletByClass, Gaussian, World
from causal_attn.errors import SupportWarning
from causal_attn.plots import palette
from causal_attn.weights.words import LARGE, PARTIAL

N = 2000
IMAGES = Path(__file__).resolve().parent / "images"
WORLDS: dict[str, World] = {
    "fine": Gaussian(n_positions=6, strength=0.3, seed=1),
    "heavy-tailed": DirichletByClass(alpha=((2.0, 1.5, 1.5, 1.5, 1.0, 0.6), (0.6, 1.0, 1.5, 1.5, 1.5, 2.0))),  # type: ignore[arg-type]
    "deterministic": DeterministicLeak(),
}


@dataclass(frozen=True)
class Fitted:
    """A world's masks, the model fitted to them, and the weights to judge."""

    sample: MaskSample
    fit: SelectionFit
    weights: Weights


def worlds(n: int = N) -> dict[str, Fitted]:
    """n rows of each world, fitted in five folds."""
    return {name: _fitted(world.sample(n, seed=0)) for name, world in WORLDS.items()}


def _fitted(sample: MaskSample) -> Fitted:
    fit = SelectionModel().fit(sample, folds=5, seed=0, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SupportWarning)  # the page prints the same words
        return Fitted(sample, fit, fit.weights())


# ---------------------------------------------------------------------------------------------- one figure each


def weights_figure(found: Mapping[str, Fitted]) -> Figure:
    """How the weights spread."""
    return _side_by_side(found, 3.1, lambda ax, one: plots.weight_histogram(one.weights, ax))


def overlap_figure(found: Mapping[str, Fitted]) -> Figure:
    """P(class | mask) of a class's own rows and of the others."""
    return _side_by_side(found, 3.1, lambda ax, one: plots.overlap(one.weights, ax))


def support_figure(found: Mapping[str, Fitted]) -> Figure:
    """Support deficit with its interval, and, hollow, the effective sample size that hides it."""
    figure = Figure(figsize=(8.5, 2.6), layout="constrained")
    ax = figure.subplots()
    for row, one in enumerate(found.values()):
        low, high = one.weights.support_deficit_interval
        colour = palette.BAD if low > LARGE else palette.WARN if low > PARTIAL else palette.ACCENT
        ax.plot([low, high], [row, row], color=colour, lw=2, solid_capstyle="butt")
        ax.plot(one.weights.support_deficit, row, "o", color=colour, ms=8)
        ax.plot(one.weights.ess / one.sample.n, row, "s", mfc="white", mec=palette.INK, ms=7)
    for level, words in ((PARTIAL, "repairs a part only"), (LARGE, "cannot repair")):
        ax.axvline(level, color=palette.MUTED, lw=1, ls=(0, (4, 2)), zorder=0)
        ax.annotate(
            f"{words} →", (level, 1.0), xycoords=("data", "axes fraction"), xytext=(2, 2), textcoords="offset points",
            size=8, color=palette.MUTED,
        )  # fmt: skip
    ax.set_yticks(range(len(found)), list(found))
    ax.set(xlim=(-0.02, 1.02), ylim=(len(found) - 0.5, -0.5))
    ax.set_xlabel("filled: support deficit D, share of Q, 95% interval; hollow: effective sample size, share of rows")
    ax.spines[["top", "right"]].set_visible(False)
    return figure


def love_figure(found: Mapping[str, Fitted]) -> Figure:
    """Balance of every position before and after weighting."""
    return _side_by_side(found, 4.2, lambda ax, one: plots.love(balance_table(one.sample, one.weights), ax))


def calibration_figure(found: Mapping[str, Fitted]) -> Figure:
    """Predicted against observed class shares."""
    return _side_by_side(found, 4.6, lambda ax, one: plots.calibration(one.fit.calibration(), ax))


def khat_figure(found: Mapping[str, Fitted]) -> Figure:
    """k̂ of leaving each row out."""
    return _side_by_side(found, 3.1, lambda ax, one: plots.khat(one.fit.to_arviz(), ax))


FIGURES: dict[str, Callable[[Mapping[str, Fitted]], Figure]] = {
    "support": support_figure,
    "overlap": overlap_figure,
    "weights": weights_figure,
    "love": love_figure,
    "calibration": calibration_figure,
    "khat": khat_figure,
}


def _side_by_side(found: Mapping[str, Fitted], height: float, draw: Callable[[Axes, Fitted], Axes]) -> Figure:
    """A panel per world, under its name."""
    figure = Figure(figsize=(14.0, height), layout="constrained")
    for part, (name, one) in zip(figure.subfigures(1, len(found), wspace=0.03), found.items(), strict=True):
        part.suptitle(name, weight="bold")
        draw(part.subplots(), one)
    return figure


# ---------------------------------------------------------------------------------------------- all of it


def said(one: Fitted) -> str:
    """The summary of its weights as printed, without blanks at the ends of lines."""
    return "\n".join(line.rstrip() for line in str(one.weights.summary()).splitlines())


def main(folder: Path = IMAGES, n: int = N) -> None:
    """Write `folder`/trust-*.png and print each world's summary."""
    found = worlds(n)
    for name, one in found.items():
        print(f"--- {name}\n{said(one)}\n")
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in FIGURES.items():
        make(found).savefig(folder / f"trust-{name}.png", dpi=110)


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:2]))
