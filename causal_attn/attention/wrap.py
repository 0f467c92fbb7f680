"""Other people's models as attention classifiers, without subclassing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from causal_attn.attention.protocol import reinitialised
from causal_attn.errors import InputError


class Wrapped(nn.Module):
    """An nn.Module seen through functions of it; made by `wrap`."""

    def __init__(
        self,
        module: nn.Module,
        masks: Callable[[Any, Any], Tensor],
        predict: Callable[[Any, Any, Tensor], Tensor],
        valid: Callable[[Any, Any], Tensor] | None = None,
        fresh: Callable[[Any, int], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.module = module
        self._masks, self._predict, self._valid, self._fresh = masks, predict, valid, fresh

    def masks(self, x: Any) -> Tensor:
        """m, shape (B, T)."""
        return self._masks(self.module, x)

    def predict(self, x: Any, m: Tensor) -> Tensor:
        """Logits, shape (B, K)."""
        return self._predict(self.module, x, m)

    def valid(self, x: Any) -> Tensor | None:
        """Which positions exist, shape (B, T); None: all."""
        return None if self._valid is None else self._valid(self.module, x)

    def forward(self, x: Any) -> Tensor:
        """Logits under the model's own masks, shape (B, K)."""
        return self.predict(x, self.masks(x))

    def fresh(self, seed: int) -> Wrapped:
        """The same functions around a module drawn anew: `fresh(module, seed)`, or through `reset_parameters`."""
        if self._fresh is None:
            return reinitialised(self, seed)
        return Wrapped(self._fresh(self.module, seed), self._masks, self._predict, self._valid, self._fresh)


def wrap(
    module: nn.Module,
    masks: Callable[[Any, Any], Tensor],
    predict: Callable[[Any, Any, Tensor], Tensor],
    valid: Callable[[Any, Any], Tensor] | None = None,
    fresh: Callable[[Any, int], nn.Module] | None = None,
) -> Wrapped:
    """Adapt any nn.Module to `AttentionClassifier`.

    Args:
        module: the model; registered, so that parameters, train(), to() and state_dict() reach it.
        masks: (module, x) -> m, shape (B, T).
        predict: (module, x, m) -> logits, shape (B, K).
        valid: (module, x) -> bool, shape (B, T). None: every position exists.
        fresh: (module, seed) -> a new module of the same architecture. None: a copy, reset by `reset_parameters`.

    Raises:
        InputError: `module` is no nn.Module, or a function is not callable.

    Example:
        >>> model = wrap(net, masks=lambda net, x: net.attend(x), predict=lambda net, x, m: net.head(x, m))
    """
    if not isinstance(module, nn.Module):
        raise InputError(f"module: expected an nn.Module, got {type(module).__name__}")
    given = {"masks": masks, "predict": predict, "valid": valid, "fresh": fresh}
    for name, function in given.items():
        optional = name in ("valid", "fresh") and function is None
        if not (callable(function) or optional):
            raise InputError(f"{name}: expected a function, got {type(function).__name__}")
    return Wrapped(module, masks, predict, valid, fresh)
