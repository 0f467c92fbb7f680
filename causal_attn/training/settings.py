"""Numbers of the optimiser, checked once; a trained model keeps its own, so that an evaluator can be trained alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from causal_attn.data.checks import whole
from causal_attn.errors import InputError

EPOCHS = 5
BATCH_SIZE = 64


@dataclass(frozen=True)
class Settings:
    """Numbers of the optimiser, AdamW with an exponential moving average of the parameters.

    The defaults were chosen on Rotten Tomatoes with `TextAttention`; a model of one's own may want another rate.

    Args:
        epochs: epochs of a joint phase; other phases take their share of it.
        batch_size: rows.
        learning_rate: step size.
        weight_decay: decoupled.
        clip: largest norm of a gradient.
        patience: epochs without a better validation accuracy after which a phase ends and its best epoch is kept;
            None: all epochs, and the last one's average is kept.
    """

    epochs: int = EPOCHS
    batch_size: int = BATCH_SIZE
    learning_rate: float = 5e-3
    weight_decay: float = 0.5
    clip: float = 1.0
    patience: int | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "patience"):
            value = getattr(self, name)
            if name != "patience" or value is not None:
                object.__setattr__(self, name, whole(value, name, 1))
        for name, least in (("learning_rate", 0.0), ("clip", 0.0), ("weight_decay", -1e-300)):
            value = getattr(self, name)
            if (
                isinstance(value, bool)
                or not isinstance(value, (int, float, np.floating))
                or not least < value < float("inf")
            ):
                raise InputError(f"{name}: expected a positive number, got {value!r}")
