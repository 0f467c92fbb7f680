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


def fast_draws(theta: Tensor, phi: Tensor, log_prior: Tensor) -> Tensor:
    """`linear_log_prob` in float32, for many draws at once. (S, d+1, J), (n, d) -> (S, n, K), nats."""
    rows, draws = phi.float(), theta.float()
    if len(log_prior) == 2:
        logit = _logit_of_two(draws, rows, log_prior)
        log_sigmoid = torch.nn.functional.logsigmoid
        return torch.stack([log_sigmoid(-logit), log_sigmoid(logit)], -1)
    return linear_log_prob(draws, rows, log_prior.float())


EXACT_ENTRIES = 5_000_000
"""Draws times rows up to which an average over draws is taken in float64; beyond it in float32 (1e-7, relative)."""


def mean_log_prob(theta: Tensor, phi: Tensor, log_prior: Tensor, chunk_entries: float = 2e6) -> Tensor:
    """log of the average of r_θ(k | m) over draws of θ, a block of rows at a time. Shape (n, K), float64."""
    parts, exact = [], len(theta) * len(phi) <= EXACT_ENTRIES
    if len(log_prior) == 2:
        return _mean_of_two(theta, phi, log_prior, chunk_entries, torch.float64 if exact else torch.float32)
    draws = linear_log_prob if exact else fast_draws
    for rows in phi.split(max(1, int(chunk_entries / len(theta)))):
        log_p = draws(theta, rows, log_prior)
        mean = log_p.exp().mean(0)
        tiny = (mean < 1e-30).any(-1)  # where the average underflows, the slower way that does not
        log_mean = mean.double().log()
        log_mean[tiny] = log_p[:, tiny].double().logsumexp(0) - np.log(len(theta))
        parts.append(log_mean.log_softmax(-1))
    return torch.cat(parts)


def _logit_of_two(draws: Tensor, rows: Tensor, log_prior: Tensor) -> Tensor:
    """log r(1|m)/r(0|m) for two classes: one logit says it all; √2 is the length of the contrast. (S, n)."""
    signed = float(contrasts(2)[0, 1] - contrasts(2)[0, 0])
    logit = torch.addmm(draws[:, -1], draws[:, :-1, 0], rows.T, beta=signed, alpha=signed)
    return logit.add_(float(log_prior[1] - log_prior[0]))


def _mean_of_two(
    theta: Tensor, phi: Tensor, log_prior: Tensor, chunk_entries: float, dtype: torch.dtype
) -> Tensor:  # fmt: skip
    """`mean_log_prob` for two classes, from two sigmoids."""
    draws, parts = theta.to(dtype), []
    for rows in phi.split(max(1, int(chunk_entries / len(theta)))):
        logit = _logit_of_two(draws, rows.to(dtype), log_prior)
        mean = torch.stack([(-logit).sigmoid_().mean(0), logit.sigmoid().mean(0)], -1)
        log_mean = mean.double().log()
        tiny = (mean < 1e-30).any(-1)  # where the average underflows, the slower way that does not
        if tiny.any():
            log_p = torch.nn.functional.logsigmoid(torch.stack([-logit[:, tiny], logit[:, tiny]], -1).double())
            log_mean[tiny] = log_p.logsumexp(0) - np.log(len(theta))
        parts.append(log_mean.log_softmax(-1))
    return torch.cat(parts)
