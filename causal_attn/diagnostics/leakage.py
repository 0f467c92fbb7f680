"""Does the mask tell the class? Cross-fitted information of m about y, with a permutation p-value.

    bits = (H(Y) − held-out log-loss of y given m) / log 2

Every permutation refits everything, prior scale included: reusing fixed predictions would reject a true null 17% of the
time at the 10% level. `many_fits` affords that: O(n d (R+1) K) per pass for R permutations.

By itself leakage is not proof of a shortcut: where the evidence lies may depend on the class. With `given`, features φ
of what the mask shows, the test asks what the mask tells *beyond* them, I(M;Y | φ):

    bits = (held-out log-loss of y given φ − the same given (φ, m)) / log 2

and labels are permuted so that what φ tells of them is kept (Berrett et al. 2020, see `conditional_permutations`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from causal_attn.data.checks import seed_of, whole
from causal_attn.diagnostics.intervals import percentile_interval, widened
from causal_attn.diagnostics.many_fits import held_out_losses
from causal_attn.diagnostics.permuting import conditional_permutations, permutations
from causal_attn.errors import InputError
from causal_attn.masks import FeatureMap, MaskSample, as_tensor, first_row, real, standardised
from causal_attn.selection.crossfit import assign_folds, folds_within

N_BOOTSTRAP = 1000


@dataclass(frozen=True)
class LeakageTest:
    """What the mask tells about the class.

    Args:
        bits: held-out information, bits; can fall below 0 where there is none.
        auc: held-out area under the ROC curve, one-against-rest mean for K > 2, probability.
        p_value: share of permutations, itself included, that reach the observed log-loss; NaN without permutations.
        bits_interval, auc_interval: 95% bootstrap intervals over held-out rows. The fitted models are held fixed, and
            models of one sample's folds lean against each other: without leakage the AUC's misses ½ more often than
            in 5% of samples, mostly from below. The p-value is the test.
        n_permutations: how many.
        log_prob: held-out log P(k|m), nats, shape (n, K).
        auc_per_class: of each class against the rest, (K,): where one class alone leaks, the mean hides it.
        auc_given: AUC of y from the `given` features alone; `auc` is then from both. NaN without such features.
    """

    bits: float
    auc: float
    p_value: float
    bits_interval: tuple[float, float]
    auc_interval: tuple[float, float]
    n_permutations: int
    log_prob: Tensor
    auc_per_class: tuple[float, ...] = ()
    auc_given: float = float("nan")

    def __repr__(self) -> str:
        low, high = self.auc_interval
        beyond = "" if np.isnan(self.auc_given) else f", given features alone {self.auc_given:.3f}"
        auc = f"{self.auc:.3f} [{low:.3f}, {high:.3f}]{beyond}"
        return f"LeakageTest(bits={self.bits:.3f}, auc={auc}, p={self.p_value:.3g})"


def leakage_test(
    sample: MaskSample, n_permutations: int = 200, seed: int = 0, progress: bool = False, *, given: Any = None
) -> LeakageTest:
    """Test whether the masks tell the class, or tell more of it than given features do.

    Args:
        sample: masks and classes; at least two rows of every class.
        n_permutations: label permutations for the p-value; 0 for none.
        seed: of folds, permutations and bootstrap.
        progress: show a bar.
        given: features φ of what the mask shows, shape (n, p) or (n,), such as the sentiment of the chosen words. The
            p-value then rests on a logistic model of y given φ. φ must not hold the positions themselves: an
            evaluator's log-odds under the mask are no good φ, since on meaningless words they differ by chance, and a
            fitted coefficient reads the code off that difference.

    Raises:
        InputError: a negative or fractional `n_permutations`, one class, too few rows, or `given` of another length.

    References:
        Berrett, Wang, Barber & Samworth (2020), "The conditional permutation test", JRSS B 82.
    """
    if not isinstance(sample, MaskSample):
        raise InputError(f"sample: expected a MaskSample, got {type(sample).__name__}")
    n_permutations, seed = whole(n_permutations, "n_permutations", 0), seed_of(seed)
    fold = assign_folds(sample, folds_within(sample, 5), seed)
    known = None if given is None else _checked_given(given, sample)
    phi = FeatureMap.fit_transform(sample)[1]
    rng = np.random.default_rng(seed)
    if known is None:
        labels = permutations(sample.y, fold, n_permutations, rng)
    else:
        labels = conditional_permutations(sample.y, known, fold, sample.n_classes, n_permutations, rng)
    loss, log_prob = held_out_losses(phi, labels, fold, sample.n_classes, progress, known)
    entropy = torch.special.entr(sample.prior).sum()
    auc_given = float("nan")
    base = entropy.expand(len(loss))
    if known is not None:
        base, alone = held_out_losses(phi[:, :0], labels, fold, sample.n_classes, progress, known)
        auc_given = macro_auc(alone, sample.y)
    gain = base - loss
    p_value = float((gain[1:] >= gain[0]).sum() + 1) / (n_permutations + 1) if n_permutations else float("nan")
    own = log_prob.gather(-1, sample.y[:, None])[:, 0]
    gains = own + (entropy if known is None else -alone.gather(-1, sample.y[:, None])[:, 0])
    bits = float(gains.mean()) / float(np.log(2))
    intervals = _bootstrap(log_prob, gains, sample.y, rng)
    auc, each = macro_auc(log_prob, sample.y), auc_by_class(log_prob, sample.y)
    return LeakageTest(bits, auc, p_value, *intervals, n_permutations, log_prob, each, auc_given)


def _checked_given(given: Any, sample: MaskSample) -> Tensor:
    """φ standardised, (n, p); a constant column becomes 0."""
    features = real(as_tensor(given, "given"), "given").double()
    features = features[:, None] if features.ndim == 1 else features
    if features.ndim != 2 or len(features) != sample.n or not features.shape[1]:
        raise InputError(f"given: expected features of shape ({sample.n}, p), got {tuple(features.shape)}")
    odd = ~torch.isfinite(features).all(-1)
    if odd.any():
        raise InputError(f"given: expected finite numbers, row {first_row(odd)} has another value")
    return standardised(features)


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
    log_prob: Tensor, gains: Tensor, y: Tensor, rng: np.random.Generator
) -> tuple[tuple[float, float], tuple[float, float]]:
    """95% intervals of bits (from each row's gain, nats) and AUC, classes resampled within themselves."""
    order = np.argsort(y.numpy(), kind="stable")
    sizes = np.bincount(y.numpy())
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    bits, aucs = [], []
    for _ in range(N_BOOTSTRAP if len(y) <= 20_000 else 200):
        picks = np.concatenate([order[s + rng.integers(0, c, c)] for s, c in zip(starts, sizes) if c])
        rows = torch.from_numpy(picks)
        bits.append(float(gains[rows].mean()) / float(np.log(2)))
        aucs.append(_fast_auc(log_prob[rows], y[rows]))
    few = int(sizes[sizes > 0].min())
    return (
        widened(float(gains.mean()) / float(np.log(2)), percentile_interval(bits), few),
        widened(macro_auc(log_prob, y), percentile_interval(aucs), few, 0.0, 1.0),
    )


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
