"""What a model with attention is: two functions, and one check that they are what they say.

`masks(x) -> m` is the attention layer: weights (B, T), the *treatment* of x. `predict(x, m) -> logits` is the part
downstream, which sees x as treated by m. Trained jointly it can read the class off m itself, a combinatorial shortcut
(Bai et al. 2021, arXiv 2006.05656); that m can be replaced by another mask is what every test and scheme here rests on.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from causal_attn.attention.seeding import forked_rng
from causal_attn.errors import InputError
from causal_attn.masks import first_row

SUM_TOLERANCE = 1e-4
"""How far a row of masks may sum from 1."""
REPRODUCIBLE = 1e-5
"""How far two runs in eval mode may differ, relative and absolute: sums on several threads are not bit-equal."""

M = TypeVar("M", bound="AttentionClassifier")


@runtime_checkable
class AttentionClassifier(Protocol):
    """A classifier with attention; x is what the data set's batches hold, a tensor or a mapping of tensors.

    Optional: `valid(x) -> bool (B, T)`, which positions exist (all, when absent), and `fresh(seed)`, a new model of
    the same architecture with parameters drawn anew.
    """

    def masks(self, x: Any) -> Tensor:
        """m, shape (B, T): rows on the simplex over the valid positions, or a 0/1 choice of positions."""
        ...

    def predict(self, x: Any, m: Tensor) -> Tensor:
        """Logits, shape (B, K), of x as treated by m, shape (B, T); nothing else may link it to `masks`."""
        ...


def valid_of(model: AttentionClassifier, x: Any, m: Tensor) -> Tensor:
    """Which positions of x exist, bool, the shape (B, T) of m: the model's own `valid(x)`, or all."""
    own = getattr(model, "valid", None)
    valid = own(x) if callable(own) else None
    return torch.ones(m.shape, dtype=torch.bool, device=m.device) if valid is None else valid.bool()


def batch_size(x: Any) -> int:
    """B, the number of rows of x: a tensor's length, or that of a mapping's or sequence's first entry."""
    if isinstance(x, Mapping) and x:
        return batch_size(next(iter(x.values())))
    if isinstance(x, (tuple, list)) and x and isinstance(x[0], Tensor):
        return len(x[0])
    try:
        return len(x)
    except TypeError as error:
        raise InputError(f"x: expected a tensor or a mapping of tensors, got {type(x).__name__}") from error


@contextmanager
def in_mode(model: Any, training: bool) -> Iterator[None]:
    """Every submodule in train or eval mode inside the block, and back as each one was after it."""
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    before = [module.training for module in modules]
    try:
        if modules:
            model.train(training)
        yield
    finally:
        for module, was in zip(modules, before):
            module.training = was


# ------------------------------------------------------------------------------------------------- a model made anew


def fresh_copy(model: M, seed: int) -> M:
    """A new model of the same architecture, its parameters drawn anew from `seed`; global random state untouched.

    Calls `model.fresh(seed)` where there is one. Otherwise a deep copy in which every submodule's `reset_parameters`
    is called, inner ones first, so that an outer one has the last word. Parameters that do not learn (requires_grad
    False, a pretrained part say) keep their values: drawn anew, they would stay noise.

    Raises:
        InputError: some parameters are not set by any `reset_parameters` (named), or the model is no nn.Module.
    """
    own = getattr(model, "fresh", None)
    return own(seed) if callable(own) else reinitialised(model, seed)


