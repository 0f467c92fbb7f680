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
from scipy.stats import binom
from torch import Tensor

from causal_attn.selection.gaussian import Posterior, fit_posterior
from causal_attn.selection.response import contrasts, with_intercept
from causal_attn.weights import SupportDeficit

N_REFERENCE = 256
"""Rows over which Σ_z P(z)/w(z, m) is averaged where z is not a class alone."""


@dataclass(frozen=True)
class Pairs:
    """Codes of z = (y, φ(x)): class contrasts and standardised x-features, shape (n, q)."""

    codes: Tensor
    n_classes: int

    @staticmethod
    def of(y: Tensor, n_classes: int, x_features: Tensor | None) -> Pairs:
        """Codes of the sample's rows; a constant x-feature becomes 0."""
        classes = contrasts(n_classes).T[y]
        if x_features is None:
            return Pairs(classes, n_classes)
        spread = x_features.std(0, correction=0)
        scaled = (x_features - x_features.mean(0)) / torch.where(spread > 1e-9, spread, torch.inf)
        return Pairs(torch.cat([classes, scaled], -1), n_classes)


def pair_features(phi: Tensor, codes: Tensor) -> Tensor:
    """Products of φ(m) and the codes of z, then each alone. (n, d), (n, q) -> (n, d·q + d + q)."""
    products = (phi[:, :, None] * codes[:, None, :]).flatten(1)
    return torch.cat([products, phi, codes], -1)


@dataclass(frozen=True)
class RatioFit:
    """A fitted η: draws of its parameters, and the reference codes over which ratios are normalised.

    Args:
        posterior: of the logistic model of C.
        theta: draws, shape (S, d·q + d + q + 1).
        reference: codes of z, shape (r, q), and their log-probabilities, shape (r,).
    """

    posterior: Posterior
    theta: Tensor
    reference: Tensor
    log_mass: Tensor

    @staticmethod
    def on(
        phi: Tensor, codes: Tensor, copies: int, precision: float | None, n_draws: int, seed: int, n_classes: int,
        y: Tensor, start: RatioFit | None = None,
    ) -> RatioFit:  # fmt: skip
        """Fit on rows φ (n, d) and codes (n, q), with `copies` permuted ones each, permuted among these rows only."""
        rng = np.random.default_rng([seed, 5])
        n = len(phi)
        shuffled = [codes[torch.from_numpy(rng.permutation(n))] for _ in range(copies)]
        u = torch.cat([pair_features(phi, c) for c in [codes, *shuffled]])
        c = torch.cat([torch.ones(n, dtype=torch.long), torch.zeros(n * copies, dtype=torch.long)])
        log_prior = torch.tensor([copies / (copies + 1), 1 / (copies + 1)], dtype=torch.float64).log()
        posterior = fit_posterior(u, c, log_prior, precision, None if start is None else start.posterior, seed)
        reference, log_mass = _reference(codes, y, n_classes, rng)
        return RatioFit(posterior, posterior.draws(n_draws, seed)[..., 0], reference, log_mass)

    def _score(self, phi: Tensor, codes: Tensor) -> Tensor:
        """Draws of log P(z, m) − log P(z)P(m), up to a function of m: the log-odds of C. (n, d), (n, q) -> (S, n)."""
        x = with_intercept(pair_features(phi, codes))
        return self.theta @ x.T * 2**0.5  # K = 2: the contrast of the two classes is √2 times the parameter

    def _normaliser(self, phi: Tensor) -> Tensor:
        """log Σ_z P(z) exp(score), shape (S, n)."""
        parts = [self._score(phi, one.expand(len(phi), -1)) + mass for one, mass in zip(self.reference, self.log_mass)]
        return torch.stack(parts).logsumexp(0)

    def log_ratio(self, phi: Tensor, codes: Tensor) -> Tensor:
        """Draws of −log w(z, m), normalised over the reference, nats. Shape (S, n)."""
        return self._score(phi, codes) - self._normaliser(phi)

    def log_prob(self, phi: Tensor) -> Tensor:
        """Draws of log r(k|m) ∝ P(k)/w(k, m), where z is the class alone. Shape (S, n, K)."""
        logits = [self._score(phi, one.expand(len(phi), -1)) + mass for one, mass in zip(self.reference, self.log_mass)]
        return torch.stack(logits, -1).log_softmax(-1)


def _reference(codes: Tensor, y: Tensor, n_classes: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """All classes with their shares where z is the class alone; else a random sample of rows, equally."""
    if codes.shape[1] == n_classes - 1:
        shares = torch.bincount(y, minlength=n_classes).double() / len(y)
        return contrasts(n_classes).T.contiguous(), shares.log()
    rows = rng.choice(len(codes), min(N_REFERENCE, len(codes)), replace=False)
    return codes[torch.from_numpy(rows)], torch.full((len(rows),), -float(np.log(len(rows))), dtype=torch.float64)


def ratio_deficit(observed: Tensor, permuted: Tensor, tau: float, level: float = 0.95) -> SupportDeficit:
    """D_τ from held-out scores of observed pairs (draws of P) and permuted ones (draws of Q), by rank inversion.

    Among the pairs of lowest P/Q score, the share that is observed is compared with 1/(1 + τ·k), k permuted per
    observed: the largest Q-mass whose limit lies below it. Shapes (n,), (n·k,).
    """
    k = len(permuted) / len(observed)
    bound = 1 / (1 + tau * k)
    score = torch.cat([observed, permuted])
    order = torch.argsort(score)
    hit = torch.cat([torch.ones(len(observed)), torch.zeros(len(permuted))])[order].cumsum(0)
    ends = torch.cat([score[order][1:] > score[order][:-1], torch.ones(1, dtype=torch.bool)]).nonzero()[:, 0]
    n_t = (ends + 1).numpy().astype(float)
    x = hit[ends].numpy()
    alpha = 1 - level
    share = lambda fits: float((n_t - x)[fits].max() / len(permuted)) if fits.any() else 0.0  # noqa: E731
    low, high = binom.cdf(x, n_t, bound) <= alpha / 2, binom.sf(x - 1, n_t, bound) >= alpha / 2
    return SupportDeficit(share(x <= bound * n_t), share(low), share(high))
