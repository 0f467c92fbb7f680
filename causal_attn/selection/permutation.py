"""Permutation weighting: the weight as a density ratio, estimated by telling observed pairs from permuted ones.

Observed pairs (m_i, z_i) get C = 1; k copies in which z is permuted get C = 0; then, with η = P(C=1 | m, z),

    w(z, m) = (1/k) · (1 − η)/η = P(z) P(m) / P(z, m),        z = y, or z = (y, φ(x)) with x-features.

Permuted rows are draws from Q, where M is independent of Z; they are not "unselected" rows, and S = 0 nowhere here.
η is logistic in φ(m), z and all their products. Only the products can tell dependence; what the classifier makes of m
alone is divided out by normalising, so that Σ_z P(z)/w(z, m) = 1 holds for every m and every draw.

Source: Arbour, Dimmery & Sondhi (2021), arXiv 1901.01230.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from causal_attn.interop.arviz import psis
from causal_attn.masks import standardised
from causal_attn.selection.gaussian import Posterior, fit_posterior, log_joint
from causal_attn.selection.response import contrasts, with_intercept
from causal_attn.weights import SupportDeficit, rank_inversion

ROW_CHUNK = 1000
N_REFERENCE = 256
"""Rows over which Σ_z P(z)/w(z, m) is averaged where z is not a class alone."""


@dataclass(frozen=True)
class Pairs:
    """Codes of z = (y, φ(x)): class contrasts and standardised x-features, shape (n, q)."""

    codes: Tensor
    n_classes: int
    class_alone: bool

    @staticmethod
    def of(y: Tensor, n_classes: int, x_features: Tensor | None) -> Pairs:
        """Codes of the sample's rows; a constant x-feature becomes 0."""
        classes = contrasts(n_classes).T[y]
        if x_features is None:
            return Pairs(classes, n_classes, True)
        return Pairs(torch.cat([classes, standardised(x_features)], -1), n_classes, False)

    def rows(self, pick: Tensor) -> Pairs:
        """The picked rows."""
        return Pairs(self.codes[pick], self.n_classes, self.class_alone)


def pair_features(phi: Tensor, codes: Tensor) -> Tensor:
    """Products of φ(m) and the codes of z, then each alone. (n, d), (n, q) -> (n, d·q + d + q)."""
    products = (phi[:, :, None] * codes[:, None, :]).flatten(1)
    return torch.cat([products, phi, codes], -1)


