"""A mask drawn first, and a multinomial logistic law of the class given its features."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from causal_attn.data.checks import fraction, seed_of, table_of, whole
from causal_attn.data.worlds.base import World, all_valid, draw_dirichlet, masks_of, set_fields
from causal_attn.errors import InputError
from causal_attn.masks import MaskSample

N_PRIOR = 200_000
"""Masks over which P(y) = E r(y | m) is averaged: a standard error below 0.0012."""


@dataclass(frozen=True, eq=False)
class Logistic(World):
    r"""m ~ P(m), then y | m ~ softmax(a + B φ(m)).

    φ is the centred log-ratio log m_j − mean_j log m_j, divided by its standard deviation, which is known:
    sqrt((1 − 1/T) v) with v = 1 for logistic-normal masks and v = ψ′(α) for symmetric Dirichlet masks.
    With `interaction`, φ_1 φ_2 + 1/(T−1), whose mean is 0, is one more feature. P(y | m) is exact; P(y) = E r is an
    average over 200,000 masks drawn once.

    Args:
        n_classes: K.
        n_positions: T.
        law: of the masks: "dirichlet" (symmetric, `alpha`) or "logistic-normal" (softmax of T standard normals).
        alpha: the Dirichlet parameter.
        strength: standard deviation of the logits that the drawn B gives, about.
        interaction: whether φ_1 φ_2 is a feature.
        intercept: a, shape (K,); None: zeros. Unequal ones make the classes unbalanced.
        seed: of B and of the masks behind P(y).
        coefficients: B, shape (K, number of features); None: drawn.
    """

    n_classes: int = 3
    n_positions: int = 6
    law: Literal["dirichlet", "logistic-normal"] = "dirichlet"
    alpha: float = 1.0
    strength: float = 1.0
    interaction: bool = False
    intercept: Tensor = None  # type: ignore[assignment]  # a tensor once built
    seed: int = 0
    coefficients: Tensor = None  # type: ignore[assignment]
    prior: Tensor = field(init=False)

    def __post_init__(self) -> None:
        K, T = whole(self.n_classes, "n_classes", 2), whole(self.n_positions, "n_positions", 2)
        if self.law not in ("dirichlet", "logistic-normal"):
            raise InputError(f"law: expected 'dirichlet' or 'logistic-normal', got {self.law!r}")
        fraction(self.alpha, "alpha", 1e-3, math.inf)
        fraction(self.strength, "strength", 0, math.inf)
        rng = np.random.default_rng([seed_of(self.seed), 1])
        p = T + int(self.interaction)
        drawn = rng.standard_normal((K, p)) * self.strength / math.sqrt(p)
        set_fields(
            self,
            intercept=table_of(np.zeros(K) if self.intercept is None else self.intercept, "intercept", (K,)),
            coefficients=table_of(drawn if self.coefficients is None else self.coefficients, "coefficients", (K, p)),
        )
        set_fields(self, prior=self.log_prob(self._masks(N_PRIOR, rng)).exp().mean(0))

    def features(self, masks: Any) -> Tensor:
        """φ(m): mean 0 and standard deviation 1 under P(m). Shape (n, T) -> (n, T), or (n, T+1) with `interaction`."""
        logs = masks_of(masks, self.n_positions, positive=True).log()
        T = self.n_positions
        spread = 1.0 if self.law == "logistic-normal" else float(torch.polygamma(1, torch.tensor(self.alpha).double()))
        phi = (logs - logs.mean(-1, keepdim=True)) / math.sqrt((1 - 1 / T) * spread)
        if not self.interaction:
            return phi
        return torch.cat([phi, phi[:, :1] * phi[:, 1:2] + 1 / (T - 1)], -1)  # Corr(φ_1, φ_2) = −1/(T−1)

    def log_prob(self, masks: Any, valid: Any = None) -> Tensor:
        """log P(y | m) = log softmax(a + B φ(m)), nats. Shape (n, T) -> (n, K)."""
        phi = self.features(masks)
        all_valid(valid, torch.as_tensor(masks))
        return (phi @ self.coefficients.T + self.intercept).log_softmax(-1)

    def _masks(self, n: int, rng: np.random.Generator) -> Tensor:
        if self.law == "dirichlet":
            return torch.from_numpy(draw_dirichlet(np.full((n, self.n_positions), self.alpha), rng))
        return torch.from_numpy(rng.standard_normal((n, self.n_positions))).softmax(-1)

    def _draw(self, n: int, rng: np.random.Generator) -> MaskSample:
        masks = self._masks(n, rng)
        below = self.log_prob(masks).exp().cumsum(-1)[:, :-1] < torch.from_numpy(rng.random((n, 1)))
        return MaskSample(masks, below.sum(-1), kind="simplex", n_classes=self.n_classes)
