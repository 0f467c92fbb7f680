"""The mode of the response's posterior, and the prior scale by the Laplace evidence, in one Newton iteration.

The objective is strictly concave for a positive prior precision, so damped Newton steps always reach it. The precision
λ = 1/scale² is re-estimated between steps by maximising the evidence of the local quadratic model times a prior
p(scale) ∝ scale,

    Σ_j ½ [log λ − log(h_j + λ) + g_j² / (h_j + λ)] − ½ log λ,

with h_j the eigenvalues of the curvature (intercept profiled out) and g the linear term in its eigenbasis
(MacKay 1992, with the curvature held at the current mode). The last term keeps the scale from 0 (Chung et al. 2013):
the bare evidence often peaks there where the signal is weak, and the posterior is then certain of no leak, its 90%
intervals covering 56%. Cost: O(n d² K²) a step for the curvature.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from causal_attn.errors import NotEstimableError
from causal_attn.selection.class_scales import wider_classes
from causal_attn.selection.kronecker import KroneckerFactor, Rows, kronecker_mode
from causal_attn.selection.prior import (
    ClassPrior,
    Precision,
    Prior,
    base_of,
    log_weight_prior,
    penalty,
    penalty_diagonal,
)  # fmt: skip
from causal_attn.selection.response import contrasts

MAX_STEPS = 100
ROW_CHUNK = 16_384
MANY_ROWS = 50_000
"""Rows above which a tenth of them brings the search near, and the last digits of θ, which no interval could show, are
not waited for."""
SINGLE_ROWS, SMALL_PRECISION = 10_000, 1e-6
"""Rows above which a block's curvature is summed in float32 (1e-7 of a row's share, relative), as long as λ is at least
this per row: it steers the steps and sets the spread; the gradient, which decides where they end, stays in float64."""
MAX_DECREMENT = 1e-2
CHORD_ROWS, NEAR, MAX_CHORD_STEPS = 5_000, 5e-3, 12
"""On at least so many rows, and nearer to the mode than this decrement per row, steps with a fixed curvature gain one
or two digits each at the price of a gradient."""
EARLY, NEAR_MODE = 4, 0.1
"""Steps in which λ is found anew each time; after them only where θ is within this, in nats, of its mode for λ. A
quadratic model far from the mode can send λ to the end of its range, and the two could chase each other for ever."""
STALE, STALE_OF_FEW, FEW, MAX_ROUNDS = 0.03, 0.003, 20, 8
"""Relative change of the curvature, of any class along any feature, above which it is summed again where the search
ends, also of a class with fewer than FEW rows' curvature per feature; and how often λ may be found anew there."""
CLASS_ROUNDS = 4
"""How often class scales are looked for, each time at the mode that the ones before led to."""
MAX_DENSE = 2000
"""Parameters up to which the curvature is a matrix; beyond, `kronecker` does the same without one."""
FIRST_PRECISION = 10.0
"""λ that a search without a matrix starts from."""
LOG_PRECISION_RANGE = (-4.0, 16.0)
"""Natural log of λ: scales from 7.4 down to 3e-4; beyond either end nothing more is learnt."""


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


@dataclass(frozen=True)
class Mode:
    """θ at the mode (d+1, J), the prior precision λ, and the negative Hessian of the log joint there (P, P).

    λ is one number, or one per feature, shape (d,), where features come in groups, with wider classes besides where the
    evidence asks for them. Above MAX_DENSE parameters the
    negative Hessian is a Kronecker approximation, held as the factor of its inverse.
    """

    theta: Tensor
    prior_precision: Prior
    precision: Tensor | KroneckerFactor
    n_steps: int


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


def _gradient(theta: Tensor, x: Tensor, y: Tensor, log_prior: Tensor, w: Tensor | None = None) -> Tensor:
    """That of the log-likelihood, (d+1, J)."""
    h, total = contrasts(len(log_prior)), torch.zeros_like(theta)
    for rows, labels, weight in _blocks_of(x, y, w):
        residual = h.T[labels] - (log_prior + (rows @ theta) @ h).softmax(-1) @ h.T
        total += rows.T @ (residual if weight is None else residual * weight[:, None])
    return total


def _class_curvature(theta: Tensor, x: Tensor, y: Tensor, log_prior: Tensor, w: Tensor | None = None) -> Tensor:
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
    return _about_intercept(square, mixed)


def _about_intercept(square: Tensor, mixed: Tensor) -> Tensor:
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


