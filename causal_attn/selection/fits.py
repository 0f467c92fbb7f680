"""One fit of P(y|m) on one set of rows, whatever the estimator: draws of log r(k|m) for new features.

`OutcomeFit` (the Pyro model with a linear response), `NetworkFit` (several of them on learnt hidden units),
`permutation.RatioFit` (a density ratio) and `PluginFit` (a scikit-learn classifier) offer the same few methods.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from causal_attn.errors import InputError, PositivityError
from causal_attn.interop.arviz import psis
from causal_attn.selection.curvature import Curvature
from causal_attn.selection.gaussian import Posterior, fit_posterior, log_joint, margin_offsets
from causal_attn.selection.model import SelectionStory
from causal_attn.selection.network import HIDDEN, N_MEMBERS, Hidden, fit_hidden
from causal_attn.selection.prior import scale_of
from causal_attn.selection.response import fast_draws, linear_log_prob, mean_log_prob, with_intercept
from causal_attn.selection.sampling import nuts_draws, svi_draws

KHAT_DRAWS = 400
"""Draws behind k̂: fewer would make it jump."""


class RowFit(Protocol):
    """What every fit offers."""

    @property
    def n_draws(self) -> int:
        """Posterior draws it holds; 0 where there is no posterior."""
        ...

    def log_prob(self, phi: Tensor) -> Tensor:
        """Draws of log r(k|m), nats, (n, d) -> (S, n, K); one "draw" where there is no posterior."""
        ...

    def fast_draws(self, phi: Tensor, n_draws: int) -> Tensor:
        """The first `n_draws` of them in float32."""
        ...

    def mean_log_prob(self, phi: Tensor) -> Tensor:
        """log of their average, (n, d) -> (n, K)."""
        ...


@dataclass(frozen=True)
class Inference:
    """How the posterior is found: "laplace", "svi" with a guide, or "nuts"; λ or None for the evidence's, one for each
    group of features (d,) where given."""

    method: str = "laplace"
    guide: Any = "auto"
    prior_precision: float | None = None
    groups: Tensor | None = None


@dataclass(frozen=True)
class OutcomeFit:
    """Draws of θ of the linear response, each moved to meet the class margin of its rows: mean_i r(k|m_i) is their
    share of class k, whatever Q(k) is stated to be, since r is P(y|m), the law of the rows.

    Args:
        posterior: the Gaussian at the mode, refined; with "svi" and "nuts" the start they were given.
        theta: draws, shape (S, d+1, J).
        log_prior: log Q(k), shape (K,).
        elbo: its trace, nats, (steps,); empty with NUTS and where a fold's fit was not refined.
        log_ratio: log joint − log guide at draws, (S,), with "svi"; None: computed from `posterior` when asked for.
    """

    posterior: Posterior
    theta: Tensor
    log_prior: Tensor
    elbo: Tensor
    log_ratio: Tensor | None = None
    exact: bool = False

    @staticmethod
    def on(
        x: Tensor, y: Tensor, log_prior: Tensor, how: Inference, n_draws: int, seed: int,
        start: OutcomeFit | None = None, refine: bool = True, known: Curvature | None = None,
    ) -> OutcomeFit:  # fmt: skip
        """Fit on rows x (n, d+1), a ones column last, with classes y (n,); `refine`, `known`: see `fit_posterior`."""
        earlier = None if start is None else start.posterior
        laplace = how.method == "laplace"
        posterior = fit_posterior(
            x, y, log_prior, how.prior_precision, earlier, seed, refine and laplace, how.groups, known
        )
        theta, elbo, ratio = posterior.draws(n_draws, seed), posterior.elbo, None
        story = SelectionStory(log_prior, scale_of(posterior.mode.prior_precision), lambda m, v: m)
        if how.method == "svi":
            theta, elbo, ratio = svi_draws(story, x[:, :-1], y, posterior.mode.theta, how.guide, n_draws, seed)
        elif how.method == "nuts":
            theta = nuts_draws(story, x[:, :-1], y, posterior.mode.theta, n_draws, seed)
        offset = margin_offsets(theta, x, log_prior, _shares(y, len(log_prior)))
        moved = torch.cat([theta[:, :-1], theta[:, -1:] + offset[:, None]], 1)
        return OutcomeFit(posterior, moved, log_prior, elbo, ratio, how.method == "nuts")

    @property
    def n_draws(self) -> int:
        """S."""
        return len(self.theta)

    def log_prob(self, phi: Tensor) -> Tensor:
        """Draws of log r(k|m), shape (S, n, K)."""
        return linear_log_prob(self.theta, phi, self.log_prior)

    def fast_draws(self, phi: Tensor, n_draws: int) -> Tensor:
        """The first draws in float32."""
        return fast_draws(self.theta[:n_draws], phi, self.log_prior)

    def mean_log_prob(self, phi: Tensor) -> Tensor:
        """log of the posterior predictive mean, shape (n, K)."""
        return mean_log_prob(self.theta, phi, self.log_prior)

    def log_density_ratio(self, phi: Tensor, y: Tensor) -> Tensor:
        """log joint − log guide at fresh draws of the guide, nats."""
        if self.log_ratio is not None:
            return self.log_ratio
        theta = self.posterior.draws(max(KHAT_DRAWS, self.n_draws), seed=2**31 - 1)
        joint = log_joint(theta, with_intercept(phi), y, self.log_prior, self.posterior.mode.prior_precision)
        return joint - self.posterior.log_density(theta)

    def khat(self, phi: Tensor, y: Tensor) -> float:
        """PSIS k̂ of that ratio; NaN with NUTS, which has no guide."""
        return float("nan") if self.exact else psis(self.log_density_ratio(phi, y).numpy())[1]


def _shares(y: Tensor, n_classes: int) -> Tensor:
    """P(k) of the rows, shape (K,)."""
    return torch.bincount(y, minlength=n_classes).double() / len(y)


def _with_units(groups: Tensor) -> Tensor:
    """Hidden units form one more group."""
    return torch.cat([groups, torch.full((HIDDEN,), int(groups.max()) + 1)])


@dataclass(frozen=True)
class NetworkFit:
    """Members that share the draws: each has hidden units of its own and an `OutcomeFit` on top."""

    hidden: tuple[Hidden, ...]
    members: tuple[OutcomeFit, ...]

    @staticmethod
    def on(
        phi: Tensor, y: Tensor, log_prior: Tensor, how: Inference, n_draws: int, seed: int,
        start: NetworkFit | None = None, refine: bool = True,
    ) -> NetworkFit:  # fmt: skip
        """Fit all members on rows φ (n, d), y (n,); afresh, as units of an earlier fit may have seen rows left out."""
        share = [len(part) for part in np.array_split(np.arange(n_draws), min(N_MEMBERS, n_draws))]
        how = how if how.groups is None else replace(how, groups=_with_units(how.groups))
        hidden = [fit_hidden(phi, y, _shares(y, len(log_prior)).log(), seed * N_MEMBERS + i) for i in range(len(share))]
        members = [
            OutcomeFit.on(with_intercept(h(phi)), y, log_prior, how, s, seed * N_MEMBERS + i, None, refine)
            for i, (h, s) in enumerate(zip(hidden, share))
        ]
        return NetworkFit(tuple(hidden), tuple(members))

    @property
    def n_draws(self) -> int:
        """Draws of all members."""
        return sum(member.n_draws for member in self.members)

    @property
    def elbo(self) -> Tensor:
        """Of the first member's last layer."""
        return self.members[0].elbo

    def log_prob(self, phi: Tensor) -> Tensor:
        """Draws of log r(k|m), members one after the other, shape (S, n, K)."""
        return torch.cat([member.log_prob(h(phi)) for h, member in zip(self.hidden, self.members)])

    def fast_draws(self, phi: Tensor, n_draws: int) -> Tensor:
        """Draws in float32, spread over the members."""
        drawn = torch.cat([m.fast_draws(h(phi), m.n_draws) for h, m in zip(self.hidden, self.members)])
        return drawn[torch.linspace(0, len(drawn) - 1, n_draws).round().long()]

    def mean_log_prob(self, phi: Tensor) -> Tensor:
        """log of the average over members and their draws, shape (n, K)."""
        parts = [m.mean_log_prob(h(phi)) + np.log(m.n_draws / self.n_draws) for h, m in zip(self.hidden, self.members)]
        return torch.stack(parts).logsumexp(0)

    def khat(self, phi: Tensor, y: Tensor) -> float:
        """The largest k̂ of the members' last layers."""
        return max(member.khat(h(phi), y) for h, member in zip(self.hidden, self.members))


