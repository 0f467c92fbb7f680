"""Benchmark of the diagnostics: the support deficit, the tail index, balance and the summary, each against its target.

python benchmarks/diagnostics.py [--part deterministic|null|partial|stretch|tails|balance|bound|summary|all] [--quick]
                                 [--out FILE.md]

Each part prints a Markdown section. Worlds are simulated, so that the right answer is known.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import arviz
import numpy as np
import torch
from measuring import alternate, forget_peak, gigabytes, peak_bytes, report, table
from scipy.stats import binomtest
from torch import Tensor

from causal_attn import SelectionModel, Weights, balance_table
from causal_attn.data.worlds import DeterministicLeak, DirichletByClass, Gaussian, Logistic, Null, World
from causal_attn.errors import SupportWarning
from causal_attn.weights import support_deficit

FACTORS = (0.5, 1.25)
DRAWS = 100


@dataclass(frozen=True)
class Sizes:
    """Rows and replicates of every part."""

    leak_rows: int
    leak_seeds: int
    rows: int
    replicates: int
    tail_rows: int
    tail_replicates: int
    balance_rows: tuple[int, ...]
    balance_replicates: int
    summary_rows: tuple[int, ...]


FULL = Sizes(5_000, 5, 2_000, 200, 5_000, 50, (2_000, 20_000), 10, (100_000, 1_000_000))
QUICK = Sizes(200, 1, 120, 3, 200, 3, (150,), 1, (2_000, 4_000))


def weights_of(world: World, n: int, seed: int) -> Weights:
    """Cross-fitted weights of n rows, as a user gets them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SupportWarning)
        return SelectionModel().fit(world.sample(n, seed=seed), seed=seed, progress=False, n_draws=20).weights()


def exact_weights(world: World, n: int, seed: int) -> Weights:
    """The world's own weights of n rows."""
    sample = world.sample(n, seed=seed)
    return Weights.from_log(world.log_w(sample), sample.y, log_prob=world.log_prob(sample.masks), prior=world.prior)


def share(hits: Sequence[bool]) -> str:
    """k of n, and the 95% Clopper–Pearson interval of what is behind it."""
    interval = binomtest(sum(hits), len(hits)).proportion_ci(0.95)
    return f"{sum(hits)} of {len(hits)} [{interval.low:.1%}, {interval.high:.1%}]"


# ---------------------------------------------------------------------------------------------------- the deficit


def deterministic(sizes: Sizes) -> str:
    """The mask gives the class away: D is 1 − 1/K."""
    rows = []
    for k in (2, 3, 5, 10):
        world = DeterministicLeak(n_classes=k, n_positions=max(6, k))
        found = [weights_of(world, sizes.leak_rows, seed).support_deficit for seed in range(sizes.leak_seeds)]
        worst = max(abs(d - (1 - 1 / k)) for d in found)
        rows.append((k, 1 - 1 / k, statistics.mean(found), worst, "≤ 0.05"))
    head = ("K", "1 − 1/K", "mean estimate", "largest error", "target")
    return f"n = {sizes.leak_rows:,}, {sizes.leak_seeds} seeds.\n\n" + table(head, rows)


def null(sizes: Sizes) -> str:
    """The mask says nothing: the interval's lower end must stay near 0."""
    world = Null(n_positions=32)
    found = [weights_of(world, sizes.rows, seed).support_deficit_interval for seed in range(sizes.replicates)]
    upper = statistics.mean(high for _, high in found)
    rows = [(share([low > 0.01 for low, _ in found]), upper, "≤ 3%")]
    head = ("lower end above 0.01", "mean upper end", "target")
    return f"n = {sizes.rows:,}, T = 32, K = 2.\n\n" + table(head, rows)


