"""Estimating P(y|m): the configuration (`SelectionModel`) and what a fit gives (`SelectionFit`).

fit = SelectionModel().fit(sample, folds=5, seed=0)
weights = fit.weights()          # cross-fitted: each row weighted by a model that did not see it
fit.log_prob(new_masks)          # posterior draws of log P(y|m), from a final fit on all rows
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from causal_attn.errors import InputError
from causal_attn.interop.arviz import psis, to_arviz
from causal_attn.masks import FeatureFunction, FeatureMap, MaskSample, as_labels, as_tensor
from causal_attn.selection.crossfit import assign_folds
from causal_attn.selection.gaussian import (
    Posterior,
    fit_posterior,
    log_joint,
    margin_offsets,
)  # fmt: skip
from causal_attn.selection.model import SelectionStory
from causal_attn.selection.response import fast_draws, linear_log_prob, mean_log_prob, with_intercept
from causal_attn.weights import Weights, stabilised_log_weights

N_DRAWS = 200


@dataclass(frozen=True)
class Fitted:
    """One fit of r_θ: its posterior and seeded draws of θ, each moved to meet the class margin of its rows."""

    posterior: Posterior
    theta: Tensor
    log_prior: Tensor

    @staticmethod
    def on(phi: Tensor, y: Tensor, log_prior: Tensor, config: SelectionModel, n_draws: int, seed: int,
           start: Fitted | None, refine: bool = True) -> Fitted:  # fmt: skip
        """Fit on rows φ (n, d) with classes y (n,); `refine`: see `fit_posterior`."""
        earlier = None if start is None else start.posterior
        posterior = fit_posterior(phi, y, log_prior, config.prior_precision, earlier, seed, refine)
        theta = posterior.draws(n_draws, seed)
        offset = margin_offsets(theta, phi, log_prior)
        return Fitted(posterior, torch.cat([theta[:, :-1], theta[:, -1:] + offset[:, None]], 1), log_prior)

    def log_prob(self, phi: Tensor) -> Tensor:
        """Draws of log r(k|m), shape (S, n, K)."""
        return linear_log_prob(self.theta, phi, self.log_prior)

    def mean_log_prob(self, phi: Tensor) -> Tensor:
        """log of the posterior predictive mean of r(k|m), shape (n, K)."""
        return mean_log_prob(self.theta, phi, self.log_prior)


@dataclass(frozen=True)
class SelectionModel:
    """How P(y|m) and the weights are estimated. Source: theory sections 3 and 4.

    Args:
        estimator: "outcome": the generative model with S, its response fitted variationally.
        response: "linear": multinomial logistic in the features.
        features: "auto" (see `causal_attn.masks.auto_features`) or a callable (masks, valid) -> (n, d).
        inference: "auto" or "laplace": Newton to the mode, a full-rank Gaussian there, then variational steps while
            the ELBO still gains.
        prior_scale: standard deviation of each standardised feature's weight; "auto" maximises the evidence.
        prior: Q(y), shape (K,); None: the sample's shares.
        tau: weights above this count towards the support deficit.
    """

    estimator: str = "outcome"
    response: str = "linear"
    features: str | FeatureFunction = "auto"
    inference: str = "auto"
    prior_scale: str | float = "auto"
    prior: Any = None
    tau: float = 10.0

    def __post_init__(self) -> None:
        for name, allowed in (
            ("estimator", ("outcome",)), ("response", ("linear",)), ("inference", ("auto", "laplace")),
        ):  # fmt: skip
            if getattr(self, name) not in allowed:
                raise InputError(f"{name}: expected one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        scale = self.prior_scale
        if scale != "auto" and not (isinstance(scale, (int, float)) and 0 < scale < float("inf")):
            raise InputError(f"prior_scale: expected 'auto' or a positive number, got {scale!r}")
        if not self.tau > 1:
            raise InputError(f"tau: expected a weight above 1, got {self.tau}")

    @property
    def prior_precision(self) -> float | None:
        """λ = 1/scale², or None for "auto"."""
        return None if self.prior_scale == "auto" else float(self.prior_scale) ** -2

    def log_prior_of(self, sample: MaskSample) -> Tensor:
        """log Q(k), shape (K,): the sample's shares, or the stated prior after a check."""
        if self.prior is None:
            return sample.prior.log()
        prior = as_tensor(self.prior, "prior").double()
        if prior.shape != sample.prior.shape or not (prior > 0).all() or abs(float(prior.sum()) - 1) > 1e-6:
            raise InputError(f"prior: expected {sample.n_classes} positive numbers that sum to 1, got {prior.tolist()}")
        return prior.log()

    def model(self, masks: Any, y: Any = None, s: Any = None, valid: Any = None) -> dict[str, Tensor]:
        """The story as a Pyro callable with sites ``weights``, ``intercept``, ``y``, ``s``.

        Before a fit it needs Q(y): from `prior`, else from `y`. The prior scale is 1 where it is "auto";
        `SelectionFit.model` carries the estimated one.
        """
        if y is None and self.prior is None:
            raise InputError("prior: expected Q(y) to run the unfitted model forwards; give SelectionModel(prior=...)")
        k = None if self.prior is None else len(as_tensor(self.prior, "prior"))
        sample = MaskSample(masks, torch.zeros(len(masks), dtype=torch.long) if y is None else y, valid, n_classes=k)
        scale = 1.0 if self.prior_scale == "auto" else float(self.prior_scale)
        story = SelectionStory(self.log_prior_of(sample), scale, FeatureMap.fit(sample, self.features))
        return story(sample.masks, None if y is None else sample.y, s, sample.valid)

    def fit(
        self, sample: MaskSample, folds: int = 5, seed: int = 0, progress: bool = True,
        warm_start: SelectionFit | None = None, n_draws: int = N_DRAWS,
    ) -> SelectionFit:  # fmt: skip
        """Fit on all rows, and once per fold without that fold's rows.

        Args:
            sample: masks and classes.
            folds: number of folds, stratified by class, whole groups together.
            seed: of the folds and the draws.
            progress: show a bar.
            warm_start: an earlier fit of the same shape; its modes are the starting points.
            n_draws: posterior draws kept of each fit.

        Raises:
            InputError: too few rows, classes or groups for the folds.
        """
        if not isinstance(sample, MaskSample):
            raise InputError(f"sample: expected a MaskSample, got {type(sample).__name__}")
        if n_draws < 1:
            raise InputError(f"n_draws: expected an integer of at least 1, got {n_draws}")
        fold = assign_folds(sample, folds, seed)
        features = FeatureMap.fit(sample, self.features)
        phi, log_prior = features(sample.masks, sample.valid), self.log_prior_of(sample)
        starts = _starts(warm_start, folds, phi.shape[1], len(log_prior))
        bar = tqdm(total=folds + 1, desc="selection model", disable=not progress, leave=False)
        final = Fitted.on(phi, sample.y, log_prior, self, n_draws, seed, starts[0])
        bar.update()
        fits = []
        for number in range(folds):
            rows = fold != number
            # The mode is unique, so starting from the final fit's decides the time alone; and where all rows gain
            # nothing from variational steps, four fifths of them do not either.
            start, refine = starts[number + 1] or final, len(final.posterior.elbo) > 2
            seed_here = seed + number + 1
            fits.append(Fitted.on(phi[rows], sample.y[rows], log_prior, self, n_draws, seed_here, start, refine))
            bar.update()
        bar.close()
        return SelectionFit(self, sample, features, phi, fold, final, tuple(fits))


