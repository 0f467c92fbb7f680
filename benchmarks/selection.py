"""Benchmark of the selection model: time, memory, accuracy and calibration, each against its target.

python benchmarks/selection.py [--part NAME] [--quick] [--out FILE.md]

NAME: speed, million, accuracy, coverage, rare, features, warm, sbc or all.

Each part prints a Markdown section. Timed sides run in one process, in turn, the order reversed every other round; the
tables show medians and ratios of medians. Peak memory is that of a fresh process per side, its imports and data held.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import Side, alternate, forget_peak, gigabytes, peak_bytes, table
from measuring import report as run_parts
from scipy.stats import chisquare
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict
from torch import Tensor

import causal_attn
from causal_attn.data.worlds import Concentration, Ends, Logistic, World
from causal_attn.masks import FeatureFunction, FeatureMap, MaskSample, centred_log_ratio
from causal_attn.selection import SelectionFit, SelectionModel
from causal_attn.selection.fit import N_DRAWS
from causal_attn.selection.fits import OutcomeFit
from causal_attn.selection.response import linear_log_prob
from causal_attn.weights import Weights

LEVEL = 0.9
"""Of the equal-tailed intervals whose coverage is measured."""
BLOCK = 50_000
"""Rows drawn at once, so that making the data does not set the peak memory."""
SBC_DRAWS, SBC_BINS = 99, 20
"""99 independent draws give 100 ranks, five to a bin; the fit's draws are independent, so none are thinned away."""
SBC_FEATURES, SBC_SCALE, SBC_INTERCEPT = 4, 0.5, 0.5

OURS, OURS_DRAWS, OURS_MASKS = "ours", "ours, all draws kept", "ours, from masks"
SKLEARN = "scikit-learn cross_val_predict"


@dataclass(frozen=True)
class Sizes:
    """Rows, positions and replicates of every part."""

    speed_rows: int
    speed_positions: int
    repeats: int
    peaks: tuple[str, ...]
    million_rows: tuple[int, int]
    accuracy_rows: int
    accuracy_positions: int
    forest_trees: int
    folds: int
    network_draws: int
    coverage_rows: tuple[int, ...]
    coverage_replicates: int
    network_replicates: int
    probes: int
    features_rows: int
    warm_rows: int
    sbc_rows: int
    sbc_replicates: int
    rare_rows: int
    rare_replicates: int


FULL = Sizes(
    speed_rows=100_000, speed_positions=64, repeats=5, peaks=(OURS, OURS_DRAWS, OURS_MASKS, SKLEARN),
    million_rows=(100_000, 1_000_000), accuracy_rows=20_000, accuracy_positions=32, forest_trees=100, folds=5,
    network_draws=200, coverage_rows=(2_000, 20_000), coverage_replicates=20, network_replicates=5, probes=200,
    features_rows=10_000, warm_rows=20_000, sbc_rows=200, sbc_replicates=200, rare_rows=5_000,
    rare_replicates=20,
)  # fmt: skip
QUICK = Sizes(
    speed_rows=500, speed_positions=6, repeats=2, peaks=(OURS,), million_rows=(1_000, 4_000), accuracy_rows=300,
    accuracy_positions=4, forest_trees=5, folds=2, network_draws=1, coverage_rows=(300,), coverage_replicates=2,
    network_replicates=1, probes=20, features_rows=400, warm_rows=400, sbc_rows=100, sbc_replicates=10,
    rare_rows=600, rare_replicates=2,
)  # fmt: skip
"""One draw makes the network a single member, of zero width: enough to see that the part runs."""


# ---------------------------------------------------------------------------------------------------- worlds


