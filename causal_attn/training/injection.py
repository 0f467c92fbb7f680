"""Shortcuts made on purpose, to see whether tests find them and schemes remove them: joint training from a bad start.

* Default tokens before every text: `causal_attn.data.load(..., default_tokens=5)`.
* `SkewedGenerator`: the attention first learns to choose the first position exactly for class 1.
* `SkewedPredictor`: the downstream part first learns from a part of the input alone, the first sentence.
* Planted worlds with the shortcut on or off: `causal_attn.data.worlds.PlantedText`, `PlantedPixels`.

Source: Bai et al. (2021); Yu et al. (2021), "Understanding Interlocking Dynamics of Cooperative Rationalization".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from causal_attn.data.checks import fraction, whole
from causal_attn.data.splits import Data, Split
from causal_attn.errors import InputError
from causal_attn.training.schemes import Phase

SENTENCE_ENDS = (".", "!", "?")
SKEW_SHARE = 10.0
"""Most epochs of the skewing phase relative to a joint one; it ends when the accuracy is reached."""


def is_class_one(data: Data, split: str) -> Tensor:
    """Whether a row's class is 1, (n,) bool."""
    return data.split(split).y == 1


@dataclass(frozen=True)
class SkewedGenerator:
    """The masks are first trained to choose the first position iff y = 1; then everything is trained jointly.

    Args:
        accuracy: at which the first phase ends: of m_0 > ½ against y = 1 on validation rows, from 0.5 to 1. It is
            passed by one step's progress at most; a warning where it is not reached.

    With more than two classes it is a code for class 1 against the rest.
    """

    accuracy: float = 0.9

    def __post_init__(self) -> None:
        fraction(self.accuracy, "accuracy", 0.5, 1)

    def phases(self) -> tuple[Phase, ...]:
        """Skew, then joint."""
        skew = Phase("skewed masks", "masks", share=SKEW_SHARE, first=is_class_one, until=self.accuracy)
        return skew, Phase("joint")


@dataclass(frozen=True)
class SkewedPredictor:
    """The downstream part is first trained on the first sentence alone; then everything is trained jointly.

    Args:
        epochs: epochs of the first phase for each joint one, as a ratio above 0.
        tokens: where there are no sentences, how many positions behind the default tokens stand for the first one.
        default_tokens: positions before the text; None: as many as the data set has.
    """

    epochs: float = 1.0
    tokens: int = 10
    default_tokens: int | None = None

    def __post_init__(self) -> None:
        if fraction(self.epochs, "epochs", 0, 1000) == 0:
            raise InputError("epochs: expected a ratio above 0, got 0")
        whole(self.tokens, "tokens", 1)
        if self.default_tokens is not None:
            whole(self.default_tokens, "default_tokens", 0)

    def given(self, data: Data, split: str) -> Tensor:
        """A mask evenly on each text's first sentence, (n, T)."""
        start = data.default_tokens if self.default_tokens is None else self.default_tokens
        return self.first_sentence(data.split(split), start)

    def first_sentence(self, split: Split, start: int = 0) -> Tensor:
        """The same behind `start` default tokens: up to the first . ! or ?, else `tokens` positions. (n, T)."""
        if split.lengths is None:
            raise InputError("scheme: SkewedPredictor expects texts, this data set has none")
        short = split.lengths <= start
        if short.any():
            row = int(short.nonzero()[0])
            raise InputError(
                f"scheme: expected more than default_tokens={start} tokens, row {row} has {int(split.lengths[row])}"
            )
        masks = torch.zeros(len(split), int(split.lengths.max()))
        for i, length in enumerate(split.lengths.tolist()):
            masks[i, start : self._end(split, i, length, start)] = 1
        return masks / masks.sum(-1, keepdim=True)

    def _end(self, split: Split, i: int, length: int, start: int) -> int:
        words = [] if split.texts is None else split.tokens(i)
        for place in range(start + 1, length):  # the first word is in it, whatever it is
            if place < len(words) and words[place] in SENTENCE_ENDS:
                return place + 1
        return min(length, start + self.tokens)

    def phases(self) -> tuple[Phase, ...]:
        """The first sentence, then joint."""
        return Phase("first sentence", "predict", share=self.epochs, given=self.given), Phase("joint")
