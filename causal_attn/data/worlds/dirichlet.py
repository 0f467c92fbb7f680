"""Dirichlet masks per class: heavy weights, and classes that differ only in concentration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from causal_attn.data.checks import margin, table_of, whole
from causal_attn.data.worlds.base import World, all_valid, draw_classes, draw_dirichlet, masks_of, set_fields
from causal_attn.masks import MaskSample

DEFAULT_ALPHA = ((1.5, 2.0, 2.0, 2.5), (2.5, 2.0, 2.0, 1.5))


def log_beta(alpha: Tensor) -> Tensor:
    """log B(α) = Σ log Γ(α_j) − log Γ(Σ α_j), over the last axis."""
    return torch.lgamma(alpha).sum(-1) - torch.lgamma(alpha.sum(-1))


class _Dirichlets(World):
    """P(y | m) ∝ P(y) Dirichlet(m; α_y), for a world that has `alpha` of shape (K, T)."""

    alpha: Tensor

    def log_prob(self, masks: Any, valid: Any = None) -> Tensor:
        """log P(y | m), nats. Shape (n, T) -> (n, K)."""
        logs = masks_of(masks, self.alpha.shape[1], positive=True).log()
        all_valid(valid, logs)
        return (logs @ (self.alpha - 1).T - log_beta(self.alpha) + self.prior.log()).log_softmax(-1)

    def second_moment(self) -> float:
        """E_P[w²] = Σ_{k,a,b} P(k) P(a) P(b) B(α_a+α_b−α_k) B(α_k) / (B(α_a) B(α_b)).

        Infinite unless α_a + α_b − α_k > 0 in every position for every three classes.
        """
        a, p = self.alpha, self.prior
        combined = a[None, :, None] + a[None, None, :] - a[:, None, None]  # [k, a, b, :]
        if (combined <= 0).any():
            return float("inf")
        b = log_beta(a)
        logs = log_beta(combined) + b[:, None, None] - b[None, :, None] - b[None, None, :]
        return float(torch.einsum("k,a,b,kab->", p, p, p, logs.exp()))

    def _draw(self, n: int, rng: np.random.Generator) -> MaskSample:
        y = draw_classes(self.prior, n, rng)
        masks = torch.from_numpy(draw_dirichlet(self.alpha.numpy()[y], rng))
        return MaskSample(masks, torch.from_numpy(y), kind="simplex", n_classes=self.n_classes)


@dataclass(frozen=True, eq=False)
class DirichletByClass(_Dirichlets):
    """m | y ~ Dirichlet(α_y). The further apart the α, the heavier the tail of w.

    Args:
        alpha: positive, shape (K, T). Far below 0.05, weights underflow and are set to 1e-300.
        prior: P(y), shape (K,); None: uniform.
    """

    alpha: Tensor = DEFAULT_ALPHA  # type: ignore[assignment]  # a tensor once built
    prior: Tensor = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        alpha = table_of(self.alpha, "alpha", (None, None), positive=True)
        whole(alpha.shape[0], "alpha's number of classes", 2)
        whole(alpha.shape[1], "alpha's number of positions", 2)
        set_fields(self, alpha=alpha, n_classes=len(alpha), prior=margin(self.prior, "prior", len(alpha)))


@dataclass(frozen=True, eq=False)
class Concentration(_Dirichlets):
    """m | y is a symmetric Dirichlet: no position tells the class, only how peaked the mask is.

    Args:
        concentrations: the Dirichlet parameter of each class, positive, shape (K,).
        n_positions: T.
        prior: P(y), shape (K,); None: uniform.
    """

    concentrations: Tensor = (0.5, 2.0)  # type: ignore[assignment]  # a tensor once built
    n_positions: int = 8
    prior: Tensor = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        values = table_of(self.concentrations, "concentrations", (None,), positive=True)
        whole(len(values), "number of concentrations", 2)
        T = whole(self.n_positions, "n_positions", 2)
        set_fields(self, concentrations=values, alpha=values[:, None].repeat(1, T), n_classes=len(values))
        set_fields(self, prior=margin(self.prior, "prior", len(values)))