def _starts(earlier: SelectionFit | None, folds: int, width: int, k: int) -> list[Fitted | None]:
    shape = (width + 1, k - 1)
    if earlier is None or len(earlier.fold_fits) != folds or earlier.final.posterior.mean.shape != shape:
        return [None] * (folds + 1)
    return [earlier.final, *earlier.fold_fits]


@dataclass(frozen=True)
class SelectionFit:
    """A fitted selection model.

    Args:
        config: the `SelectionModel`.
        sample: what it was fitted on.
        feature_map: φ, fixed on that sample.
        phi: φ of the sample, shape (n, d).
        fold: fold of each row, shape (n,).
        final: the fit on all rows.
        fold_fits: the fit without each fold's rows.
    """

    config: SelectionModel
    sample: MaskSample
    feature_map: FeatureMap
    phi: Tensor
    fold: Tensor
    final: Fitted
    fold_fits: tuple[Fitted, ...]

    def __repr__(self) -> str:
        folds = len(self.fold_fits)
        return f"SelectionFit({self.sample!r}, folds={folds}, held_out_log_loss={self.held_out_log_loss:.4f})"

    # ------------------------------------------------------------------------------------------------ predictions

    def features(self, masks: Any, valid: Any = None) -> Tensor:
        """φ of new masks, shape (n, d); the masks are checked first."""
        new = MaskSample(masks, torch.zeros(len(masks), dtype=torch.long), valid, self.sample.kind, n_classes=1)
        return self.feature_map(new.masks, new.valid)

    def log_prob(self, masks: Any, valid: Any = None) -> Tensor:
        """Posterior draws of log P(y|m) for new masks, nats. (n, T) -> (S, n, K)."""
        return self.final.log_prob(self.features(masks, valid))

    def log_propensity(self, masks: Any, y: Any, base_rate: float | None = None, valid: Any = None) -> Tensor:
        """Posterior draws of log π(y, m) = log c + log P(y|m) − log P(y), nats. (n, T) -> (S, n).

        c = Q(S=1) is not identified by any data; `base_rate` None is the convention c = min_k P(k), under which π ≤ 1.
        """
        log_prior = self.final.log_prior
        if base_rate is not None and not 0 < base_rate <= 1:
            raise InputError(f"base_rate: expected a probability in (0, 1], got {base_rate}")
        log_c = float(log_prior.min()) if base_rate is None else float(np.log(base_rate))
        labels, _ = as_labels(y, len(masks), len(log_prior))
        log_p = self.log_prob(masks, valid)
        own = log_p.gather(-1, labels.expand(len(log_p), -1)[..., None])[..., 0]
        return log_c + own - log_prior[labels]

    def model(self, masks: Any, y: Any = None, s: Any = None, valid: Any = None) -> dict[str, Tensor]:
        """The story as a Pyro callable, with the fitted features, class prior and prior scale."""
        here = None if valid is None else torch.as_tensor(valid)
        return self.story(torch.as_tensor(masks), y, s, here)

    @property
    def story(self) -> SelectionStory:
        """The Pyro model of this fit."""
        scale = self.final.posterior.mode.prior_precision**-0.5
        return SelectionStory(self.final.log_prior, scale, self.feature_map)

    # ------------------------------------------------------------------------------------------------ weights

    def held_out_log_prob(self, masks: Any = None, valid: Any = None) -> Tensor:
        """log P(k|m), posterior predictive mean, each row by the model that did not see it, shape (n, K).

        Args:
            masks: other masks for the same n rows (e.g. swapped ones); None: the sample's own.
            valid: their validity.
        """
        phi = self.phi if masks is None else self.features(masks, valid)
        if len(phi) != self.sample.n:
            raise InputError(f"masks: expected one for each of the {self.sample.n} rows of the fit, got {len(phi)}")
        out = phi.new_empty(len(phi), len(self.final.log_prior))
        for number, fitted in enumerate(self.fold_fits):
            rows = self.fold == number
            out[rows] = fitted.mean_log_prob(phi[rows])
        return out

    @cached_property
    def _held_out(self) -> Tensor:
        return self.held_out_log_prob()

    def weights(self, target_prior: Any = None, n_draws: int = N_DRAWS) -> Weights:
        """Cross-fitted weights P(y)/P(y|m), or q(y)/P(y|m) for a target prior q, with up to `n_draws` draws."""
        if n_draws < 1:
            raise InputError(f"n_draws: expected an integer of at least 1, got {n_draws}")
        n_draws = min(n_draws, len(self.final.theta))
        prior = self.final.log_prior.exp()
        target = (
            prior if target_prior is None else replace(self.config, prior=target_prior).log_prior_of(self.sample).exp()
        )
        y = self.sample.y
        own = self._held_out.gather(-1, y[:, None])[:, 0]
        log_w = stabilised_log_weights(target.log()[y], own)
        record = () if target_prior is None else (f"target prior {np.round(target.numpy(), 4).tolist()}",)
        return Weights(
            log_w, y, target, self._held_out, self.fold, self.config.tau, record,
            draw_source=partial(self._fold_draws, n_draws), n_draws=n_draws,
        )  # fmt: skip

    def _fold_draws(self, n_draws: int, rows: slice) -> Tensor:
        """Draws of log P(k|m) for a block of rows, each by its own fold's model, shape (S, rows, K), float32."""
        phi, fold = self.phi[rows], self.fold[rows]
        out = torch.empty(n_draws, len(phi), len(self.final.log_prior), dtype=torch.float32)
        for number, fitted in enumerate(self.fold_fits):
            pick = fold == number
            out[:, pick] = fast_draws(fitted.theta[:n_draws], phi[pick], fitted.log_prior)
        return out

    # ------------------------------------------------------------------------------------------------ quality

    @property
    def elbo(self) -> Tensor:
        """The ELBO of the final fit, nats, from the Laplace start through each step that gained. Shape (steps,)."""
        return self.final.posterior.elbo

    @cached_property
    def held_out_log_loss(self) -> float:
        """Mean −log P(y|m) on held-out rows, nats; the prior's own is `prior_log_loss`."""
        return -float(self._held_out.gather(-1, self.sample.y[:, None]).mean())

    @property
    def prior_log_loss(self) -> float:
        """Entropy of the class shares, nats: the log-loss of knowing nothing of m."""
        return float(torch.special.entr(self.sample.prior).sum())

    @cached_property
    def log_density_ratio(self) -> Tensor:
        """log joint − log guide at fresh draws of the final fit, nats, shape (S,)."""
        posterior = self.final.posterior
        theta = posterior.draws(len(self.final.theta), seed=2**31 - 1)
        x = with_intercept(self.phi)
        joint = log_joint(theta, x, self.sample.y, self.final.log_prior, posterior.mode.prior_precision)
        return joint - posterior.log_density(theta)

    @cached_property
    def vi_khat(self) -> float:
        """PSIS k̂ of the log density ratio: above 0.7 the Gaussian is a poor stand-in (Yao et al. 2018)."""
        return psis(self.log_density_ratio.numpy())[1]

    # ------------------------------------------------------------------------------------------------ ArviZ

    def to_arviz(self, log_likelihood: bool = True) -> Any:
        """Groups posterior, sample_stats, optimization, observed_data, constant_data and log_likelihood; one chain."""
        theta, y = self.final.theta, self.sample.y
        groups: dict[str, dict[str, np.ndarray]] = {
            "posterior": {"weights": theta[:, :-1].numpy(), "intercept": theta[:, -1].numpy()},
            "sample_stats": {"lp": self._log_joint_of_draws().numpy()},
            "optimization": {"elbo": self.elbo.numpy()},
            "observed_data": {"y": y.numpy()},
            "constant_data": {"fold": self.fold.numpy(), "prior": self.final.log_prior.exp().numpy()},
        }
        if log_likelihood:
            log_p = [
                lp.gather(-1, y[:, None])[:, 0]
                for lp in (linear_log_prob(t, self.phi, self.final.log_prior) for t in theta)
            ]
            groups["log_likelihood"] = {"y": torch.stack(log_p).numpy()}
        dims = {
            "weights": ["feature", "contrast"], "intercept": ["contrast"], "elbo": ["step"], "y": ["obs_id"],
            "fold": ["obs_id"], "prior": ["label"],
        }  # fmt: skip
        k = len(self.final.log_prior)
        coords = {
            "feature": list(self.feature_map.names), "contrast": np.arange(k - 1), "step": np.arange(len(self.elbo)),
            "obs_id": np.arange(self.sample.n), "label": np.arange(k),
        }  # fmt: skip
        return to_arviz(groups, dims, coords)

    def _log_joint_of_draws(self) -> Tensor:
        lam = self.final.posterior.mode.prior_precision
        return log_joint(self.final.theta, with_intercept(self.phi), self.sample.y, self.final.log_prior, lam)
