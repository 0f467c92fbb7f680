"""Logistic fits to many label vectors at once: what makes a permutation test that refits everything affordable.

Böhning's (1992) bound on the curvature, ½ X'X for every class contrast, holds no label: one eigendecomposition serves
every label vector, and each pass is a matrix product. The features' coefficients share a ridge penalty by the evidence;
the intercept, and features that are `given`, have none. With Z = (1, given) and X less its regression on Z,

    log r(k | row) ∝ H' (β' z + w' x),      β without penalty,  w ~ Normal(0, 1/λ).

Cost: O(n d (R+1) K) per pass for R label vectors.

Source: Böhning (1992), "Multinomial logistic regression algorithm", Annals of the Institute of Statistical Mathematics.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from causal_attn.selection.response import contrasts

MAX_PASSES = 100
TOLERANCE = 1e-4
"""Largest change of a logit between passes at which the fit has settled; far below what moves a log-loss."""
LOG_PRECISIONS = torch.linspace(-2.0, 14.0, 81, dtype=torch.float64)
EVIDENCE_BLOCK = 50
"""Label vectors whose evidence is held over the whole grid at once."""
CHUNK_ENTRIES = 2e7
"""Most entries of the held logits; label vectors are fitted in blocks of that size."""


def held_out_losses(
    phi: Tensor, labels: Tensor, fold: Tensor, k: int, progress: bool = False, given: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Mean held-out log-loss of each row of `labels` (R, n), nats, and the first one's log P(k|row) (n, K).

    Shapes: phi (n, d), penalised features; given (n, p), features without penalty, None for none; fold (n,).
    """
    n = len(fold)
    free = with_ones(torch.empty(n, 0, dtype=torch.float64) if given is None else given)
    loss = torch.zeros(len(labels), dtype=torch.float64)
    first = torch.empty(n, k, dtype=torch.float64)
    block = max(1, int(CHUNK_ENTRIES / (n * k)))
    folds = fold.unique().tolist()
    bar = tqdm(total=len(folds) * len(labels), desc="leakage", disable=not progress, leave=False)
    for number in folds:
        held = fold == number
        solver = BoundSolver.on(phi[~held], k, free[~held])
        for start in range(0, len(labels), block):
            part = labels[start : start + block]
            log_p = solver.fit_predict(part[:, ~held], phi[held], free[held])  # (R, n_held, K)
            own = log_p.gather(-1, part[:, held][..., None])[..., 0]
            loss[start : start + len(part)] -= own.sum(-1) / n
            if start == 0:
                first[held] = log_p[0]
            bar.update(len(part))
    bar.close()
    return loss, first


def with_ones(given: Tensor) -> Tensor:
    """Z = (1, given), shape (n, 1+p)."""
    return torch.cat([torch.ones(len(given), 1, dtype=torch.float64), given.double()], -1)


@dataclass(frozen=True)
class BoundSolver:
    """Ridge-penalised multinomial logistic fits on one set of rows for many label vectors.

    Args:
        x: the rows less their regression on `free`, in the eigenbasis of their scatter, shape (n, d').
        free: 1 and the given features, Z, shape (n, 1+p).
        inverse: (Z'Z)⁻¹ Z', shape (1+p, n).
        regression: of the features on Z, shape (1+p, d).
        basis: eigenvectors, shape (d, d').
        values: eigenvalues of the scatter, shape (d',).
        k: classes.
    """

    x: Tensor
    free: Tensor
    inverse: Tensor
    regression: Tensor
    basis: Tensor
    values: Tensor
    k: int

    @staticmethod
    def on(phi: Tensor, k: int, free: Tensor) -> BoundSolver:
        inverse = torch.linalg.pinv(free)
        regression = inverse @ phi
        rest = phi - free @ regression
        values, basis = torch.linalg.eigh(rest.T @ rest)
        most = values.max() if len(values) else torch.tensor(0.0)
        keep = values > 1e-10 * most.clamp(min=1e-300)
        return BoundSolver(rest @ basis[:, keep], free, inverse, regression, basis[:, keep], values[keep], k)

    def fit_predict(self, labels: Tensor, phi: Tensor, free: Tensor) -> Tensor:
        """log r(k|row) at new rows (n', d), (n', 1+p), of the model fitted to each label vector (R, n): (R, n', K)."""
        h = contrasts(self.k)
        onehot = torch.nn.functional.one_hot(labels, self.k).double()
        target = onehot @ h.T  # (R, n, J)
        w = torch.zeros(len(labels), self.x.shape[1], len(h), dtype=torch.float64)
        b = torch.zeros(len(labels), self.free.shape[1], len(h), dtype=torch.float64)
        b[:, 0] = onehot.mean(1).clamp(min=1e-12).log() @ h.T
        lam = torch.ones(len(labels), 1, 1, dtype=torch.float64)
        active = torch.arange(len(labels))  # label vectors whose fit has not settled
        for step in range(MAX_PASSES):
            scale = lam[active] if step >= MAX_PASSES // 2 else None  # late passes only finish the fit
            w_new, b_new, scale = self._pass(w[active], b[active], target[active], h, scale)
            step_size = ((w_new - w[active]) * self.values[:, None].sqrt()).abs().flatten(1)
            move = step_size.sum(1) if not step_size.shape[1] else step_size.amax(1) / np.sqrt(len(self.x))
            unsettled = (move > TOLERANCE) | ((self.free @ (b_new - b[active])).abs().flatten(1).amax(1) > TOLERANCE)
            w[active], b[active], lam[active] = w_new, b_new, scale
            active = active[unsettled]
            if not len(active):
                break
        new_x = (phi - free @ self.regression) @ self.basis
        return ((new_x @ w + free @ b) @ h).log_softmax(-1)

    def _pass(
        self, w: Tensor, b: Tensor, target: Tensor, h: Tensor, lam: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One step on the bounding quadratic: new w (R, d', J), b (R, 1+p, J) and λ (R, 1, 1), found where None."""
        r = ((self.x @ w + self.free @ b) @ h).softmax(-1)
        residual = target - r @ h.T
        gradient = self.x.T @ residual
        bend = (1 - r.square().sum(-1)).mean(-1) / len(h)
        scale = self._evidence_precision(gradient, w, bend) if lam is None else lam
        linear = gradient + 0.5 * self.values[:, None] * w
        return linear / (0.5 * self.values[:, None] + scale), b + 2 * self.inverse @ residual, scale

    def _evidence_precision(self, gradient: Tensor, w: Tensor, bend: Tensor) -> Tensor:
        """λ by the evidence about w, for each label vector: (R, d, J), (R, d, J), (R,) -> (R, 1, 1).

        The curvature here is the mean one of the rows, `bend` = (1 − Σ_k r_k²) / (K−1), times the scatter. The bound's,
        ½, is as large only where K = 2 and r = ½; with 12 classes it is six times too large, and the evidence would
        take any signal for the noise that such a curvature makes.
        """
        found = torch.empty(len(w), dtype=torch.float64)
        grid = LOG_PRECISIONS.exp()
        for i in range(0, len(w), EVIDENCE_BLOCK):
            block = slice(i, i + EVIDENCE_BLOCK)
            curvature = bend[block, None] * self.values  # (R, d)
            g2 = (gradient[block] + curvature[..., None] * w[block]).square().sum(-1)
            total = curvature[..., None] + grid  # (R, d, grid)
            evidence = (w.shape[-1] * (LOG_PRECISIONS - total.log()) + g2[..., None] / total).sum(1)
            found[block] = grid[evidence.argmax(-1)]
        return found[:, None, None]
