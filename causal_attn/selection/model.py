"""The generative story with the selection variable S explicit, as a Pyro model.

    y ~ Categorical(Q(y));   s ~ Bernoulli(π(y, m));   the row (x, y, m) is kept when s = 1.

Given m, a kept row has class y with probability P(y|m) = Q(y) π(y,m) / Z(m), Z(m) = Σ_k Q(k) π(k,m). Any normalised
classifier r_θ(y|m) gives a propensity π(y,m) = c·r_θ(y|m)/Q(y) with Z(m) = c for every mask: then P(M) = Q(M), and
w = P(y)/P(y|m) = c/π. c = Q(S=1) is never identified; it is a convention, by default min_k Q(k), which keeps π ≤ 1.

Source: theory section 3; Bai et al. (2021), arXiv 2006.05656.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from torch import Tensor

from causal_attn.errors import InputError
from causal_attn.selection.response import linear_log_prob


class FlatPrior(dist.ImproperUniform):
    """An improper flat prior that can be run forwards: its sample is 0, where r_θ starts from the prior Q(y)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(constraints.independent(constraints.real, len(shape)), (), shape)

    def expand(self, batch_shape: Any, _instance: FlatPrior | None = None) -> FlatPrior:
        new = self._get_checked_instance(FlatPrior, _instance)
        new._support = self._support
        super(dist.ImproperUniform, new).__init__(torch.Size(batch_shape), self.event_shape)
        return new

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return torch.zeros(
            torch.Size(sample_shape) + self.batch_shape + self.event_shape, dtype=torch.get_default_dtype()
        )


def log_propensity(log_r: Tensor, log_prior: Tensor, log_base_rate: Tensor) -> Tensor:
    """log π(k, m) = log c + log r(k|m) − log Q(k), nats. Shape of `log_r`, (..., n, K)."""
    return log_base_rate + log_r - log_prior


def log_normaliser(log_pi: Tensor, log_prior: Tensor) -> Tensor:
    """log Z(m) = log Σ_k Q(k) π(k, m), nats. (..., n, K) -> (..., n)."""
    return (log_prior + log_pi).logsumexp(-1)


@dataclass(frozen=True)
class SelectionStory:
    """The Pyro model: an ordinary callable with sites ``weights``, ``intercept``, ``y`` and ``s``.

    Args:
        log_prior: log Q(k), nats, shape (K,).
        prior_scale: standard deviation of each weight: one for all, or one per feature, shape (d,); or the Cholesky
            factor of the covariance of each feature's weights, shape (d, K-1, K-1).
        features: maps (masks, valid) to φ, shape (n, d).
        log_base_rate: log c; None: min_k log Q(k).
    """

    log_prior: Tensor
    prior_scale: float | Tensor
    features: Callable[[Tensor, Tensor], Tensor]
    log_base_rate: Tensor | None = None

    def base_rate(self) -> Tensor:
        """log c, nats."""
        return self.log_prior.min() if self.log_base_rate is None else self.log_base_rate

    def __call__(
        self, masks: Tensor, y: Tensor | None = None, s: Tensor | None = None, valid: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Run the story on masks (n, T).

        With `y` and `s` None it runs forwards: y from Q, then s. With both given, the log density of the trace is that
        of the kept rows, log P(y | m, s): the factor −log Z(m) (for s = 0, −log(1 − Z(m))) is that conditioning. It is
        a constant here, and kept, since it is not one for any other propensity.
        """
        here = torch.ones_like(masks, dtype=torch.bool) if valid is None else valid
        return self.on_features(self.features(masks, here), y, s)

    def on_features(
        self, phi: Tensor, y: Tensor | None = None, s: Tensor | None = None, batch: int | None = None
    ) -> dict[str, Tensor]:
        """The same story on features φ (n, d) computed before; on `batch` of the rows, at random, if given."""
        if s is not None and y is None:
            raise InputError("y: expected classes where s is given")
        theta = self._theta(phi)
        subsample = None if batch is None or batch >= len(phi) else torch.randperm(len(phi))[:batch]
        with pyro.plate("rows", len(phi), subsample=subsample, dim=-1):
            if subsample is not None:
                phi = phi[subsample]
                y, s = (v if v is None else v[subsample] for v in (y, s))
            log_r = linear_log_prob(theta, phi, self.log_prior)
            log_pi = log_propensity(log_r, self.log_prior, self.base_rate())
            cls = pyro.sample("y", dist.Categorical(logits=self.log_prior.expand(log_r.shape)), obs=y)
            own = log_pi.gather(-1, cls.expand(log_pi.shape[:-1])[..., None])[..., 0]
            kept = pyro.sample("s", _bernoulli(own), obs=None if s is None else s.to(phi))
            if s is not None:
                log_z = log_normaliser(log_pi, self.log_prior)
                pyro.factor("selected", -torch.where(kept == 1, log_z, log1mexp(log_z)))
        return {"y": cls, "s": kept}

    def _weight_prior(self, shape: tuple[int, int], dtype: torch.dtype) -> Any:
        scale, zero = torch.as_tensor(self.prior_scale, dtype=dtype), torch.zeros(shape, dtype=dtype)
        if scale.ndim == 3:
            return dist.MultivariateNormal(zero, scale_tril=scale).to_event(1)
        return dist.Normal(zero, scale.expand(shape[0])[:, None].expand(shape)).to_event(2)

    def _theta(self, phi: Tensor) -> Tensor:
        shape = (phi.shape[1], len(self.log_prior) - 1)
        weights = pyro.sample("weights", self._weight_prior(shape, phi.dtype))
        intercept = pyro.sample("intercept", FlatPrior((shape[1],))).to(phi)
        # Outer plates (particles, predictive draws) sit left of "rows", whose slot holds a 1 here: drop it, so that
        # the einsum's rows take its place.
        if weights.ndim > 2:
            weights = weights.squeeze(-3)
        if intercept.ndim > 1:
            intercept = intercept.squeeze(-2)
        lead = torch.broadcast_shapes(weights.shape[:-2], intercept.shape[:-1])
        return torch.cat([weights.expand(*lead, *shape), intercept.expand(*lead, shape[1])[..., None, :]], -2)


def log1mexp(log_p: Tensor) -> Tensor:
    """log(1 − p) from log p, accurate at both ends."""
    near_one = log_p > -0.6931471805599453
    return torch.where(near_one, (-torch.expm1(log_p)).log(), torch.log1p(-log_p.exp()))


def _bernoulli(log_p: Tensor) -> dist.Bernoulli:
    """Bernoulli from log π through its logits: probabilities near 0 and 1 survive, where Bernoulli(probs) clamps."""
    clamped = log_p.clamp(max=-1e-15)
    return dist.Bernoulli(logits=clamped - log1mexp(clamped))