def reinitialised(model: M, seed: int) -> M:
    """What `fresh_copy` does for a model without `fresh`."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model: expected fresh(seed) or an nn.Module, got {type(model).__name__} with neither")
    new = copy.deepcopy(model)
    held = {name: p.detach().clone() for name, p in new.named_parameters() if not p.requires_grad}
    with torch.no_grad():
        for parameter in new.parameters():
            parameter.grad = None
            parameter.fill_(torch.nan)  # whatever is still NaN afterwards was not drawn anew
    with forked_rng(seed, new.parameters()):
        for module in reversed(list(new.modules())):
            _reset(module)
    with torch.no_grad():
        for name, value in held.items():
            new.get_parameter(name).copy_(value)
    missed = [name for name, parameter in new.named_parameters() if parameter.isnan().any()]
    if missed:
        raise InputError(f"model: expected reset_parameters() for every parameter, or fresh(seed); none for {missed}")
    return new


def _reset(module: nn.Module) -> None:
    for name in ("reset_parameters", "_reset_parameters"):  # nn.MultiheadAttention has the second
        if callable(getattr(module, name, None)):
            getattr(module, name)()
            return


# ------------------------------------------------------------------------------------------------------ one check


def check_model(model: AttentionClassifier, x: Any, n_classes: int | None = None) -> None:
    """Verify on a batch x that `model` keeps to the protocol, before any work is done with it.

    In eval mode and without gradients: `masks(x)` is (B, T), finite, non-negative, sums to 1 within 1e-4 (or is 0/1
    with a position chosen), has no mass on padding; `predict(x, m)` is (B, K), finite; both give the same twice.
    Modes, random state and parameters are as before.

    Args:
        model: what is checked.
        x: one batch, at least one row.
        n_classes: K, when known.

    Raises:
        InputError: says what was expected, what came, and the first row that offends.
    """
    if not isinstance(model, AttentionClassifier):
        raise InputError(f"model: expected methods masks(x) and predict(x, m), got {type(model).__name__}; see wrap")
    state = model.parameters() if isinstance(model, nn.Module) else ()
    with torch.no_grad(), forked_rng(None, state), in_mode(model, training=False):
        m = model.masks(x)
        _check_masks(m, batch_size(x))
        _check_padding(m, valid_of(model, x, m))
        _check_same(m, model.masks(x), "masks(x)")
        logits = model.predict(x, m)
        _check_logits(logits, len(m), n_classes)
        _check_same(logits, model.predict(x, m), "predict(x, m)")


def _check_masks(m: Any, rows: int) -> None:
    if not isinstance(m, Tensor) or m.ndim != 2 or len(m) != rows or m.shape[1] == 0:
        raise InputError(f"masks(x): expected a tensor of shape ({rows}, T), got {_described(m)}")
    _check_rows(torch.isfinite(m), "masks(x)", "finite numbers")
    _check_rows(m >= 0, "masks(x)", "non-negative numbers")
    total, binary = m.double().sum(-1), ((m == 0) | (m == 1)).all(-1)
    bad = ((total - 1).abs() > SUM_TOLERANCE) & ~(binary & (total > 0))
    if bad.any():
        row = first_row(bad)
        raise InputError(
            f"masks(x): expected rows that sum to 1 within {SUM_TOLERANCE:g}, or 0/1 with a position chosen; "
            f"row {row} sums to {total[row]:.6g}"
        )


def _check_padding(m: Tensor, valid: Tensor) -> None:
    if valid.shape != m.shape:
        raise InputError(f"valid(x): expected the shape of masks(x), {tuple(m.shape)}, got {tuple(valid.shape)}")
    _check_rows((m == 0) | valid, "masks(x)", "no mass on padding")


def _check_logits(logits: Any, rows: int, n_classes: int | None) -> None:
    right = isinstance(logits, Tensor) and logits.ndim == 2 and len(logits) == rows and logits.shape[1] > 1
    if not right or n_classes not in (None, logits.shape[1]):
        k = "K" if n_classes is None else n_classes
        hint = " with K >= 2" if n_classes is None else ""
        raise InputError(f"predict(x, m): expected logits of shape ({rows}, {k}){hint}, got {_described(logits)}")
    _check_rows(torch.isfinite(logits), "predict(x, m)", "finite logits")


def _check_same(first: Tensor, second: Tensor, what: str) -> None:
    same = torch.isclose(first.double(), second.double(), REPRODUCIBLE, REPRODUCIBLE)
    _check_rows(same, what, "the same result twice in eval mode")


def _check_rows(good: Tensor, what: str, expected: str) -> None:
    if not good.all():
        row = first_row(~good)
        raise InputError(f"{what}: expected {expected}, row {row} fails at position {int((~good[row]).nonzero()[0])}")


def _described(value: Any) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