def partial(sizes: Sizes) -> str:
    """Half the rows leak: a quarter of Q is never seen."""
    world = DeterministicLeak(share=0.5)
    found = [weights_of(world, sizes.rows, seed) for seed in range(sizes.replicates)]
    truth, ends = world.support_deficit(), [w.support_deficit_interval for w in found]
    rows = [
        (
            truth,
            statistics.mean(w.support_deficit for w in found),
            share([low <= truth <= high for low, high in ends]),
            statistics.mean(high - low for low, high in ends),
            "≥ 95%, < 0.25",
        )
    ]  # fmt: skip
    head = ("D", "mean estimate", "interval holds it", "mean width", "target")
    return f"n = {sizes.rows:,}, T = 6, K = 2.\n\n" + table(head, rows)


def bound(sizes: Sizes) -> str:
    """Hard on the interval: P(1|m) is 1.0 to 1.2 times the bound P(1)/τ on half the masks, so D is 0 there."""
    rows = []
    for factor in (1.0, 1.1, 1.2, 1.5):
        lows = [_near_bound(sizes.rows, factor, seed) for seed in range(sizes.replicates)]
        rows.append((factor, 0.0 if factor > 1 else 0.25, share([low > (0 if factor > 1 else 0.25) for low in lows])))
    head = ("P(1|m) / bound on half the masks", "D", "lower end above D")
    note = f"n = {sizes.rows:,}, K = 2, exact P(y|m), P(1) = 1/2, τ = 10. The interval may err in 2.5% on this side."
    return note + "\n\n" + table(head, rows)


def _near_bound(n: int, factor: float, seed: int) -> float:
    rng = np.random.default_rng(seed)
    low = rng.random(n) < 0.5
    p = np.where(low, 0.05 * factor, 1 - 0.05 * factor) + 1e-4 * rng.standard_normal(n)
    y = torch.from_numpy((rng.random(n) < p).astype(np.int64))
    log_prob = torch.from_numpy(np.stack([1 - p, p], 1)).log()
    return support_deficit(log_prob, y, torch.tensor([0.5, 0.5], dtype=torch.float64)).low


def stretch(sizes: Sizes) -> str:
    """Wrong calibration, right order: D stays, 1 − mean(w) does not."""
    worlds = {
        "full support": Logistic(n_classes=2, n_positions=8, strength=3.0),
        "a quarter unseen": DeterministicLeak(share=0.5),
    }
    rows = []
    for name, world in worlds.items():
        fitted = weights_of(world, sizes.leak_rows, 0)
        assert fitted.log_prob is not None
        for factor in (1.0, *FACTORS):
            made = _tempered(fitted.log_prob, fitted.y, factor)
            change = made.support_deficit - fitted.support_deficit
            rows.append((name, factor, made.support_deficit, change, made.calibration_residual, "< 0.02"))
    head = ("world", "logits times", "D", "change of D", "1 − mean(w)", "target for the change")
    return f"n = {sizes.leak_rows:,}, K = 2.\n\n" + table(head, rows)


def _tempered(log_prob: Tensor, y: Tensor, factor: float) -> Weights:
    """Weights from log P(k|m) whose logits are multiplied by `factor`."""
    tempered = (factor * log_prob).log_softmax(-1)
    prior = torch.bincount(y).double() / len(y)
    log_w = prior.log()[y] - tempered.gather(-1, y[:, None])[:, 0]
    return Weights.from_log(log_w, y, log_prob=tempered)


# ---------------------------------------------------------------------------------------------------- tails, balance


def tails(sizes: Sizes) -> str:
    """Exact weights with a heavy tail: k̂ must see it."""
    alpha = (0.6, 2.0) * 3
    world = DirichletByClass(alpha=(alpha, alpha[::-1]))  # type: ignore[arg-type]
    khats = [exact_weights(world, sizes.tail_rows, seed).khat for seed in range(sizes.tail_replicates)]
    rows = [(share([k > 0.7 for k in khats]), min(khats), statistics.median(khats), "≥ 95%")]
    head = ("k̂ above 0.7", "smallest", "median", "target")
    return f"n = {sizes.tail_rows:,}, T = 6, α alternating 0.6 and 2, reversed between classes.\n\n" + table(head, rows)


