"""The EVAL-X evaluator: a downstream part trained on random masks only, so no mask can tell it more than the words do.

Jethani et al. (2021), "Have We Learned to Explain?", train it on random feature subsets. Here the law of masks also
holds soft ones, so that the same evaluator can be asked about attention weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from causal_attn.attention import fresh_copy
from causal_attn.data.checks import LARGEST_SEED, seed_of
from causal_attn.data.splits import Data
from causal_attn.training import RandomMasksOnly, train
from causal_attn.training.collect import collect_logits, collect_masks
from causal_attn.training.settings import EPOCHS

LONGER = 3
"""How many times as many epochs a second attempt has, where the first evaluator does no better than guessing."""


def train_evaluator(model: Any, data: Data, seed: int = 0, progress: bool = True, **settings: Any) -> Any:
    """An evaluator of the architecture of `model`, drawn anew and trained on `data.train` under random masks.

    Args:
        model: gives the architecture; its parameters are not used.
        data: the splits the model itself was trained with.
        seed: of parameters, masks and order.
        progress: show a bar.
        settings: passed to `train` (epochs, batch_size, ...).

    Returns:
        A model whose `predict(x, m)` is the evaluator; its `masks` were never trained. Where it does no better than
        guessing on validation rows with every position shown, it was trained once more, with `LONGER` times the epochs.
    """
    own = (seed_of(seed) + 7919) % (LARGEST_SEED + 1)
    fresh = fresh_copy(model, own)  # a seed of its own: the evaluator must not start as the model did
    options: dict[str, Any] = {"seed": own, "progress": progress}
    made = train(fresh, data, RandomMasksOnly(), **options, **settings).model
    if reads(made, data):
        return made
    longer = {**settings, "epochs": LONGER * settings.get("epochs", EPOCHS)}
    return train(fresh, data, RandomMasksOnly(), **options, **longer).model


def reads(evaluator: Any, data: Data) -> bool:
    """Whether it is right more often than the largest class on validation rows, by two standard errors."""
    valid = collect_masks(evaluator, data.valid)[1].float()
    y = data.valid.y
    right = (collect_logits(evaluator, data.valid, valid / valid.sum(-1, keepdim=True)).argmax(-1) == y).double()
    error = float(right.std(correction=0)) / np.sqrt(len(y))
    return float(right.mean()) - 2 * error > float(y.bincount().max()) / len(y)
