"""The two ends: a mask that gives the class away, and one that says nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from causal_attn.data.checks import fraction, margin, whole
from causal_attn.data.worlds.base import World, all_valid, draw_classes, draw_dirichlet, masks_of, set_fields
from causal_attn.errors import InputError
from causal_attn.masks import MaskSample, first_row


def peaked(position: np.ndarray, rest: np.ndarray, peak: float = 0.5) -> np.ndarray:
    """peak · e_position + (1 − peak) · rest, shape (n, T): with peak ≥ 1/2 the position is the largest entry."""
    masks = (1 - peak) * rest
    masks[np.arange(len(masks)), position] += peak
    return masks


@dataclass(frozen=True, eq=False)
class DeterministicLeak(World):
    r"""Positivity fails: a peak at position j < K says that y = j; a peak further right says nothing.

    A share of the rows, whatever their class, has its peak on the positions K..T−1. There w = 1; elsewhere P(y|m) is 1
    or 0, w = P(y), and the weights look perfect although they cannot repair anything (theory, section 6).

    Args:
        n_classes: K.
        n_positions: T; more than K where `share` is positive.
        share: of rows on the region where m is uninformative; 0: every row leaks; 1: none.
        prior: P(y), shape (K,); None: uniform.
    """

    n_classes: int = 2
    n_positions: int = 6
    share: float = 0.0
    prior: Tensor = None  # type: ignore[assignment]  # a tensor once built

    def __post_init__(self) -> None:
        K = whole(self.n_classes, "n_classes", 2)
        fraction(self.share, "share", 0, 1)
        whole(self.n_positions, "n_positions", K + 1 if self.share else K)
        set_fields(self, prior=margin(self.prior, "prior", K))

    def log_prob(self, masks: Any, valid: Any = None) -> Tensor:
        """log P(y | m), nats: 0 or −inf where the peak leaks, log P(y) elsewhere. Shape (n, T) -> (n, K)."""
        m = masks_of(masks, self.n_positions)
        all_valid(valid, m)
        peak = m.argmax(-1)
        last_place = self.n_positions if self.share else self.n_classes
        off = (m.gather(1, peak[:, None])[:, 0] < 0.5) | (peak >= last_place)
        if off.any():
            raise InputError(
                f"masks: expected half the weight on one of positions 0..{last_place - 1}, row {first_row(off)}"
            )
        known = torch.eye(self.n_positions, dtype=torch.float64)[:, : self.n_classes].log()[peak]
        return torch.where(peak[:, None] < self.n_classes, known, self.prior.log())

    def support_deficit(self) -> float:
        """D, the Q-mass of pairs (y, m) that P never shows: (1 − share)(1 − Σ_k P(k)²), probability.

        Q shows a mask that leaks class j with probability (1 − share) P(j), and another class beside it with 1 − P(j).
        So 1/2 for two balanced classes, and 1/4 when half the rows are shared.
        """
        return (1 - self.share) * float(1 - self.prior.square().sum())

    def second_moment(self) -> float:
        """E_P[w²] = share + (1 − share) Σ_k P(k)³; finite although χ²(Q‖P) is infinite."""
        return self.share + (1 - self.share) * float(self.prior.pow(3).sum())

    def _draw(self, n: int, rng: np.random.Generator) -> MaskSample:
        y = draw_classes(self.prior, n, rng)
        shared = rng.random(n) < self.share
        elsewhere = rng.integers(self.n_classes, max(self.n_positions, self.n_classes + 1), n)
        rest = draw_dirichlet(np.ones((n, self.n_positions)), rng)
        masks = torch.from_numpy(peaked(np.where(shared, elsewhere, y), rest))
        return MaskSample(masks, torch.from_numpy(y), kind="simplex", n_classes=self.n_classes)


@dataclass(frozen=True, eq=False)
class Null(World):
    """M ⟂ Y: w = 1 on every row; whatever a test finds here is an error of type I.

    Args:
        n_classes: K.
        n_positions: T.
        kind: "simplex" (Dirichlet with all parameters 1) or "subset" (`chosen` of T positions, uniformly).
        chosen: how many positions a subset has.
        prior: P(y), shape (K,); None: uniform.
    """

    n_classes: int = 2
    n_positions: int = 6
    kind: Literal["simplex", "subset"] = "simplex"
    chosen: int = 2
    prior: Tensor = None  # type: ignore[assignment]  # a tensor once built

    def __post_init__(self) -> None:
        whole(self.n_classes, "n_classes", 2)
        whole(self.n_positions, "n_positions", 2)
        if self.kind not in ("simplex", "subset"):
            raise InputError(f"kind: expected 'simplex' or 'subset', got {self.kind!r}")
        if self.kind == "subset":
            whole(self.chosen, "chosen", 1, self.n_positions)
        set_fields(self, prior=margin(self.prior, "prior", self.n_classes))

    def log_prob(self, masks: Any, valid: Any = None) -> Tensor:
        """log P(y | m) = log P(y), nats. Shape (n, T) -> (n, K)."""
        m = masks_of(masks, self.n_positions)
        all_valid(valid, m)
        return self.prior.log().repeat(len(m), 1)

    def second_moment(self) -> float:
        """E_P[w²] = 1."""
        return 1.0

    def _draw(self, n: int, rng: np.random.Generator) -> MaskSample:
        y = draw_classes(self.prior, n, rng)
        if self.kind == "simplex":
            masks = draw_dirichlet(np.ones((n, self.n_positions)), rng)
        else:
            order = rng.random((n, self.n_positions)).argsort(-1)
            masks = (order < self.chosen).astype(np.float64)  # a uniform permutation: k places below k
        return MaskSample(torch.from_numpy(masks), torch.from_numpy(y), kind=self.kind, n_classes=self.n_classes)
