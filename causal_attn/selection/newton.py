"""The mode of the response's posterior, and the prior scale by the Laplace evidence, in one Newton iteration.

The objective is strictly concave for a positive prior precision, so damped Newton steps always reach it. The precision
λ = 1/scale² is re-estimated between steps by maximising the evidence of the local quadratic model,

    Σ_j ½ [log λ − log(h_j + λ) + g_j² / (h_j + λ)],

with h_j the eigenvalues of the curvature (intercept profiled out) and g the linear term in its eigenbasis
(MacKay 1992, with the curvature held at the current mode). Cost: O(n d² K²) a step for the curvature.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from causal_attn.errors import NotEstimableError
from causal_attn.selection.response import contrasts

MAX_STEPS = 100
ROW_CHUNK = 16_384
MAX_EIGEN = 1500
"""Parameters up to which the evidence uses the curvature's own eigenvalues; beyond, those of its Kronecker fit."""
LOG_PRECISION_RANGE = (-4.0, 16.0)
"""Natural log of λ: scales from 7.4 down to 3e-4; beyond either end nothing more is learnt."""


@dataclass(frozen=True)
class Curvature:
    """Derivatives of the log-likelihood at θ: value, gradient (d+1, J) and negative Hessian (P, P), P = (d+1)·J."""

    value: float
    gradient: Tensor
    precision: Tensor


@dataclass(frozen=True)
class Mode:
    """θ at the mode (d+1, J), the prior precision λ, and the negative Hessian of the log joint there (P, P)."""

    theta: Tensor
    prior_precision: float
    precision: Tensor
    n_steps: int


def log_likelihood(theta: Tensor, x: Tensor, y: Tensor, log_prior: Tensor) -> Tensor:
    """Σ_i log r_θ(y_i | m_i), nats. θ (..., d+1, J), x (n, d+1) with its ones column -> (...)."""
    total = theta.new_zeros(theta.shape[:-2])
    for rows, labels in zip(x.split(ROW_CHUNK), y.split(ROW_CHUNK)):
        logits = log_prior + (rows @ theta) @ contrasts(len(log_prior))
        own = logits.gather(-1, labels.expand(logits.shape[:-1])[..., None])[..., 0]
        total = total + (own - logits.logsumexp(-1)).sum(-1)
    return total


def curvature(theta: Tensor, x: Tensor, y: Tensor, log_prior: Tensor) -> Curvature:
    """Value, gradient and negative Hessian of the log-likelihood. Averages them over θ's leading dimension, if any."""
    thetas = theta if theta.ndim == 3 else theta[None]
    width = thetas[0].numel()
    value, gradient, precision = 0.0, torch.zeros_like(thetas[0]), x.new_zeros(width, width)
    for rows, labels in zip(x.split(ROW_CHUNK), y.split(ROW_CHUNK)):  # temporaries of a block, not of all rows
        part, residual, second = _moments(thetas, rows, labels, log_prior)
        value += part
        gradient += rows.T @ residual
        precision += _blocks(rows, second)
    return Curvature(value, gradient, precision)


def _moments(thetas: Tensor, x: Tensor, y: Tensor, log_prior: Tensor) -> tuple[float, Tensor, Tensor]:
    """Log-likelihood, residual (n, J) and curvature (n, J, J) in the contrasts, averaged over draws (S, d+1, J)."""
    h = contrasts(len(log_prior))
    log_r = (log_prior + (x @ thetas) @ h).log_softmax(-1)  # (S, n, K)
    value = float(log_r.gather(-1, y.expand(log_r.shape[:-1])[..., None]).sum()) / len(thetas)
    r = log_r.exp()
    residual = h.T[y] - r.mean(0) @ h.T
    if len(h) == 1:
        return value, residual, (2 * r[..., 0] * r[..., 1]).mean(0)[:, None, None]
    rh = r @ h.T
    second = torch.einsum("nk,ik,jk->nij", r.mean(0), h, h) - torch.einsum("sni,snj->nij", rh, rh) / len(thetas)
    return value, residual, second


def _blocks(x: Tensor, second: Tensor) -> Tensor:
    """Σ_n x x' ⊗ second_n as a (P, P) matrix, θ flattened with the class last."""
    width, n_out = x.shape[1], second.shape[1]
    out = x.new_empty(width, n_out, width, n_out)
    for i in range(n_out):
        for j in range(i, n_out):
            block = (x * second[:, i, j, None]).T @ x
            out[:, i, :, j] = block
            out[:, j, :, i] = block
    return out.reshape(width * n_out, width * n_out)


def penalty_diagonal(theta: Tensor, prior_precision: float) -> Tensor:
    """λ on the weights, 0 on the intercept's row, flattened to (P,)."""
    diagonal = torch.full_like(theta, prior_precision)
    diagonal[-1] = 0.0
    return diagonal.reshape(-1)