def find_mode(
    x: Tensor, y: Tensor, log_prior: Tensor, prior_precision: float | None = None, start: Mode | None = None,
    tolerance: float = 1e-8, groups: Tensor | None = None, known: Curvature | None = None,
    row_weights: Tensor | None = None,
) -> Mode:  # fmt: skip
    """The posterior mode of θ, float64.

    Args:
        x: features with a ones column last, shape (n, d+1).
        y: classes, shape (n,).
        log_prior: log Q(k), shape (K,).
        prior_precision: λ; None: by the evidence.
        start: an earlier mode to start from.
        tolerance: on the Newton decrement, nats per row and at most MAX_DECREMENT in all, which many rows go by; the
            last step, taken after the check, squares what is left.
        groups: the group of each feature, shape (d,); each has a λ of its own. None: one for all.
        known: the curvature of these rows at the start's θ, where it is known already.
        row_weights: what each row counts for in the likelihood, shape (n,); None: 1 each.

    Raises:
        NotEstimableError: no convergence within MAX_STEPS (never seen with a positive λ).
    """
    rows = (x, y, log_prior, row_weights)
    if start is None and len(x) > MANY_ROWS:  # a tenth of the rows brings the search most of the way
        some = None if row_weights is None else row_weights[::10]
        start = find_mode(x[::10], y[::10], log_prior, prior_precision, None, tolerance, groups, None, some)
    enough = min(tolerance * len(x), MAX_DECREMENT)
    mode = _search(rows, prior_precision, start, enough, groups, known)
    if prior_precision is not None or len(log_prior) == 2 or not isinstance(mode.precision, Tensor):
        return mode
    return _with_wider_classes(mode, rows, enough, groups)


def _with_wider_classes(mode: Mode, rows: Rows, enough: float, groups: Tensor | None) -> Mode:
    """The mode with the class scales that the evidence asks for, asked again at the mode that they lead to."""
    for _ in range(CLASS_ROUNDS):
        assert isinstance(mode.precision, Tensor)
        bend = mode.precision - penalty(mode.theta, mode.prior_precision)
        wider = wider_classes(bend, mode.theta, mode.prior_precision, groups, len(rows[2]))
        if wider is None:
            break
        steps = mode.n_steps
        mode = _search(rows, wider, mode, enough, groups)
        mode = replace(mode, n_steps=mode.n_steps + steps)
    return mode


def _search(
    rows: Rows, given: Prior | None, start: Mode | None, enough: float, groups: Tensor | None,
    known: Curvature | None = None,
) -> Mode:  # fmt: skip
    """The mode for a given prior, or for the λ that the evidence finds on the way."""
    n = len(rows[0])
    theta = _first_theta(*rows) if start is None else start.theta.clone()
    lam, search = _first_precision(given, start, groups), PrecisionSearch(groups, n)
    if theta.numel() > MAX_DENSE:
        return _without_a_matrix(rows, base_of(lam), given is not None, theta, groups, start is None, enough)
    for step in range(MAX_STEPS):
        local = curvature(theta, *rows, rough_will_do(n, lam)) if known is None or step > 0 else known
        stays = given is not None or step > MAX_STEPS // 2
        if not stays and (step < EARLY or _decrement(local, theta, lam) < NEAR_MODE):
            lam, stays = search.step(local, theta, base_of(lam))
        weight = penalty(theta, lam)
        precision = local.precision + weight
        gradient = local.gradient.reshape(-1) - weight @ theta.reshape(-1)
        lower, failed = torch.linalg.cholesky_ex(precision)
        if failed:
            raise NotEstimableError(
                "P(y | m): the log-likelihood has no curvature; a class prior or prior scale is extreme"
            )
        move = torch.cholesky_solve(gradient[:, None], lower)[:, 0]
        decrement, here = float(gradient @ move), theta + move.reshape(theta.shape)
        if stays and step > 0 and decrement < (MAX_DECREMENT if n > MANY_ROWS else enough):
            if not _stale(local.precision, weight, here, rows):
                return Mode(here, lam, precision, step + 1)
        elif n >= CHORD_ROWS and decrement < NEAR * n:
            end = _finish(here, lam, search if given is None else None, local.precision, enough, rows, step)
            if end is not None:
                return end
        theta = _line_search(theta, move.reshape(theta.shape), decrement, local.value, lam, rows)
    raise NotEstimableError(f"the mode of P(y | m) was not reached in {MAX_STEPS} Newton steps")