def balance(sizes: Sizes) -> str:
    """Balance under exact and under estimated weights, against a sample whose classes were dealt out at random."""
    rows = []
    for name, world in {"Gaussian": Gaussian(n_positions=6), "Logistic": Logistic(n_positions=6)}.items():
        for n in sizes.balance_rows:
            for kind, make in (("exact", exact_weights), ("estimated", weights_of)):
                rows += _balance_rows(world, n, kind, make, sizes, name)
    head = ("world", "n", "weights", "measure", "before", "after", "permuted", "after / permuted", "target")
    return f"Means over {sizes.balance_replicates} samples.\n\n" + table(head, rows)


def _balance_rows(
    world: World, n: int, kind: str, make: Callable[[World, int, int], Weights], sizes: Sizes, name: str
) -> list[tuple[Any, ...]]:  # fmt: skip
    tables = []
    for seed in range(sizes.balance_replicates):
        found = balance_table(world.sample(n, seed=seed), make(world, n, seed), seed=seed)
        tables.append(found[found["class"] == "pooled"].groupby("measure")[["before", "after", "permuted"]].mean())
    mean = sum(tables[1:], tables[0]) / len(tables)
    out = []
    for measure in ("smd", "energy_distance", "distance_covariance"):
        before, after, permuted = (float(v) for v in mean.loc[measure])
        out.append((name, f"{n:,}", kind, measure, before, after, permuted, after / permuted, "≤ 2"))
    return out


# ---------------------------------------------------------------------------------------------------- the summary


def summary(sizes: Sizes) -> str:
    """`Weights.summary()` from given draws, beside ArviZ's PSIS and NumPy's effective sample size."""
    rows = []
    for n in sizes.summary_rows:
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", str(n)]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        done = json.loads(printed.splitlines()[-1])
        ratio = done["ours"] / done["arviz"]
        rows.append((f"{n:,}", done["ours"], done["arviz"], ratio, gigabytes(done["peak"]), "< 5 s"))
    head = ("n", "summary, s", "psislw and ESS, s", "ratio", "peak", "target at 1,000,000")
    return f"{DRAWS} draws, K = 2, medians of 3 rounds in turn; the peak holds the draws.\n\n" + table(head, rows)


def worker(n: int) -> dict[str, float]:
    """Times of both sides in a fresh process."""
    rng = np.random.default_rng(0)
    logit = torch.from_numpy(rng.standard_normal(n))
    log_prob = torch.nn.functional.logsigmoid(torch.stack([-logit, logit], 1))
    y = torch.from_numpy((rng.random(n) < logit.sigmoid().numpy()).astype(np.int64))
    log_w = math.log(0.5) - log_prob.gather(-1, y[:, None])[:, 0]
    draws = log_w.float() + 0.1 * torch.from_numpy(rng.standard_normal((DRAWS, n), dtype=np.float32))
    forget_peak()

    def ours() -> None:
        _ = Weights(log_w, y, torch.tensor([0.5, 0.5]).double(), log_prob, given_draws=draws, n_draws=DRAWS).summary()

    def theirs() -> None:
        arviz.psislw(log_w.numpy())
        w = np.exp(log_w.numpy())
        _ = w.sum() ** 2 / (w**2).sum()

    seconds = alternate({"ours": ours, "arviz": theirs}, 3)
    return {name: statistics.median(values) for name, values in seconds.items()} | {"peak": float(peak_bytes())}


# ---------------------------------------------------------------------------------------------------- command

PARTS: dict[str, Callable[[Sizes], str]] = {
    "deterministic": deterministic, "null": null, "partial": partial, "bound": bound, "stretch": stretch,
    "tails": tails, "balance": balance, "summary": summary,
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """The command; see the top of the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", choices=[*PARTS, "all"], default="all", help="which part to run")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that the script runs, no more")
    parser.add_argument("--out", type=Path, help="write the Markdown there as well")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker is not None:
        print(json.dumps(worker(options.worker)))
        return
    names = list(PARTS) if options.part == "all" else [options.part]
    report("Benchmark of the diagnostics", PARTS, names, QUICK if options.quick else FULL, options.out)


if __name__ == "__main__":
    main()
