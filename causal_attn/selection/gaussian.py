"""A full-rank Gaussian q(θ) for the response: Laplace at the mode, then variational steps while they still gain.

    ELBO(q) = E_q[log P(y|m,θ) + log p(W)] + entropy(q),       estimated on fixed, antithetic draws.

A step sets the precision to the average negative Hessian under q and moves the mean by the average gradient (a natural
gradient step of full length: Khan & Rue 2023). It is kept only if the ELBO on the same draws rises, so the ELBO is
never below that of the Laplace approximation. Posterior draws carry an offset a that restores the margin P(Y)=Q(Y):
mean_i softmax(logits + a)_k = P(k) on the rows of the fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from causal_attn.selection.newton import (
    Mode,
    curvature,
    find_mode,
    log_likelihood,
    log_weight_prior,
    penalty_diagonal,
)  # fmt: skip
from causal_attn.selection.response import contrasts, with_intercept

N_ELBO_DRAWS = 16
MAX_VI_STEPS = 5
MIN_GAIN = 1e-2
"""Nats of ELBO below which a further variational step is not taken."""
ROW_CHUNK = 20_000


@dataclass(frozen=True)
class Posterior:
    """q(θ) = Normal(mean, covariance) over θ (d+1, J), with the trace of its ELBO.

    `factor` is the inverse Cholesky factor of the precision: θ = mean + factor z has the right covariance.
    """

    mode: Mode
    mean: Tensor
    factor: Tensor
    elbo: Tensor
    log_prior: Tensor

    def draws(self, n: int, seed: int) -> Tensor:
        """n draws of θ, shape (n, d+1, J)."""
        z = torch.randn(n, self.mean.numel(), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return self._map(z)

    def _map(self, z: Tensor) -> Tensor:
        return self.mean + (z @ self.factor.T).reshape(len(z), *self.mean.shape)

    def log_density(self, theta: Tensor) -> Tensor:
        """log q(θ), nats. (S, d+1, J) -> (S,)."""
        z = torch.linalg.solve_triangular(self.factor, (theta - self.mean).reshape(len(theta), -1).T, upper=True)
        constant = -0.5 * self.mean.numel() * math.log(2 * math.pi) - self.factor.diagonal().log().sum()
        return constant - 0.5 * z.square().sum(0)


def log_joint(theta: Tensor, x: Tensor, y: Tensor, log_prior: Tensor, lam: float) -> Tensor:
    """log P(y | m, θ) + log p(W), nats, the flat intercept adding nothing. θ (S, d+1, J) -> (S,)."""
    n_weights = theta[0, :-1].numel()
    constant = 0.5 * n_weights * math.log(lam / (2 * math.pi))
    like = torch.stack([log_likelihood(one, x, y, log_prior) for one in theta])
    return like + log_weight_prior(theta, lam) + constant


def fit_posterior(
    phi: Tensor, y: Tensor, log_prior: Tensor, prior_precision: float | None = None, start: Posterior | None = None,
    seed: int = 0,
) -> Posterior:  # fmt: skip
    """q(θ) of the response on rows φ (n, d) with classes y (n,)."""
    x = with_intercept(phi)
    mode = find_mode(x, y, log_prior, prior_precision, None if start is None else start.mode)
    half = torch.randn(
        N_ELBO_DRAWS // 2, mode.theta.numel(), generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    z = torch.cat([half, -half])
    best = _gaussian(mode, mode.theta, mode.precision, log_prior)
    elbos = [_elbo(best, z, x, y)]
    for _ in range(MAX_VI_STEPS):
        trial = _natural_step(best, z, x, y)
        value = _elbo(trial, z, x, y)
        if not value > elbos[-1]:
            break
        gain, best = value - elbos[-1], trial
        elbos.append(value)
        if gain < MIN_GAIN:
            break
    return Posterior(mode, best.mean, best.factor, torch.tensor(elbos, dtype=torch.float64), log_prior)


def _gaussian(mode: Mode, mean: Tensor, precision: Tensor, log_prior: Tensor) -> Posterior:
    lower = torch.linalg.cholesky(precision)
    eye = torch.eye(len(precision), dtype=precision.dtype)
    factor = torch.linalg.solve_triangular(lower, eye, upper=False).T.contiguous()
    return Posterior(mode, mean, factor, torch.zeros(0), log_prior)


def _elbo(q: Posterior, z: Tensor, x: Tensor, y: Tensor) -> float:
    entropy = 0.5 * q.mean.numel() * (1 + math.log(2 * math.pi)) + q.factor.diagonal().log().sum()
    return float(log_joint(q._map(z), x, y, q.log_prior, q.mode.prior_precision).mean() + entropy)


def _natural_step(q: Posterior, z: Tensor, x: Tensor, y: Tensor) -> Posterior:
    average = curvature(q._map(z), x, y, q.log_prior)
    penalty = penalty_diagonal(q.mean, q.mode.prior_precision)
    precision = average.precision + penalty.diag()
    gradient = average.gradient.reshape(-1) - penalty * q.mean.reshape(-1)
    move = torch.linalg.solve(precision, gradient).reshape(q.mean.shape)
    return _gaussian(q.mode, q.mean + move, precision, q.log_prior)


def margin_offsets(
    theta: Tensor, phi: Tensor, log_prior: Tensor, steps: int = 200, tolerance: float = 1e-8
) -> Tensor:  # fmt: skip
    """Per draw, the offset of b that makes mean_i r(k | m_i) = Q(k) on these rows. (S, d+1, J) -> (S, J).

    The offset maximises a concave function whose third derivative is at most √2·|v| times its second, so Newton steps v
    shortened to log(1 + √2|v|) / √2 reach it from anywhere (Sun & Tran-Dinh 2019); full ones overshoot where r is
    near 0 or 1 on most rows. Usually 3 or 4 steps.
    """
    h = contrasts(len(log_prior))
    x = with_intercept(phi)
    offset = theta.new_zeros(len(theta), theta.shape[-1])
    for _ in range(steps):
        moved = torch.cat([theta[:, :-1], theta[:, -1:] + offset[:, None]], 1)
        mean, second = _moments(moved, x, log_prior)
        gap = (log_prior.exp() - mean) @ h.T
        if float(gap.abs().max()) < tolerance:
            break
        jacobian = torch.einsum("ik,sk,jk->sij", h, mean, h) - torch.einsum("ik,skl,jl->sij", h, second, h)
        ridge = 1e-12 * torch.eye(len(h), dtype=theta.dtype)  # saturated draws have no curvature to divide by
        move = torch.linalg.solve(jacobian + ridge, gap[..., None])[..., 0]
        length = math.sqrt(2) * move.norm(dim=-1, keepdim=True)
        offset = offset + move * torch.log1p(length) / length.clamp(min=1e-300)
    return offset


def _moments(theta: Tensor, x: Tensor, log_prior: Tensor) -> tuple[Tensor, Tensor]:
    """mean_i r and mean_i r r', shapes (S, K) and (S, K, K), a block of rows at a time."""
    k, h = len(log_prior), contrasts(len(log_prior))
    mean, second = theta.new_zeros(len(theta), k), theta.new_zeros(len(theta), k, k)
    for rows in x.split(max(1, ROW_CHUNK * 10 // (len(theta) * k))):
        r = (log_prior + torch.einsum("nd,sdj->snj", rows, theta) @ h).softmax(-1)
        mean += r.sum(1) / len(x)
        second += torch.einsum("snk,snl->skl", r, r) / len(x)
    return mean, second
