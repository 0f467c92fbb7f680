"""Benchmark of the shortcut tests: how often the verdict is right, reliance where it is known, and what metrics cost.

python benchmarks/shortcut.py [--part verdict|reliance|encoding|metrics|all] [--jobs N] [--raw FILE]
                               [--quick] [--out FILE.md]

Each part prints a Markdown section. In planted worlds whether there is a shortcut is known by construction.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import report, table
from scipy.stats import binomtest

import causal_attn as ca
from causal_attn.attention import PixelAttention, TextAttention, fresh_copy, given_masks
from causal_attn.data.splits import Data
from causal_attn.data.worlds import PlantedPixels, PlantedText
from causal_attn.training import ERM, RandomAttentionPretraining, RandomMasksOnly, SkewedGenerator

PIXELS = {"learning_rate": 1e-2, "weight_decay": 0.01}
"""A small network on pixels wants faster steps and less decay than words do."""
TEXT_MODEL = {"embedding": 16, "hidden": 16}
P_LEVEL = 0.05


@dataclass(frozen=True)
class Sizes:
    """Rows, replicates and epochs of every part."""

    replicates: int
    rows: int
    epochs: int
    permutations: int
    reliance_seeds: int
    metric_texts: tuple[int, ...]
    jobs: int = 1
    raw: Path | None = None


FULL = Sizes(200, 2_000, 6, 99, 5, (500, 1_000, 2_000))
QUICK = Sizes(2, 200, 1, 19, 1, (20, 40))


# -------------------------------------------------------------------------------------------------- models


def text_model(data: Data, seed: int, downstream: str = "pooled", **options: Any) -> TextAttention:
    """A small text classifier, drawn from the seed."""
    return TextAttention.for_data(data, downstream, seed=seed, **(TEXT_MODEL | options))  # type: ignore[arg-type]


def pixel_model(world: PlantedPixels, seed: int, downstream: str = "flat") -> PixelAttention:
    """A small image classifier, drawn from the seed."""
    return PixelAttention(world.side, world.n_classes, world.n_classes, downstream, hidden=32, seed=seed)  # type: ignore[arg-type]


def figures(test: ca.ShortcutTest) -> dict[str, Any]:
    """What a table needs of a test."""
    return {
        "verdict": test.verdict.split(":")[0], "p": test.p_value, "excess": test.excess_reliance,
        "excess_low": test.intervals["excess_reliance"][0], "reliance": test.reliance,
        "accuracy": test.own_accuracy, "auc": test.leakage_auc,
    }  # fmt: skip


def replicate(sizes: Sizes, seed: int) -> dict[str, dict[str, Any]]:
    """Every model of one replicate, trained and tested."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    out = {}
    text = PlantedText()
    data = text.sample(sizes.rows, seed)
    options: dict[str, Any] = {"epochs": sizes.epochs, "progress": False}
    evaluator = ca.train_evaluator(text_model(data, seed), data, seed, **options)
    oracle, shortcut = (given_masks(text_model(data, seed), m) for m in (text.oracle_masks, text.shortcut_masks))
    trained = {
        "faithful: planted text": ca.train(oracle, data, RandomMasksOnly(), seed=seed, **options),
        "faithful: random pretraining": ca.train(
            text_model(data, seed), data, RandomAttentionPretraining(), seed=seed, **options
        ),
        "shortcut: planted text": ca.train(shortcut, data, ERM(), seed=seed, **options),
        "shortcut: skewed generator": ca.train(
            text_model(data, seed), data, SkewedGenerator(0.98), seed=seed, **options
        ),
    }
    for name, result in trained.items():
        out[name] = figures(tested(result, evaluator, sizes, seed))
    options["epochs"] *= 2
    for downstream in ("flat", "pooled"):
        pixels = PlantedPixels(place="class")
        images = pixels.sample(sizes.rows, seed)
        judge = ca.train_evaluator(pixel_model(pixels, seed, downstream), images, seed, **options, **PIXELS)
        model = given_masks(pixel_model(pixels, seed, downstream), pixels.oracle_masks)
        result = ca.train(model, images, RandomMasksOnly(), seed=seed, **options, **PIXELS)
        out[f"faithful: pixels by class, {downstream}"] = figures(tested(result, judge, sizes, seed))
    return out