def _without_a_matrix(
    rows: Rows, lam: Precision, settled: bool, theta: Tensor, groups: Tensor | None, cold: bool, enough: float
) -> Mode:  # fmt: skip
    """`find_mode` where P × P is too much."""
    of = torch.zeros(len(theta) - 1, dtype=torch.long) if groups is None else groups
    first = (
        torch.full((len(of),), FIRST_PRECISION, dtype=theta.dtype)
        if cold and not settled
        else torch.as_tensor(lam, dtype=theta.dtype).expand(len(of))
    )
    found, precision, factor, steps = kronecker_mode(rows, first.clone(), settled, theta, of, enough)
    return Mode(found, float(precision[0]) if groups is None else precision, factor, steps)


def _decrement(local: Curvature, theta: Tensor, lam: Prior) -> float:
    """Twice what a Newton step would gain at θ under λ, nats; infinite where there is no such step."""
    weight = penalty(theta, lam)
    gradient = local.gradient.reshape(-1) - weight @ theta.reshape(-1)
    lower, failed = torch.linalg.cholesky_ex(local.precision + weight)
    return math.inf if failed else float(gradient @ torch.cholesky_solve(gradient[:, None], lower)[:, 0])


def _first_theta(x: Tensor, y: Tensor, log_prior: Tensor, w: Tensor | None) -> Tensor:
    """No slopes, and the intercept that gives every row the shares of the classes, whatever log Q(k) is: (d+1, J)."""
    theta = x.new_zeros(x.shape[1], len(log_prior) - 1)
    mass = torch.bincount(y, w, minlength=len(log_prior)).to(x)
    if bool((mass > 0).all()):
        theta[-1] = contrasts(len(log_prior)) @ (mass.log() - log_prior)
    return theta


@dataclass
class PrecisionSearch:
    """λ by the evidence, from one step to the next.

    The evidence is that of the quadratic model at the last mode, so λ and the mode chase each other, and can do so in
    circles: where λ turns back, its steps are halved from then on.
    """

    groups: Tensor | None
    n: int
    move: Tensor | None = None
    damping: Tensor | float = 1.0

    def step(self, local: Curvature, theta: Tensor, lam: Precision) -> tuple[Precision, bool]:
        """The next λ, and whether it is as good as the one before."""
        if self.groups is None:
            new: Precision = evidence_precision(local, theta)
        else:
            new = grouped_precision(local, theta, lam, self.groups)
        move = torch.as_tensor(new, dtype=theta.dtype).log() - torch.as_tensor(lam, dtype=theta.dtype).log()
        if self.move is not None:
            self.damping = torch.where(move * self.move < 0, 0.5, 1.0) * self.damping
        self.move, step = move, self.damping * move
        stays = bool(step.abs().max() <= (1e-2 if self.n >= CHORD_ROWS else 1e-3))
        damped = torch.as_tensor(lam, dtype=theta.dtype) * step.exp()
        return (damped if self.groups is not None else float(damped)), stays


def _finish(
    theta: Tensor, lam: Prior, search: PrecisionSearch | None, bend: Tensor, enough: float, rows: Rows, step: int
) -> Mode | None:  # fmt: skip
    """The end of the search by steps with a curvature `bend` summed nearby; None where they do not close in.

    At the mode for λ the curvature is summed again if it is stale, and λ, unless given, found anew until it stays.
    """
    n = len(rows[0])
    for _ in range(MAX_ROUNDS):
        weight = penalty(theta, lam)
        lower, failed = torch.linalg.cholesky_ex(bend + weight)
        found = None if failed else _chord(theta, weight, lower, enough, rows)
        if found is None:
            return None
        theta, new, stays = found, lam, True
        if search is not None:
            at_mode = Curvature(0.0, (weight @ theta.reshape(-1)).reshape(theta.shape), bend)
            new, stays = search.step(at_mode, theta, base_of(lam))
        fresh = stays and not _stale(bend, weight, theta, rows)
        if stays and not fresh:
            bend = curvature(theta, *rows, rough_will_do(n, lam)).precision
        if fresh:
            return Mode(theta, lam, bend + weight, step + 1)
        lam = new
    return None


