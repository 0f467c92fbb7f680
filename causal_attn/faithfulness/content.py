"""Leakage beyond what is shown: does the mask tell of the class more than the words under it do?

    I(M; Y | φ),   φ = log q(k | x, m) of the EVAL-X evaluator, which was trained on random masks

A faithful mask may tell the class, since where the evidence lies depends on it; but then what it shows tells the class
as well. Information beyond φ is a code, or evidence that the evaluator is too weak to read. x-dependent: two texts with
the same mask can differ in φ.
"""

from __future__ import annotations

from typing import Any

from causal_attn.data.checks import seed_of
from causal_attn.data.splits import Data
from causal_attn.diagnostics.leakage import LeakageTest, leakage_test
from causal_attn.errors import InputError
from causal_attn.faithfulness.subject import subject_of
from causal_attn.training.collect import collect_logits


def content_leakage(
    result: Any, split: str = "test", *, data: Data | None = None, evaluator: Any = None, n_permutations: int = 200,
    seed: int = 0, progress: bool = True, **settings: Any,
) -> LeakageTest:  # fmt: skip
    """Test whether the masks tell the class beyond what an evaluator reads under them.

    Args:
        result: a `TrainResult`, or a model with `masks` and `predict` (then `data` is needed).
        split: "train", "valid" or "test".
        data: the splits; an evaluator is trained on `data.train`.
        evaluator: an EVAL-X evaluator; None: one is trained, as the model itself was.
        n_permutations: of the classes, given what the evaluator reads; 0 for none.
        seed: of evaluator, folds, permutations and bootstrap.
        progress: show bars.
        settings: of the evaluator's training, passed to `train`, instead of the model's.

    Returns:
        A `LeakageTest`: `bits` beyond φ, `auc` of y from φ and mask, `auc_given` from φ alone, `p_value`.

    Raises:
        InputError: before any work, as in `shortcut_test`.
    """
    seed, subject = seed_of(seed), subject_of(result, split, data)
    if evaluator is not None and settings:
        raise InputError(f"{', '.join(settings)}: has an effect only where no evaluator is given")
    if evaluator is None:
        evaluator = subject.evaluator(seed, progress, settings)
    log_q = collect_logits(evaluator, subject.split, subject.sample.masks.float()).log_softmax(-1)
    phi = log_q[:, 1:] - log_q[:, :1]
    return leakage_test(subject.sample, n_permutations, seed, progress, given=phi)
