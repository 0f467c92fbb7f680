"""A full-rank Gaussian q(θ) for the response: Laplace at the mode, then variational steps while they still gain.

    ELBO(q) = E_q[log P(y|m,θ) + log p(W)] + entropy(q),       estimated on fixed, antithetic draws.

A step sets the precision to the average negative Hessian under q and moves the mean by the average gradient (a natural
gradient step of full length: Khan & Rue 2023). It is kept only if the ELBO rises on other draws, fixed as well: judged
on the draws that steered it, it would look about 0.1 nats too good. So the ELBO is never below the Laplace's.

Posterior draws carry an offset a that restores the margin, mean_i softmax(logits + a)_k = P(k), the share of class k
among the rows of the fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from causal_attn.selection.curvature import SINGLE_ROWS, Curvature, curvature, log_likelihood, rough_will_do
from causal_attn.selection.kronecker import KroneckerFactor
from causal_attn.selection.newton import Mode, find_mode
from causal_attn.selection.prior import Prior, log_prior_constant, log_weight_prior, penalty
from causal_attn.selection.response import contrasts

N_ELBO_DRAWS, FEW_ELBO_DRAWS, MANY_ROWS = 16, 4, 20_000
"""Fixed draws behind an ELBO, and on how many rows fewer do: the control variate leaves only third-order terms."""
DRAW_CHUNK = 8
MAX_VI_STEPS = 5
MIN_GAIN = 1e-2
"""Nats of ELBO below which a further variational step is not taken."""
ROW_CHUNK, MOMENT_ENTRIES = 20_000, 2_000_000
NEAR_MARGIN, NEAR_MARGIN_OF_MANY = 5e-5, 1e-3
"""Relative gap of a class's margin at which a step is the last: it squares what was left (1e-5 and below of many)."""


