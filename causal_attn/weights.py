"""Selection weights w(y, m) = P(y) / P(y | m): what they are, and whether they can stand for Q.

E_P[w L] = E_Q[L] when S depends on (Y, M) alone and P, Q share both margins (theory, assumptions A1 to A3). Under that
law Q the mask is independent of the class. Everything is kept as logs; nothing is self-normalised before the support
deficit has been reported, since a mask that determines the class gives perfect-looking equal weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import beta, binom
from torch import Tensor

from causal_attn.errors import InputError, NotEstimableError, PositivityError
from causal_attn.interop.arviz import khat_threshold, psis
from causal_attn.masks import as_labels, as_tensor, first_row

MAX_DRAW_ENTRIES = 10**8
"""Draws above this many entries are not kept in memory."""
DRAW_CHUNK = 20_000_000
N_CUTS = 4000
"""Most cut points of the rank inversion; beyond it the cuts are spread over the ranks (error at most 1/N_CUTS)."""

SAME_SCORE = 1e-6
"""Log-probabilities this close, in nats, are one rank: equal ones may differ by rounding, and that may follow y."""

DrawSource = Callable[[slice], Tensor]
"""Rows -> draws of log P(k | m), shape (S, rows, K)."""


def stabilised_log_weights(log_prior: Tensor, log_prob_y: Tensor) -> Tensor:
    r"""Log of w = P(y) / P(y | m), the weight that makes the mask independent of the class.

    Args:
        log_prior: log P(y_i), nats. Shape ``(n,)``.
        log_prob_y: log P(y_i | m_i), nats, from a model that did not see row i. Shape ``(n,)`` or ``(S, n)``.

    Returns:
        Log-weights, not normalised: their exponentials average 1 under P where P(y | m) > 0. Shape of ``log_prob_y``.

    Raises:
        PositivityError: a probability is zero; names the first row.

    References:
        Bai et al. (2021), section on mask-neutral learning, arXiv 2006.05656.
    """
    zero = torch.isneginf(log_prob_y)
    if zero.any():
        row = int(zero.reshape(-1, zero.shape[-1]).any(0).nonzero()[0])
        raise PositivityError(f"log_prob_y: P(y | m) is zero for the class seen in row {row}; its weight is infinite")
    return log_prior - log_prob_y


def effective_sample_size(log_w: Tensor) -> Tensor:
    """Kish's (Σw)² / Σw², in rows. Shape (..., n) -> (...)."""
    return (2 * log_w.logsumexp(-1) - (2 * log_w).logsumexp(-1)).exp()


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


