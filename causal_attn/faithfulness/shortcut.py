"""Is there a combinatorial shortcut? Leakage, reliance and the own − EVAL-X gap together, and a verdict in words.

A shortcut needs two things: the mask tells the class (leakage), and the downstream part takes its answer from that
beyond what the words under the mask justify (excess reliance). Leakage alone is no proof.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from causal_attn.data.splits import Data
from causal_attn.diagnostics.leakage import LeakageTest, leakage_test
from causal_attn.faithfulness.at_k import chooses, correct_at_k, everything, mean_intervals, right
from causal_attn.faithfulness.reliance import Reliance, reliance
from causal_attn.faithfulness.subject import checked_k, subject_of

LEAKAGE_LEVEL = 0.05
"""The leakage p-value below which the mask counts as telling the class."""
EXCESS_THRESHOLD = 0.1
"""Excess reliance (probability) that matters: the interval must lie above it for "shortcut", below it for "none".

The interval is over rows. Model and evaluator are one training run each, and two runs of one faithful recipe differ:
where the place of the evidence tells the class, excess reliance has a standard deviation of 0.043 over runs
(benchmarks/shortcut.py, part verdict), so 0.05 would call a twelfth of such models shortcuts. Made shortcuts have 0.35
and more.
"""
GAP_THRESHOLD = 0.1
"""Gap at k (probability) above which hard masks are not cleared: a code in *which words* is invisible to swaps."""


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
        evaluator_accuracy: the evaluator's with every position shown: whether it has learnt to read.
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
    evaluator_accuracy: float
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
    "gap", "evaluator_accuracy",
)  # fmt: skip


def shortcut_test(
    result: Any, split: str = "test", *, data: Data | None = None, k: int | None = None, evaluator: Any = None,
    n_permutations: int = 200, seed: int = 0, progress: bool = True, **settings: Any,
) -> ShortcutTest:  # fmt: skip
    """Test a trained model for a combinatorial shortcut.

    Args:
        result: a `TrainResult`, or a model with `masks` and `predict` (then `data` is needed).
        split: where the test is made: "train", "valid" or "test".
        data: the splits; a bare model's evaluator is trained on `data.train`.
        k: positions kept for the accuracies at k; None: 5 for soft masks, the selector's own k for subsets.
        evaluator: an EVAL-X evaluator (see `train_evaluator`); None: one is trained, with the settings (epochs,
            learning rate ...) a `TrainResult` was trained with, `train`'s defaults for a bare model. An evaluator that
            is trained less than the model is surer of nothing, and makes an innocent model look like a shortcut.
        n_permutations: of the leakage test; fewer than 19 cannot reach p = 0.05.
        seed: of everything random.
        progress: show bars.
        settings: of the evaluator's training, passed to `train`, instead of the model's.

    Raises:
        InputError: a model that breaks the protocol, no data for a bare model, a split with one class, or k out of
            range; before any work.
    """
    subject = subject_of(result, split, data)
    model, part, sample = subject.model, subject.split, subject.sample
    chosen = checked_k(k, sample)
    subject.checked_evaluator(evaluator, settings)
    leak = leakage_test(sample, n_permutations, seed, progress)  # first: it checks the classes and n_permutations
    if evaluator is None:
        evaluator = subject.evaluator(seed, progress, settings)
    swapped = reliance(model, evaluator, part, sample, seed)
    hits = {
        "own_accuracy": right(model, part, sample, None),
        **correct_at_k(model, evaluator, part, sample, chosen),
        "evaluator_accuracy": right(evaluator, part, sample, everything(sample)),
    }
    intervals = {
        "leakage_bits": leak.bits_interval, "leakage_auc": leak.auc_interval, "reliance": swapped.reliance_interval,
        "excess_reliance": swapped.excess_interval, **mean_intervals(hits, seed),
    }  # fmt: skip
    means = {name: float(values.mean()) for name, values in hits.items()}
    return ShortcutTest(
        leak.bits, leak.auc, leak.p_value, swapped.reliance, swapped.excess, **means, k=chosen, n=sample.n,
        intervals=intervals,
        verdict=verdict(
            leak, swapped, intervals["own_accuracy"], intervals["evaluator_accuracy"], float(sample.prior.max()),
            intervals["gap"] if chooses(sample) else None,
        ),
    )  # fmt: skip


def verdict(
    leak: LeakageTest, swapped: Reliance, accuracy: tuple[float, float], evaluator: tuple[float, float],
    majority: float, gap: tuple[float, float] | None = None,
) -> str:  # fmt: skip
    """The verdict in words, from the three tests; none for a model, or an evaluator, that has learnt nothing.

    Where the mask tells nothing, masks of both classes have one law and reliance is 0. So excess reliance above the
    threshold shows leakage too, also where the linear model of the leakage test is blind to it (a code in pairs of
    positions); a leakage test that finds nothing clears no model by itself.

    Args:
        leak, swapped: the two tests.
        accuracy: interval of the accuracy under the model's own masks.
        evaluator: interval of the evaluator's accuracy with every position shown.
        majority: share of the largest class, what guessing would reach.
        gap: interval of the own − EVAL-X gap, where the masks are choices and it can be read; None: it is not used.
    """
    low, high = swapped.excess_interval
    figures = [round(v, 2) + 0.0 for v in (swapped.excess, low, high)]  # + 0.0: no minus before a zero
    excess = "excess reliance {:.2f} [{:.2f}, {:.2f}]".format(*figures)
    guess = f"largest class {majority:.2f}"
    if accuracy[0] <= majority and not low > EXCESS_THRESHOLD:
        return (
            f"undecided: the model does no better than guessing (accuracy [{accuracy[0]:.2f}, {accuracy[1]:.2f}], "
            f"{guess}); train it longer or on more rows"
        )
    if evaluator[0] <= majority and swapped.reliance_interval[1] > EXCESS_THRESHOLD:
        return (
            f"undecided: the evaluator, shown every position, does no better than guessing (accuracy "
            f"[{evaluator[0]:.2f}, {evaluator[1]:.2f}], {guess}), so it cannot say what the words justify; train it "
            f"longer ({excess})"
        )
    leaks = leak.p_value <= LEAKAGE_LEVEL
    told = f"AUC {leak.auc:.2f}, p = {leak.p_value:.2g}"
    tells = f"the mask {'tells' if leaks else 'is not found to tell'} the class ({told})"
    if np.isnan(leak.p_value):
        tells = "no permutations were asked for"
    elif not leaks and 1 / (leak.n_permutations + 1) > LEAKAGE_LEVEL:
        tells = f"{leak.n_permutations} permutations are too few for a leakage test at {LEAKAGE_LEVEL}"
    if low > EXCESS_THRESHOLD:
        if leaks:
            return f"shortcut: {tells}, and the downstream part takes its answer from it ({excess})"
        return f"shortcut: the downstream part takes its answer from the mask ({excess}), which shows a leak; {tells}"
    if high >= EXCESS_THRESHOLD:
        return f"undecided: {excess} leaves it open whether the answer is taken from the mask; {tells}; use more rows"
    if gap is not None and gap[0] > GAP_THRESHOLD:
        return (
            f"undecided: no code in the places ({excess}; {tells}), but the chosen positions tell the model more than "
            f"their words tell the evaluator (gap [{gap[0]:.2f}, {gap[1]:.2f}]): which words are chosen may be a code; "
            f"see encoding_score"
        )
    still = swapped.reliance == 0 and swapped.reliance_interval == (0.0, 0.0)
    unread = "; no swap moved any prediction: does predict use the mask?" if still else ""
    return f"no shortcut: {excess}; {tells}{unread}"
