"""Benchmark of the training schemes: what each costs beside ERM, in one run, in turn.

python benchmarks/schemes.py [--quick] [--out FILE.md]
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from measuring import report, table

import causal_attn as ca
from causal_attn.attention import TextAttention
from causal_attn.data.worlds import PlantedText
from causal_attn.training import Scheme, TrainResult


@dataclass(frozen=True)
class Sizes:
    """Rounds, epochs, and whether the real texts are used."""

    rounds: int
    epochs: int
    real: bool


FULL = Sizes(3, 5, True)
QUICK = Sizes(1, 3, False)
SCHEMES: dict[str, Scheme] = {
    "ERM": ca.ERM(),
    "weights, refreshed every epoch": ca.InstanceWeighting(),
    "weights, exploration 0.3": ca.InstanceWeighting(explore=0.3),
    "alternating": ca.AlternatingRandomAttention(),
    "leakage penalty": ca.LeakagePenalty(),
    "random masks, frozen": ca.RandomAttentionPretraining(),
    "warm start": ca.RandomAttentionPretraining(then="joint"),
}
TARGETS = {
    "weights, refreshed every epoch": "≤ 1.25 an epoch, aim 1.10", "alternating": "≤ 1.7 an epoch",
    "warm start": "≤ 1.6 in total",
}  # fmt: skip


def epoch_seconds(result: TrainResult) -> float:
    """Median seconds of an epoch after the first: in it weights are not yet estimated."""
    own = result.history[result.history["epoch"] > 0]["seconds"]
    return float(statistics.median(own))


def cost(sizes: Sizes) -> str:
    """Rotten Tomatoes, recurrent part, word dropout 0.5, five default tokens: schemes in turn, ratios of medians."""
    data = ca.data.load("rotten_tomatoes", default_tokens=5, seed=0) if sizes.real else PlantedText().sample(200, 0)
    model = TextAttention.for_data(data, "recurrent", word_dropout=0.5, seed=0)
    epoch: dict[str, list[float]] = {name: [] for name in SCHEMES}
    total: dict[str, list[float]] = {name: [] for name in SCHEMES}
    for number in range(sizes.rounds):
        for name in list(SCHEMES) if number % 2 == 0 else reversed(list(SCHEMES)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = ca.train(model, data, SCHEMES[name], epochs=sizes.epochs, seed=number, progress=False)
            epoch[name].append(epoch_seconds(result))
            total[name].append(result.seconds)
    per, whole = ({name: statistics.median(values) for name, values in own.items()} for own in (epoch, total))
    rows = [
        [name, per[name], per[name] / per["ERM"], whole[name], whole[name] / whole["ERM"], TARGETS.get(name, "")]
        for name in SCHEMES
    ]
    return table(["scheme", "s an epoch", "ratio to ERM", "s in total", "ratio to ERM", "target"], rows)


PARTS = {"cost": cost}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command; see the top of the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few rows and epochs, to see that it runs")
    parser.add_argument("--out", type=Path, help="a Markdown file to write")
    options = parser.parse_args(arguments)
    report("Benchmark of the training schemes", PARTS, list(PARTS), QUICK if options.quick else FULL, options.out)


if __name__ == "__main__":
    main()
