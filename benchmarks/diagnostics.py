"""Benchmark of the diagnostics: the support deficit, the tail index, balance and the summary, each against its target.

python benchmarks/diagnostics.py [--part deterministic|null|partial|bound|rare|stretch|tails|balance|summary|all]
                                 [--quick] [--out FILE.md]

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
from causal_attn.weights import SupportDeficit, support_deficit

FACTORS = (0.5, 1.25)
DRAWS = 100
APART = 2.52
"""Distance of two normal classes at which halved logits move 1 − mean(w) by 0.27 and stretched ones by −0.85."""


@dataclass(frozen=True)
class Sizes:
    """Rows and replicates of every part."""

    leak_rows: int
    leak_seeds: int
    stretch_seeds: int
    rows: int
    replicates: int
    tail_rows: int
    tail_replicates: int
    balance_rows: tuple[int, ...]
    balance_replicates: int
    summary_rows: tuple[int, ...]


FULL = Sizes(5_000, 5, 20, 2_000, 200, 5_000, 50, (2_000, 20_000), 10, (100_000, 1_000_000))
QUICK = Sizes(200, 1, 2, 120, 3, 200, 3, (150,), 1, (2_000, 4_000))


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
    factors: tuple[tuple[str, float | tuple[float, float]], ...] = (
        ("1.0", 1.0), ("1.1", 1.1), ("1.2", 1.2), ("1.0 to 1.2, uniform", (1.0, 1.2)), ("1.5", 1.5),
    )  # fmt: skip
    for name, factor in factors:
        lows = [_near_bound(sizes.rows, factor, seed) for seed in range(sizes.replicates)]
        truth = 0.25 if factor == 1.0 else 0.0  # at 1.0 the noise puts half of them below the bound
        rows.append((name, truth, share([low > truth for low in lows]), max(lows)))
    head = ("P(1|m) / bound on half the masks", "D", "lower end above D", "largest lower end")
    note = f"n = {sizes.rows:,}, K = 2, exact P(y|m), P(1) = 1/2, τ = 10. The interval may err in 2.5% on this side."
    return note + "\n\n" + table(head, rows)


def rare(sizes: Sizes) -> str:
    """What the sound lower end costs: a quarter of Q is seen, but too seldom."""
    rows = []
    for n in (sizes.rows, 10 * sizes.rows):
        for factor in (0.0, 0.1, 0.3, 0.5, 0.7, 0.9):
            found = [_below_bound(n, factor, seed) for seed in range(sizes.replicates)]
            estimate, low, width = (
                statistics.mean(values) for values in zip(*((d.estimate, d.low, d.high - d.low) for d in found))
            )
            rows.append((f"{n:,}", factor, estimate, low, share([d.low <= 0.25 <= d.high for d in found]), width))
    head = ("n", "P(k|m) / bound", "mean estimate", "mean lower end", "interval holds 0.25", "mean width")
    note = (
        "K = 2, exact P(y|m): this many times the bound (or 2% less) on a quarter of the masks for each class, 0.3 to "
        "0.7 on the others. 0 is 1e-4."
    )
    return note + "\n\n" + table(head, rows)


def _near_bound(n: int, factor: float | tuple[float, float], seed: int) -> float:
    """Lower end where P(1|m) is `factor` times the bound, or uniform between two such, on half the masks."""
    rng = np.random.default_rng(seed)
    low = rng.random(n) < 0.5
    times = rng.uniform(*factor, n) if isinstance(factor, tuple) else factor
    p = np.where(low, 0.05 * times, 1 - 0.05 * times) + 1e-4 * rng.standard_normal(n)
    return _deficit_of(p, rng).low


def _below_bound(n: int, factor: float, seed: int) -> SupportDeficit:
    """The deficit where each class is `factor` times the bound on a quarter of the masks, and frequent on the rest."""
    rng = np.random.default_rng(seed)
    place, spread = rng.random(n), rng.random(n)  # wide enough that hardly any ranks tie
    p = max(0.05 * factor, 1e-4) * (1 - 0.02 * spread)
    return _deficit_of(np.where(place < 0.25, p, np.where(place < 0.5, 1 - p, 0.3 + 0.4 * spread)), rng)


def _deficit_of(p: np.ndarray, rng: np.random.Generator) -> SupportDeficit:
    """The deficit of two even classes from the exact P(1|m), classes drawn from it."""
    y = torch.from_numpy((rng.random(len(p)) < p).astype(np.int64))
    log_prob = torch.from_numpy(np.stack([1 - p, p], 1)).log()
    return support_deficit(log_prob, y, torch.tensor([0.5, 0.5], dtype=torch.float64))


def stretch(sizes: Sizes) -> str:
    """Wrong calibration: D stays where the order does, 1 − mean(w) does not."""
    means = torch.tensor([[APART / 2], [-APART / 2]], dtype=torch.float64)
    worlds: dict[str, World] = {
        "K = 2, weak leak": Logistic(n_classes=2, n_positions=8, strength=0.5),
        "K = 2, strong leak": Gaussian(means=means),
        "K = 2, a quarter unseen": DeterministicLeak(share=0.5),
        "K = 3, strong leak": Gaussian(n_classes=3, n_positions=6, strength=1.0),
        "K = 5, strong leak": Gaussian(n_classes=5, n_positions=6, strength=1.0),
    }
    rows = [row for name, world in worlds.items() for row in _stretch_rows(name, world, sizes)]
    head = (
        "world", "logits times", "mean D", "mean change", "largest", "below 0.02", "1 − mean(w), mean", "its change",
        "target for the change of D",
    )  # fmt: skip
    note = (
        f"Held-out log P(k|m), n = {sizes.leak_rows:,}, {sizes.stretch_seeds} samples; changes of D without sign. "
        "With K = 2 a factor keeps the rows in order, so D cannot move but for ties; with more classes it may not."
    )
    return note + "\n\n" + table(head, rows)


def _stretch_rows(name: str, world: World, sizes: Sizes) -> list[tuple[Any, ...]]:
    """A row for each factor."""
    found = np.array([_stretched(world, sizes.leak_rows, seed) for seed in range(sizes.stretch_seeds)])
    deficit, residual = found[..., 0], found[..., 1]
    moved, shift = np.abs(deficit - deficit[:, :1]), (residual - residual[:, :1]).mean(0)
    rows = []
    for i, factor in enumerate((1.0, *FACTORS)):
        below = f"{int((moved[:, i] < 0.02).sum())} of {len(moved)}"
        means = (float(deficit[:, i].mean()), float(moved[:, i].mean()), float(moved[:, i].max()))
        rows.append((name, factor, *means, below, float(residual[:, i].mean()), float(shift[i]), "< 0.02"))
    return rows


def _stretched(world: World, n: int, seed: int) -> list[tuple[float, float]]:
    """(D, 1 − mean(w)) of one sample's held-out log P(k|m), as it is and with its logits times each factor."""
    fitted = weights_of(world, n, seed)
    assert fitted.log_prob is not None
    made = [_tempered(fitted.log_prob, fitted.y, factor) for factor in (1.0, *FACTORS)]
    return [(w.support_deficit, w.calibration_residual) for w in made]


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
        times = (done["ours"], done["made"], done["arviz"], ratio)
        rows.append((f"{n:,}", *times, gigabytes(done["held"]), gigabytes(done["peak"]), "< 5 s"))
    head = (
        "n", "from_log(...).summary(), s", "summary() alone, s", "psislw and ESS, s", "ratio to the first",
        "held before", "peak", "target at 1,000,000",
    )  # fmt: skip
    note = f"{DRAWS} draws, K = 2, medians of 3 rounds in turn; the draws are held before."
    return note + "\n\n" + table(head, rows)


