"""The log-likelihood of the response and its derivatives, rows a block at a time; the curvature is O(n d² K²)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from causal_attn.selection.prior import ClassPrior, Prior
from causal_attn.selection.response import contrasts

ROW_CHUNK = 16_384
SINGLE_ROWS, SMALL_PRECISION = 10_000, 1e-6
"""Rows above which a block's curvature is summed in float32 (1e-7 of a row's share, relative), as long as λ is at least
this per row: it steers the steps and sets the spread; the gradient, which decides where they end, stays in float64."""


@dataclass(frozen=True)
class Curvature:
    """Derivatives of the log-likelihood at θ: value, gradient (d+1, J) and negative Hessian (P, P), P = (d+1)·J."""

    value: float
    gradient: Tensor
    precision: Tensor

    @staticmethod
    def total(parts: Sequence[Curvature]) -> Curvature:
        """That of several sets of rows together, at one θ."""
        gradient = torch.stack([part.gradient for part in parts]).sum(0)
        return Curvature(sum(p.value for p in parts), gradient, torch.stack([p.precision for p in parts]).sum(0))


def _blocks_of(x: Tensor, y: Tensor, w: Tensor | None) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Rows a block at a time: temporaries of a block are held, not of all rows."""
    for start in range(0, len(x), ROW_CHUNK):
        block = slice(start, start + ROW_CHUNK)
        yield x[block], y[block], None if w is None else w[block]


def log_likelihood(theta: Tensor, x: Tensor, y: Tensor, log_prior: Tensor, w: Tensor | None = None) -> Tensor:
    """Σ_i w_i log r_θ(y_i | m_i), nats. θ (..., d+1, J), x (n, d+1) with its ones column, w (n,) or 1 -> (...)."""
    total = theta.new_zeros(theta.shape[:-2])
    for rows, labels, weight in _blocks_of(x, y, w):
        logits = log_prior + (rows @ theta) @ contrasts(len(log_prior))
        own = logits.gather(-1, labels.expand(logits.shape[:-1])[..., None])[..., 0]
        each = own - logits.logsumexp(-1)
        total = total + (each if weight is None else each * weight).sum(-1)
    return total


def rough_will_do(n: int, prior: Prior) -> bool:
    """Whether the curvature of n rows may be summed in float32: its rounding must stay small against λ."""
    if isinstance(prior, ClassPrior):
        return n > SINGLE_ROWS and float(torch.linalg.eigvalsh(prior.covariance).max()) <= 1 / (SMALL_PRECISION * n)
    return n > SINGLE_ROWS and float(torch.as_tensor(prior).min()) >= SMALL_PRECISION * n


def curvature(
    theta: Tensor, x: Tensor, y: Tensor, log_prior: Tensor, w: Tensor | None = None, rough: bool = False
) -> Curvature:  # fmt: skip
    """Value, gradient and negative Hessian of the log-likelihood, the last by blocks in float32 where `rough`. Averages
    them over θ's leading dimension, if any."""
    thetas = theta if theta.ndim == 3 else theta[None]
    width = thetas[0].numel()
    value, gradient, precision = 0.0, torch.zeros_like(thetas[0]), x.new_zeros(width, width)
    for rows, labels, weight in _blocks_of(x, y, w):
        part, residual, second = _moments(thetas, rows, labels, log_prior, weight)
        value += part
        gradient += rows.T @ residual
        precision += _blocks(rows.float(), second.float()) if rough else _blocks(rows, second)
    return Curvature(value, gradient, precision)


def gradient_of(theta: Tensor, x: Tensor, y: Tensor, log_prior: Tensor, w: Tensor | None = None) -> Tensor:
    """That of the log-likelihood, (d+1, J)."""
    h, total = contrasts(len(log_prior)), torch.zeros_like(theta)
    for rows, labels, weight in _blocks_of(x, y, w):
        residual = h.T[labels] - (log_prior + (rows @ theta) @ h).softmax(-1) @ h.T
        total += rows.T @ (residual if weight is None else residual * weight[:, None])
    return total


def class_curvature(theta: Tensor, x: Tensor, y: Tensor, log_prior: Tensor, w: Tensor | None = None) -> Tensor:
    """How the log-likelihood bends along each feature in each class's logit, about that class's intercept: (d+1, K).

    With b_i = w_i r_ik (1 − r_ik): Σ_i b_i x_ij² − (Σ_i b_i x_ij)² / Σ_i b_i, and Σ_i b_i itself for the intercept. A
    feature set in few rows bends there alone, which is lost in Σ_i b_i x_ij² once it is centred.
    """
    square, mixed = (theta.new_zeros(len(theta), len(log_prior)) for _ in range(2))
    for rows, _, weight in _blocks_of(x, y, w):
        r = (log_prior + (rows @ theta) @ contrasts(len(log_prior))).softmax(-1)
        bend = r * (1 - r)
        bend = bend if weight is None else bend * weight[:, None]
        square += rows.square().T @ bend
        mixed += rows.T @ bend
    return about_intercept(square, mixed)


def about_intercept(square: Tensor, mixed: Tensor) -> Tensor:
    """Σ b x² and Σ b x of each feature and class, the intercept's row last, to what is left about the intercept."""
    left = square - mixed.square() / mixed[-1:].clamp(min=1e-300)
    left[-1] = mixed[-1]
    return left.clamp(min=0)


def _moments(
    thetas: Tensor, x: Tensor, y: Tensor, log_prior: Tensor, w: Tensor | None = None
) -> tuple[float, Tensor, Tensor]:  # fmt: skip
    """Log-likelihood, residual (n, J) and curvature (n, J, J) in the contrasts, averaged over draws (S, d+1, J)."""
    h = contrasts(len(log_prior))
    log_r = (log_prior + (x @ thetas) @ h).log_softmax(-1)  # (S, n, K)
    own = log_r.gather(-1, y.expand(log_r.shape[:-1])[..., None])[..., 0]
    value = float((own if w is None else own * w).sum()) / len(thetas)
    r = log_r.exp()
    residual = h.T[y] - r.mean(0) @ h.T
    if len(h) == 1:
        second = (2 * r[..., 0] * r[..., 1]).mean(0)[:, None, None]
    else:
        rh = r @ h.T
        second = torch.einsum("nk,ik,jk->nij", r.mean(0), h, h) - torch.einsum("sni,snj->nij", rh, rh) / len(thetas)
    if w is None:
        return value, residual, second
    return value, residual * w[:, None], second * w[:, None, None]


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
