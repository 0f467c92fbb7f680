"""r_θ(y|m), the response: a multinomial logistic model of the class given the mask's features.

    logits = log Q(y) + (φ(m) W + b) H,        W ~ Normal(0, scale²) elementwise, b flat.

H (K-1, K) has orthonormal rows orthogonal to the ones vector, so an isotropic prior on W treats all classes alike and
nothing is redundant. θ stacks W and b: shape (d+1, K-1), the last row is b.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from scipy.linalg import helmert
from torch import Tensor


@lru_cache(maxsize=32)
def contrasts(n_classes: int) -> Tensor:
    """H, shape (K-1, K), float64: orthonormal rows, each summing to 0."""
    return torch.from_numpy(np.ascontiguousarray(helmert(n_classes)))


def with_intercept(phi: Tensor) -> Tensor:
    """φ with a column of ones behind it: (n, d) -> (n, d+1)."""
    return torch.cat([phi, torch.ones_like(phi[:, :1])], -1)


def linear_log_prob(theta: Tensor, phi: Tensor, log_prior: Tensor) -> Tensor:
    """log r_θ(k | m), nats.

    Args:
        theta: W and b, shape (..., d+1, K-1).
        phi: features, shape (n, d).
        log_prior: log Q(k), shape (K,).

    Returns:
        Shape (..., n, K).
    """
    eta = torch.einsum("nd,...dj->...nj", phi, theta[..., :-1, :]) + theta[..., -1:, :]
    return (log_prior.to(phi) + eta @ contrasts(len(log_prior)).to(phi)).log_softmax(-1)