def logistic_world(n_positions: int, interaction: bool = False) -> Logistic:
    """Two classes whose linear logit has standard deviation 1, and the interaction's, if any, 1 as well.

    The logit of class 1 is b·φ + c (φ_1 φ_2 + 1/(T−1)) with φ the standardised log-ratios of logistic-normal masks:
    covariance T/(T−1) (I − 11'/T). b is a normal vector, centred and scaled; c = 1/sqrt(1 + 1/(T−1)²). The two parts
    are uncorrelated, since φ is symmetric about 0.
    """
    b = np.random.default_rng(0).standard_normal(n_positions)
    b -= b.mean()
    b /= math.sqrt(n_positions / (n_positions - 1)) * np.linalg.norm(b)
    c = 1 / math.sqrt(1 + 1 / (n_positions - 1) ** 2)
    row = torch.from_numpy(np.append(b, c) if interaction else b)
    coefficients = torch.stack([torch.zeros_like(row), row])
    return Logistic(
        n_classes=2, n_positions=n_positions, law="logistic-normal", interaction=interaction, coefficients=coefficients
    )  # fmt: skip


def log_ratios(masks: Tensor, valid: Tensor) -> Tensor:
    """The centred log-ratios alone, indexed from the start: T features, without the interaction."""
    return centred_log_ratio(masks, valid)


def given(phi: Tensor) -> FeatureFunction:
    """Features that were computed before."""
    return lambda masks, valid: phi


def large_sample(n: int, n_positions: int) -> MaskSample:
    """n rows of the linear world, masks in float32, drawn block by block."""
    world = logistic_world(n_positions)
    parts = [world.sample(min(BLOCK, n - start), seed=start) for start in range(0, n, BLOCK)]
    masks = torch.cat([part.masks.float() for part in parts])
    return MaskSample(masks, torch.cat([part.y for part in parts]), kind="simplex", n_classes=2)


# ---------------------------------------------------------------------------------------------------- measuring