def tested(result: Any, evaluator: Any, sizes: Sizes, seed: int) -> ca.ShortcutTest:
    """The shortcut test on the test split."""
    return ca.shortcut_test(
        result, "test", evaluator=evaluator, n_permutations=sizes.permutations, seed=seed, progress=False
    )


def replicates(sizes: Sizes) -> list[dict[str, dict[str, Any]]]:
    """All replicates, in processes of their own where more than one is asked for."""
    seeds = range(sizes.replicates)
    if sizes.jobs == 1:
        return [replicate(sizes, seed) for seed in seeds]
    with ProcessPoolExecutor(sizes.jobs, mp_context=get_context("spawn")) as pool:
        return list(pool.map(partial(replicate, sizes), seeds))


# -------------------------------------------------------------------------------------------------- parts


def share(hits: int, n: int) -> str:
    """A share with its 95% Clopper–Pearson interval."""
    low, high = binomtest(hits, n).proportion_ci()
    return f"{hits} of {n}: {hits / n:.1%} [{low:.1%}, {high:.1%}]"


def verdict(sizes: Sizes) -> str:
    """How often the verdict is right on models whose answer is known, and how often leakage is found where none is."""
    found = replicates(sizes)
    if sizes.raw is not None:
        sizes.raw.write_text(json.dumps(found), encoding="utf-8")
    rows = []
    for name in found[0]:
        each = [one[name] for one in found]
        said = [one["verdict"] for one in each]
        excess = [one["excess"] for one in each]
        target = "≤ 5% shortcut" if name.startswith("faithful") else "≥ 95% shortcut"
        rows.append(
            (name, share(said.count("shortcut"), len(said)), said.count("no shortcut"), said.count("undecided"),
             f"{statistics.mean(excess):.3f}, to {max(excess) if name.startswith('faithful') else min(excess):.3f}",
             f"{statistics.mean(one['reliance'] for one in each):.3f}",
             f"{statistics.mean(one['accuracy'] for one in each):.3f}", target)
        )  # fmt: skip
    null = [one["faithful: planted text"]["p"] for one in found]
    header = ("model", "verdict: shortcut", "no shortcut", "undecided", "excess reliance, mean and worst", "reliance",
              "accuracy", "target")  # fmt: skip
    note = (
        f"{sizes.replicates} replicates, each with new data ({sizes.rows:,} rows, 30% to test on), models and "
        f"evaluator; {sizes.epochs} epochs (images {2 * sizes.epochs}), {sizes.permutations} permutations. Planted "
        f"oracle masks of text lie at random places: there the leakage p-value is at most {P_LEVEL:g} in "
        f"{share(sum(p <= P_LEVEL for p in null), len(null))} (target 2 to 8%)."
    )
    return note + "\n\n" + table(header, rows)


def reliance(sizes: Sizes) -> str:
    """Joint training and random attention pretraining on planted text, with and without a start that is skewed."""
    rows = []
    for downstream in ("pooled", "recurrent"):
        for name, scheme, options in (
            ("ERM", ERM(), {}),
            ("ERM, word dropout 0.5", ERM(), {"word_dropout": 0.5}),
            ("ERM from a skewed generator", SkewedGenerator(0.98), {}),
            ("random attention pretraining", RandomAttentionPretraining(), {}),
        ):
            tests = []
            for seed in range(sizes.reliance_seeds):
                data = PlantedText().sample(sizes.rows, seed)
                fast: dict[str, Any] = {"epochs": sizes.epochs, "progress": False}
                evaluator = ca.train_evaluator(text_model(data, seed, downstream), data, seed, **fast)
                model = text_model(data, seed, downstream, **options)
                result = ca.train(model, data, scheme, seed=seed, **fast)
                tests.append(figures(tested(result, evaluator, sizes, seed)))
            means = [statistics.mean(t[f] for t in tests) for f in ("accuracy", "auc", "reliance", "excess")]
            worst = max if "random" in name else min
            target = {"ERM": "≥ 0.5", "random attention pretraining": "≤ 0.05"}.get(name, "")
            rows.append((downstream, name, *means, worst(t["excess"] for t in tests), target))
    header = ("downstream", "scheme", "accuracy", "leakage AUC", "reliance", "excess", "worst excess", "target, pooled")
    return f"{sizes.reliance_seeds} seeds, {sizes.rows:,} texts.\n\n" + table(header, rows)


