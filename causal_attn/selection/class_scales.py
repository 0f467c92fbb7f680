"""Does one class need wider weights than the prior scale that all classes share? By the evidence, one class at a time.

At the mode the log-likelihood is replaced by its quadratic, with curvature P and linear term l = Pθ + gradient. Adding
t² h_k h_k' to the prior covariance of each feature of a group multiplies the evidence by exp of

    gain(t²) = ½ Σ_j [ t² q_j² / (1 + t² e_j) − log(1 + t² e_j) ],

e and V the eigenvalues and vectors of U'RU, q = V'U'(l − P C l), U = (one column e_d ⊗ h_k per feature of the group),
R = P − P C P and C = (P + Λ)⁻¹ (the matrix determinant lemma). Cost: O(P³) for C and O(P² d) for each class.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from causal_attn.selection.prior import ClassPrior, Prior, base_of, penalty
from causal_attn.selection.response import contrasts

MIN_GAIN = 0.3
"""Nats that a class's own scale must add to the evidence; below it, the one shared by all will do."""
LOG_VARIANCES = torch.linspace(-16.0, 6.0, 221, dtype=torch.float64)


def wider_classes(
    curvature: Tensor, theta: Tensor, prior: Prior, groups: Tensor | None, n_classes: int
) -> ClassPrior | None:  # fmt: skip
    """The prior with the class scales that the evidence of the quadratic at θ asks for; None where it asks for none.

    One scale is changed after the other, the one that gains most first, until none gains MIN_GAIN.

    Args:
        curvature: of the log-likelihood at θ, shape (P, P).
        theta: the mode under `prior`, shape (d+1, J).
        prior: the present one.
        groups: the group of each feature, shape (d,); None: one group.
        n_classes: K.
    """
    d = len(theta) - 1
    base = torch.as_tensor(base_of(prior), dtype=theta.dtype).expand(d)
    present = prior if isinstance(prior, ClassPrior) else ClassPrior(base, theta.new_zeros(d, n_classes))
    group_of = torch.zeros(d, dtype=torch.long) if groups is None else groups
    linear = (curvature + penalty(theta, present)) @ theta.reshape(-1)  # at the mode the gradient is Λθ
    start = present
    for _ in range(2 * n_classes * len(group_of.unique())):
        wider = _widest(curvature, linear, theta, present, group_of)
        if wider is None:
            break
        present = wider
    return None if present is start else present


def _widest(
    curvature: Tensor, linear: Tensor, theta: Tensor, present: ClassPrior, group_of: Tensor
) -> ClassPrior | None:  # fmt: skip
    """The prior with the one class scale changed that gains most; None where none gains MIN_GAIN."""
    best, found = MIN_GAIN, None
    for without, group, k in _coordinates(present, group_of):
        gain = _gains(curvature, linear, theta, without, group, k)
        top = int(gain.argmax())
        here = float(present.extra[group, k][0])
        now = 0.0 if here == 0 else float(_at(LOG_VARIANCES, gain, here))
        if float(gain[top]) - now > best:
            best, changed = float(gain[top]) - now, without.extra.clone()
            changed[group, k] = float(LOG_VARIANCES[top].exp())
            found = ClassPrior(present.base, changed)
    return found


def _coordinates(present: ClassPrior, group_of: Tensor) -> Iterator[tuple[ClassPrior, Tensor, int]]:
    """Each group and class, with the prior that lacks its own scale."""
    for number in group_of.unique():
        group = group_of == number
        for k in range(present.extra.shape[1]):
            extra = present.extra.clone()
            extra[group, k] = 0
            yield ClassPrior(present.base, extra), group, k


def _gains(p: Tensor, linear: Tensor, theta: Tensor, prior: ClassPrior, group: Tensor, k: int) -> Tensor:
    """gain(t²) over LOG_VARIANCES."""
    lower = torch.linalg.cholesky(p + penalty(theta, prior))
    h = contrasts(prior.extra.shape[1])[:, k]
    columns = (p.reshape(len(p), *theta.shape) @ h)[:, :-1][:, group]  # P U
    rows = torch.cat([group, torch.zeros(1, dtype=torch.bool)])
    solved = torch.cholesky_solve(columns, lower)
    inner = columns.reshape(*theta.shape, -1)[rows].transpose(1, 2) @ h - columns.T @ solved
    q = linear.reshape(theta.shape)[rows] @ h - solved.T @ linear
    e, v = torch.linalg.eigh((inner + inner.T) / 2)
    scaled = LOG_VARIANCES.exp() * e.clamp(min=0)[:, None]
    q2 = (v.T @ q).square()[:, None] * LOG_VARIANCES.exp()
    return 0.5 * (q2 / (1 + scaled) - torch.log1p(scaled)).sum(0)


def _at(grid: Tensor, height: Tensor, variance: float) -> Tensor:
    """The height at the grid point nearest to a variance, which was put on the grid."""
    return height[(grid - torch.tensor(variance).log()).abs().argmin()]
