"""Positivity: the support deficit D_τ, the part of Q that P hardly ever shows, by rank inversion.

Effective sample size hides this failure: a mask that determines the class gives equal, perfect-looking weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import beta, binom
from torch import Tensor

N_CUTS = 4000
"""Most cut points of the rank inversion; beyond it the cuts are spread over the ranks (error at most 1/N_CUTS)."""
SAME_SCORE = 1e-6
"""Log-probabilities this close, in nats, are one rank: equal ones may differ by rounding, and that may follow y."""


@dataclass(frozen=True)
class SupportDeficit:
    """D_τ: the Q-mass that would need weights above τ, with its interval, in probability."""

    estimate: float
    low: float
    high: float


def support_deficit(
    log_prob: Tensor, y: Tensor, prior: Tensor, tau: float = 10.0, level: float = 0.95
) -> SupportDeficit:
    r"""D_τ = Σ_k P(k) · mass of the masks where P(k|m) ≤ P(k)/τ, by rank inversion.

    The classifier serves to *rank* rows only: among the n_t rows of lowest r(k|m), x_t are of class k. With b = P(k)/τ,

    * the estimate cuts where x_t − b·n_t is least, which is where the isotonic fit of P(k|m) along the ranks crosses b.
      (The last cut whose *average* x_t/n_t is at most b lies further: rows above b hide behind those far below.)
    * the upper end is the last cut whose Clopper–Pearson lower limit of x_t/n_t is at most b;
    * the lower end is the last row from which on, up to the estimate's cut, the upper limit of the hit rate is at most
      b: P(k|m) is then at most b there and at every lower rank.

    Both ends are widened by the Clopper–Pearson limits of a share n_t/n of n rows. Error α/K per class, a quarter of it
    for each of these limits. Miscalibrated probabilities of the right order change nothing, unlike 1 − mean(w).
    Wrong *ranks* do: a model that cannot tell the masks where P(k|m) is small from others finds too little.

    Args:
        log_prob: log r(k | m_i) from models that did not see row i, shape (n, K).
        y: classes, shape (n,).
        prior: P(k), shape (K,).
        tau: a weight above this counts as out of reach.
        level: of the interval.

    References:
        theory section 6; Clopper & Pearson (1934).
    """
    masses = [
        rank_inversion(log_prob[:, k], y == k, float(p) / tau, (1 - level) / len(prior)) for k, p in enumerate(prior)
    ]
    total = (prior.double()[:, None] * torch.tensor(masses, dtype=torch.float64)).sum(0)
    return SupportDeficit(*(float(v) for v in total))


def rank_inversion(score: Tensor, hit: Tensor, bound: float, alpha: float) -> tuple[float, float, float]:
    """(estimate, low, high) of the mass of masks whose hit probability is at most `bound`."""
    n = len(score)
    x, n_t = _cumulated_hits(score, hit)
    if len(n_t) > N_CUTS:
        some = np.linspace(0, len(n_t) - 1, N_CUTS).round().astype(int)
        x, n_t = x[some], n_t[some]
    cut = _least_excess(x - bound * n_t)
    sure = binom.cdf(x[cut] - x[:cut], n_t[cut] - n_t[:cut], bound) <= alpha / 4  # upper limit <= bound, uninverted
    fits = binom.sf(x - 1, n_t, bound) >= alpha / 4  # lower limit <= bound; always so at n_t = 0
    low = n_t[1:][:cut][sure].max(initial=0.0)  # the first rows of a block have its least probability
    return float(n_t[cut] / n), _share_limit(low, n, alpha / 4), 1 - _share_limit(n - n_t[fits].max(), n, alpha / 4)


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
    for k, p in enumerate(prior.tolist()):
        x, n_t = _cumulated_hits(log_prob[:, k], y == k)
        total += p * float(n_t[_least_excess(x - p / tau * n_t)]) / len(y)
    return total
