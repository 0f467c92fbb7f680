"""Laws of random masks that ignore x and y: what random attention pretraining and EVAL-X evaluators learn from.

A law maps validity (B, T) and a generator to masks (B, T), each row on the simplex over its valid positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor

from causal_attn.data.checks import fraction, whole
from causal_attn.errors import InputError
from causal_attn.masks import first_row

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
    return _dirichlet((low + (high - low) * _uniform((len(valid), 1), g)).exp(), valid, g)


def _dirichlet(alpha: Tensor, valid: Tensor, g: torch.Generator) -> Tensor:
    alpha = alpha.expand(valid.shape)
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


SPREADS = (0.3, 4.0)
"""Range of the standard deviation of the logits in the softmax-normal law: from nearly even to one word or two."""
LEAST_ALPHA, MOST_ALPHA = 1e-3, 1e3
"""Range of a matched concentration: outside it masks are choices of one position, or even, for every purpose."""


def softmax_normal(valid: Tensor, g: torch.Generator) -> Tensor:
    """softmax(σ z) over the valid positions, z standard normal; each row's σ is log-uniform in SPREADS."""
    low, high = torch.tensor(SPREADS, dtype=torch.float64).log()
    sigma = (low + (high - low) * _uniform((len(valid), 1), g)).exp()
    z = torch.randn(tuple(valid.shape), generator=g, dtype=torch.float64)
    return (sigma * z).masked_fill(~valid, -torch.inf).softmax(-1)


def bernoulli(valid: Tensor, g: torch.Generator) -> Tensor:
    """Each valid position with probability ½, at least one; equal mass on those (REAL-X, Jethani et al. 2021)."""
    u = _uniform(tuple(valid.shape), g).masked_fill(~valid, 2.0)
    chosen = (u < 0.5) | (u == u.amin(-1, keepdim=True))  # a row with none keeps its least one
    return _normalised(chosen.double(), valid)


@dataclass(frozen=True)
class Subsets:
    """Equal mass on `k` valid positions drawn without replacement; all of them where there are fewer.

    Args:
        k: positions.
    """

    k: int

    def __post_init__(self) -> None:
        whole(self.k, "k", 1)

    def __call__(self, valid: Tensor, g: torch.Generator) -> Tensor:
        rank = _uniform(tuple(valid.shape), g).masked_fill(~valid, 2.0).argsort(-1).argsort(-1)
        return _normalised((rank < self.k).double(), valid)


@dataclass(frozen=True)
class Dirichlet:
    """Symmetric Dirichlet of one concentration over the valid positions.

    Args:
        alpha: concentration: small ones put the mass on few positions.
    """

    alpha: float

    def __post_init__(self) -> None:
        fraction(self.alpha, "alpha", LEAST_ALPHA, MOST_ALPHA)

    def __call__(self, valid: Tensor, g: torch.Generator) -> Tensor:
        return _dirichlet(torch.full((len(valid), 1), self.alpha, dtype=torch.float64), valid, g)


MATCHED = "matched"
"""In place of a law: the one whose concentration is that of the model's own masks, found when it is needed."""


def matched_to(masks: Tensor, valid: Tensor, choices: bool) -> Law:
    """The law with the concentration of these masks.

    Soft masks: the symmetric Dirichlet with the same mean of Σ_t m_t², whose expectation over n positions is
    (α + 1)/(n α + 1). Choices: `Subsets` of their mean number of positions, rounded.

    Args:
        masks: shape (n, T).
        valid: which positions exist, shape (n, T).
        choices: whether masks are 0/1.
    """
    if choices:
        return Subsets(max(1, round(float((masks > 0).sum(-1).double().mean()))))
    lengths = valid.sum(-1).double()
    many = lengths > 1  # a single position tells nothing of the concentration
    if not many.any():
        return Dirichlet(1.0)
    wanted = float(masks.double().square().sum(-1)[many].mean())
    n = lengths[many].numpy()

    def above(log_alpha: float) -> float:
        alpha = np.exp(log_alpha)
        return float(((alpha + 1) / (n * alpha + 1)).mean()) - wanted

    low, high = np.log(LEAST_ALPHA), np.log(MOST_ALPHA)
    if above(low) <= 0 or above(high) >= 0:  # more peaked, or more even, than the range has
        return Dirichlet(LEAST_ALPHA if above(low) <= 0 else MOST_ALPHA)
    return Dirichlet(float(np.clip(np.exp(brentq(above, low, high)), LEAST_ALPHA, MOST_ALPHA)))


LAWS: dict[str, Law] = {
    "mixture": mixture, "dirichlet": dirichlet, "softmax-normal": softmax_normal, "subset": subset,
    "bernoulli": bernoulli,
}  # fmt: skip
SOFT_ONLY = (dirichlet, softmax_normal)
"""Laws that have no meaning where masks are choices: every valid position has mass."""


def choices_law(law: Law) -> Law:
    """The same law for a model whose masks are choices: 0 or 1, not equal shares; `mixture` is `subset`.

    Raises:
        InputError: a law of soft masks.
    """
    if law in SOFT_ONLY or isinstance(law, Dirichlet):
        raise InputError(f"law: expected a law of choices, since the model's masks are 0/1, got {_name_of(law)!r}")
    if law is mixture:
        law = subset
    return lambda valid, g: (law(valid, g) > 0).to(torch.float64)


def _name_of(law: Law) -> str:
    return next((name for name, known in LAWS.items() if known is law), repr(law))


def law_named(law: str | Law) -> Law | str:
    """The law itself, or one of `LAWS` by name; `MATCHED` stays as it is."""
    if (callable(law) and not isinstance(law, type)) or law == MATCHED:
        return law
    if not isinstance(law, str) or law not in LAWS:
        raise InputError(f"law: expected one of {', '.join((*LAWS, MATCHED))} or a callable, got {law!r}")
    return LAWS[law]


def checked_random(masks: Tensor, valid: Tensor) -> Tensor:
    """What a law of random masks gave, as float32; InputError where it is no mask over the valid positions."""
    if not isinstance(masks, Tensor) or masks.shape != valid.shape:
        came = tuple(masks.shape) if isinstance(masks, Tensor) else type(masks).__name__
        raise InputError(f"law: expected masks of shape {tuple(valid.shape)}, got {came}")
    masks = masks.double()
    odd = (masks < 0).any(-1) | ((masks * ~valid) != 0).any(-1) | ~(masks.sum(-1) > 0)
    if odd.any():
        raise InputError(f"law: expected mass on valid positions only and none below 0, row {first_row(odd)} breaks it")
    odd = ((masks.sum(-1) - 1).abs() > 1e-4) & ~((masks == 0) | (masks == 1)).all(-1)
    if odd.any():
        row = first_row(odd)
        raise InputError(f"law: expected rows that sum to 1, or 0/1, row {row} sums to {float(masks[row].sum()):.6g}")
    return masks.float()
