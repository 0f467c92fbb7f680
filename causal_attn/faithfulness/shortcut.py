"""Is there a combinatorial shortcut? Leakage, reliance and the own − EVAL-X gap together, and a verdict in words.

A shortcut needs two things: the mask tells the class (leakage), and the downstream part takes its answer from that
beyond what the words under the mask justify (excess reliance). Leakage alone is no proof.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from causal_attn.attention import check_model
from causal_attn.data.checks import whole
from causal_attn.data.splits import Data, Split
from causal_attn.diagnostics.leakage import LeakageTest, leakage_test
from causal_attn.errors import InputError
from causal_attn.faithfulness.evaluator import train_evaluator
from causal_attn.faithfulness.reliance import Reliance, reliance
from causal_attn.masks import MaskSample, top_k
from causal_attn.training import TrainResult
from causal_attn.training.collect import collect_logits, collect_masks, device_of, to_device

LEAKAGE_LEVEL = 0.05
"""The leakage p-value below which the mask counts as telling the class."""
EXCESS_THRESHOLD = 0.05
"""Excess reliance (probability) that matters: the interval must lie above it for "shortcut", below it for "none"."""
TEXT_K = 5
"""Positions kept at "top k" for soft masks."""
N_BOOTSTRAP = 1000


@dataclass(frozen=True)
class ShortcutTest:
    """The three tests of theory section 9 on one split; probabilities unless a unit is named.

    Args:
        leakage_bits: held-out information of the mask about the class, bits. Lower is better.
        leakage_auc: AUC of y from m; 0.5 is none.
        p_value: of the leakage, by permutation.
        reliance: by swapping masks.
        excess_reliance: beyond the evaluator's on the same swaps. Lower is better.
        own_accuracy: under the full mask. Higher is better.
        own_accuracy_at_k: the model's own downstream part on its top k, renormalised.
        evalx_accuracy: the evaluator's on the same positions. Higher is better.
        gap: own_accuracy_at_k − evalx_accuracy. Lower is better.
        k: positions kept.
        intervals: (low, high) at 95% by name.
        verdict: "shortcut", "no shortcut" or "undecided", a colon, and the reason.
    """

    leakage_bits: float
    leakage_auc: float
    p_value: float
    reliance: float
    excess_reliance: float
    own_accuracy: float
    own_accuracy_at_k: float
    evalx_accuracy: float
    gap: float
    k: int
    n: int
    intervals: Mapping[str, tuple[float, float]]
    verdict: str

    def __str__(self) -> str:
        lines = [f"shortcut test on {self.n} rows, k = {self.k}"]
        for name in FIGURES:
            low, high = self.intervals.get(name, (float("nan"), float("nan")))
            interval = "" if np.isnan(low) else f"  [{low:6.3f}, {high:6.3f}]"
            lines.append(f"  {name:<18} {getattr(self, name):7.3f}{interval}")
        return "\n".join([*lines, f"  p-value of leakage {self.p_value:7.3g}", f"verdict: {self.verdict}"])

    __repr__ = __str__


FIGURES = (
    "leakage_bits", "leakage_auc", "reliance", "excess_reliance", "own_accuracy", "own_accuracy_at_k", "evalx_accuracy",
    "gap",
)  # fmt: skip


def shortcut_test(
    result: Any, split: str = "test", *, data: Data | None = None, k: int | None = None, evaluator: Any = None,
    n_permutations: int = 200, seed: int = 0, progress: bool = True,
) -> ShortcutTest:  # fmt: skip
    """Test a trained model for a combinatorial shortcut.

    Args:
        result: a `TrainResult`, or a model with `masks` and `predict` (then `data` is needed).
        split: where the test is made: "train", "valid" or "test".
        data: the splits; a bare model's evaluator is trained on `data.train`.
        k: positions kept for the accuracies at k; None: 5 for soft masks, the selector's own k for subsets.
        evaluator: an EVAL-X evaluator (see `train_evaluator`); None: one is trained.
        n_permutations: of the leakage test.
        seed: of everything random.
        progress: show bars.

    Raises:
        InputError: a model that breaks the protocol, no data for a bare model, a split with one class, or k out of
            range; before any work.
    """
    model, source = _model_and_data(result, data)
    part = source.split(split)
    probe = to_device(part.batch(torch.arange(min(8, len(part))))[0], device_of(model))
    check_model(model, probe, source.n_classes)
    sample = _sample(result, model, part, split, source.n_classes)
    chosen = _k(k, sample)
    leak = leakage_test(sample, n_permutations, seed, progress)  # first: it checks the classes and n_permutations
    if evaluator is None:
        evaluator = train_evaluator(model, source, seed, progress)
    swapped = reliance(model, evaluator, part, sample, seed)
    right = _correct(model, evaluator, part, sample, chosen)
    intervals = {
        "leakage_bits": leak.bits_interval, "leakage_auc": leak.auc_interval, "reliance": swapped.reliance_interval,
        "excess_reliance": swapped.excess_interval, **_accuracy_intervals(right, seed),
    }  # fmt: skip
    means = {name: float(values.mean()) for name, values in right.items()}
    return ShortcutTest(
        leak.bits, leak.auc, leak.p_value, swapped.reliance, swapped.excess, **means, k=chosen, n=sample.n,
        intervals=intervals, verdict=verdict(leak, swapped, intervals["own_accuracy"], float(sample.prior.max())),
    )  # fmt: skip


def verdict(leak: LeakageTest, swapped: Reliance, accuracy: tuple[float, float], majority: float) -> str:
    """The verdict in words, from leakage and excess reliance; none for a model that has learnt nothing.

    Args:
        leak, swapped: the two tests.
        accuracy: interval of the accuracy under the model's own masks.
        majority: share of the largest class, what guessing would reach.
    """
    low, high = swapped.excess_interval
    if accuracy[0] <= majority and not low > EXCESS_THRESHOLD:
        return (
            f"undecided: the model does no better than guessing (accuracy [{accuracy[0]:.2f}, {accuracy[1]:.2f}], "
            f"largest class {majority:.2f}); train it longer or on more rows"
        )
    figures = [round(v, 2) + 0.0 for v in (swapped.excess, low, high)]  # + 0.0: no minus before a zero
    excess = "excess reliance {:.2f} [{:.2f}, {:.2f}]".format(*figures)
    leaks = leak.p_value <= LEAKAGE_LEVEL
    tells = f"the mask {'tells' if leaks else 'does not tell'} the class (AUC {leak.auc:.2f}, p = {leak.p_value:.2g})"
    if np.isnan(leak.p_value):
        return f"undecided: no permutations were asked for; {excess}"
    if leaks and low > EXCESS_THRESHOLD:
        return f"shortcut: {tells}, and the downstream part takes its answer from it ({excess})"
    if high < EXCESS_THRESHOLD:
        return f"no shortcut: {excess}; {tells}"
    if not leaks:
        return f"no shortcut: {tells}; {excess}"
    return f"undecided: {tells}, but {excess} leaves it open whether the answer is taken from it; use more rows"


def _model_and_data(result: Any, data: Data | None) -> tuple[Any, Data]:
    if isinstance(result, TrainResult):
        return result.model, data or result.data
    if data is None:
        raise InputError(
            "data: expected the data set where a bare model is given (its train split trains the evaluator)"
        )
    return result, data


def _sample(result: Any, model: Any, part: Split, split: str, n_classes: int) -> MaskSample:
    if isinstance(result, TrainResult) and result.data.split(split) is part:
        return result.masks(split)
    masks, valid = collect_masks(model, part)
    return MaskSample(masks, part.y, valid, n_classes=n_classes)


def _k(k: int | None, sample: MaskSample) -> int:
    if k is None:
        return int(sample.masks.sum(-1).max()) if sample.kind == "subset" else min(TEXT_K, sample.T)
    return whole(k, "k", 1, sample.T)


def _correct(model: Any, evaluator: Any, part: Split, sample: MaskSample, k: int) -> dict[str, Tensor]:
    """1 where right: the model under its full mask and at its top k, the evaluator at the same k; and the gap."""
    chosen = top_k(sample.masks, sample.valid, k)
    flat = chosen.float()
    if sample.kind == "subset":
        cut, seen = flat * sample.masks, flat
    else:
        cut = sample.masks * chosen
        cut, seen = cut / cut.sum(-1, keepdim=True), flat / flat.sum(-1, keepdim=True)
    hit = lambda who, masks: (collect_logits(who, part, masks).argmax(-1) == sample.y).double()  # noqa: E731
    own_k, evalx = hit(model, cut), hit(evaluator, seen)
    return {"own_accuracy": hit(model, None), "own_accuracy_at_k": own_k, "evalx_accuracy": evalx, "gap": own_k - evalx}


def _accuracy_intervals(right: dict[str, Tensor], seed: int) -> dict[str, tuple[float, float]]:
    """95% bootstrap intervals over rows, the same rows for all, so that the gap is paired."""
    values = torch.stack(list(right.values())).numpy()
    rng = np.random.default_rng([seed, 3])
    n = values.shape[1]
    means = np.stack([values[:, rng.integers(0, n, n)].mean(1) for _ in range(N_BOOTSTRAP)])
    low, high = np.quantile(means, [0.025, 0.975], axis=0)
    return {name: (float(low[i]), float(high[i])) for i, name in enumerate(right)}