@dataclass(frozen=True)
class Posterior:
    """q(θ) = Normal(mean, covariance) over θ (d+1, J), with the trace of its ELBO.

    `factor` is the inverse Cholesky factor of the precision: θ = mean + factor z has the right covariance. With many
    parameters it is a `KroneckerFactor`.
    """

    mode: Mode
    mean: Tensor
    factor: Tensor | KroneckerFactor
    elbo: Tensor
    log_prior: Tensor

    def draws(self, n: int, seed: int) -> Tensor:
        """n draws of θ, shape (n, d+1, J)."""
        z = torch.randn(n, self.mean.numel(), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return self._map(z)

    def _map(self, z: Tensor) -> Tensor:
        if isinstance(self.factor, KroneckerFactor):
            return self.mean + self.factor.map(z)
        return self.mean + (z @ self.factor.T).reshape(len(z), *self.mean.shape)

    def _unmap(self, delta: Tensor) -> Tensor:
        if isinstance(self.factor, KroneckerFactor):
            return self.factor.unmap(delta)
        return torch.linalg.solve_triangular(self.factor, delta.reshape(len(delta), -1).T, upper=True).T

    @property
    def log_det(self) -> float:
        """log |det factor|."""
        if isinstance(self.factor, KroneckerFactor):
            return self.factor.log_det
        return float(self.factor.diagonal().log().sum())

    def log_density(self, theta: Tensor) -> Tensor:
        """log q(θ), nats. (S, d+1, J) -> (S,)."""
        constant = -0.5 * self.mean.numel() * math.log(2 * math.pi) - self.log_det
        return constant - 0.5 * self._unmap(theta - self.mean).square().sum(-1)


def log_joint(theta: Tensor, x: Tensor, y: Tensor, log_prior: Tensor, lam: Prior) -> Tensor:
    """log P(y | m, θ) + log p(W), nats, the flat intercept adding nothing. θ (S, d+1, J) -> (S,)."""
    constant = log_prior_constant(lam, theta.shape[1] - 1, theta.shape[2])
    like = torch.cat([log_likelihood(part, x, y, log_prior) for part in theta.split(DRAW_CHUNK)])
    return like + log_weight_prior(theta, lam) + constant


def fit_posterior(
    x: Tensor, y: Tensor, log_prior: Tensor, prior_precision: float | None = None, start: Posterior | None = None,
    seed: int = 0, refine: bool = True, groups: Tensor | None = None, known: Curvature | None = None,
) -> Posterior:  # fmt: skip
    """q(θ) of the response.

    Args:
        x: features with a ones column last, shape (n, d+1).
        y: classes, shape (n,).
        log_prior: log Q(k), shape (K,).
        prior_precision: λ; None: by the evidence.
        start: an earlier posterior, for its mode.
        seed: of the fixed draws behind the ELBO.
        groups: the group of each feature, shape (d,), with a prior scale of its own; None: one scale.
        refine: whether variational steps are tried; without them q is the Laplace approximation, its ELBO not computed.
        known: the curvature of these rows at the start's mode, where it is known already.
    """
    mode = find_mode(x, y, log_prior, prior_precision, None if start is None else start.mode, 1e-8, groups, known)
    best = _gaussian(mode, mode.theta, mode.precision, log_prior)
    if not refine:
        return best
    matrix = isinstance(best.factor, Tensor)  # a step needs one
    stay = not matrix or (
        mode.n_steps == 1 and start is not None and 0 < len(start.elbo) < 3 and _gain(start) < MIN_GAIN
    )
    n_draws = N_ELBO_DRAWS if len(x) <= MANY_ROWS else FEW_ELBO_DRAWS
    generator = torch.Generator().manual_seed(seed)
    steering, judging = (_antithetic(n_draws, mode.theta.numel(), generator) for _ in range(2))
    elbos = [_elbo(best, judging, x, y)]
    for _ in range(0 if stay else MAX_VI_STEPS):  # an earlier fit this near gained nothing: neither would this one
        trial = _natural_step(best, steering, x, y)
        value = _elbo(trial, judging, x, y)
        if not value > elbos[-1]:
            break
        gain, best = value - elbos[-1], trial
        elbos.append(value)
        if gain < MIN_GAIN:
            break
    return Posterior(mode, best.mean, best.factor, torch.tensor(elbos, dtype=torch.float64), log_prior)


def _antithetic(n: int, width: int, generator: torch.Generator) -> Tensor:
    half = torch.randn(n // 2, width, generator=generator, dtype=torch.float64)
    return torch.cat([half, -half])


def _gain(q: Posterior) -> float:
    return float(q.elbo[-1] - q.elbo[0])


def _gaussian(mode: Mode, mean: Tensor, precision: Tensor | KroneckerFactor, log_prior: Tensor) -> Posterior:
    if isinstance(precision, KroneckerFactor):
        return Posterior(mode, mean, precision, torch.zeros(0), log_prior)
    lower = torch.linalg.cholesky(precision)
    eye = torch.eye(len(precision), dtype=precision.dtype)
    factor = torch.linalg.solve_triangular(lower, eye, upper=False).T.contiguous()
    return Posterior(mode, mean, factor, torch.zeros(0), log_prior)


def _elbo(q: Posterior, z: Tensor, x: Tensor, y: Tensor) -> float:
    """The ELBO on draws z; the log joint's quadratic part, −½|z|² about the mean, enters by its exact average."""
    width = q.mean.numel()
    entropy = 0.5 * width * (1 + math.log(2 * math.pi)) + q.log_det
    joint = log_joint(q._map(z), x, y, q.log_prior, q.mode.prior_precision)
    return float((joint + 0.5 * z.square().sum(-1)).mean() - 0.5 * width + entropy)


def _natural_step(q: Posterior, z: Tensor, x: Tensor, y: Tensor) -> Posterior:
    rough = rough_will_do(len(x), q.mode.prior_precision)
    average = curvature(q._map(z), x, y, q.log_prior, rough=rough)
    weight = penalty(q.mean, q.mode.prior_precision)
    precision = average.precision + weight
    gradient = average.gradient.reshape(-1) - weight @ q.mean.reshape(-1)
    move = torch.linalg.solve(precision, gradient).reshape(q.mean.shape)
    return _gaussian(q.mode, q.mean + move, precision, q.log_prior)


def margin_offsets(theta: Tensor, x: Tensor, log_prior: Tensor, shares: Tensor, steps: int = 200) -> Tensor:
    """Per draw, the offset of b that makes mean_i r(k | m_i) = P(k) on the rows x. (S, d+1, J), (n, d+1) -> (S, J).

    The offset maximises a concave function whose third derivative is at most √2·|v| times its second, so Newton steps v
    shortened to log(1 + √2|v|) / √2 reach it from anywhere (Sun & Tran-Dinh 2019); full ones overshoot where r is
    near 0 or 1 on most rows. The start is what the mean draw's derivatives say of every draw, which leaves one or two
    steps over all rows and draws, O(S n (d + K) K) each, in float32 where rows are many (1e-6, relative).

    Args:
        theta: draws.
        x: features with a ones column last.
        log_prior: log Q(k), the offset in the logits, shape (K,).
        shares: P(k), the rows' share of each class, shape (K,); a class without rows would send the offset to −∞.
        steps: at most so many.
    """
    offset = _first_offset(theta, x, shares, log_prior)
    many = len(x) > SINGLE_ROWS
    near = NEAR_MARGIN_OF_MANY if many else NEAR_MARGIN
    rows, draws = (x.float(), theta.float()) if many else (x, theta)
    for _ in range(steps):
        mean, second = _moments(_moved(draws, offset.to(draws)), rows, log_prior.to(draws))
        gap = shares - mean
        offset = offset + _offset_step(gap, mean, second)
        if float((gap / shares).abs().max()) < near:
            break
    return offset


def _moved(theta: Tensor, offset: Tensor) -> Tensor:
    return torch.cat([theta[:, :-1], theta[:, -1:] + offset[:, None]], 1)


def _first_offset(theta: Tensor, x: Tensor, shares: Tensor, log_prior: Tensor) -> Tensor:
    """From the derivatives at the mean draw."""
    centre = theta.mean(0)
    mean, slope = _expansion(centre, x, log_prior)
    _, second = _moments(centre[None], x, log_prior)
    gap = shares - mean - torch.einsum("sdj,kdj->sk", theta - centre, slope)
    return _offset_step(gap, mean[None], second)


def _offset_step(gap: Tensor, mean: Tensor, second: Tensor) -> Tensor:
    """A shortened Newton step for the gap in mean_i r(k|m_i), given mean_i r and mean_i r r'. (S, K) -> (S, J)."""
    h = contrasts(gap.shape[-1])
    jacobian = torch.einsum("ik,sk,jk->sij", h, mean, h) - torch.einsum("ik,skl,jl->sij", h, second, h)
    ridge = 1e-12 * torch.eye(len(h), dtype=gap.dtype)  # saturated draws have no curvature to divide by
    move = torch.linalg.solve(jacobian + ridge, (gap @ h.T)[..., None])[..., 0]
    length = math.sqrt(2) * move.norm(dim=-1, keepdim=True)
    return move * torch.log1p(length) / length.clamp(min=1e-300)


def _expansion(theta: Tensor, x: Tensor, log_prior: Tensor) -> tuple[Tensor, Tensor]:
    """mean_i r(k | m_i) at θ (d+1, J), and its gradient: shapes (K,) and (K, d+1, J)."""
    h = contrasts(len(log_prior))
    mean, slope = x.new_zeros(len(log_prior)), x.new_zeros(len(log_prior), *theta.shape)
    for rows in x.split(ROW_CHUNK):
        r = (log_prior + (rows @ theta) @ h).softmax(-1)
        mean += r.sum(0) / len(x)
        change = r[:, :, None] * (h.T[None] - (r @ h.T)[:, None, :])  # d r_k / d η_j, (n, K, J)
        slope += torch.einsum("nd,nkj->kdj", rows, change) / len(x)
    return mean, slope


def _moments(theta: Tensor, x: Tensor, log_prior: Tensor) -> tuple[Tensor, Tensor]:
    """mean_i r and mean_i r r', float64, shapes (S, K) and (S, K, K), a block of rows at a time."""
    k = len(log_prior)
    mean, second = (torch.zeros(len(theta), *shape, dtype=torch.float64) for shape in ((k,), (k, k)))
    for rows in x.split(max(1, MOMENT_ENTRIES // (len(theta) * k))):
        one, two = (_sums_of_two if k == 2 else _sums)(theta, rows, log_prior)
        mean += one / len(x)
        second += two / len(x)
    # a large class's rounding in float32 can be as large as a rare class: it is what the others leave
    largest = mean.argmax(-1, keepdim=True)
    rest = mean.scatter(-1, largest, 0.0).sum(-1, keepdim=True)
    return mean.scatter(-1, largest, 1 - rest), second


def _sums(theta: Tensor, x: Tensor, log_prior: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_i r and Σ_i r r' of a block."""
    by_class = (theta @ contrasts(len(log_prior)).to(x)).permute(2, 0, 1)  # (K, S, d+1): long rows last, which is fast
    r = (by_class @ x.T + log_prior[:, None, None]).softmax(0).transpose(0, 1)
    return r.sum(-1), r @ r.mT


def _sums_of_two(theta: Tensor, x: Tensor, log_prior: Tensor) -> tuple[Tensor, Tensor]:
    """The same for two classes, from one sigmoid."""
    signed = contrasts(2)[0, 1] - contrasts(2)[0, 0]
    logit = torch.addmm((log_prior[1] - log_prior[0]).expand(len(theta), 1), theta[..., 0], x.T, alpha=float(signed))
    r, rest = logit.sigmoid(), (-logit).sigmoid()  # both: 1 − r loses a rare class 0
    one, zero, mixed = r.sum(-1).double(), rest.sum(-1).double(), (r * rest).sum(-1).double()
    second = torch.stack([zero - mixed, mixed, mixed, one - mixed], -1)
    return torch.stack([zero, one], -1), second.reshape(-1, 2, 2)