def _stale(bend: Tensor, weight: Tensor, theta: Tensor, rows: Rows) -> bool:
    """Whether the curvature at θ differs from `bend`, with the penalty, by over STALE for any feature and class."""
    h, now = contrasts(len(rows[2])), _class_curvature(theta, *rows)

    def by_class(matrix: Tensor) -> tuple[Tensor, Tensor]:
        """v' M_jj v and v' M_j0 v, v column k of H, j a feature, 0 the intercept: (d+1, K) each."""
        blocks = matrix.reshape(*theta.shape, *theta.shape)
        own = torch.einsum("ik,ijd,jk->dk", h, torch.diagonal(blocks, dim1=0, dim2=2), h)
        return own, torch.einsum("ik,dij,jk->dk", h, blocks[:, :, -1], h)

    before = _about_intercept(*by_class(bend))
    scale = torch.maximum(now, before) + by_class(weight)[0]
    few = now[-1].min() < FEW * len(theta)  # what single features change adds up where a class has few rows
    return bool(((now - before).abs() > (STALE_OF_FEW if few else STALE) * scale).any())


def _chord(theta: Tensor, weight: Tensor, lower: Tensor, tolerance: float, rows: Rows) -> Tensor | None:
    """The mode by steps with one fixed curvature, factored in `lower`; None where they do not close in quickly."""
    before = math.inf
    for _ in range(MAX_CHORD_STEPS):
        gradient = _gradient(theta, *rows).reshape(-1) - weight @ theta.reshape(-1)
        move = torch.cholesky_solve(gradient[:, None], lower)[:, 0]
        decrement = float(gradient @ move)
        if decrement > before / 4:
            return None
        theta, before = theta + move.reshape(theta.shape), decrement
        if decrement < tolerance:
            return theta
    return None


def _first_precision(given: Prior | None, start: Mode | None, groups: Tensor | None) -> Prior:
    if given is not None:
        return given
    before = base_of(start.prior_precision) if start is not None else 1.0
    if groups is None:
        return float(before[0]) if isinstance(before, Tensor) else before  # then all are equal
    if isinstance(before, Tensor):
        return before
    return torch.full((len(groups),), before, dtype=torch.float64)


def _line_search(theta: Tensor, move: Tensor, decrement: float, value: float, lam: Prior, rows: Rows) -> Tensor:
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
    """λ that maximises evidence times p(scale) for the quadratic model at θ, the intercept profiled out."""
    n_out = theta.shape[1]
    weights = torch.ones(theta.numel(), dtype=torch.bool)
    weights[-n_out:] = False
    return _evidence_peak(local, theta, weights, torch.zeros(theta.numel(), dtype=theta.dtype))


def grouped_precision(local: Curvature, theta: Tensor, lam: Precision, groups: Tensor) -> Tensor:
    """λ of each feature, one per group: each group's evidence is maximised in turn, the others' λ held. Shape (d,)."""
    new = torch.as_tensor(lam, dtype=theta.dtype).expand(len(groups)).clone()
    for group in groups.unique():
        picked = torch.cat([groups == group, torch.zeros(1, dtype=torch.bool)])
        weights = picked[:, None].expand(-1, theta.shape[1]).reshape(-1)
        new[groups == group] = _evidence_peak(local, theta, weights, penalty_diagonal(theta, new))
    return new


def _evidence_peak(local: Curvature, theta: Tensor, w: Tensor, penalty: Tensor) -> float:
    """λ of the parameters `w` that maximises the quadratic model's evidence times p(scale), all others, with their
    penalty, profiled out: the determinant and the quadratic form of a partitioned matrix both split into a part that
    holds λ and one that does not."""
    b = ~w
    linear = local.precision @ theta.reshape(-1) + local.gradient.reshape(-1)
    rest = local.precision[b][:, b] + penalty[b].diag()
    cross = local.precision[b][:, w]
    inner = torch.linalg.solve(rest, torch.cat([cross, linear[b, None]], 1))
    schur = local.precision[w][:, w] - cross.T @ inner[:, :-1]
    h, vectors = torch.linalg.eigh(schur)
    g2 = (vectors.T @ (linear[w] - cross.T @ inner[:, -1])).square()
    grid = torch.linspace(*LOG_PRECISION_RANGE, 401, dtype=torch.float64)
    total = h.clamp(min=0)[:, None] + grid.exp()
    evidence = 0.5 * (grid - total.log() + g2[:, None] / total).sum(0)
    return float(_peak(grid, evidence - 0.5 * grid).exp())


def _peak(grid: Tensor, height: Tensor) -> Tensor:
    """Where an evenly spaced curve peaks, by the parabola through its highest point and the neighbours."""
    top = int(height.argmax())
    if top in (0, len(grid) - 1):
        return grid[top]
    before, at, after = height[top - 1 : top + 2]
    return grid[top] + 0.5 * (grid[1] - grid[0]) * (before - after) / (before - 2 * at + after)