@dataclass(frozen=True)
class RatioFit:
    """A fitted η: draws of its parameters, and the reference codes over which ratios are normalised.

    Args:
        posterior: of the logistic model of C.
        products: draws of B in the score φ(m)' B z, shape (S, d, q).
        alone: draws of the coefficients of z alone, shape (S, q).
        reference: codes of z, shape (r, q); all classes where z is the class alone, else a sample of rows.
        log_mass: log P(z) of the reference, shape (r,).
        vi_khat: PSIS k̂ of log joint − log guide on the pairs it was fitted to.
    """

    posterior: Posterior
    products: Tensor
    alone: Tensor
    reference: Tensor
    log_mass: Tensor
    vi_khat: float

    @staticmethod
    def on(
        phi: Tensor, y: Tensor, pairs: Pairs, copies: int, precision: float | None, n_draws: int, seed: int,
        start: RatioFit | None = None, refine: bool = True,
    ) -> RatioFit:  # fmt: skip
        """Fit on rows φ (n, d) and their codes, with `copies` permuted ones each, permuted among these rows only."""
        rng, codes = np.random.default_rng([seed, 5]), pairs.codes
        (n, d), q = phi.shape, codes.shape[1]
        shuffled = [codes[torch.from_numpy(rng.permutation(n))] for _ in range(copies)]
        u = with_intercept(torch.cat([pair_features(phi, c) for c in [codes, *shuffled]]))
        c = torch.cat([torch.ones(n, dtype=torch.long), torch.zeros(n * copies, dtype=torch.long)])
        log_share = torch.tensor([copies / (copies + 1), 1 / (copies + 1)], dtype=torch.float64).log()
        same = start is not None and len(start.posterior.mode.theta) == u.shape[1]  # as many x-features, too
        earlier = start.posterior if same and start is not None else None
        posterior = fit_posterior(u, c, log_share, precision, earlier, seed, refine)
        theta = posterior.draws(n_draws, seed)
        ratio = log_joint(theta, u, c, log_share, posterior.mode.prior_precision)
        khat = psis((ratio - posterior.log_density(theta)).numpy())[1] if refine else float("nan")
        slopes = theta[..., 0] * (contrasts(2)[0, 1] - contrasts(2)[0, 0])
        reference, log_mass = _reference(pairs, y, rng)
        return RatioFit(
            posterior, slopes[:, : d * q].reshape(-1, d, q), slopes[:, d * q + d : -1], reference, log_mass, khat
        )  # fmt: skip

    @property
    def n_draws(self) -> int:
        """S."""
        return len(self.products)

    @property
    def elbo(self) -> Tensor:
        """Of the logistic model of C."""
        return self.posterior.elbo

    def _reference_scores(self, phi: Tensor) -> Tensor:
        """log P(z)/w(z, m) at the reference, up to a function of m: shape (S, n, r)."""
        return (phi @ self.products + self.alone[:, None]) @ self.reference.T + self.log_mass

    def log_ratio(self, phi: Tensor, codes: Tensor) -> Tensor:
        """Draws of −log w(z, m), normalised over the reference, nats. (n, d), (n, q) -> (S, n)."""
        parts = []
        for rows, z in zip(phi.split(ROW_CHUNK), codes.split(ROW_CHUNK)):
            own = ((rows @ self.products + self.alone[:, None]) * z).sum(-1)
            parts.append(own - self._reference_scores(rows).logsumexp(-1))
        return torch.cat(parts, -1)

    def log_prob(self, phi: Tensor) -> Tensor:
        """Draws of log r(k|m) ∝ P(k)/w(k, m), where z is the class alone. Shape (S, n, K)."""
        return self._reference_scores(phi).log_softmax(-1)

    def fast_draws(self, phi: Tensor, n_draws: int) -> Tensor:
        """The first draws in float32."""
        return self.log_prob(phi)[:n_draws].float()

    def mean_log_prob(self, phi: Tensor) -> Tensor:
        """log of the posterior predictive mean, shape (n, K)."""
        parts = [self.log_prob(rows).logsumexp(0) - np.log(self.n_draws) for rows in phi.split(ROW_CHUNK)]
        return torch.cat(parts)


def _reference(pairs: Pairs, y: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """All classes with their shares where z is the class alone; else a random sample of rows, equally."""
    k, codes = pairs.n_classes, pairs.codes
    if pairs.class_alone:
        shares = torch.bincount(y, minlength=k).double() / len(y)
        return contrasts(k).T.contiguous(), shares.log()
    rows = rng.choice(len(codes), min(N_REFERENCE, len(codes)), replace=False)
    return codes[torch.from_numpy(rows)], torch.full((len(rows),), -float(np.log(len(rows))), dtype=torch.float64)


def ratio_deficit(observed: Tensor, permuted: Tensor, tau: float, level: float = 0.95) -> SupportDeficit:
    """D_τ from held-out −log w of observed pairs (draws of P) and permuted ones (draws of Q), by rank inversion.

    w ≤ τ where the share that is observed, among pairs of one score, is at least b = 1/(1 + τ·k), k permuted per
    observed. The mass found below b is turned into Q-mass by the share of it that is permuted, between 1 − b and 1.
    Shapes (n,), (n·k,).
    """
    k = len(permuted) / len(observed)
    b = 1 / (1 + tau * k)
    hit = torch.cat([torch.ones_like(observed), torch.zeros_like(permuted)]) > 0
    mass = rank_inversion(torch.cat([observed, permuted]), hit, b, 1 - level)
    per_permuted = (1 + k) / k
    point, low, high = (min(1.0, m * per_permuted * f) for m, f in zip(mass, (1 - b / 2, 1 - b, 1.0)))
    return SupportDeficit(point, low, high)
