"""The mode of the response's posterior, and the prior scale by the Laplace evidence, in one Newton iteration.

The objective is strictly concave for a positive prior precision, so damped Newton steps always reach it. λ = 1/scale²
is found anew between steps, see `evidence`. On many rows the search ends by steps with a fixed curvature, which cost a
gradient each. Cost: O(n d² K²) a step for the curvature.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from causal_attn.errors import NotEstimableError
from causal_attn.selection.class_scales import wider_classes
from causal_attn.selection.curvature import (
    Curvature,
    about_intercept,
    class_curvature,
    curvature,
    gradient_of,
    log_likelihood,
    rough_will_do,
)
from causal_attn.selection.evidence import PrecisionSearch
from causal_attn.selection.kronecker import KroneckerFactor, Rows, kronecker_mode
from causal_attn.selection.prior import (
    Precision,
    Prior,
    base_of,
    log_weight_prior,
    penalty,
)  # fmt: skip
from causal_attn.selection.response import contrasts

MAX_STEPS = 100
MANY_ROWS = 50_000
"""Rows above which a tenth of them brings the search near, and the last digits of θ, which no interval could show, are
not waited for."""
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


@dataclass(frozen=True)
class Mode:
    """θ at the mode (d+1, J), the prior precision λ, and the negative Hessian of the log joint there (P, P).

    λ is one number, or one per feature, shape (d,), where features come in groups, with wider classes besides where the
    evidence asks for them. Above MAX_DENSE parameters the negative Hessian is a Kronecker approximation, held as the
    factor of its inverse.
    """

    theta: Tensor
    prior_precision: Prior
    precision: Tensor | KroneckerFactor
    n_steps: int


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
    lam, search = _first_precision(given, start, groups), PrecisionSearch(groups, 1e-2 if n >= CHORD_ROWS else 1e-3)
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
        if stays and (step > 0 or given is not None) and decrement < (MAX_DECREMENT if n > MANY_ROWS else enough):
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
    h, now = contrasts(len(rows[2])), class_curvature(theta, *rows)

    def by_class(matrix: Tensor) -> tuple[Tensor, Tensor]:
        """v' M_jj v and v' M_j0 v, v column k of H, j a feature, 0 the intercept: (d+1, K) each."""
        blocks = matrix.reshape(*theta.shape, *theta.shape)
        own = torch.einsum("ik,ijd,jk->dk", h, torch.diagonal(blocks, dim1=0, dim2=2), h)
        return own, torch.einsum("ik,dij,jk->dk", h, blocks[:, :, -1], h)

    before = about_intercept(*by_class(bend))
    scale = torch.maximum(now, before) + by_class(weight)[0]
    few = now[-1].min() < FEW * len(theta)  # what single features change adds up where a class has few rows
    return bool(((now - before).abs() > (STALE_OF_FEW if few else STALE) * scale).any())


def _chord(theta: Tensor, weight: Tensor, lower: Tensor, tolerance: float, rows: Rows) -> Tensor | None:
    """The mode by steps with one fixed curvature, factored in `lower`; None where they do not close in quickly."""
    before = math.inf
    for _ in range(MAX_CHORD_STEPS):
        gradient = gradient_of(theta, *rows).reshape(-1) - weight @ theta.reshape(-1)
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