def find_mode(
    x: Tensor, y: Tensor, log_prior: Tensor, prior_precision: float | None = None, start: Mode | None = None,
    tolerance: float = 1e-8,
) -> Mode:  # fmt: skip
    """The posterior mode of θ, float64.

    Args:
        x: features with a ones column last, shape (n, d+1).
        y: classes, shape (n,).
        log_prior: log Q(k), shape (K,).
        prior_precision: λ; None: by the evidence.
        start: an earlier mode to start from.
        tolerance: on the Newton decrement, nats per row and at most 0.01 in all; the last step, taken after the
            check, squares what is left.

    Raises:
        NotEstimableError: no convergence within MAX_STEPS (never seen with a positive λ).
    """
    n_out = len(log_prior) - 1
    theta = x.new_zeros(x.shape[1], n_out) if start is None else start.theta.clone()
    lam = prior_precision or (start.prior_precision if start is not None else 1.0)
    settled = prior_precision is not None
    for step in range(MAX_STEPS):
        local = curvature(theta, x, y, log_prior)
        if not settled:
            new = evidence_precision(local, theta)
            settled = abs(new - lam) <= 1e-3 * lam and step > 0
            lam = new
        penalty = penalty_diagonal(theta, lam)
        precision = local.precision + penalty.diag()
        gradient = local.gradient.reshape(-1) - penalty * theta.reshape(-1)
        move = torch.cholesky_solve(gradient[:, None], torch.linalg.cholesky(precision))[:, 0]
        decrement = float(gradient @ move)
        if settled and decrement < min(tolerance * len(x), 1e-2):
            return Mode(theta + move.reshape(theta.shape), lam, precision, step + 1)
        theta = _line_search(theta, move.reshape(theta.shape), decrement, local.value, lam, (x, y, log_prior))
        settled = settled or step > MAX_STEPS // 2
    raise NotEstimableError(f"the mode of P(y | m) was not reached in {MAX_STEPS} Newton steps")


def log_weight_prior(theta: Tensor, prior_precision: float) -> Tensor:
    """−½ λ |W|², up to its constant; the intercept's row is flat. (..., d+1, J) -> (...)."""
    return -0.5 * prior_precision * theta[..., :-1, :].square().sum((-1, -2))


def _line_search(
    theta: Tensor, move: Tensor, decrement: float, value: float, lam: float, rows: tuple[Tensor, Tensor, Tensor]
) -> Tensor:
    """The longest of 1, ½, ¼ … of the move that gains a fair part of what the quadratic promises (Armijo)."""
    base = value + float(log_weight_prior(theta, lam))
    size = 1.0
    while size > 1e-6:
        trial = theta + size * move
        if float(log_likelihood(trial, *rows) + log_weight_prior(trial, lam)) >= base + 1e-4 * size * decrement:
            return trial
        size /= 2
    return theta + move  # at machine precision no step gains measurably


def evidence_precision(local: Curvature, theta: Tensor) -> float:
    """λ that maximises the evidence of the quadratic model at θ, the intercept profiled out."""
    n_out = theta.shape[1]
    flat = theta.reshape(-1)
    linear = local.precision @ flat + local.gradient.reshape(-1)
    w = slice(0, len(flat) - n_out)
    b = slice(len(flat) - n_out, len(flat))
    inner = torch.linalg.solve(local.precision[b, b], torch.cat([local.precision[b, w], linear[b, None]], 1))
    schur = local.precision[w, w] - local.precision[w, b] @ inner[:, :-1]
    g = linear[w] - local.precision[w, b] @ inner[:, -1]
    h, g2 = _spectrum(schur, g, n_out)
    grid = torch.linspace(*LOG_PRECISION_RANGE, 401, dtype=torch.float64)
    total = h.clamp(min=0)[:, None] + grid.exp()
    evidence = 0.5 * (grid - total.log() + g2[:, None] / total).sum(0)
    return float(_peak(grid, evidence).exp())


def _peak(grid: Tensor, height: Tensor) -> Tensor:
    """Where an evenly spaced curve peaks, by the parabola through its highest point and the neighbours."""
    top = int(height.argmax())
    if top in (0, len(grid) - 1):
        return grid[top]
    before, at, after = height[top - 1 : top + 2]
    return grid[top] + 0.5 * (grid[1] - grid[0]) * (before - after) / (before - 2 * at + after)


def _spectrum(schur: Tensor, g: Tensor, n_out: int) -> tuple[Tensor, Tensor]:
    """Eigenvalues of the curvature and the squared linear term in its eigenbasis, both (P,).

    Above MAX_EIGEN parameters the curvature is taken as a Kronecker product A ⊗ B of a feature and a class part, whose
    eigenvalues cost O(d³ + J³) instead of O(d³J³).
    """
    if len(schur) <= MAX_EIGEN:
        h, vectors = torch.linalg.eigh(schur)
        return h, (vectors.T @ g).square()
    blocks = schur.reshape(-1, n_out, len(schur) // n_out, n_out)
    over_classes = torch.einsum("ajbj->ab", blocks) / n_out
    over_features = torch.einsum("aiaj->ij", blocks) / over_classes.diagonal().sum()
    (ha, va), (hb, vb) = torch.linalg.eigh(over_classes), torch.linalg.eigh(over_features)
    rotated = va.T @ g.reshape(-1, n_out) @ vb
    return torch.outer(ha, hb).reshape(-1), rotated.square().reshape(-1)
