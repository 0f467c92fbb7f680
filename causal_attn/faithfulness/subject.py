"""What a test is made on: the model, its data, one split and its masks there, all checked before any work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from causal_attn.attention import check_model
from causal_attn.attention.protocol import in_mode
from causal_attn.data.checks import whole
from causal_attn.data.splits import Data, Split
from causal_attn.errors import InputError
from causal_attn.faithfulness.evaluator import train_evaluator
from causal_attn.masks import MaskSample
from causal_attn.training import TrainResult
from causal_attn.training.collect import collect_masks, device_of, to_device, width_of

TUNED = ("epochs", "batch_size", "learning_rate", "weight_decay", "patience")
"""What `train` takes of the settings."""
TEXT_K = 5
"""Positions kept at "top k" for soft masks."""


@dataclass(frozen=True)
class Subject:
    """A model, its data, one of the splits, the masks of that split's rows, and how the model was trained, if known."""

    model: Any
    data: Data
    split: Split
    sample: MaskSample
    settings: Mapping[str, Any] = field(default_factory=dict)

    def checked_evaluator(self, given: Any, settings: Mapping[str, Any]) -> None:
        """InputError for an evaluator that cannot predict, or settings beside one that is trained already."""
        if given is None:
            return
        if isinstance(given, TrainResult):
            raise InputError("evaluator: expected a model with predict(x, m), got a TrainResult; give its .model")
        if not callable(getattr(given, "predict", None)):
            raise InputError(f"evaluator: expected a model with predict(x, m), got {type(given).__name__}")
        if given is self.model:
            raise InputError("evaluator: expected one trained on random masks, got the tested model itself")
        x = to_device(self.split.batch(torch.arange(1))[0], device_of(given))
        mask = self.sample.masks[:1, : width_of(self.model, x)].float().to(device_of(given))
        with torch.no_grad(), in_mode(given, training=False):
            shape = tuple(given.predict(x, mask).shape)
        if shape != (1, self.data.n_classes):
            raise InputError(
                f"evaluator: expected logits of {self.data.n_classes} classes, shape (1, K), got shape {shape}"
            )
        if settings:
            raise InputError(f"{', '.join(settings)}: has an effect only where no evaluator is given")

    def evaluator(self, seed: int, progress: bool, settings: Mapping[str, Any]) -> Any:
        """An EVAL-X evaluator, trained as the model itself was, but for what `settings` says."""
        return train_evaluator(self.model, self.data, seed, progress, **{**self.settings, **settings})


def subject_of(result: Any, split: str, data: Data | None) -> Subject:
    """A trained model's, or a bare model's with `data`.

    Raises:
        InputError: no data for a bare model, an unknown split, or a model that breaks the protocol.
    """
    trained = isinstance(result, TrainResult)
    if not trained and data is None:
        raise InputError(
            "data: expected the data set where a bare model is given (its train split trains the evaluator)"
        )
    source = result.data if data is None else data
    if not isinstance(source, Data):
        raise InputError(f"data: expected splits as load or from_datasets give them, got {type(source).__name__}")
    model = result.model if trained else result
    part = source.split(split)
    probe = to_device(part.batch(torch.arange(min(8, len(part))))[0], device_of(model))
    check_model(model, probe, source.n_classes)
    settings = {name: value for name, value in asdict(result.settings).items() if name in TUNED} if trained else {}
    if trained and result.data.split(split) is part:
        return Subject(model, source, part, result.masks(split), settings)
    masks, valid = collect_masks(model, part)
    return Subject(model, source, part, MaskSample(masks, part.y, valid, n_classes=source.n_classes), settings)


def checked_k(k: int | None, sample: MaskSample) -> int:
    """k, by default 5 positions for soft masks and the selector's own k for subsets; at most the longest input's."""
    longest = int(sample.valid.sum(-1).max())
    if k is None:
        return int(sample.masks.sum(-1).max()) if sample.kind == "subset" else min(TEXT_K, longest)
    return whole(k, "k", 1, longest)