@dataclass(frozen=True)
class PluginFit:
    """A fitted scikit-learn classifier; a point estimate without a posterior."""

    classifier: Any
    n_classes: int
    floor: float | None

    @staticmethod
    def on(classifier: Any, phi: Tensor, y: Tensor, n_classes: int, floor: float | None) -> PluginFit:
        """Fit a clone on rows φ (n, d), y (n,)."""
        from sklearn.base import clone

        return PluginFit(clone(classifier).fit(phi.numpy(), y.numpy()), n_classes, floor)

    @property
    def n_draws(self) -> int:
        """None: there is no posterior."""
        return 0

    def log_prob(self, phi: Tensor) -> Tensor:
        """log predict_proba as one "draw", shape (1, n, K); a class the rows lacked has probability 0."""
        given = np.asarray(self.classifier.predict_proba(phi.numpy()), dtype=np.float64)
        p = np.zeros((len(phi), self.n_classes))
        p[:, self.classifier.classes_.astype(int)] = given
        if self.floor is not None:
            p = np.maximum(p, self.floor)
            p = p / p.sum(1, keepdims=True)
        with np.errstate(divide="ignore"):
            return torch.from_numpy(np.log(p))[None]

    def fast_draws(self, phi: Tensor, n_draws: int) -> Tensor:
        """There are none."""
        raise InputError("draws: a plug-in classifier has no posterior to draw from")

    def mean_log_prob(self, phi: Tensor) -> Tensor:
        """log predict_proba, shape (n, K)."""
        return self.log_prob(phi)[0]


def refuse_zero(log_prob: Tensor, y: Tensor, floor: float | None) -> None:
    """PositivityError where a row's own class has probability 0 and no floor was asked for."""
    zero = torch.isneginf(log_prob.gather(-1, y[:, None])[:, 0])
    if floor is None and zero.any():
        row = int(zero.nonzero()[0])
        raise PositivityError(
            f"estimator: predict_proba gives row {row} probability 0 for its own class, an infinite weight; use a "
            "calibrated classifier, or state probability_floor=..."
        )
