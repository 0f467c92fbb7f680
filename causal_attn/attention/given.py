"""A model whose masks are a given function of x, so that what attention does is known and only the reader is learnt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from causal_attn.attention.protocol import fresh_copy
from causal_attn.attention.wrap import Wrapped, wrap
from causal_attn.errors import InputError


def given_masks(reader: nn.Module, masks: Callable[[Any], Tensor]) -> Wrapped:
    """`predict` of another model under masks that a function of x gives; nothing of the masks is learnt.

    Args:
        reader: an attention classifier, of which only `predict` and, if it has it, `valid` are used.
        masks: x -> m, shape (B, T).

    Raises:
        InputError: the reader has no `predict`, or `masks` is no function.
    """
    if not isinstance(reader, nn.Module) or not callable(getattr(reader, "predict", None)):
        raise InputError(f"reader: expected an nn.Module with predict(x, m), got {type(reader).__name__}")
    if not callable(masks):
        raise InputError(f"masks: expected a function of x, got {type(masks).__name__}")
    has_valid = callable(getattr(reader, "valid", None))
    return wrap(
        reader, masks=lambda net, x: masks(x), predict=lambda net, x, m: net.predict(x, m),
        valid=(lambda net, x: net.valid(x)) if has_valid else None, fresh=fresh_copy,
    )  # fmt: skip
