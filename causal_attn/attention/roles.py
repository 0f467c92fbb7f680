"""Which parameters make the mask, and which read it: found by what gradients reach, so that any model will do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from causal_attn.attention.protocol import AttentionClassifier, in_mode
from causal_attn.attention.seeding import forked_rng
from causal_attn.errors import InputError


def parameter_roles(model: AttentionClassifier, x: Any) -> tuple[frozenset[str], frozenset[str]]:
    """Names of the parameters that `masks(x)` depends on, and of those that `predict(x, m)` does, m held fixed.

    A parameter that serves both is in both; one that serves neither is in none. Runs in train mode, since a hard
    choice of positions is differentiable only there, and looks through frozen parameters. Deterministic; modes,
    buffers, `.grad`, `requires_grad` and random state are left as they were.

    Args:
        model: an nn.Module with `masks` and `predict`.
        x: one batch, as training will see it.

    Returns:
        (mask names, predict names), as in `model.named_parameters()`.

    Raises:
        InputError: the model is no nn.Module.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model: expected an nn.Module, got {type(model).__name__}")
    with ExitStack() as stack:
        stack.enter_context(forked_rng(0, model.parameters()))
        stack.enter_context(in_mode(model, training=True))
        stack.enter_context(_as_they_were(model))
        stack.enter_context(torch.enable_grad())
        m = model.masks(x)
        logits = model.predict(x, m.detach())
        return _reached(model, m), _reached(model, logits)


def mask_parameters(model: AttentionClassifier, x: Any) -> list[nn.Parameter]:
    """The parameters that `masks(x)` depends on, in the model's order."""
    return _named(model, parameter_roles(model, x)[0])


def downstream_parameters(model: AttentionClassifier, x: Any) -> list[nn.Parameter]:
    """The parameters that `predict(x, m)` depends on, m held fixed, in the model's order."""
    return _named(model, parameter_roles(model, x)[1])


def _named(model: Any, names: frozenset[str]) -> list[nn.Parameter]:
    return [parameter for name, parameter in model.named_parameters() if name in names]


def _reached(model: nn.Module, output: Tensor) -> frozenset[str]:
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not output.requires_grad or not named:
        return frozenset()
    # a parameter outside the graph has gradient None; one whose gradient happens to be 0 still counts
    gradients = torch.autograd.grad(output.sum(), [p for _, p in named], retain_graph=True, allow_unused=True)
    return frozenset(name for (name, _), gradient in zip(named, gradients) if gradient is not None)


@contextmanager
def _as_they_were(model: nn.Module) -> Iterator[None]:
    """Every float parameter open to gradients inside the block; flags and buffers restored after it."""
    flags = [(p, p.requires_grad) for p in model.parameters()]
    buffers = [(b, b.detach().clone()) for b in model.buffers()]
    try:
        for p, _ in flags:
            p.requires_grad_(p.is_floating_point())
        yield
    finally:
        for p, flag in flags:
            p.requires_grad_(flag)
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
