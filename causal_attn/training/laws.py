"""Laws of random masks that ignore x and y: what random attention pretraining and EVAL-X evaluators learn from.

A law maps validity (B, T) and a generator to masks (B, T), each row on the simplex over its valid positions.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from causal_attn.errors import InputError

Law = Callable[[Tensor, torch.Generator], Tensor]

CONCENTRATIONS = (0.1, 3.0)
"""Range of the Dirichlet concentration in the mixture law: from a few words at a time to nearly all alike."""


def _normalised(mass: Tensor, valid: Tensor) -> Tensor:
    mass = mass * valid
    return mass / mass.sum(-1, keepdim=True)


def _uniform(shape: tuple[int, ...], g: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=g, dtype=torch.float64).clamp(min=1e-12)


def dirichlet(valid: Tensor, g: torch.Generator) -> Tensor:
    """Symmetric Dirichlet over the valid positions; each row's concentration is log-uniform in CONCENTRATIONS."""
    low, high = torch.tensor(CONCENTRATIONS, dtype=torch.float64).log()
    alpha = (low + (high - low) * _uniform((len(valid), 1), g)).exp().expand(valid.shape)
    # log Gamma(α) draws as log Gamma(α+1) + log(U)/α: tiny α underflows otherwise
    logs = torch._standard_gamma(alpha + 1, generator=g).log() + _uniform(tuple(valid.shape), g).log() / alpha
    return logs.masked_fill(~valid, -torch.inf).softmax(-1)


def subset(valid: Tensor, g: torch.Generator) -> Tensor:
    """Equal mass on k valid positions drawn without replacement, k uniform on 1..n_valid."""
    lengths = valid.sum(-1, keepdim=True)
    k = 1 + (_uniform((len(valid), 1), g) * lengths).long().clamp(max=lengths - 1)
    rank = _uniform(tuple(valid.shape), g).masked_fill(~valid, 2.0).argsort(-1).argsort(-1)
    return _normalised((rank < k).double(), valid)


def mixture(valid: Tensor, g: torch.Generator) -> Tensor:
    """Each row from `dirichlet` or from `subset` with probability a half: soft masks and choices, broad and narrow."""
    soft = _uniform((len(valid), 1), g) < 0.5
    return torch.where(soft, dirichlet(valid, g), subset(valid, g))


LAWS: dict[str, Law] = {"mixture": mixture, "dirichlet": dirichlet, "subset": subset}


def law_named(law: str | Law) -> Law:
    """The law itself, or one of `LAWS` by name."""
    if callable(law):
        return law
    if law not in LAWS:
        raise InputError(f"law: expected one of {', '.join(LAWS)} or a callable, got {law!r}")
    return LAWS[law]
