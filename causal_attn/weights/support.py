"""Positivity: the support deficit D_τ, the part of Q that P hardly ever shows, by rank inversion.

Effective sample size hides this failure: a mask that determines the class gives equal, perfect-looking weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import beta, binom
from torch import Tensor

from causal_attn.weights.recalibration import recalibrated

N_CUTS = 4000
"""Most cut points of the rank inversion; beyond it the cuts are spread over the ranks (error at most 1/N_CUTS)."""
N_STARTS = 400
"""Ranks at which the lower end may lie."""
SAME_SCORE = 1e-6
"""Log-probabilities this close, in nats, are one rank: equal ones may differ by rounding, and that may follow y."""


@dataclass(frozen=True)
class SupportDeficit:
    """D_τ: the Q-mass that would need weights above τ, with its interval, in probability.

    `per_class` holds the same of each class's own part of Q, (estimate, low, high) by class: where a rare class is
    given away, D is small, and its own part is nearly all. Empty where it is not known.
    """

    estimate: float
    low: float
    high: float
    per_class: tuple[tuple[float, float, float], ...] = ()


def support_deficit(
    log_prob: Tensor, y: Tensor, prior: Tensor, tau: float = 10.0, level: float = 0.95, recalibrate: bool = True
) -> SupportDeficit:
    r"""D_τ = Σ_k Q(k) · mass of the masks where P(k|m) ≤ P(k)/τ, by rank inversion.

    P(k) are the rows' shares, and Q(k) too unless another target is stated: a target that asks for other classes makes
    weights large, but that is no lack of support.

    The classifier serves to *rank* rows only: among the n_t rows of lowest r(k|m), x_t are of class k. With b = P(k)/τ,

    * the estimate cuts where x_t − b·n_t is least, which is where the isotonic fit of P(k|m) along the ranks crosses b.
      (The last cut whose *average* x_t/n_t is at most b lies further: rows above b hide behind those far below.)
    * the upper end is the last cut whose Clopper–Pearson lower limit of x_t/n_t is at most b;
    * the lower end is the last rank, tried upwards until the first that fails, from which on some block of rows has an
      upper limit of the hit rate of at most b: P(k|m) is then at most b there and at every lower rank.

    Both ends are widened by the Clopper–Pearson limits of a share n_t/n of n rows. Error α/K per class, a quarter of it
    for each of these limits. Miscalibrated probabilities of the right order change nothing, unlike 1 − mean(w); with
    more than two classes they are recalibrated first, since a factor on the logits would change the order.
    Wrong *ranks* do: a model that cannot tell the masks where P(k|m) is small from others finds too little.

    Args:
        log_prob: log r(k | m_i) from models that did not see row i, shape (n, K).
        y: classes, shape (n,).
        prior: Q(k), shape (K,).
        tau: a weight above this counts as out of reach.
        level: of the interval.
        recalibrate: whether to, with more than two classes; see `recalibration`.

    References:
        theory section 6; Clopper & Pearson (1934).
    """
    ranked = recalibrated(log_prob, y) if recalibrate and len(prior) > 2 else log_prob
    masses = [
        rank_inversion(ranked[:, k], y == k, share / tau, (1 - level) / len(prior))
        for k, share in enumerate(_shares(y, len(prior)))
    ]
    total = (prior.double()[:, None] * torch.tensor(masses, dtype=torch.float64)).sum(0)
    estimate, low, high = (float(v) for v in total)
    return SupportDeficit(estimate, low, high, tuple(masses))


def _shares(y: Tensor, n_classes: int) -> list[float]:
    """P(k) of the rows."""
    return [float(v) for v in torch.bincount(y, minlength=n_classes).double() / len(y)]


def rank_inversion(score: Tensor, hit: Tensor, bound: float, alpha: float) -> tuple[float, float, float]:
    """(estimate, low, high) of the mass of masks whose hit probability is at most `bound`."""
    n = len(score)
    x, n_t = _cumulated_hits(score, hit)
    if len(n_t) > N_CUTS:
        some = np.linspace(0, len(n_t) - 1, N_CUTS).round().astype(int)
        x, n_t = x[some], n_t[some]
    cut = _least_excess(x - bound * n_t)
    fits = binom.sf(x - 1, n_t, bound) >= alpha / 4  # lower limit <= bound; always so at n_t = 0
    low = _surely_below(x, n_t, bound, alpha / 4)
    return float(n_t[cut] / n), _share_limit(low, n, alpha / 4), 1 - _share_limit(n - n_t[fits].max(), n, alpha / 4)


def _surely_below(x: np.ndarray, n_t: np.ndarray, bound: float, alpha: float) -> float:
    """How many of the lowest ranks have a hit probability of at most `bound`, with an error of at most `alpha`.

    A block of rows from rank s on whose hit rate is surely at most the bound says so of rank s, the least in the block,
    and of all below. Starts s are tried upwards until the first that fails, so that only the lengths of blocks count as
    repeated tests: from the shortest that could pass without a hit, each half as long again.
    """
    n = int(n_t[-1])
    lengths = _lengths(n, bound, alpha)
    starts = np.unique(np.linspace(0, len(n_t) - 2, min(len(n_t) - 1, N_STARTS)).round().astype(int))
    ends = np.searchsorted(n_t, n_t[starts][:, None] + lengths)
    inside = ends < len(n_t)
    ends = np.minimum(ends, len(n_t) - 1)
    hits, rows = x[ends] - x[starts][:, None], n_t[ends] - n_t[starts][:, None]
    sure = inside & (binom.cdf(hits, rows, bound) <= alpha / max(1, len(lengths)))  # upper limit <= bound, uninverted
    passed = sure.any(-1)
    failed = np.flatnonzero(~passed)
    count = int(failed[0]) if len(failed) else len(starts)
    return float(n_t[starts[count - 1] + 1]) if count else 0.0  # the rows tied at the start are of one probability


def _lengths(n: int, bound: float, alpha: float) -> np.ndarray:
    """Lengths of blocks, from the shortest that passes without a hit at alpha over their number, up to n."""
    lengths = np.zeros(0)
    if bound <= 0:  # a class that never comes: no block of rows can show it
        return lengths
    for count in range(1, 60):
        shortest = np.log(count / alpha) / -np.log1p(-bound)
        lengths = np.ceil(shortest * 1.5 ** np.arange(count))
        if lengths[-1] * 1.5 > n:
            break
    return lengths[lengths <= n]


def _cumulated_hits(score: Tensor, hit: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """x_t and n_t at the cuts along the ranks of `score`, from (0, 0) on; ties are never split."""
    ranked, order = score.sort()
    last = torch.ones(1, dtype=torch.bool)
    ends = torch.cat([ranked[1:] - ranked[:-1] > SAME_SCORE, last]).nonzero()[:, 0]
    x = hit[order].cumsum(0)[ends].double()
    return np.append(0.0, x.numpy()), np.append(0.0, ends.numpy() + 1.0)


def _least_excess(excess: np.ndarray) -> int:
    """The last cut at which x_t − b·n_t is least, ties of rounding included."""
    return int(np.flatnonzero(excess <= excess.min() + 1e-9)[-1])


def _share_limit(count: float, n: int, alpha: float) -> float:
    """Clopper–Pearson lower limit of the probability behind `count` of n."""
    return float(beta.ppf(alpha, count, n - count + 1)) if count > 0 else 0.0


def deficit_point(log_prob: Tensor, y: Tensor, prior: Tensor, tau: float) -> float:
    """The estimate of `support_deficit` alone, without the limits."""
    total = 0.0
    for k, (p, share) in enumerate(zip(prior.tolist(), _shares(y, len(prior)))):
        x, n_t = _cumulated_hits(log_prob[:, k], y == k)
        total += p * float(n_t[_least_excess(x - share / tau * n_t)]) / len(y)
    return total