def in_subprocess(side: str, n: int, n_positions: int, folds: int) -> dict[str, float]:
    """Seconds and peak bytes of one side in a fresh process."""
    job = json.dumps({"side": side, "n": n, "n_positions": n_positions, "folds": folds})
    paths = [str(Path(causal_attn.__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, str(Path(__file__).resolve()), "--worker", job]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def worker(job: dict[str, Any]) -> dict[str, float]:
    """What `in_subprocess` runs: one side, once."""
    sample = large_sample(job["n"], job["n_positions"])
    sides = speed_sides(sample, job["folds"], only=job["side"])
    forget_peak()
    start = time.perf_counter()
    sides[job["side"]]()
    return {"seconds": time.perf_counter() - start, "peak": peak_bytes()}


def fitted(model: SelectionModel, sample: MaskSample, **options: Any) -> SelectionFit:
    """A fit without a progress bar."""
    return model.fit(sample, progress=False, **options)


# ---------------------------------------------------------------------------------------------------- speed, million


def read(weights: Weights) -> Weights:
    """What a user looks at first: mean, effective sample size, support deficit."""
    _ = weights.mean, weights.ess, weights.deficit
    return weights


def speed_sides(sample: MaskSample, folds: int, only: str | None = None) -> dict[str, Side]:
    """The sides of the race; with `only` from masks no features are made beforehand."""
    auto = SelectionModel()
    from_masks: dict[str, Side] = {OURS_MASKS: lambda: read(fitted(auto, sample, folds=folds).weights())}
    if only == OURS_MASKS:
        return from_masks
    phi = FeatureMap.fit(sample)(sample.masks, sample.valid)
    ours = SelectionModel(features=given(phi))
    return {
        OURS: lambda: read(fitted(ours, sample, folds=folds).weights()),
        OURS_DRAWS: lambda: read(fitted(ours, sample, folds=folds).weights()).draws,
        **from_masks,
        SKLEARN: lambda: cross_val_predict(
            LogisticRegression(), phi.numpy(), sample.y.numpy(), cv=folds, method="predict_proba"
        ),
    }


def speed(sizes: Sizes) -> str:
    """Five-fold weights with 200 posterior draws against scikit-learn's five-fold plug-in on the same features."""
    n, t = sizes.speed_rows, sizes.speed_positions
    seconds = alternate(speed_sides(large_sample(n, t), sizes.folds), sizes.repeats)
    base = statistics.median(seconds[SKLEARN])
    rows = []
    for name, values in seconds.items():
        median = statistics.median(values)
        peak = gigabytes(in_subprocess(name, n, t, sizes.folds)["peak"]) if name in sizes.peaks else "not measured"
        target = "" if name == SKLEARN else "≤ 3 (aim 1), < 2 GB"
        rows.append((name, median, f"{min(values):.3f} to {max(values):.3f}", median / base, peak, target))
    note = f"n = {n:,}, T = {t}, K = 2, {sizes.folds} folds, 200 draws, {sizes.repeats} rounds. " + (
        "All but 'from masks' start from the same φ. Ours is one fit on all rows and one per fold, with posteriors, "
        "and mean, ess and deficit read; scikit-learn's is one fit per fold and its probabilities."
    )
    return note + "\n\n" + table(("side", "median s", "range s", "ratio", "peak", "target"), rows)


def million(sizes: Sizes) -> str:
    """Ten times the rows, from float32 masks: how time and memory grow."""
    small, large = sizes.million_rows
    runs = [in_subprocess(OURS_MASKS, n, sizes.speed_positions, sizes.folds) for n in (small, large, small)]
    base = (runs[0]["seconds"] + runs[2]["seconds"]) / 2
    rows = [
        (f"{small:,}", base, 1.0, gigabytes(max(runs[0]["peak"], runs[2]["peak"])), ""),
        (f"{large:,}", runs[1]["seconds"], runs[1]["seconds"] / base, gigabytes(runs[1]["peak"]),
         f"about {large / small:.0f} times, < 4 GB"),
    ]  # fmt: skip
    note = (
        f"From masks to weights, T = {sizes.speed_positions}, K = 2, each run in a fresh process: the smaller "
        "before and after the larger, averaged."
    )
    return note + "\n\n" + table(("n", "s", "ratio", "peak", "target"), rows)


# ---------------------------------------------------------------------------------------------------- accuracy


def draws_of(model: SelectionModel, sizes: Sizes) -> int:
    """200, unless it is a network at quick size: each of its members, one per draw at least, takes long to fit."""
    return sizes.network_draws if model.response == "mlp" else N_DRAWS


def log_w_error(model: SelectionModel, sample: MaskSample, world: World, sizes: Sizes) -> tuple[float, float]:
    """RMSE and mean error of the cross-fitted log w against the exact one, nats."""
    fit = fitted(model, sample, folds=sizes.folds, n_draws=draws_of(model, sizes))
    error = fit.weights().log_w - world.log_w(sample)
    return float(error.square().mean().sqrt()), float(error.mean())


def accuracy_models(sizes: Sizes, interaction: bool) -> dict[str, tuple[SelectionModel, str]]:
    """The estimators of one world, and their targets; all read the same log-ratios."""
    logistic = SelectionModel(estimator=LogisticRegression(), features=log_ratios)
    linear = SelectionModel(features=log_ratios)
    if interaction:
        boosting = HistGradientBoostingClassifier(random_state=0)
        return {
            "ours, network": (SelectionModel(response="mlp", features=log_ratios), "≤ 0.25 (aim 0.15)"),
            "HistGradientBoostingClassifier": (SelectionModel(estimator=boosting, features=log_ratios), ""),
            "LogisticRegression": (logistic, ""),
            "ours, linear": (linear, ""),
        }
    forest = RandomForestClassifier(sizes.forest_trees, min_samples_leaf=5, random_state=0)
    permuted = {
        f"ours, permutation, copies = {k}": (
            SelectionModel(estimator="permutation", copies=k, features=log_ratios),
            "≤ 0.055",
        )
        for k in (1, 3)
    }
    floored = SelectionModel(estimator=forest, features=log_ratios, probability_floor=1e-3)
    return {
        "ours, linear": (linear, "≤ 0.055"),
        "LogisticRegression": (logistic, ""),
        f"RandomForestClassifier({sizes.forest_trees}, min_samples_leaf=5), floor 0.001": (floored, ""),
        **permuted,
    }


def accuracy(sizes: Sizes) -> str:
    """RMSE of the cross-fitted log w against the exact weight."""
    n, t = sizes.accuracy_rows, sizes.accuracy_positions
    sections = [
        f"n = {n:,}, {t} log-ratios of logistic-normal masks, K = 2, {sizes.folds} folds. Logit of class 1: b·φ of "
        "standard deviation 1 (b normal, seed 0, centred and scaled), and with interaction "
        f"{1 / math.sqrt(1 + 1 / (t - 1) ** 2):.4f}·(φ₁φ₂ + 1/{t - 1}), also of standard deviation 1. Errors in nats."
    ]
    for interaction in (False, True):
        world = logistic_world(t, interaction)
        sample = world.sample(n, seed=1)
        models = accuracy_models(sizes, interaction)
        rows = [(name, *log_w_error(model, sample, world, sizes), target) for name, (model, target) in models.items()]
        header = ("with interaction" if interaction else "linear", "RMSE of log w", "mean error", "target")
        sections.append(table(header, rows))
    return "\n\n".join(sections)


# ---------------------------------------------------------------------------------------------------- coverage


def covered(model: SelectionModel, world: Logistic, n: int, sizes: Sizes, seed: int) -> tuple[float, float, float]:
    """Share of probes whose interval of log w holds the truth, by two truths, and the intervals' mean width.

    The first truth has the world's P(y), the second the sample's. The estimate has the sample's in both.
    """
    new = world.sample(sizes.probes, seed=10_000 + seed)
    sample, draws = world.sample(n, seed=seed), draws_of(model, sizes)
    fit = fitted(model, sample, folds=2, seed=seed, n_draws=draws)  # folds do not matter: the final fit is read
    y = new.y
    log_p = fit.log_prob(new.masks)
    own = log_p.gather(-1, y.expand(len(log_p), -1)[..., None])[..., 0]
    log_prior = fit.log_prior[y]
    tail = (1 - LEVEL) / 2
    low, high = torch.quantile((log_prior - own).double(), torch.tensor([tail, 1 - tail], dtype=torch.float64), dim=0)
    truth = world.log_w(new)
    with_sample = truth - world.prior.log()[y] + log_prior
    inside = [float(((low <= w) & (w <= high)).double().mean()) for w in (truth, with_sample)]
    return inside[0], inside[1], float((high - low).mean())


def coverage(sizes: Sizes) -> str:
    """Coverage of 90% intervals of log w at new masks."""
    t = sizes.accuracy_positions
    worlds = {"linear": logistic_world(t), "with interaction": logistic_world(t, interaction=True)}
    linear, network = SelectionModel(features=log_ratios), SelectionModel(response="mlp", features=log_ratios)
    plan = [("ours, linear", linear, "linear", sizes.coverage_replicates, "86% to 94%")]
    plan += [("ours, network", network, kind, sizes.network_replicates, "") for kind in worlds]
    rows = []
    for name, model, kind, replicates, target in plan:
        for n in sizes.coverage_rows:
            results = [covered(model, worlds[kind], n, sizes, seed) for seed in range(replicates)]
            own = [r[0] for r in results]
            mean, both, width = (statistics.mean(r[i] for r in results) for i in range(3))
            error = f" ± {statistics.stdev(own) / math.sqrt(replicates):.1%}" if replicates > 1 else ""
            rows.append((name, kind, f"{n:,}", replicates, f"{mean:.1%}{error}", f"{both:.1%}", width, target))
    note = (
        f"{LEVEL:.0%} equal-tailed intervals at {sizes.probes} new pairs (y, m), d = {t}; ± is the standard error over "
        "replicates. The estimate is P̂(y)/r(y|m) with the sample's shares P̂ in the numerator and as the margin that r "
        "meets. It is judged by the world's P(y)/P(y|m), the estimand: a share that is off by chance moves numerator "
        "and r together, and cancels. The sample's shares in the truth would shift the numerator against a P(y|m) that "
        "they did not move; that figure stands beside it for comparison."
    )
    header = ("response", "world", "n", "replicates", "coverage", "sample's P(y) in the truth", "mean width", "target")
    return note + "\n\n" + table(header, rows)


# ---------------------------------------------------------------------------------------------------- rare classes

RARE_POSITIONS = 16
RARE_WORLDS = {
    "two classes": (2, False), "three classes, all depend alike": (3, False), "three, the rare one alone": (3, True),
}  # fmt: skip
RARE_INTERCEPTS = (-6.0, -5.0, -4.0, -2.5)
"""Of the last class: about 0.2, 0.5, 1.3 and 5% of the rows."""


def rare_world(n_classes: int, alone: bool, intercept: float, seed: int) -> Logistic:
    """Slopes of unit length in the logits, of every class or of the last one alone."""
    b = np.random.default_rng([seed, 3]).standard_normal((n_classes, RARE_POSITIONS))
    b -= b.mean(1, keepdims=True)
    b /= np.linalg.norm(b, axis=1, keepdims=True)
    b[:-1] *= not alone
    return Logistic(
        n_classes=n_classes, n_positions=RARE_POSITIONS, law="logistic-normal", coefficients=torch.from_numpy(b),
        intercept=torch.tensor([0.0] * (n_classes - 1) + [intercept], dtype=torch.float64), seed=seed,
    )  # fmt: skip


def rare_coverage(n_classes: int, alone: bool, intercept: float, sizes: Sizes, seed: int) -> tuple[float, ...]:
    """Rows of the rare class; whether 90% intervals of log r(k|m) hold the truth: of the rare class at new masks and at
    the masks of its own rows, of the other classes; RMSE of the rare class's at new masks."""
    world = rare_world(n_classes, alone, intercept, seed)
    sample = world.sample(sizes.rare_rows, seed)
    own = sample.masks[sample.y == n_classes - 1]
    if len(own) < 2:
        return (len(own), *[math.nan] * 4)
    fit = fitted(SelectionModel(), sample, folds=2, seed=seed)
    probes = world.sample(sizes.probes, 10_000 + seed).masks
    inside, error = [], 0.0
    for masks in (probes, own):
        draws, truth = fit.log_prob(masks), world.log_prob(masks)
        low, high = draws.quantile(0.5 - LEVEL / 2, 0), draws.quantile(0.5 + LEVEL / 2, 0)
        inside.append(((truth >= low) & (truth <= high)).double().mean(0))
        if masks is probes:
            error = float((draws.mean(0) - truth)[:, -1].square().mean().sqrt())
    return len(own), float(inside[0][-1]), float(inside[1][-1]), float(inside[0][:-1].mean()), error


def rare(sizes: Sizes) -> str:
    """Coverage where a class has few rows."""
    rows = []
    for name, (n_classes, alone) in RARE_WORLDS.items():
        for intercept in RARE_INTERCEPTS:
            found = np.array(
                [rare_coverage(n_classes, alone, intercept, sizes, seed) for seed in range(sizes.rare_replicates)]
            )
            count, probes, own, others, error = np.nanmean(found, 0)
            spread = np.nanstd(found[:, 1], ddof=1) / math.sqrt(np.isfinite(found[:, 1]).sum())
            rows.append(
                (name, f"{count:.0f}", f"{probes:.0%} ± {spread:.0%}", f"{own:.0%}", f"{others:.0%}", f"{error:.2f}")
            )
    note = (
        f"{LEVEL:.0%} intervals of log P(k|m), n = {sizes.rare_rows:,}, T = {RARE_POSITIONS}, automatic features, "
        f"{sizes.rare_replicates} replicates with new slopes each; ± is the standard error over replicates."
    )
    header = (
        "world",
        "rows of the rare class",
        "rare, new masks",
        "rare, own rows",
        "others",
        "RMSE of the rare, nats",
    )
    return note + "\n\n" + table(header, rows)


# ---------------------------------------------------------------------------------------------------- features


def held_out_auc(features: str | FeatureFunction, sample: MaskSample, folds: int) -> float:
    """AUC of the held-out P(y=1|m)."""
    fit = fitted(SelectionModel(features=features), sample, folds=folds)
    return float(roc_auc_score(sample.y.numpy(), fit.held_out_log_prob()[:, 1].numpy()))


def features(sizes: Sizes) -> str:
    """What the automatic features see that log-ratios indexed from the start do not."""
    rows = []
    for name, world in (("Concentration", Concentration()), ("Ends, flip = 0.01", Ends(flip=0.01))):
        sample = world.sample(sizes.features_rows, seed=1)
        exact = roc_auc_score(sample.y.numpy(), world.log_prob(sample.masks, sample.valid)[:, 1].numpy())
        row = (
            name,
            *(held_out_auc(kind, sample, sizes.folds) for kind in ("auto", log_ratios)),
            float(exact),
            "auto > 0.95",
        )
        rows.append(row)
    note = f"AUC of y from m on held-out rows, n = {sizes.features_rows:,}, linear response."
    return note + "\n\n" + table(("world", "auto", "log-ratios from the start", "exact P(y|m)", "target"), rows)


# ---------------------------------------------------------------------------------------------------- warm start


def warm(sizes: Sizes) -> str:
    """A fit that starts from an earlier one's modes, after the masks moved a little."""
    n, t = sizes.warm_rows, sizes.speed_positions
    sample = logistic_world(t).sample(n, seed=1)
    model, noise = SelectionModel(), torch.randn(n, t, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    moved = MaskSample((sample.masks.log() + 0.02 * noise).softmax(-1), sample.y, kind="simplex", n_classes=2)
    earlier = fitted(model, sample, folds=sizes.folds)
    kept: dict[str, SelectionFit] = {}
    sides: dict[str, Side] = {
        "cold": lambda: kept.update(cold=fitted(model, moved, folds=sizes.folds)),
        "warm": lambda: kept.update(warm=fitted(model, moved, folds=sizes.folds, warm_start=earlier)),
    }
    seconds = alternate(sides, sizes.repeats)
    base = statistics.median(seconds["cold"])
    gap = float((kept["cold"].weights().log_w - kept["warm"].weights().log_w).abs().max())
    rows = []
    for name, values in seconds.items():
        median, target = statistics.median(values), "≤ 0.333" if name == "warm" else ""
        rows.append(
            (name, median, f"{min(values):.3f} to {max(values):.3f}", median / base, newton_steps(kept[name]), target)
        )
    note = (
        f"n = {n:,}, T = {t}, {sizes.folds} folds, {sizes.repeats} rounds; the masks' logits moved by N(0, 0.02²). "
        f"Largest difference of log w between the two fits: {gap:.1e} nats."
    )
    return note + "\n\n" + table(("start", "median s", "range s", "ratio", "Newton steps", "target"), rows)


def newton_steps(fit: SelectionFit) -> str:
    """Steps to the mode of the final fit and of each fold's."""
    fits = [one for one in (fit.final, *fit.fold_fits) if isinstance(one, OutcomeFit)]
    return " + ".join(str(one.posterior.mode.n_steps) for one in fits)


# ---------------------------------------------------------------------------------------------------- calibration


def sbc_functionals(n_out: int) -> dict[str, Tensor]:
    """Linear functionals of the weights (d, J) whose ranks are taken: each weight, their sum, and two directions."""
    d = SBC_FEATURES
    named = {f"weight {i}": torch.eye(d * n_out, dtype=torch.float64)[i] for i in range(d * n_out)}
    named["sum"] = torch.ones(d * n_out, dtype=torch.float64)
    directions = torch.randn(2, d * n_out, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return named | {f"direction {i}": row for i, row in enumerate(directions)}


def sbc_ranks(n: int, n_classes: int, seed: int) -> list[int]:
    """Draw θ from the prior, classes from θ, fit, and rank the true functionals among the fit's draws."""
    generator = torch.Generator().manual_seed(seed)
    f = torch.randn(n, SBC_FEATURES, generator=generator, dtype=torch.float64)
    phi = (f - f.mean(0)) / f.std(0, correction=0)  # the prior is on weights of standardised features
    theta = SBC_SCALE * torch.randn(SBC_FEATURES + 1, n_classes - 1, generator=generator, dtype=torch.float64)
    theta[-1] *= SBC_INTERCEPT / SBC_SCALE
    uniform = torch.full((n_classes,), -math.log(n_classes), dtype=torch.float64)
    y = torch.multinomial(linear_log_prob(theta, phi, uniform).exp(), 1, generator=generator)[:, 0]
    masks = torch.cat([f, torch.zeros(n, 1, dtype=torch.float64)], 1).softmax(-1)
    sample = MaskSample(masks, y, kind="simplex", n_classes=n_classes)
    model = SelectionModel(features=given(phi), prior_scale=SBC_SCALE)
    final = fitted(model, sample, folds=2, seed=seed, n_draws=SBC_DRAWS).final
    assert isinstance(final, OutcomeFit)
    rows = torch.stack(list(sbc_functionals(n_classes - 1).values()))
    return (final.theta[:, :-1].flatten(1) @ rows.T < rows @ theta[:-1].flatten()).sum(0).tolist()


def sbc(sizes: Sizes) -> str:
    """Simulation-based calibration: ranks of the true weights among the draws are uniform (Talts et al. 2018)."""
    rows = []
    for n_classes in (2, 3):
        names = list(sbc_functionals(n_classes - 1))
        ranks = np.array([sbc_ranks(sizes.sbc_rows, n_classes, seed) for seed in range(sizes.sbc_replicates)])
        per_bin = (SBC_DRAWS + 1) // SBC_BINS
        counts = [np.bincount(column // per_bin, minlength=SBC_BINS) for column in ranks.T]
        p = np.array([chisquare(count).pvalue for count in counts])
        lowest = int(p.argmin())
        corrected = min(1.0, float(p[lowest]) * len(p))
        listed = ", ".join(f"{value:.2f}" for value in p)
        rows.append(
            (n_classes, len(names), listed, names[lowest], corrected, float(ranks.mean()) / SBC_DRAWS, "≥ 0.05")
        )
    note = (
        f"n = {sizes.sbc_rows}, d = {SBC_FEATURES}, {sizes.sbc_replicates} replicates, {SBC_DRAWS} independent draws, "
        f"{SBC_BINS} bins. Weights ~ N(0, {SBC_SCALE}²), as in the fit. The intercept's prior is flat, so it is drawn "
        f"from N(0, {SBC_INTERCEPT}²) and not ranked; the offset that restores the class margin moves a draw's "
        "intercept alone. Ranked: each weight, their sum, two random directions."
    )
    header = ("K", "functionals", "p of uniform ranks", "lowest", "lowest p, Bonferroni", "mean rank share", "target")
    return note + "\n\n" + table(header, rows)


# ---------------------------------------------------------------------------------------------------- command

PARTS: dict[str, Callable[[Sizes], str]] = {
    "speed": speed, "million": million, "accuracy": accuracy, "coverage": coverage, "features": features, "warm": warm,
    "sbc": sbc, "rare": rare,
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """The command; see the top of the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", choices=[*PARTS, "all"], default="all", help="which part to run")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that the script runs, no more")
    parser.add_argument("--out", type=Path, help="write the Markdown there as well")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker is not None:
        print(json.dumps(worker(options.worker)))
        return
    names = list(PARTS) if options.part == "all" else [options.part]
    run_parts("Benchmark of the selection model", PARTS, names, QUICK if options.quick else FULL, options.out)


if __name__ == "__main__":
    main()
