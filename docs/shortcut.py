"""Makes the picture of docs/shortcut.md and prints its tests: four planted models whose answer is known.

python docs/shortcut.py [FOLDER]    (docs/images when left out; about twenty seconds)

`independent` looks at the evidence, which lies anywhere. `innocent` does too, but where the evidence lies depends on
the class: the mask tells the class, and there is no shortcut. `planted` reads the class off the mask, which holds no
evidence. `skewed` was trained jointly after its attention had been taught the trick.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

import causal_attn as ca
from causal_attn.attention import PixelAttention, TextAttention, given_masks
from causal_attn.data.worlds import PlantedPixels, PlantedText
from causal_attn.faithfulness.shortcut import EXCESS_THRESHOLD
from causal_attn.plots import palette
from causal_attn.training import RandomMasksOnly

N = 3000
IMAGES = Path(__file__).resolve().parent / "images"
PIXELS: dict[str, Any] = {"learning_rate": 5e-3, "weight_decay": 0.01}


def planted(n: int = N, epochs: int = 10, n_permutations: int = 200) -> dict[str, ca.ShortcutTest]:
    """The shortcut test of each model, in the order of the page."""
    fast: dict[str, Any] = {"epochs": epochs, "progress": False}
    text = PlantedText()
    data = text.sample(n, 0)
    reader = TextAttention.for_data(data, "pooled", embedding=16, hidden=16)
    evaluator = ca.train_evaluator(reader, data, **fast)
    world = PlantedPixels(place="class", opposite=0, noise=0.2)
    images = world.sample(n, 0)
    pixels = PixelAttention(world.side, 2, 2, "pooled", hidden=32)
    judge = ca.train_evaluator(pixels, images, **fast, **PIXELS)
    trained = {
        "independent": (ca.train(given_masks(reader, text.oracle_masks), data, RandomMasksOnly(), **fast), evaluator),
        "innocent": (
            ca.train(given_masks(pixels, world.oracle_masks), images, RandomMasksOnly(), **fast, **PIXELS), judge
        ),
        "planted": (ca.train(given_masks(reader, text.shortcut_masks), data, ca.ERM(), **fast), evaluator),
        "skewed": (ca.train(reader, data, ca.SkewedGenerator(0.98), **fast), evaluator),
    }  # fmt: skip
    return {
        name: ca.shortcut_test(result, evaluator=who, n_permutations=n_permutations, progress=False)
        for name, (result, who) in trained.items()
    }


def figure(found: Mapping[str, ca.ShortcutTest]) -> Figure:
    """Leakage, reliance with the evaluator's own, and the excess, a row per model."""
    out = Figure(figsize=(9.5, 2.9), layout="constrained")
    panels = out.subplots(1, 3, sharey=True)
    titles = (
        "1. does the mask tell the class?",
        "2. does the answer follow the mask?",
        "beyond what the words justify?",
    )
    labels = ("leakage AUC", "reliance (filled), evaluator's (hollow)", "excess reliance")
    for ax, name, title, label in zip(panels, ("leakage_auc", "reliance", "excess_reliance"), titles, labels):
        for row, test in enumerate(found.values()):
            low, high = test.intervals[name]
            bad = test.verdict.startswith("shortcut")
            colour = palette.BAD if bad else palette.ACCENT
            ax.plot([low, high], [row, row], color=colour, lw=2, solid_capstyle="butt")
            ax.plot(getattr(test, name), row, "o", color=colour, ms=7)
            if name == "reliance":
                ax.plot(test.reliance - test.excess_reliance, row, "o", mfc="white", mec=palette.INK, ms=7)
        ax.set_title(title, loc="left", size=10)
        ax.set_xlabel(label)
        ax.spines[["top", "right"]].set_visible(False)
    panels[0].axvline(0.5, color=palette.MUTED, lw=1, ls=(0, (4, 2)), zorder=0)
    panels[2].axvline(EXCESS_THRESHOLD, color=palette.MUTED, lw=1, ls=(0, (4, 2)), zorder=0)
    panels[0].set_xlim(0.4, 1.03)
    for ax in panels[1:]:
        ax.set_xlim(-0.1, 1.0)
    panels[0].set_yticks(range(len(found)), list(found))
    panels[0].set_ylim(len(found) - 0.5, -0.5)
    return out


def main(folder: Path = IMAGES, **options: Any) -> None:
    """Write the picture and print the tests."""
    folder.mkdir(parents=True, exist_ok=True)
    found = planted(**options)
    figure(found).savefig(folder / "shortcut-tests.png", dpi=110)
    for name, test in found.items():
        print(f"--- {name}\n{test}\n")


if __name__ == "__main__":
    main(*(Path(folder) for folder in sys.argv[1:2]))
