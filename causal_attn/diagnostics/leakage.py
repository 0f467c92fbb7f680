"""Does the mask tell the class? Cross-fitted information of m about y, with a permutation p-value.

    bits = (H(Y) − held-out log-loss of y given m) / log 2

Every permutation refits everything, prior scale included: reusing fixed predictions would reject a true null 17% of the
time at the 10% level. To afford that, the logistic model is fitted for all permutations at once with Böhning's (1992)
bound on its curvature, ½ X'X for every class contrast. No label enters it: one eigendecomposition per fold serves all.
Cost: O(n d (R+1) K) per pass for R permutations.

By itself leakage is not proof of a shortcut: where the evidence lies may depend on the class.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import norm, t
from sklearn.metrics import roc_auc_score
from torch import Tensor
from tqdm.auto import tqdm

from causal_attn.data.checks import seed_of, whole
from causal_attn.diagnostics.intervals import percentile_interval
from causal_attn.errors import InputError
from causal_attn.masks import FeatureMap, MaskSample
from causal_attn.selection.crossfit import assign_folds, folds_within
from causal_attn.selection.response import contrasts

N_BOOTSTRAP = 1000
MAX_PASSES = 100
TOLERANCE = 1e-4
"""Largest change of a logit between passes at which the fit has settled; far below what moves a log-loss."""
LOG_PRECISIONS = torch.linspace(-2.0, 14.0, 81, dtype=torch.float64)
EVIDENCE_BLOCK = 50
"""Label vectors whose evidence is held over the whole grid at once."""
CHUNK_ENTRIES = 2e7
"""Most entries of the held logits; permutations are fitted in blocks of that size."""


@dataclass(frozen=True)
class LeakageTest:
    """What the mask tells about the class.

    Args:
        bits: held-out information, bits; can fall below 0 where there is none.
        auc: held-out area under the ROC curve, one-against-rest mean for K > 2, probability.
        p_value: share of permutations, itself included, that reach the observed log-loss; NaN without permutations.
        bits_interval, auc_interval: 95% bootstrap intervals over rows.
        n_permutations: how many.
        log_prob: held-out log P(k|m), nats, shape (n, K).
        auc_per_class: of each class against the rest, (K,): where one class alone leaks, the mean hides it.
    """

    bits: float
    auc: float
    p_value: float
    bits_interval: tuple[float, float]
    auc_interval: tuple[float, float]
    n_permutations: int
    log_prob: Tensor
    auc_per_class: tuple[float, ...] = ()

    def __repr__(self) -> str:
        low, high = self.auc_interval
        return f"LeakageTest(bits={self.bits:.3f}, auc={self.auc:.3f} [{low:.3f}, {high:.3f}], p={self.p_value:.3g})"


def leakage_test(sample: MaskSample, n_permutations: int = 200, seed: int = 0, progress: bool = False) -> LeakageTest:
    """Test whether the masks tell the class.

    Args:
        sample: masks and classes; at least two rows of every class.
        n_permutations: label permutations for the p-value; 0 for none.
        seed: of folds, permutations and bootstrap.
        progress: show a bar.

    Raises:
        InputError: a negative or fractional `n_permutations`, one class, or too few rows.
    """
    if not isinstance(sample, MaskSample):
        raise InputError(f"sample: expected a MaskSample, got {type(sample).__name__}")
    n_permutations, seed = whole(n_permutations, "n_permutations", 0), seed_of(seed)
    fold = assign_folds(sample, folds_within(sample, 5), seed)
    phi = FeatureMap.fit_transform(sample)[1]
    rng = np.random.default_rng(seed)
    labels = torch.from_numpy(_permutations(sample.y.numpy(), fold.numpy(), n_permutations, rng))
    loss, log_prob = _held_out_losses(phi, labels, fold, sample.n_classes, progress)
    p_value = float((loss[1:] <= loss[0]).sum() + 1) / (n_permutations + 1) if n_permutations else float("nan")
    bits, auc = _bits(log_prob, sample.y, sample.prior), macro_auc(log_prob, sample.y)
    intervals = _bootstrap(log_prob, sample.y, rng)
    each = auc_by_class(log_prob, sample.y)
    return LeakageTest(bits, auc, p_value, intervals[0], intervals[1], n_permutations, log_prob, each)


def _permutations(y: np.ndarray, fold: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """y and n permutations of it, shape (n+1, rows). Labels move within folds, so every refit is as stratified as the
    observed one: permuting across folds unbalances them and costs the permuted fits held-out loss (type I 0.31)."""
    labels = np.repeat(y[None], n + 1, 0)
    for number in np.unique(fold):
        rows = np.flatnonzero(fold == number)
        labels[1:, rows] = rng.permuted(labels[1:, rows], axis=1)
    return labels


def _bits(log_prob: Tensor, y: Tensor, prior: Tensor) -> float:
    own = log_prob.gather(-1, y[:, None])[:, 0]
    return float(torch.special.entr(prior).sum() + own.mean()) / float(np.log(2))


def macro_auc(log_prob: Tensor, y: Tensor) -> float:
    """Area under the ROC curve; one-against-rest mean over the classes present for K > 2, probability."""
    scores, labels = log_prob.exp().numpy(), y.numpy()
    if scores.shape[1] == 2:
        return float(roc_auc_score(labels, scores[:, 1]))
    return float(np.mean([roc_auc_score(labels == k, scores[:, k]) for k in np.unique(labels)]))


def auc_by_class(log_prob: Tensor, y: Tensor) -> tuple[float, ...]:
    """Area under the ROC curve of each class against the rest, probability; NaN for an absent class."""
    scores, labels = log_prob.exp().numpy(), y.numpy()
    hits = [labels == k for k in range(scores.shape[1])]
    return tuple(float(roc_auc_score(h, s)) if 0 < h.sum() < len(h) else float("nan") for h, s in zip(hits, scores.T))


def _bootstrap(
    log_prob: Tensor, y: Tensor, rng: np.random.Generator
) -> tuple[tuple[float, float], tuple[float, float]]:
    """95% intervals of bits and AUC over rows, classes resampled within themselves so that none is lost."""
    order = np.argsort(y.numpy(), kind="stable")
    sizes = np.bincount(y.numpy())
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    prior = torch.from_numpy(sizes / sizes.sum())
    bits, aucs = [], []
    for _ in range(N_BOOTSTRAP if len(y) <= 20_000 else 200):
        picks = np.concatenate([order[s + rng.integers(0, c, c)] for s, c in zip(starts, sizes) if c])
        rows = torch.from_numpy(picks)
        bits.append(_bits(log_prob[rows], y[rows], prior))
        aucs.append(_fast_auc(log_prob[rows], y[rows]))
    few = int(sizes[sizes > 0].min())
    return (
        _widened(_bits(log_prob, y, prior), percentile_interval(bits), few, -np.inf, np.inf),
        _widened(macro_auc(log_prob, y), percentile_interval(aucs), few, 0.0, 1.0),
    )


def _widened(
    point: float, interval: tuple[float, float], few: int, least: float, most: float
) -> tuple[float, float]:  # fmt: skip
    """An interval for as few rows as the rarest class has: resampling them understates their spread.

    Both arms grow by sqrt(m/(m − 1)) and by Student's t of m − 1 degrees of freedom over the normal quantile.
    """
    factor = np.sqrt(few / (few - 1)) * t.ppf(0.975, few - 1) / norm.ppf(0.975)
    low, high = (point + factor * (end - point) for end in interval)
    return max(least, float(low)), min(most, float(high))


def _fast_auc(log_prob: Tensor, y: Tensor) -> float:
    """macro_auc by ranks, without scikit-learn's checks, for the bootstrap."""
    from scipy.stats import rankdata

    columns = [1] if log_prob.shape[1] == 2 else range(log_prob.shape[1])
    aucs = []
    for k in columns:
        hit = (y == k).numpy()
        n_hit = hit.sum()
        if 0 < n_hit < len(hit):
            ranks = rankdata(log_prob[:, k].numpy())
            aucs.append((ranks[hit].sum() - n_hit * (n_hit + 1) / 2) / (n_hit * (len(hit) - n_hit)))
    return float(np.mean(aucs))