def encoding(sizes: Sizes) -> str:
    """Encoding scores of honest selectors and of three that encode, on planted text."""
    rows = []
    world = PlantedText()
    data = world.sample(sizes.rows, 0)
    fast: dict[str, Any] = {"epochs": 2 * sizes.epochs, "progress": False}
    evaluator = ca.train_evaluator(text_model(data, 0), data, 0, **fast)
    selectors = {
        "honest, the rationale": (world.oracle_masks, 3), "one word of it (ideally 0.29)": (world.oracle_masks, 1),
        "position": (world.shortcut_masks, 1), "prediction": (world.prediction_masks, 1),
        "marginal": (world.marginal_masks, 1),
    }  # fmt: skip
    for name, (masks, k) in selectors.items():
        score = ca.encoding_score(
            given_masks(text_model(data, 0), masks), data=data, evaluator=evaluator, k=k, seed=0, **fast
        )
        low, high = score.intervals["encoding"]
        rows.append((name, k, score.score, f"{score.encoding:.3f} [{low:.3f}, {high:.3f}]", score.evaluator_log_prob))
    header = ("selector", "k", "score, nats (higher is better)", "encoding, nats", "evaluator's log-probability")
    return table(header, rows)


def metrics(sizes: Sizes) -> str:
    """Seconds for every metric, of attention and its four rivals, against the number of texts."""
    rows = []
    for n in sizes.metric_texts:
        world = PlantedText(n_positions=40)
        data = world.sample(math.ceil(n / 0.3), 0)
        model = TextAttention.for_data(data, "recurrent")
        suites = {}
        for name, scores in (("attention alone", {}), ("with four rivals", None)):
            start = time.perf_counter()
            suites[name] = ca.faithfulness_suite(
                model, data=data, evaluator=fresh_copy(model, 1), scores=scores, progress=False
            )
            seconds = time.perf_counter() - start
            count = suites[name].n
            rows.append((count, name, len(suites[name].values), seconds, 1000 * seconds / count))
    header = ("texts of 40 tokens", "scores", "figures", "seconds", "ms a text")
    return "Recurrent part, model as drawn. Target: 1,000 texts in under 60 s.\n\n" + table(header, rows)


PARTS = {"verdict": verdict, "reliance": reliance, "encoding": encoding, "metrics": metrics}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command; see the top of the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--part", choices=[*PARTS, "all"], default="all", help="which part to run")
    parser.add_argument("--jobs", type=int, default=1, help="processes for the replicates of the verdict")
    parser.add_argument("--raw", type=Path, help="a JSON file for every replicate's figures")
    parser.add_argument("--quick", action="store_true", help="a few rows and replicates, to see that it runs")
    parser.add_argument("--out", type=Path, help="a Markdown file to write")
    options = parser.parse_args(arguments)
    names = list(PARTS) if options.part == "all" else [options.part]
    sizes = Sizes(**{**vars(QUICK if options.quick else FULL), "jobs": options.jobs, "raw": options.raw})
    np.seterr(all="ignore")
    report("Benchmark of the shortcut tests", PARTS, names, sizes, options.out)


if __name__ == "__main__":
    main()
