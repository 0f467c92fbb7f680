"""The EVAL-X evaluator: a downstream part trained on random masks only, so no mask can tell it more than the words do.

Jethani et al. (2021), "Have We Learned to Explain?", train it on random feature subsets. Here the law of masks also
holds soft ones, so that the same evaluator can be asked about attention weights.
"""

from __future__ import annotations

from typing import Any

from causal_attn.attention import fresh_copy
from causal_attn.data.splits import Data
from causal_attn.training import RandomMasksOnly, train


def train_evaluator(model: Any, data: Data, seed: int = 0, progress: bool = True, **settings: Any) -> Any:
    """An evaluator of the architecture of `model`, drawn anew and trained on `data.train` under random masks.

    Args:
        model: gives the architecture; its parameters are not used.
        data: the splits the model itself was trained with.
        seed: of parameters, masks and order.
        progress: show a bar.
        settings: passed to `train` (epochs, batch_size, ...).

    Returns:
        A model whose `predict(x, m)` is the evaluator; its `masks` were never trained.
    """
    fresh = fresh_copy(model, seed + 7919)  # a seed of its own: the evaluator must not start as the model did
    return train(fresh, data, RandomMasksOnly(), seed=seed + 7919, progress=progress, **settings).model