# -------------------------------------------------------------------------------------- all label vectors at once


def _held_out_losses(phi: Tensor, labels: Tensor, fold: Tensor, k: int, progress: bool) -> tuple[Tensor, Tensor]:
    """Mean held-out log-loss of each row of `labels` (R, n), nats, and the first one's log P(k|m) (n, K)."""
    n = len(fold)
    loss = torch.zeros(len(labels), dtype=torch.float64)
    first = torch.empty(n, k, dtype=torch.float64)
    block = max(1, int(CHUNK_ENTRIES / (n * k)))
    folds = fold.unique().tolist()
    bar = tqdm(total=len(folds) * len(labels), desc="leakage", disable=not progress, leave=False)
    for number in folds:
        held = fold == number
        solver = _BoundSolver.on(phi[~held], k)
        for start in range(0, len(labels), block):
            part = labels[start : start + block]
            log_p = solver.fit_predict(part[:, ~held], phi[held])  # (R, n_held, K)
            own = log_p.gather(-1, part[:, held][..., None])[..., 0]
            loss[start : start + len(part)] -= own.sum(-1) / n
            if start == 0:
                first[held] = log_p[0]
            bar.update(len(part))
    bar.close()
    return loss, first


@dataclass(frozen=True)
class _BoundSolver:
    """Ridge-penalised multinomial logistic fits on one set of rows for many label vectors.

    `x` are the training rows in the eigenbasis of their scatter, `values` its eigenvalues.
    """

    x: Tensor
    centre: Tensor
    basis: Tensor
    values: Tensor
    k: int

    @staticmethod
    def on(phi: Tensor, k: int) -> _BoundSolver:
        centre = phi.mean(0)
        values, basis = torch.linalg.eigh((phi - centre).T @ (phi - centre))
        keep = values > 1e-10 * values.max().clamp(min=1e-300)
        return _BoundSolver((phi - centre) @ basis[:, keep], centre, basis[:, keep], values[keep], k)

    def fit_predict(self, labels: Tensor, phi: Tensor) -> Tensor:
        """log r(k|m) at new rows φ (n', d), of the model fitted to each label vector (R, n): shape (R, n', K)."""
        h = contrasts(self.k)
        onehot = torch.nn.functional.one_hot(labels, self.k).double()
        target = onehot @ h.T  # (R, n, J)
        w = torch.zeros(len(labels), self.x.shape[1], len(h), dtype=torch.float64)
        b = onehot.mean(1).clamp(min=1e-12).log() @ h.T
        lam = torch.ones(len(labels), 1, 1, dtype=torch.float64)
        active = torch.arange(len(labels))  # label vectors whose fit has not settled
        for step in range(MAX_PASSES):
            scale = lam[active] if step >= MAX_PASSES // 2 else None  # late passes only finish the fit
            w_new, b_new, scale = self._pass(w[active], b[active], target[active], h, scale)
            step_size = ((w_new - w[active]) * self.values[:, None].sqrt()).abs().flatten(1)
            move = step_size.sum(1) if not step_size.shape[1] else step_size.amax(1) / np.sqrt(len(self.x))
            unsettled = (move > TOLERANCE) | ((b_new - b[active]).abs().amax(1) > TOLERANCE)
            w[active], b[active], lam[active] = w_new, b_new, scale
            active = active[unsettled]
            if not len(active):
                break
        new_x = (phi - self.centre) @ self.basis
        return ((new_x @ w + b[:, None]) @ h).log_softmax(-1)

    def _pass(
        self, w: Tensor, b: Tensor, target: Tensor, h: Tensor, lam: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One step on the bounding quadratic: new w (R, d, J), b (R, J) and λ (R, 1, 1), by the evidence where None."""
        r = ((self.x @ w + b[:, None]) @ h).softmax(-1)
        residual = target - r @ h.T
        gradient = self.x.T @ residual
        bend = (1 - r.square().sum(-1)).mean(-1) / len(h)
        scale = self._evidence_precision(gradient, w, bend) if lam is None else lam
        linear = gradient + 0.5 * self.values[:, None] * w
        return linear / (0.5 * self.values[:, None] + scale), b + 2 * residual.mean(1), scale

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
