"""Many parameters: the same mode and scales without a P × P matrix, P = (d+1)(K−1).

The curvature Σ_i x_i x_i' ⊗ S_i is approximated by A ⊗ B, with s_i = tr S_i / (K−1),

    A = Σ_i s_i x_i x_i',        B = Σ_i S_i / Σ_i s_i.

With the penalty Λ of the features (almost nothing for the intercept) and Λ^-½ A Λ^-½ = U diag(a) U', B = V diag(b) V',

    A ⊗ B + Λ ⊗ I = (Λ^½ U ⊗ V) diag(a_i b_j + 1) (U' Λ^½ ⊗ V').

That serves as the preconditioner of conjugate gradients, which solve each Newton step with the exact curvature (so the
mode is exact), and as the precision of the Gaussian there (which is not: the spread is approximate). The scale of each
group of features follows MacKay's fixed point for the evidence times p(scale) ∝ scale, λ = (γ − 1) / |W|², γ the number
of well-determined weights. Cost: O(n d K) a product, O(d³) a decomposition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from causal_attn.errors import NotEstimableError
from causal_attn.selection.response import contrasts

MAX_STEPS, MAX_PRODUCTS = 60, 40
ROW_CHUNK = 16_384
FLAT = 1e-8
"""The intercept's penalty, as a share of its curvature: none, to the digits that matter."""
STRIDE = 1.7
"""How many of its own steps, in log λ, the fixed point is moved by: alone it creeps."""
SETTLED = 0.02
"""Relative change of λ below which it has settled."""

Rows = tuple[Tensor, Tensor, Tensor, Tensor | None]
"""x (n, d+1), y (n,), log Q(k) (K,), and row weights (n,) or None."""


@dataclass(frozen=True)
class KroneckerFactor:
    """F with F F' = (A ⊗ B + Λ ⊗ I)⁻¹: what turns standard normals into draws about the mode.

    Args:
        u, a: eigenvectors and values of Λ^-½ A Λ^-½, shapes (d+1, d+1) and (d+1,).
        v, b: those of B, shapes (J, J) and (J,).
        root: Λ^½, shape (d+1,).
    """

    u: Tensor
    a: Tensor
    v: Tensor
    b: Tensor
    root: Tensor

    @property
    def precision(self) -> Tensor:
        """a_i b_j + 1, shape (d+1, J)."""
        return torch.outer(self.a, self.b) + 1

    @property
    def log_det(self) -> float:
        """log |det F|."""
        return -0.5 * float(self.precision.log().sum()) - len(self.b) * float(self.root.log().sum())

    def map(self, z: Tensor) -> Tensor:
        """F z, shape (S, P) -> (S, d+1, J)."""
        scaled = z.reshape(len(z), *self.precision.shape) / self.precision.sqrt()
        return (self.u @ scaled @ self.v.T) / self.root[:, None]

    def unmap(self, delta: Tensor) -> Tensor:
        """F⁻¹ δ, shape (S, d+1, J) -> (S, P)."""
        return ((self.u.T @ (delta * self.root[:, None]) @ self.v) * self.precision.sqrt()).flatten(1)

    def solve(self, g: Tensor) -> Tensor:
        """(A ⊗ B + Λ ⊗ I)⁻¹ g, shape (d+1, J)."""
        return (self.u @ ((self.u.T @ (g / self.root[:, None]) @ self.v) / self.precision) @ self.v.T) / self.root[
            :, None
        ]


@dataclass(frozen=True)
class _Local:
    """The log-likelihood about θ: value, gradient (d+1, J), probabilities r (n, K) and row weights (n,)."""

    value: float
    gradient: Tensor
    r: Tensor
    w: Tensor


def kronecker_mode(
    rows: Rows, precision: Tensor, settled: bool, theta: Tensor, groups: Tensor, tolerance: float
) -> tuple[Tensor, Tensor, KroneckerFactor, int]:  # fmt: skip
    """The mode θ (d+1, J), λ of each feature (d,), the factor of its Gaussian, and the Newton steps taken.

    Args:
        rows: x (n, d+1) with a ones column last, y (n,), log Q(k) (K,), row weights (n,) or None.
        precision: λ of each feature to start from, shape (d,).
        settled: whether λ is given rather than estimated.
        theta: where to start, shape (d+1, J).
        groups: the group of each feature, shape (d,).
        tolerance: Newton decrement, nats, at which the mode is reached.

    Raises:
        NotEstimableError: no convergence.
    """
    x = rows[0]
    for step in range(MAX_STEPS):
        local = _about(theta, rows)
        factor = _factor(x, local, precision)
        if not settled and step > 0:  # the fixed point needs weights that have seen the data
            new = _precision(factor, theta, precision, groups)
            settled = bool(((new / precision).log().abs() < SETTLED).all())
            precision = new
            factor = _factor(x, local, precision)
        penalty = factor.root.square()[:, None]
        gradient = local.gradient - penalty * theta
        move = _newton_step(x, local, penalty, factor, gradient)
        decrement = float((gradient * move).sum())
        if settled and decrement < tolerance:
            return theta + move, precision, factor, step + 1
        theta = _line_search(theta, move, decrement, local.value, penalty, rows)
        settled = settled or step > MAX_STEPS // 2
    raise NotEstimableError(f"the mode of P(y | m) was not reached in {MAX_STEPS} Newton steps")


