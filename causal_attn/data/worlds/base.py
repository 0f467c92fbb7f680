"""What every simulated world offers, and the few helpers they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from causal_attn.data.checks import seed_of, whole
from causal_attn.errors import InputError
from causal_attn.masks import MaskSample, as_tensor, checked_valid, first_row

TINY = 1e-300
"""A mask's smallest weight: a Dirichlet draw that underflows to 0 would have no density."""


class World(ABC):
    """A law P of (y, m) with P(y | m) in closed form.

    Attributes:
        n_classes: K.
        prior: P(y), shape (K,), probability, float64.
    """

    n_classes: int
    prior: Tensor

    def sample(self, n: int, seed: int) -> MaskSample:
        """n independent rows from P, float64; the same for the same seed."""
        return self._draw(whole(n, "n", 1), np.random.default_rng(seed_of(seed)))

    @abstractmethod
    def _draw(self, n: int, rng: np.random.Generator) -> MaskSample: ...

    @abstractmethod
    def log_prob(self, masks: Any, valid: Any = None) -> Tensor:
        """log P(y | m) for every class, nats.

        Args:
            masks: m, shape (n, T).
            valid: which positions exist, shape (n, T); None: all.

        Returns:
            Shape (n, K), float64; rows sum to 1 as probabilities.

        Raises:
            InputError: wrong shape, or a mask that this world never shows; names the row.
        """

    def log_w(self, sample: MaskSample) -> Tensor:
        """log w = log P(y) − log P(y | m) at each row's own y, nats, shape (n,); inf where P(y | m) = 0."""
        log_prob = self.log_prob(sample.masks, sample.valid)
        return self.prior.log()[sample.y] - log_prob.gather(1, sample.y[:, None])[:, 0]


def set_fields(world: Any, **values: Any) -> None:
    """Replace fields of a frozen dataclass once, while it is being built."""
    for name, value in values.items():
        object.__setattr__(world, name, value)


def masks_of(masks: Any, T: int, positive: bool = False) -> Tensor:
    """Masks of width T as float64; InputError names the first row that is not finite (or, if asked, not positive)."""
    m = as_tensor(masks, "masks").double()
    if m.ndim != 2 or m.shape[1] != T:
        raise InputError(f"masks: expected shape (n, {T}), got {tuple(m.shape)}")
    bad = ~torch.isfinite(m) | ((m <= 0) if positive else (m < 0))
    if bad.any():
        kind = "positive" if positive else "non-negative"
        raise InputError(f"masks: expected {kind} numbers, row {first_row(bad)} has another value")
    return m


def all_valid(valid: Any, masks: Tensor) -> None:
    """Refuse padding in a world whose masks have one length."""
    if valid is not None:
        short = ~checked_valid(valid, masks.shape)
        if short.any():
            raise InputError(f"valid: expected every position to exist in this world, row {first_row(short)} is padded")


def draw_classes(prior: Tensor, n: int, rng: np.random.Generator) -> np.ndarray:
    """n classes from `prior`, int64."""
    return rng.choice(len(prior), size=n, p=prior.numpy())


def draw_dirichlet(alpha: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One Dirichlet mask per row of `alpha`, shape (n, T); no entry is 0."""
    gamma = np.maximum(rng.standard_gamma(alpha), TINY)
    return np.maximum(gamma / gamma.sum(-1, keepdims=True), TINY)
