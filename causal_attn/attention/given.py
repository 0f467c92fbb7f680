"""A model whose masks are a given function of x, so that what attention does is known and only the reader is learnt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from causal_attn.attention.protocol import fresh_copy
from causal_attn.errors import InputError


class GivenMasks(nn.Module):
    """`predict` of another model under masks that a function of x gives; nothing of the masks is learnt.

    Args:
        reader: an attention classifier, of which only `predict` and `valid` are used.
        masks: x -> m, shape (B, T).
    """

    def __init__(self, reader: nn.Module, masks: Callable[[Any], Tensor]) -> None:
        super().__init__()
        if not isinstance(reader, nn.Module) or not callable(getattr(reader, "predict", None)):
            raise InputError(f"reader: expected an nn.Module with predict(x, m), got {type(reader).__name__}")
        if not callable(masks):
            raise InputError(f"masks: expected a function of x, got {type(masks).__name__}")
        self.reader, self._masks = reader, masks

    def masks(self, x: Any) -> Tensor:
        """m, shape (B, T), as given."""
        return self._masks(x)

    def predict(self, x: Any, m: Tensor) -> Tensor:
        """Logits of the reader, shape (B, K)."""
        return self.reader.predict(x, m)  # type: ignore[operator]

    def valid(self, x: Any) -> Tensor | None:
        """The reader's, or None: every position exists."""
        own = getattr(self.reader, "valid", None)
        return own(x) if callable(own) else None

    def forward(self, x: Any) -> Tensor:
        """Logits under the given masks, shape (B, K)."""
        return self.predict(x, self.masks(x))

    def fresh(self, seed: int) -> GivenMasks:
        """The same masks, the reader drawn anew."""
        return GivenMasks(fresh_copy(self.reader, seed), self._masks)  # type: ignore[type-var]