def _about(theta: Tensor, rows: Rows) -> _Local:
    x, y, log_prior, w = rows
    h, weight = contrasts(len(log_prior)), x.new_ones(len(x)) if w is None else w
    log_r = (log_prior + (x @ theta) @ h).log_softmax(-1)
    r = log_r.exp()
    value = float(weight @ log_r.gather(-1, y[:, None])[:, 0])
    return _Local(value, x.T @ ((h.T[y] - r @ h.T) * weight[:, None]), r, weight)


def _factor(x: Tensor, local: _Local, precision: Tensor) -> KroneckerFactor:
    h = contrasts(local.r.shape[1])
    s = local.w * (1 - local.r.square().sum(-1)) / len(h)  # tr S_i / (K−1)
    mean = h @ torch.diag(local.w @ local.r) @ h.T - (h @ local.r.T * local.w) @ (local.r @ h.T)
    a = torch.zeros(x.shape[1], x.shape[1], dtype=x.dtype)
    for block, weight in zip(x.split(ROW_CHUNK), s.split(ROW_CHUNK)):
        a += (block * weight[:, None]).T @ block
    flat = (FLAT * a[-1, -1]).clamp(min=1e-300)
    root = torch.cat([precision, flat[None]]).sqrt()
    values, u = torch.linalg.eigh(a / root[:, None] / root)
    b, v = torch.linalg.eigh(mean / s.sum().clamp(min=1e-300))
    return KroneckerFactor(u, values.clamp(min=0), v, b.clamp(min=0), root)


def _precision(factor: KroneckerFactor, theta: Tensor, precision: Tensor, groups: Tensor) -> Tensor:
    """MacKay's fixed point of each group's λ; kept within the range of the dense search."""
    low, high = math.exp(-4.0), math.exp(16.0)
    spread = factor.u.square() @ (1 / factor.precision).sum(1)  # trace of λ·covariance, by feature, summed over classes
    new = precision.clone()
    for group in groups.unique():
        mine = groups == group
        determined = int(mine.sum()) * theta.shape[1] - float(spread[:-1][mine].sum())
        size = float(theta[:-1][mine].square().sum())
        found = max(determined - 1, 1e-3) / max(size, 1e-12)
        new[mine] = min(max(found * (found / float(precision[mine][0])) ** (STRIDE - 1), low), high)
    return new


def _product(x: Tensor, local: _Local, penalty: Tensor, v: Tensor) -> Tensor:
    """The exact curvature of the log joint times v, shape (d+1, J)."""
    h = contrasts(local.r.shape[1])
    t = local.r * ((x @ v) @ h)
    t = (t - local.r * t.sum(-1, keepdim=True)) * local.w[:, None]
    return x.T @ (t @ h.T) + penalty * v


def _newton_step(x: Tensor, local: _Local, penalty: Tensor, factor: KroneckerFactor, gradient: Tensor) -> Tensor:
    """Curvature⁻¹ gradient by preconditioned conjugate gradients."""
    step, residual = torch.zeros_like(gradient), gradient
    z = factor.solve(residual)
    direction, size = z, float((residual * z).sum())
    first = size
    for _ in range(MAX_PRODUCTS):
        if size <= 1e-10 * first or size <= 0:
            break
        applied = _product(x, local, penalty, direction)
        length = size / float((direction * applied).sum())
        step, residual = step + length * direction, residual - length * applied
        z = factor.solve(residual)
        size, before = float((residual * z).sum()), size
        direction = z + (size / before) * direction
    return step


def _line_search(theta: Tensor, move: Tensor, decrement: float, value: float, penalty: Tensor, rows: Rows) -> Tensor:
    """The longest of 1, ½, ¼ … of the move that gains a fair part of what the quadratic promises (Armijo)."""
    joint = lambda t, like: like - 0.5 * float((penalty * t.square()).sum())  # noqa: E731
    base, size = joint(theta, value), 1.0
    while size > 1e-6:
        trial = theta + size * move
        if joint(trial, _about(trial, rows).value) >= base + 1e-4 * size * decrement:
            return trial
        size /= 2
    return theta + move  # at machine precision no step gains measurably
