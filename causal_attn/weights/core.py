"""`Weights`: log-weights of n rows, their posterior draws, and what they say about themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from causal_attn.data.checks import whole
from causal_attn.errors import InputError, NotEstimableError
from causal_attn.interop.arviz import psis
from causal_attn.masks import as_labels, as_rows, as_tensor, first_row, real
from causal_attn.weights.formula import effective_sample_size, stabilised_log_weights, weight_entropy
from causal_attn.weights.support import SupportDeficit, deficit_point, support_deficit
from causal_attn.weights.words import WeightSummary, in_words, summarise

MAX_DRAW_ENTRIES = 10**8
"""Draws above this many entries are not kept in memory."""
DRAW_CHUNK = 20_000_000
LARGEST_LOG = 700.0
"""Nats beyond which a weight overflows."""

DrawSource = Callable[[slice], Tensor]
"""Rows -> draws of log P(k | m), shape (S, rows, K)."""


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
    given_deficit_draws: Tensor | None = None

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
        point = real(as_tensor(log_w, "log_w"), "log_w").double()
        if point.ndim != 1 or not len(point):
            raise InputError(f"log_w: expected shape (n,), got {tuple(point.shape)}")
        _check_finite(point, "log_w")
        if float(point.abs().max()) > LARGEST_LOG:
            row = first_row(point.abs() > LARGEST_LOG)
            raise InputError(
                f"log_w: expected logs from -{LARGEST_LOG:g} to {LARGEST_LOG:g}, whose exponentials are numbers, "
                f"row {row} is {point[row].item():g}"
            )
        probs = None if log_prob is None else real(as_tensor(log_prob, "log_prob"), "log_prob").double()
        if probs is not None and (probs.ndim != 2 or len(probs) != len(point)):
            raise InputError(f"log_prob: expected shape ({len(point)}, K), got {tuple(probs.shape)}")
        if probs is not None:
            _check_log_prob(probs)
        given = None if prior is None else real(as_tensor(prior, "prior"), "prior").double()
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
        chunk = whole(chunk, "chunk", 1)
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
    def class_shares(self) -> Tensor:
        """Each class's share of the weights, Σ_{y_i=k} w_i / Σ_i w_i, shape (K,): Q(k) where all of Q is seen."""
        share = self.log_w.softmax(0)
        return torch.zeros(len(self.prior), dtype=share.dtype).index_add_(0, self.y, share)

    @cached_property
    def largest_share(self) -> float:
        """The largest weight's share of the sum, probability."""
        return float((self.log_w.max() - self.log_w.logsumexp(0)).exp())

    @cached_property
    def entropy(self) -> float:
        """Entropy of the normalised weights, nats: log n where all are equal."""
        return float(weight_entropy(self.log_w))

    @cached_property
    def khat(self) -> float:
        """Tail index of the weights by PSIS; 0 where the largest are all equal."""
        return psis(self.log_w.numpy())[1]

    @cached_property
    def deficit(self) -> SupportDeficit:
        """D_τ with its 95% interval; NaN where log P(k|m) is unknown and K > 2."""
        if self.given_deficit is not None:
            return self.given_deficit
        log_prob = self.known_log_prob()
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

    def known_log_prob(self) -> Tensor | None:
        """Held-out log P(k | m), nats, shape (n, K): as given, or, with K = 2, as the weights imply it; else None."""
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
        kept = self.known_log_prob()
        return replace(
            self, log_w=log_w, log_prob=kept, record=(*self.record, what), draw_source=None, given_draws=None,
            n_draws=0, given_deficit_draws=None,
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------------ for people

    def summary(self, class_names: Sequence[str] | None = None) -> WeightSummary:
        """One row per class and one for all, printed with `words` below.

        Returns:
            Columns rows, mean_weight (Horvitz–Thompson's 1: the plain mean), ess and ess_share (Kish, in rows and as a
            share of them), max_weight, largest_share (of the sum), log_w_sd_nats (mean posterior standard deviation of
            log w; NaN without draws); for all rows also khat, support_deficit, deficit_low and deficit_high.
        """
        if class_names is not None and len(class_names) != len(self.prior):
            raise InputError(f"class_names: expected {len(self.prior)}, got {len(class_names)}")
        return summarise(self, class_names)

    @cached_property
    def log_w_sd(self) -> Tensor:
        """Posterior standard deviation of each log-weight, nats, shape (n,); NaN without draws."""
        if not self.n_draws:
            return torch.full_like(self.log_w, torch.nan)
        chunk = max(1, DRAW_CHUNK // (self.n_draws * len(self.prior)))
        return torch.cat([part.std(0, correction=0) for _, part in self.iter_draws(chunk)]).double()

    @cached_property
    def words(self) -> str:
        """What these weights can and cannot do, in a sentence or two."""
        return in_words(self)

    def share_certain(self, level: float) -> float:
        """Share of rows where one class has a held-out probability above `level`; 0 where log P(k|m) is unknown."""
        log_prob = self.known_log_prob()
        return 0.0 if log_prob is None else float((log_prob.amax(-1) > np.log(level)).double().mean())

    # ------------------------------------------------------------------------------------------------ files

    def save(self, path: str | Path, draws: bool = True) -> None:
        """Write everything to `path`, .npz or .safetensors by its suffix, whole or not at all, without pickle.

        Args:
            path: the file.
            draws: whether posterior draws are written too.

        Raises:
            InputError: more than 1e8 entries of draws; save with draws=False.
        """
        from causal_attn.weights.store import save_weights

        save_weights(self, path, draws)

    @staticmethod
    def load(path: str | Path) -> Weights:
        """Read what `save` wrote."""
        from causal_attn.weights.store import load_weights

        return load_weights(path)

    # ------------------------------------------------------------------------------------------------ ArviZ

    def to_arviz(self, obs: Any = None) -> Any:
        """The draws for ArviZ: per draw mean_weight, ess, ess_per_class, largest_share, support_deficit; and log_w.

        They spread as the fitted P(y|m) does, given these rows. The support deficit's interval in `summary()` is
        wider: it also counts which rows were drawn. `az.summary(data, var_names=["~log_w"])` leaves the rows out.

        Args:
            obs: which rows' log_w to include; None: all.
        """
        from causal_attn.interop.arviz import to_arviz

        log_w = self.draws.double()
        picked = slice(None) if obs is None else obs
        rows = as_rows(picked, len(self.y), "obs").numpy()
        posterior = {
            "mean_weight": log_w.exp().mean(-1),
            "ess": effective_sample_size(log_w),
            "ess_per_class": torch.stack(
                [effective_sample_size(log_w[:, self.y == k]) for k in range(len(self.prior))], -1
            ),
            "largest_share": (log_w.amax(-1) - log_w.logsumexp(-1)).exp(),
            "support_deficit": self.deficit_draws(),
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

    def deficit_draws(self) -> Tensor:
        """D_τ of each draw's own ranking, point estimates, shape (S,)."""
        if self.given_deficit_draws is not None:
            return self.given_deficit_draws
        if self.draw_source is None:
            per_draw = [replace(self, log_w=d.double(), log_prob=None, n_draws=0) for d in self.draws]
            return torch.tensor([w.support_deficit for w in per_draw], dtype=torch.float64)
        log_prob = self.draw_source(slice(0, len(self.y)))
        return torch.tensor([deficit_point(lp, self.y, self.prior, self.tau) for lp in log_prob], dtype=torch.float64)


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
