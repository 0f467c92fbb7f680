"""What a fit of P(y|m) gives: cross-fitted weights, predictions with draws, and how good the fit is."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from causal_attn.data.checks import fraction, whole
from causal_attn.errors import FitWarning, InputError, NotEstimableError, SupportWarning
from causal_attn.interop.arviz import to_arviz
from causal_attn.masks import FeatureFunction, FeatureMap, MaskSample, as_labels, as_tensor, real
from causal_attn.selection.fits import NetworkFit, OutcomeFit, RowFit
from causal_attn.selection.gaussian import log_joint
from causal_attn.selection.model import SelectionStory
from causal_attn.selection.permutation import Pairs, RatioFit, ratio_deficit
from causal_attn.selection.prior import scale_of
from causal_attn.selection.response import with_intercept
from causal_attn.weights import SupportDeficit, Weights, stabilised_log_weights, support_deficit
from causal_attn.weights.calibration import reliability_table
from causal_attn.weights.core import DRAW_CHUNK, MAX_DRAW_ENTRIES

if TYPE_CHECKING:
    from causal_attn.selection.estimator import SelectionModel

N_DRAWS = 200
ROW_CHUNK = 10_000
LARGE_DEFICIT = 0.25
"""A support deficit whose interval lies above this is warned of."""


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
        log_prior: log Q(k), shape (K,).
    """

    config: SelectionModel
    sample: MaskSample
    feature_map: FeatureMap
    phi: Tensor
    fold: Tensor
    final: RowFit
    fold_fits: tuple[RowFit, ...]
    log_prior: Tensor

    def __repr__(self) -> str:
        loss = "" if self._conditions_on_x else f", held_out_log_loss={self.held_out_log_loss:.4f}"
        return f"SelectionFit({self.sample!r}, folds={len(self.fold_fits)}{loss})"

    # ------------------------------------------------------------------------------------------------ predictions

    def features(self, masks: Any, valid: Any = None) -> Tensor:
        """φ of new masks, shape (n, d); the masks are checked first."""
        masks = as_tensor(masks, "masks")
        labels = torch.zeros(len(masks) if masks.ndim else 0, dtype=torch.long)
        new = MaskSample(masks, labels, valid, self.sample.kind, n_classes=1)
        return self.feature_map(new.masks, new.valid)

    def log_prob(self, masks: Any, valid: Any = None) -> Tensor:
        """Posterior draws of log P(y|m) for new masks, nats. (n, T) -> (S, n, K)."""
        phi = self.features(masks, valid)
        if self._conditions_on_x:
            raise NotEstimableError(
                "log_prob: weights given x-features are density ratios of (x, y, m), not of y alone"
            )
        return self.final.log_prob(phi)

    def log_propensity(self, masks: Any, y: Any, base_rate: float | None = None, valid: Any = None) -> Tensor:
        """Posterior draws of log π(y, m) = log c + log P(y|m) − log P(y), nats. (n, T) -> (S, n).

        c = Q(S=1) is not identified by any data; `base_rate` None is the convention c = min_k P(k), under which π ≤ 1.
        """
        log_prior = self.log_prior
        c = float(log_prior.min().exp()) if base_rate is None else fraction(base_rate, "base_rate", 0, 1)
        if c == 0:
            raise InputError("base_rate: expected a probability above 0, got 0")
        log_p = self.log_prob(masks, valid)
        labels, _ = as_labels(y, log_p.shape[1], len(log_prior))
        own = log_p.gather(-1, labels.expand(len(log_p), -1)[..., None])[..., 0]
        return float(np.log(c)) + own - log_prior[labels]

    def model(self, masks: Any, y: Any = None, s: Any = None, valid: Any = None) -> dict[str, Tensor]:
        """The story as a Pyro callable, with the fitted features, class prior and prior scale."""
        masks = as_tensor(masks, "masks")
        labels = torch.zeros(len(masks) if masks.ndim else 0, dtype=torch.long) if y is None else y
        sample = MaskSample(masks, labels, valid, self.sample.kind, n_classes=len(self.log_prior))
        return self.story(sample.masks, None if y is None else sample.y, s, sample.valid)

    @property
    def story(self) -> SelectionStory:
        """The Pyro model of this fit; a network's is that of its first member, hidden units included.

        Raises:
            NotEstimableError: a plug-in or a density ratio has no generative story.
        """
        if isinstance(self.final, NetworkFit):
            hidden, member = self.final.hidden[0], self.final.members[0]
            precision = member.posterior.mode.prior_precision
            return SelectionStory(self.log_prior, scale_of(precision), lambda m, v: hidden(self.feature_map(m, v)))
        if isinstance(self.final, OutcomeFit):
            return SelectionStory(self.log_prior, scale_of(self.final.posterior.mode.prior_precision), self.feature_map)
        raise NotEstimableError("model: only estimator='outcome' has a generative story")

    # ------------------------------------------------------------------------------------------------ weights

    def held_out_log_prob(self, masks: Any = None, valid: Any = None) -> Tensor:
        """log P(k|m), posterior predictive mean, each row by the model that did not see it, shape (n, K).

        Args:
            masks: other masks for the same n rows (e.g. swapped ones); None: the sample's own.
            valid: their validity.
        """
        if self._conditions_on_x:
            raise NotEstimableError("held_out_log_prob: with x-features there is no P(y|m), only weights()")
        phi = self.phi if masks is None else self.features(masks, valid)
        if len(phi) != self.sample.n:
            raise InputError(f"masks: expected one for each of the {self.sample.n} rows of the fit, got {len(phi)}")
        out = phi.new_empty(len(phi), len(self.log_prior))
        for number, fitted in enumerate(self.fold_fits):
            rows = self.fold == number
            out[rows] = fitted.mean_log_prob(phi[rows])
        return out

    @cached_property
    def _held_out(self) -> Tensor:
        return self.held_out_log_prob()

    def weights(self, target_prior: Any = None, n_draws: int = N_DRAWS) -> Weights:
        """Cross-fitted weights P(y)/P(y|m), or q(y)/P(y|m) for a target prior q, with up to `n_draws` draws.

        q is `target_prior`; None: the model's own `prior`; without one, the rows' shares. Large weights that a target
        asks for are no support deficit, see `Weights.deficit`.

        With the permutation estimator and x-features they are P(x,y)P(m)/P(x,y,m): M independent of (X, Y).

        Warns:
            SupportWarning: the support deficit's interval lies above LARGE_DEFICIT.

        Raises:
            PositivityError: a plug-in classifier gives a row's own class probability 0.
        """
        whole(n_draws, "n_draws", 1)
        made = self._x_weights(target_prior) if self._conditions_on_x else self._class_weights(target_prior, n_draws)
        if made.support_deficit_interval[0] > LARGE_DEFICIT:
            warnings.warn(made.words, SupportWarning, stacklevel=2)
        return made

    def _class_weights(self, target_prior: Any, n_draws: int) -> Weights:
        n_draws = min(n_draws, self.final.n_draws)
        prior = self.log_prior.exp()
        target = prior if target_prior is None else checked_prior(target_prior, "target_prior", len(prior))
        y = self.sample.y
        own = self._held_out.gather(-1, y[:, None])[:, 0]
        log_w = stabilised_log_weights(target.log()[y], own)
        stated = target_prior is not None or self.config.prior is not None
        record = (f"target prior {np.round(target.numpy(), 4).tolist()}",) if stated else ()
        source = partial(self._fold_draws, n_draws) if n_draws else None
        return Weights(
            log_w, y, target, self._held_out, self.fold, self.config.tau, record, draw_source=source, n_draws=n_draws
        )  # fmt: skip

    def _x_weights(self, target_prior: Any) -> Weights:
        if target_prior is not None:
            raise InputError("target_prior: has no effect with x-features; the weights are not those of a class")
        log_ratio = held_out_log_ratio(self)
        point = log_ratio.logsumexp(0) - np.log(len(log_ratio))
        deficit = x_deficit(self)
        return Weights(
            -point, self.sample.y, self.log_prior.exp(), None, self.fold, self.config.tau, ("given x-features",),
            given_draws=-log_ratio.float(), n_draws=len(log_ratio), given_deficit=deficit,
        )  # fmt: skip

    @property
    def deficit_interval(self) -> tuple[float, float]:
        """95% interval of the support deficit of `weights()`."""
        if self._conditions_on_x:
            known = x_deficit(self)
        else:
            known = support_deficit(self._held_out, self.sample.y, self.log_prior.exp(), self.config.tau)
        return known.low, known.high

    @property
    def _conditions_on_x(self) -> bool:
        return isinstance(self.final, RatioFit) and self.sample.x_features is not None

    def _fold_draws(self, n_draws: int, rows: slice) -> Tensor:
        """Draws of log P(k|m) for a block of rows, each by its own fold's model, shape (S, rows, K), float32."""
        phi, fold = self.phi[rows], self.fold[rows]
        out = torch.empty(n_draws, len(phi), len(self.log_prior), dtype=torch.float32)
        for number, fitted in enumerate(self.fold_fits):
            pick = fold == number
            out[:, pick] = fitted.fast_draws(phi[pick], n_draws)
        return out

    # ------------------------------------------------------------------------------------------------ quality

    @property
    def elbo(self) -> Tensor:
        """The ELBO of the final fit, nats, from its start on; empty with NUTS and plug-ins. Shape (steps,).

        With "laplace" each entry is a step that gained; with "svi" a noisy reading, the last over many draws.
        """
        return getattr(self.final, "elbo", torch.zeros(0, dtype=torch.float64))

    @cached_property
    def held_out_log_loss(self) -> float:
        """Mean −log P(y|m) on held-out rows, nats; the prior's own is `prior_log_loss`."""
        return -float(self._held_out.gather(-1, self.sample.y[:, None]).mean())

    @property
    def prior_log_loss(self) -> float:
        """Entropy of the class shares, nats: the log-loss of knowing nothing of m."""
        return float(torch.special.entr(self.sample.prior).sum())

    @cached_property
    def vi_khat(self) -> float:
        """PSIS k̂ of log joint − log guide over draws: above 0.7 the guide is a poor stand-in (Yao et al. 2018).

        NaN where there is no guide: NUTS, plug-ins. Warns above 0.7.
        """
        if isinstance(self.final, (OutcomeFit, NetworkFit)):
            khat = self.final.khat(self.phi, self.sample.y)
        elif isinstance(self.final, RatioFit):
            khat = self.final.vi_khat
        else:
            return float("nan")
        if khat > 0.7:
            warnings.warn(
                f"the variational fit is poor: k̂ of log joint − log guide is {khat:.2f}, above 0.7; use a richer "
                "guide, or inference='nuts' on a part of the rows",
                FitWarning,
                stacklevel=2,
            )
        return khat

    def calibration(self, n_bins: int = 10) -> pd.DataFrame:
        """Held-out P(k|m) against what came: one row per class and bin of equally many rows.

        Returns:
            Columns class, rows, predicted, observed, low, high (95%, Clopper–Pearson), probabilities; `.attrs` has
            "expected_calibration_error", "log_loss_nats" and "prior_log_loss_nats".
        """
        table = reliability_table(self._held_out, self.sample.y, n_bins)
        table.attrs |= {"log_loss_nats": self.held_out_log_loss, "prior_log_loss_nats": self.prior_log_loss}
        return table

    def save(self, path: str | Path) -> None:
        """Write everything predictions need to `path` (.npz or .safetensors), without pickle.

        Raises:
            InputError: a plug-in classifier, which only pickle could keep.
        """
        from causal_attn.selection.store import save_fit

        save_fit(self, path)

    @staticmethod
    def load(path: str | Path, features: FeatureFunction | None = None) -> SelectionFit:
        """Read what `save` wrote; `features` is the callable the model was made with, if it was one."""
        from causal_attn.selection.store import load_fit

        return load_fit(path, features)

    # ------------------------------------------------------------------------------------------------ ArviZ

    def to_arviz(self, log_likelihood: bool = True, posterior_predictive: bool = True, seed: int = 0) -> Any:
        """Groups posterior, sample_stats, optimization, observed_data and constant_data, and the two below; one chain.

        Args:
            log_likelihood: whether to add log P(y_i|m_i) of each draw, nats, (draw, obs_id), by the final fit.
            posterior_predictive: whether to add a y of each draw and row from that draw's P(y|m_i), (draw, obs_id).
                With x-features, where there is no P(y|m), both groups are left out.
            seed: of the posterior predictive.

        Raises:
            NotEstimableError: a plug-in classifier has no posterior; or these groups would exceed 1e8 entries each.
        """
        if self.final.n_draws == 0:
            raise NotEstimableError("to_arviz: a plug-in classifier has no posterior")
        whole(seed, "seed", 0)
        y = self.sample.y
        posterior, dims = posterior_arrays(self)
        groups: dict[str, dict[str, np.ndarray]] = {
            "posterior": posterior,
            "observed_data": {"y": y.numpy()},
            "constant_data": {"fold": self.fold.numpy(), "prior": self.log_prior.exp().numpy()},
        }
        if len(self.elbo):
            groups["optimization"] = {"elbo": self.elbo.numpy()}
        if isinstance(self.final, OutcomeFit):
            groups["sample_stats"] = {"lp": self._log_joint_of_draws().numpy()}
        if not self._conditions_on_x:
            groups |= self._per_row_groups(log_likelihood, posterior_predictive, seed)
        dims |= {"elbo": ["step"], "y": ["obs_id"], "fold": ["obs_id"], "prior": ["label"]}
        k = len(self.log_prior)
        coords = {
            "contrast": np.arange(k - 1), "step": np.arange(len(self.elbo)), "obs_id": np.arange(self.sample.n),
            "label": np.arange(k), "feature": list(self.feature_map.names),
        }  # fmt: skip
        return to_arviz(groups, dims, coords)

    def _per_row_groups(self, log_likelihood: bool, predictive: bool, seed: int) -> dict[str, dict[str, np.ndarray]]:
        """The groups that were asked for, y of shape (S, n) in each, a block of rows at a time."""
        shapes = {"log_likelihood": np.float64, "posterior_predictive": np.int32}
        asked = [name for name, wanted in zip(shapes, (log_likelihood, predictive)) if wanted]
        s, n = self.final.n_draws, self.sample.n
        if asked and s * n > MAX_DRAW_ENTRIES:
            options = ", ".join(f"{name}=False" for name in asked)
            raise NotEstimableError(
                f"to_arviz: {s} x {n} entries of {' and '.join(asked)} exceed {MAX_DRAW_ENTRIES:.0e}; pass {options}"
            )
        out = {name: np.empty((s, n), shapes[name]) for name in asked}
        rng = np.random.default_rng([seed, 11])
        block = max(1, min(ROW_CHUNK, DRAW_CHUNK // (s * len(self.log_prior))))  # (S, block, K) is held at once
        for start in range(0, n if asked else 0, block):
            rows = slice(start, start + block)
            log_p, y = self.final.log_prob(self.phi[rows]), self.sample.y[rows]
            if log_likelihood:
                own = log_p.gather(-1, y.expand(len(log_p), -1)[..., None])[..., 0]
                out["log_likelihood"][:, rows] = own.numpy()
            if predictive:
                out["posterior_predictive"][:, rows] = classes_drawn(log_p, rng).numpy()
        return {name: {"y": values} for name, values in out.items()}

    def _log_joint_of_draws(self) -> Tensor:
        assert isinstance(self.final, OutcomeFit)
        lam = self.final.posterior.mode.prior_precision
        return log_joint(self.final.theta, with_intercept(self.phi), self.sample.y, self.log_prior, lam)


def checked_prior(values: Any, name: str, n_classes: int) -> Tensor:
    """A class prior as float64, shape (K,): all positive, of sum 1."""
    prior = real(as_tensor(values, name), name).double()
    if prior.shape != (n_classes,) or not (prior > 0).all() or abs(float(prior.sum()) - 1) > 1e-6:
        raise InputError(f"{name}: expected {n_classes} positive numbers that sum to 1, got {prior.tolist()}")
    return prior


def classes_drawn(log_prob: Tensor, rng: np.random.Generator) -> Tensor:
    """One class per row from P(k) = exp(log_prob), by inverting the distribution function. (..., K) -> (...) int."""
    below = log_prob[..., :-1].exp().cumsum(-1)
    u = torch.from_numpy(rng.random(log_prob.shape[:-1]))
    return (u[..., None] >= below).sum(-1)


def posterior_arrays(fit: SelectionFit) -> tuple[dict[str, np.ndarray], dict[str, list[str]]]:
    """The final fit's draws by name, and the names of their dims behind chain and draw."""
    final = fit.final
    if isinstance(final, OutcomeFit):
        arrays = {"weights": final.theta[:, :-1], "intercept": final.theta[:, -1]}
        dims = {"weights": ["feature", "contrast"], "intercept": ["contrast"]}
    elif isinstance(final, NetworkFit):
        theta = torch.cat([member.theta for member in final.members])
        arrays = {"weights": theta[:, :-1], "intercept": theta[:, -1]}
        dims = {"weights": ["feature_or_unit", "contrast"], "intercept": ["contrast"]}
    else:
        assert isinstance(final, RatioFit)
        arrays = {"products": final.products, "alone": final.alone}
        dims = {"products": ["feature", "pair_code"], "alone": ["pair_code"]}
    return {name: value.numpy() for name, value in arrays.items()}, dims


def held_out_log_ratio(fit: SelectionFit) -> Tensor:
    """Draws of −log w(z, m) of each row by its own fold's density ratio, (S, n)."""
    codes = Pairs.of(fit.sample.y, fit.sample.n_classes, fit.sample.x_features).codes
    out = torch.empty(fit.final.n_draws, fit.sample.n, dtype=torch.float64)
    for number, fitted in enumerate(fit.fold_fits):
        pick = fit.fold == number
        out[:, pick] = fitted.log_ratio(fit.phi[pick], codes[pick])  # type: ignore[attr-defined]
    return out


def x_deficit(fit: SelectionFit) -> SupportDeficit:
    """D_τ of a density ratio: held-out observed pairs against ones permuted within their fold."""
    rng = np.random.default_rng(0)
    codes = Pairs.of(fit.sample.y, fit.sample.n_classes, fit.sample.x_features).codes
    observed: list[Tensor] = []
    permuted: list[Tensor] = []
    for number, fitted in enumerate(fit.fold_fits):
        pick = (fit.fold == number).nonzero()[:, 0]
        other = pick[torch.from_numpy(rng.permutation(len(pick)))]
        for rows, into in ((pick, observed), (other, permuted)):
            into.append(fitted.log_ratio(fit.phi[pick], codes[rows]).mean(0))  # type: ignore[attr-defined]
    return ratio_deficit(torch.cat(observed), torch.cat(permuted), fit.config.tau)
