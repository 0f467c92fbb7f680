"""Own and EVAL-X accuracy on the k positions of largest mass, and their gap (Jethani et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from causal_attn.data.checks import seed_of
from causal_attn.data.splits import Data, Split
from causal_attn.errors import InputError
from causal_attn.faithfulness.subject import checked_k, subject_of
from causal_attn.masks import MaskSample, moved, top_k
from causal_attn.training.collect import collect_logits

N_BOOTSTRAP = 1000
FIGURES = ("own_accuracy_at_k", "evalx_accuracy", "gap")


def correct_at_k(model: Any, evaluator: Any, part: Split, sample: MaskSample, k: int) -> dict[str, Tensor]:
    """1 where right, (n,): the model on its own top k, renormalised; the evaluator on the same k alike; and the gap."""
    chosen = top_k(sample.masks, sample.valid, k)
    cut, seen = (moved(m, chosen, sample.kind) for m in (sample.masks, chosen.float()))
    own, evalx = right(model, part, sample, cut), right(evaluator, part, sample, seen)
    return {"own_accuracy_at_k": own, "evalx_accuracy": evalx, "gap": own - evalx}


def everything(sample: MaskSample) -> Tensor:
    """The mask that shows every position alike, (n, T)."""
    return moved(sample.valid.float(), sample.valid, sample.kind)


def chooses(sample: MaskSample) -> bool:
    """Whether every mask is a choice, equal mass on some positions and none on others, not a graded weight."""
    masks = sample.masks.double()
    most = masks.amax(-1, keepdim=True)
    return bool(((masks == 0) | (masks >= most * (1 - 1e-6))).all() and ((masks == 0) & sample.valid).any())


def right(model: Any, part: Split, sample: MaskSample, masks: Tensor | None) -> Tensor:
    """1 where the class predicted under the masks is the row's own, (n,)."""
    return (collect_logits(model, part, masks).argmax(-1) == sample.y).double()


def mean_intervals(values: dict[str, Tensor], seed: int) -> dict[str, tuple[float, float]]:
    """95% bootstrap intervals of means over rows, the same rows for all, so that differences are paired."""
    stacked = torch.stack(list(values.values())).numpy()
    rng = np.random.default_rng([seed, 3])
    n = stacked.shape[1]
    means = np.stack([stacked[:, rng.integers(0, n, n)].mean(1) for _ in range(N_BOOTSTRAP)])
    low, high = np.quantile(means, [0.025, 0.975], axis=0)
    return {name: (float(low[i]), float(high[i])) for i, name in enumerate(values)}


def accuracy_at_k(
    result: Any, split: str = "test", *, k: int | Sequence[int] | None = None, data: Data | None = None,
    evaluator: Any = None, seed: int = 0, progress: bool = True, **settings: Any,
) -> pd.DataFrame:  # fmt: skip
    """Own accuracy, EVAL-X accuracy and gap at one k or several.

    Args:
        result: a `TrainResult`, or a model with `masks` and `predict` (then `data` is needed).
        split: "train", "valid" or "test".
        k: positions kept, a number or a list; None: 5 for soft masks, the selector's own k for subsets.
        data: the splits.
        evaluator: an EVAL-X evaluator; None: one is trained, once for all k, as the model itself was.
        seed: of evaluator and bootstrap.
        progress: show bars.
        settings: of the evaluator's training, passed to `train`, instead of the model's.

    A row with mass on fewer than k positions shows just those. The intervals hold the evaluator fixed: another training
    run of it can move its accuracy on odd positions (meaningless tokens, say) by 0.1 and more.

    Returns:
        One row per k: columns k, and own_accuracy_at_k (higher is better), evalx_accuracy (higher), gap (lower), each
        with _low and _high at 95%, by bootstrap over rows. Probabilities.

    Raises:
        InputError: before any work: a model that breaks the protocol, or a k larger than the longest input.
    """
    seed, subject = seed_of(seed), subject_of(result, split, data)
    several = k if isinstance(k, Sequence) and not isinstance(k, str) else [k]
    if not several:
        raise InputError("k: expected a number of positions or a list of them, got an empty list")
    asked = [checked_k(one, subject.sample) for one in several]
    subject.checked_evaluator(evaluator, settings)
    if evaluator is None:
        evaluator = subject.evaluator(seed, progress, settings)
    rows = []
    for one in asked:
        values = correct_at_k(subject.model, evaluator, subject.split, subject.sample, one)
        intervals = mean_intervals(values, seed)
        row: dict[str, float] = {"k": one}
        for name in FIGURES:
            low, high = intervals[name]
            row |= {name: float(values[name].mean()), f"{name}_low": low, f"{name}_high": high}
        rows.append(row)
    return pd.DataFrame(rows)