def worker(n: int) -> dict[str, float]:
    """Times of both sides in a fresh process."""
    rng = np.random.default_rng(0)
    logit = torch.from_numpy(rng.standard_normal(n))
    log_prob = torch.nn.functional.logsigmoid(torch.stack([-logit, logit], 1))
    y = torch.from_numpy((rng.random(n) < logit.sigmoid().numpy()).astype(np.int64))
    log_w = math.log(0.5) - log_prob.gather(-1, y[:, None])[:, 0]
    draws = log_w.float() + 0.1 * torch.from_numpy(rng.standard_normal((DRAWS, n), dtype=np.float32))
    forget_peak()
    held = float(peak_bytes())

    def ours() -> None:
        _ = Weights.from_log(log_w, y, draws=draws, log_prob=log_prob).summary()

    def made() -> None:
        _ = Weights(log_w, y, torch.tensor([0.5, 0.5]).double(), log_prob, given_draws=draws, n_draws=DRAWS).summary()

    def theirs() -> None:
        arviz.psislw(log_w.numpy())
        w = np.exp(log_w.numpy())
        _ = w.sum() ** 2 / (w**2).sum()

    seconds = alternate({"ours": ours, "made": made, "arviz": theirs}, 3)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return medians | {"held": held, "peak": float(peak_bytes())}


# ---------------------------------------------------------------------------------------------------- command

PARTS: dict[str, Callable[[Sizes], str]] = {
    "deterministic": deterministic, "null": null, "partial": partial, "bound": bound, "rare": rare,
    "stretch": stretch, "tails": tails, "balance": balance, "summary": summary,
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
