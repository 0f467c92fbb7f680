"""Normal features per class, shown as simplex masks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from causal_attn.data.checks import fraction, margin, seed_of, table_of, whole
from causal_attn.data.worlds.base import World, all_valid, draw_classes, masks_of, set_fields
from causal_attn.masks import MaskSample


@dataclass(frozen=True, eq=False)
class Gaussian(World):
    r"""f | y ~ N(μ_y, I) in d = T − 1 dimensions; the mask is softmax([f, 0]).

    f_j = log m_j − log m_T, and P(y | m) ∝ P(y) exp(−|f − μ_y|² / 2): the change of variables is the same for every y.

    Args:
        n_classes: K.
        n_positions: T.
        strength: standard deviation of the drawn means.
        seed: of the means.
        means: μ, shape (K, T−1); None: drawn.
        prior: P(y), shape (K,); None: uniform.
    """

    n_classes: int = 2
    n_positions: int = 5
    strength: float = 0.5
    seed: int = 0
    means: Tensor = None  # type: ignore[assignment]  # a tensor once built
    prior: Tensor = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.means is not None:
            means = table_of(self.means, "means", (None, None))
            set_fields(self, n_classes=means.shape[0], n_positions=means.shape[1] + 1)
        whole(self.n_classes, "n_classes", 2)
        whole(self.n_positions, "n_positions", 2)
        fraction(self.strength, "strength", 0, math.inf)
        if self.means is None:
            normal = np.random.default_rng(seed_of(self.seed)).standard_normal((self.n_classes, self.n_positions - 1))
            means = torch.from_numpy(self.strength * normal)
        set_fields(self, means=means, prior=margin(self.prior, "prior", self.n_classes))

    def features(self, masks: Any) -> Tensor:
        """f = log m_j − log m_T. Shape (n, T) -> (n, T−1)."""
        logs = masks_of(masks, self.n_positions, positive=True).log()
        return logs[:, :-1] - logs[:, -1:]

    def log_prob(self, masks: Any, valid: Any = None) -> Tensor:
        """log P(y | m), nats. Shape (n, T) -> (n, K)."""
        f = self.features(masks)
        all_valid(valid, torch.as_tensor(masks))
        scores = f @ self.means.T - 0.5 * self.means.square().sum(-1)  # |f|² is the same for every class
        return (scores + self.prior.log()).log_softmax(-1)

    def second_moment(self) -> float:
        """E_P[w²] = Σ_{y,a,b} P(y) P(a) P(b) exp((μ_a − μ_y)·(μ_b − μ_y))."""
        shifted = self.means[None] - self.means[:, None]  # [y, a, :] = μ_a − μ_y
        terms = torch.einsum("yad,ybd->yab", shifted, shifted).exp()
        return float(torch.einsum("y,a,b,yab->", self.prior, self.prior, self.prior, terms))

    def _draw(self, n: int, rng: np.random.Generator) -> MaskSample:
        y = torch.from_numpy(draw_classes(self.prior, n, rng))
        f = self.means[y] + torch.from_numpy(rng.standard_normal((n, self.n_positions - 1)))
        masks = torch.cat([f, torch.zeros(n, 1, dtype=torch.float64)], -1).softmax(-1)
        return MaskSample(masks, y, kind="simplex", n_classes=self.n_classes)
