"""What training gives: the trained model, its history, and its masks and accuracy on a split."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from torch import Tensor

from causal_attn.data.splits import Data
from causal_attn.masks import MaskSample
from causal_attn.training.collect import collect_logits, collect_masks
from causal_attn.training.schemes import Scheme
from causal_attn.training.settings import Settings


@dataclass(frozen=True)
class Evaluation:
    """How a model does on one split, under its own masks.

    Args:
        accuracy: share of rows classified right, probability.
        log_loss: mean −log p(y), nats.
        n: rows.
    """

    accuracy: float
    log_loss: float
    n: int


@dataclass(frozen=True)
class TrainResult:
    """A trained model with where it came from.

    Args:
        model: the trained copy, in eval mode.
        data: the data it was trained on.
        scheme: how.
        history: one row per epoch: phase, epoch, loss (nats), accuracies, support deficit, ESS in rows, seconds.
        seed: of the run.
        seconds: wall time of training.
        settings: of the optimiser; tests train their evaluators with the same.
    """

    model: Any
    data: Data
    scheme: Scheme
    history: pd.DataFrame
    seed: int
    seconds: float
    settings: Settings = field(default_factory=Settings)
    _cache: dict[tuple[str, str], Any] = field(default_factory=dict, repr=False, compare=False)

    def __repr__(self) -> str:
        last = "" if self.history.empty else f", valid accuracy {self.history['valid_accuracy'].iloc[-1]:.3f}"
        name, scheme = type(self.model).__name__, type(self.scheme).__name__
        return f"TrainResult({name}, {scheme}, data {self.data.name!r}, seed {self.seed}{last}, {self.seconds:.1f} s)"

    def masks(self, split: str = "train") -> MaskSample:
        """The model's masks on a split, with its classes: what the selection model is fitted on."""
        if ("masks", split) not in self._cache:
            part = self.data.split(split)
            masks, valid = collect_masks(self.model, part)
            self._cache["masks", split] = MaskSample(masks, part.y, valid, n_classes=self.data.n_classes)
        return self._cache["masks", split]

    def logits(self, split: str = "test") -> Tensor:
        """Logits under the model's own masks, shape (n, K), float64."""
        if ("logits", split) not in self._cache:
            self._cache["logits", split] = collect_logits(self.model, self.data.split(split))
        return self._cache["logits", split]

    def evaluate(self, split: str = "test") -> Evaluation:
        """Accuracy and log-loss on a split."""
        y = self.data.split(split).y
        log_p = self.logits(split).log_softmax(-1)
        accuracy = float((log_p.argmax(-1) == y).double().mean())
        return Evaluation(accuracy, -float(log_p.gather(-1, y[:, None]).mean()), len(y))