@dataclass(frozen=True)
class Weights:
    """Log-weights of n rows with their posterior draws, and what they say about themselves.

    Args:
        log_w: log w = log P(y)/P(y|m) at each row's own class, nats, shape (n,), from the posterior predictive mean.
        y: classes, shape (n,).
        prior: P(k) that the weights aim at, shape (K,).
        log_prob: held-out log P(k | m), shape (n, K); None: unknown.
        fold: the fold whose model weighted the row, shape (n,); None: not cross-fitted here.
        tau: weights above this count towards the support deficit.
        record: what was done to the weights since they were estimated.
    """

    log_w: Tensor
    y: Tensor
    prior: Tensor
    log_prob: Tensor | None = None
    fold: Tensor | None = None
    tau: float = 10.0
    record: tuple[str, ...] = ()
    draw_source: DrawSource | None = None
    n_draws: int = 0
    given_draws: Tensor | None = None
    given_deficit: SupportDeficit | None = None

    @staticmethod
    def from_log(
        log_w: Any, y: Any, draws: Any = None, log_prob: Any = None, tau: float = 10.0, prior: Any = None
    ) -> Weights:
        """Weights made elsewhere.

        Args:
            log_w: log-weights, shape (n,), finite.
            y: classes 0..K-1, shape (n,).
            draws: posterior draws of the log-weights, shape (S, n).
            log_prob: held-out log P(k | m), shape (n, K). Without it the support deficit is NaN where K > 2; with
                K = 2 it follows from the weights.
            tau: see `support_deficit`.
            prior: P(k), shape (K,); None: the sample's.
        """
        point = as_tensor(log_w, "log_w").double()
        if point.ndim != 1 or not len(point):
            raise InputError(f"log_w: expected shape (n,), got {tuple(point.shape)}")
        _check_finite(point, "log_w")
        probs = None if log_prob is None else as_tensor(log_prob, "log_prob").double()
        if probs is not None and (probs.ndim != 2 or len(probs) != len(point)):
            raise InputError(f"log_prob: expected shape ({len(point)}, K), got {tuple(probs.shape)}")
        if probs is not None:
            _check_log_prob(probs)
        given = None if prior is None else as_tensor(prior, "prior").double()
        labels, k = as_labels(y, len(point), next((v.shape[-1] for v in (probs, given) if v is not None), None))
        if given is not None and (given.shape != (k,) or not (given > 0).all() or abs(float(given.sum()) - 1) > 1e-6):
            raise InputError(f"prior: expected {k} positive numbers that sum to 1, got {given.tolist()}")
        many = None if draws is None else as_tensor(draws, "draws").float()
        if many is not None and (many.ndim != 2 or many.shape[1] != len(point)):
            raise InputError(f"draws: expected shape (S, {len(point)}), got {tuple(many.shape)}")
        if many is not None and not torch.isfinite(many).all():
            row = first_row(~torch.isfinite(many).T)
            raise InputError(f"draws: expected finite numbers, row {row} has another value")
        if isinstance(tau, bool) or not isinstance(tau, (int, float)) or not tau > 1:
            raise InputError(f"tau: expected a weight above 1, got {tau!r}")
        shares = torch.bincount(labels, minlength=k).double() / len(labels)
        target = shares if given is None else given
        return Weights(
            point, labels, target, probs, tau=tau, given_draws=many, n_draws=0 if many is None else len(many)
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"Weights(n={len(self.y)}, K={len(self.prior)}, draws={self.n_draws}, ess={self.ess:.0f})"

    # ------------------------------------------------------------------------------------------------ draws

    @cached_property
    def draws(self) -> Tensor:
        """Posterior draws of log w, shape (S, n), float32."""
        if self.n_draws * len(self.y) > MAX_DRAW_ENTRIES:
            raise NotEstimableError(
                f"draws: {self.n_draws} x {len(self.y)} entries exceed {MAX_DRAW_ENTRIES:.0e}; use iter_draws(chunk)"
            )
        chunk = max(1, DRAW_CHUNK // max(1, self.n_draws * len(self.prior)))  # (S, chunk, K) is held at once
        parts = [part for _, part in self.iter_draws(chunk)]
        return torch.cat(parts, -1)

    def iter_draws(self, chunk: int = 10_000) -> Iterator[tuple[slice, Tensor]]:
        """Draws of log w a block of rows at a time: (rows, tensor (S, rows) float32)."""
        if not self.n_draws:
            raise NotEstimableError("draws: these weights have no posterior draws")
        if chunk < 1:
            raise InputError(f"chunk: expected a number of rows of at least 1, got {chunk}")
        for start in range(0, len(self.y), chunk):
            rows = slice(start, min(start + chunk, len(self.y)))
            yield rows, self._draws_of(rows)

    def _draws_of(self, rows: slice) -> Tensor:
        if self.given_draws is not None:
            return self.given_draws[:, rows]
        assert self.draw_source is not None
        y = self.y[rows]
        log_p = self.draw_source(rows)  # (S, b, K)
        own = log_p.gather(-1, y.expand(len(log_p), -1)[..., None])[..., 0]
        return stabilised_log_weights(self.prior.log()[y], own).float()

    # ------------------------------------------------------------------------------------------------ figures

    @cached_property
    def mean(self) -> float:
        """Mean weight; 1 where r is right and every pair has support."""
        return float(self.log_w.exp().mean())

    @property
    def calibration_residual(self) -> float:
        """1 − mean(w). It mixes miscalibration of r with missing support; not an estimate of the support deficit."""
        return 1 - self.mean

    @cached_property
    def ess(self) -> float:
        """Kish effective sample size, in rows."""
        return float(effective_sample_size(self.log_w))

    @cached_property
    def ess_per_class(self) -> Tensor:
        """Kish effective sample size within each class, in rows, shape (K,)."""
        classes = range(len(self.prior))
        return torch.stack(
            [
                effective_sample_size(self.log_w[self.y == k])
                if (self.y == k).any()
                else torch.zeros((), dtype=torch.float64)
                for k in classes
            ]
        )

    @cached_property
    def largest_share(self) -> float:
        """The largest weight's share of the sum, probability."""
        return float((self.log_w.max() - self.log_w.logsumexp(0)).exp())

    @cached_property
    def khat(self) -> float:
        """Tail index of the weights by PSIS; 0 where the largest are all equal."""
        return psis(self.log_w.numpy())[1]

    @cached_property
    def deficit(self) -> SupportDeficit:
        """D_τ with its 95% interval; NaN where log P(k|m) is unknown and K > 2."""
        if self.given_deficit is not None:
            return self.given_deficit
        log_prob = self._known_log_prob()
        if log_prob is None:
            return SupportDeficit(float("nan"), float("nan"), float("nan"))
        return support_deficit(log_prob, self.y, self.prior, self.tau)

    @property
    def support_deficit(self) -> float:
        """D_τ, the Q-mass that would need weights above `tau`, in probability."""
        return self.deficit.estimate

    @property
    def support_deficit_interval(self) -> tuple[float, float]:
        """95% interval of the support deficit."""
        return self.deficit.low, self.deficit.high

    def _known_log_prob(self) -> Tensor | None:
        if self.log_prob is not None or len(self.prior) != 2 or self.record:
            return self.log_prob
        own = (self.prior.log()[self.y] - self.log_w).clamp(max=0)  # K = 2: r(own class) = P(y)/w, the other 1 - that
        other = torch.log1p(-own.exp())
        first = torch.where(self.y == 0, own, other)
        return torch.stack([first, torch.where(self.y == 0, other, own)], -1)

    # ------------------------------------------------------------------------------------------------ new objects

    def truncated(self, at: float) -> Weights:
        """Weights cut down to `at` (in w, not log w); the support deficit stays that of the untruncated ones.

        Raises:
            InputError: `at` is not positive, or no weight exceeds it (an option without effect is a mistake).
        """
        if isinstance(at, bool) or not isinstance(at, (int, float)) or not at > 0:
            raise InputError(f"at: expected a positive weight, got {at!r}")
        over = int((self.log_w > np.log(at)).sum())
        if not over:
            raise InputError(f"at: no weight exceeds {at:g} (the largest is {float(self.log_w.max().exp()):.3g})")
        return self._changed(self.log_w.clamp(max=float(np.log(at))), f"truncated at {at:g} ({over} rows)")

    def smoothed(self) -> Weights:
        """Weights with a Pareto-smoothed tail (PSIS), scaled to keep their sum."""
        smooth = torch.from_numpy(np.array(psis(self.log_w.numpy())[0])).double()
        return self._changed(smooth - smooth.logsumexp(0) + self.log_w.logsumexp(0), "Pareto-smoothed")

    def _changed(self, log_w: Tensor, what: str) -> Weights:
        kept = self._known_log_prob()
        return replace(
            self, log_w=log_w, log_prob=kept, record=(*self.record, what), draw_source=None, given_draws=None, n_draws=0
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------------ for people

    def summary(self) -> pd.DataFrame:
        """One row per class and one for all: rows, mean weight, ESS, largest weight, its share, support deficit."""
        rows = {f"class {k}": self._summary_row(self.y == k) for k in range(len(self.prior))}
        rows["all"] = self._summary_row(torch.ones_like(self.y, dtype=torch.bool))
        table = pd.DataFrame(rows).T.astype({"rows": int})
        low, high = self.support_deficit_interval
        table.loc["all", ["support_deficit", "deficit_low", "deficit_high"]] = [self.support_deficit, low, high]
        table.loc["all", "khat"] = self.khat
        table.attrs["words"] = self.words
        return table

    def _summary_row(self, pick: Tensor) -> dict[str, float]:
        log_w = self.log_w[pick]
        if not len(log_w):
            return {
                "rows": 0,
                "mean_weight": float("nan"),
                "ess": 0.0,
                "ess_share": float("nan"),
                "max_weight": float("nan"),
            }
        ess = float(effective_sample_size(log_w))
        return {
            "rows": len(log_w),
            "mean_weight": float(log_w.exp().mean()),
            "ess": ess,
            "ess_share": ess / len(log_w),
            "max_weight": float(log_w.max().exp()),
        }

    @cached_property
    def words(self) -> str:
        """What these weights can and cannot do, in a sentence or two."""
        low, high = self.support_deficit_interval
        parts = []
        if np.isnan(low):
            parts.append("Support deficit unknown: give log_prob (n, K) with more than two classes.")
        elif low > 0.25:
            sure = (
                f"P(y|m) is above 0.95 on {self._share_certain():.0%} of rows: " if self._share_certain() > 0.5 else ""
            )
            parts.append(
                f"{sure}{self.support_deficit:.0%} of Q [{low:.0%}, {high:.0%}] would need weights above {self.tau:g}; "
                "weighting cannot repair this. Use random attention pretraining or exploration."
            )
        elif low > 0.02:
            parts.append(
                f"{self.support_deficit:.0%} of Q [{low:.0%}, {high:.0%}] would need weights above {self.tau:g}: "
                "weighting repairs a part only."
            )
        elif high <= 0.1:
            parts.append(
                f"Support is good as far as this model ranks the masks: at most {high:.1%} of Q would need weights "
                f"above {self.tau:g}."
            )
        else:
            parts.append(
                f"Support is uncertain: {self.support_deficit:.0%} of Q [{low:.0%}, {high:.0%}] would need weights "
                f"above {self.tau:g}; more rows would tell."
            )
        if self.khat > khat_threshold(len(self.y)):
            parts.append(f"The weights' tail is heavy (k̂ {self.khat:.2f}): averages under them are unreliable.")
        if self.record:
            parts.append("Changed: " + "; ".join(self.record) + ".")
        return " ".join(parts)

    def _share_certain(self) -> float:
        log_prob = self._known_log_prob()
        return 0.0 if log_prob is None else float((log_prob.amax(-1) > np.log(0.95)).double().mean())

    # ------------------------------------------------------------------------------------------------ ArviZ

    def to_arviz(self, obs: Any = None) -> Any:
        """The draws for ArviZ: per draw mean_weight, ess, ess_per_class, largest_share, support_deficit; and log_w.

        Args:
            obs: which rows' log_w to include; None: all.
        """
        from causal_attn.interop.arviz import to_arviz

        log_w = self.draws.double()
        rows = np.arange(len(self.y))
        rows = rows if obs is None else rows[np.asarray(obs)]
        posterior = {
            "mean_weight": log_w.exp().mean(-1),
            "ess": effective_sample_size(log_w),
            "ess_per_class": torch.stack(
                [effective_sample_size(log_w[:, self.y == k]) for k in range(len(self.prior))], -1
            ),
            "largest_share": (log_w.amax(-1) - log_w.logsumexp(-1)).exp(),
            "support_deficit": self._deficit_draws(),
            "log_w": self.draws[:, torch.as_tensor(rows)],
        }
        constant = {"y": self.y[torch.as_tensor(rows)].numpy()}
        if self.fold is not None:
            constant["fold"] = self.fold[torch.as_tensor(rows)].numpy()
        return to_arviz(
            {"posterior": {k: v.numpy() for k, v in posterior.items()}, "constant_data": constant},
            {"ess_per_class": ["label"], "log_w": ["obs_id"], "y": ["obs_id"], "fold": ["obs_id"]},
            {"label": np.arange(len(self.prior)), "obs_id": rows},
        )

    def _deficit_draws(self) -> Tensor:
        """D_τ of each draw's own ranking, point estimates, shape (S,)."""
        if self.draw_source is None:
            per_draw = [replace(self, log_w=d.double(), log_prob=None, n_draws=0) for d in self.draws]
            return torch.tensor([w.support_deficit for w in per_draw], dtype=torch.float64)
        log_prob = self.draw_source(slice(0, len(self.y)))
        return torch.tensor([_deficit_point(lp, self.y, self.prior, self.tau) for lp in log_prob], dtype=torch.float64)


def _deficit_point(log_prob: Tensor, y: Tensor, prior: Tensor, tau: float) -> float:
    """The estimate of `support_deficit` alone, without the limits."""
    total = 0.0
    for k, p in enumerate(prior.tolist()):
        x, n_t = _cumulated_hits(log_prob[:, k], y == k)
        total += p * float(n_t[_least_excess(x - p / tau * n_t)]) / len(y)
    return total


def _check_log_prob(log_prob: Tensor) -> None:
    """Each row must be the log of K probabilities that sum to 1, within 1e-3."""
    bad = log_prob.isnan().any(-1) | ~(log_prob.logsumexp(-1).abs() < 1e-3)
    if bad.any():
        row = first_row(bad)
        raise InputError(
            f"log_prob: expected logs of probabilities that sum to 1, row {row} sums to {log_prob[row].exp().sum():.4g}"
        )


def _check_finite(values: Tensor, name: str) -> None:
    bad = ~torch.isfinite(values)
    if bad.any():
        row = first_row(bad)
        raise InputError(f"{name}: expected finite numbers, row {row} is {values[row].item()}")
