"""Varying lengths, and a class that shows only when positions are counted from the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from causal_attn.data.checks import fraction, margin, whole
from causal_attn.data.worlds.base import World, draw_classes, masks_of, set_fields
from causal_attn.data.worlds.leaks import peaked
from causal_attn.errors import InputError
from causal_attn.masks import MaskSample, checked_valid, first_row


@dataclass(frozen=True, eq=False)
class Ends(World):
    r"""Two classes: class 1 puts its peak on the last valid position, class 0 on the second to last.

    With probability `flip` it is the other way round. The mask is peak · e_position + (1 − peak) · Dirichlet(1) over
    the valid positions, lengths are uniform and say nothing of y, so P(y | m) depends on the peak's place alone:
    P(1 | last) = P(1)(1 − flip) / (P(1)(1 − flip) + P(0) flip).

    Args:
        shortest: the least length, at least 2.
        longest: the largest length, T.
        flip: probability of the other class's position, above 0 so that every pair is seen.
        peak: the weight put on the position, from 0.5 to 1.
        prior: P(y), shape (2,); None: uniform.
    """

    shortest: int = 4
    longest: int = 12
    flip: float = 0.1
    peak: float = 0.6
    prior: Tensor = None  # type: ignore[assignment]  # a tensor once built

    def __post_init__(self) -> None:
        whole(self.longest, "longest", whole(self.shortest, "shortest", 2))
        fraction(self.flip, "flip", 1e-6, 1 - 1e-6)
        fraction(self.peak, "peak", 0.5, 1)
        set_fields(self, prior=margin(self.prior, "prior", 2), n_classes=2)

    @property
    def joint(self) -> Tensor:
        """P(y, place), place 0 the second to last and 1 the last position, shape (2, 2)."""
        stays = torch.tensor([[1 - self.flip, self.flip], [self.flip, 1 - self.flip]], dtype=torch.float64)
        return self.prior[:, None] * stays

    def log_prob(self, masks: Any, valid: Any = None) -> Tensor:
        """log P(y | m), nats. Shape (n, T) -> (n, 2); `valid` says where each mask ends, None: at T."""
        m = masks_of(masks, self.longest)
        exists = checked_valid(valid, m.shape)
        last = (exists * torch.arange(self.longest)).argmax(-1)
        place = m.argmax(-1) - last + 1  # 0 or 1
        off = (place < 0) | (place > 1)
        if off.any():
            raise InputError(
                f"masks: expected the peak on the last two valid positions, row {first_row(off)} has it elsewhere"
            )
        return (self.joint / self.joint.sum(0)).log().T[place]

    def second_moment(self) -> float:
        """E_P[w²] = Σ P(y, place) (P(y) P(place) / P(y, place))²."""
        product = torch.outer(self.prior, self.joint.sum(0))
        return float((product.square() / self.joint).sum())

    def _draw(self, n: int, rng: np.random.Generator) -> MaskSample:
        y = draw_classes(self.prior, n, rng)
        lengths = rng.integers(self.shortest, self.longest + 1, n)
        valid = np.arange(self.longest) < lengths[:, None]
        gamma = rng.standard_exponential((n, self.longest)) * valid
        place = np.where(rng.random(n) < self.flip, 1 - y, y)
        masks = peaked(lengths - 2 + place, gamma / gamma.sum(-1, keepdims=True), self.peak)
        m, classes, exists = (torch.from_numpy(array) for array in (masks, y, valid))
        return MaskSample(m, classes, exists, kind="simplex", n_classes=2)
