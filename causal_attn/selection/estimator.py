"""Estimating P(y|m): the configuration, and the fit on all rows and on all but each fold's.

fit = SelectionModel().fit(sample, folds=5, seed=0)
weights = fit.weights()          # cross-fitted: each row weighted by a model that did not see it
fit.log_prob(new_masks)          # posterior draws of log P(y|m), from a final fit on all rows
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from causal_attn.data.checks import seed_of, whole
from causal_attn.errors import InputError, PositivityError
from causal_attn.masks import FeatureFunction, FeatureMap, MaskSample, as_tensor
from causal_attn.selection.crossfit import assign_folds
from causal_attn.selection.curvature import Curvature, curvature, rough_will_do
from causal_attn.selection.fit import N_DRAWS, SelectionFit, checked_prior
from causal_attn.selection.fits import Inference, NetworkFit, OutcomeFit, PluginFit, RowFit, refuse_zero
from causal_attn.selection.model import SelectionStory
from causal_attn.selection.newton import CHORD_ROWS
from causal_attn.selection.permutation import Pairs, RatioFit
from causal_attn.selection.sampling import guide_class

REFUSE_DEFICIT = 0.5
"""The permutation estimator refuses where the support deficit's interval lies above this."""
MAX_PRODUCTS = 3000

ROWS_PER_FEATURE = 20
"""Rows of every class, for each feature, from which on variational steps gain next to nothing."""
COPY_ROWS = 8192
MAX_SHARED = 10_000_000
"""Entries of all folds' curvatures up to which they are kept at once."""

FitRows = Callable[[Tensor, int, "RowFit | None", bool, "Curvature | None"], RowFit]
"""(picked rows, seed, start, refine, curvature at the start) -> fit."""


@dataclass(frozen=True)
class SelectionModel:
    """How P(y|m) and the weights are estimated. Source: theory sections 3 and 4.

    Args:
        estimator: "outcome": the generative model with S, its response fitted variationally. "permutation": the same
            weight as a density ratio; with the sample's x-features it makes M independent of (X, Y). Or any
            scikit-learn classifier with predict_proba, a point estimate without draws.
        response: "linear": multinomial logistic in the features; "mlp": a small network. For "outcome".
        features: "auto" (see `causal_attn.masks.auto_features`) or a callable (masks, valid) -> (n, d).
        inference: "auto" or "laplace": Newton to the mode, a full-rank Gaussian there, then variational steps while
            the ELBO still gains. "svi": stochastic variational inference with `guide`. "nuts": the reference, slow.
        guide: for "svi": "auto" (full-rank Gaussian), the name of a Pyro AutoGuide, or such a class.
        prior_scale: standard deviation of each standardised feature's weight; "auto" maximises the evidence
            (times p(scale) ∝ scale, which keeps it from 0), for log-ratios and for the masses themselves apart, and
            with more than two classes gives single classes a wider one where the evidence asks for it.
        prior: Q(y), the classes' law that the weights aim at, shape (K,); None: the sample's shares. P(y|m) is that of
            the rows either way.
        tau: weights above this count towards the support deficit.
        copies: permuted copies of each row, for "permutation".
        probability_floor: least probability of a plug-in classifier, then normalised again; None: a zero is an error.

    Raises:
        InputError: an unknown name, a number out of range, or an option that has no effect with the others.
    """

    estimator: Any = "outcome"
    response: str = "linear"
    features: str | FeatureFunction = "auto"
    inference: str = "auto"
    guide: Any = "auto"
    prior_scale: str | float = "auto"
    prior: Any = None
    tau: float = 10.0
    copies: int = 1
    probability_floor: float | None = None

    def __post_init__(self) -> None:
        if not self._plugin and self.estimator not in ("outcome", "permutation"):
            wanted = "'outcome', 'permutation' or a classifier with predict_proba"
            raise InputError(f"estimator: expected {wanted}, got {self.estimator!r}")
        for name, allowed in (("response", ("linear", "mlp")), ("inference", ("auto", "laplace", "svi", "nuts"))):
            if getattr(self, name) not in allowed:
                raise InputError(f"{name}: expected one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        guide_class(self.guide)
        self._check_effect()
        scale = self.prior_scale
        if scale != "auto" and (
            isinstance(scale, bool) or not (isinstance(scale, (int, float)) and 1e-6 <= scale <= 1e6)
        ):
            raise InputError(f"prior_scale: expected 'auto' or a number from 1e-6 to 1e6, got {scale!r}")
        if not isinstance(self.tau, (int, float)) or not 1 < self.tau < math.inf:
            raise InputError(f"tau: expected a finite weight above 1, got {self.tau!r}")
        whole(self.copies, "copies", 1)
        floor = self.probability_floor
        if floor is not None and not (isinstance(floor, float) and 0 < floor < 0.5):
            raise InputError(f"probability_floor: expected None or a probability below 0.5, got {floor!r}")

    @property
    def _plugin(self) -> bool:
        return not isinstance(self.estimator, (str, type)) and hasattr(self.estimator, "predict_proba")

    def _check_effect(self) -> None:
        """An option that would be ignored is a mistake."""
        outcome = self.estimator == "outcome" if isinstance(self.estimator, str) else False
        idle = {
            "response": self.response != "linear" and not outcome,
            "inference": self.inference not in (("auto",) if self._plugin else ("auto", "laplace")) and not outcome,
            "guide": self.guide != "auto" and self.inference != "svi",
            "prior_scale": self.prior_scale != "auto" and self._plugin,
            "copies": self.copies != 1 and self.estimator != "permutation",
            "probability_floor": self.probability_floor is not None and not self._plugin,
        }
        for name, ignored in idle.items():
            if ignored:
                raise InputError(f"{name}: {getattr(self, name)!r} has no effect with {self._described()}")

    def _described(self) -> str:
        kind = self.estimator if isinstance(self.estimator, str) else type(self.estimator).__name__
        return f"estimator={kind!r}, inference={self.inference!r}"

    @property
    def prior_precision(self) -> float | None:
        """λ = 1/scale², or None for "auto"."""
        return None if self.prior_scale == "auto" else float(self.prior_scale) ** -2

    def log_prior_of(self, sample: MaskSample) -> Tensor:
        """log Q(k), shape (K,): the sample's shares, or the stated prior after a check."""
        return sample.prior.log() if self.prior is None else checked_prior(self.prior, "prior", sample.n_classes).log()

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
            warm_start: an earlier fit of the same kind and shape; its mode is the starting point.
            n_draws: posterior draws kept of each fit.

        Raises:
            InputError: too few rows, classes or groups for the folds.
            PositivityError: the permutation estimator's support deficit lies above one half, or a plug-in classifier
                gives a row's own class probability 0.
        """
        if not isinstance(sample, MaskSample):
            raise InputError(f"sample: expected a MaskSample, got {type(sample).__name__}")
        if self.prior is not None and self.estimator == "permutation" and sample.x_features is not None:
            raise InputError("prior: has no effect with x-features; the weights are not those of a class")
        n_draws, seed, folds = whole(n_draws, "n_draws", 1), seed_of(seed), whole(folds, "folds", 2)
        if warm_start is not None and not isinstance(warm_start, SelectionFit):
            raise InputError(f"warm_start: expected a SelectionFit, got {type(warm_start).__name__}")
        fold = assign_folds(sample, folds, seed)
        features, phi = FeatureMap.fit_transform(sample, self.features)
        log_prior = self.log_prior_of(sample)
        fit_rows = self._fit_rows(sample, features, phi, log_prior, n_draws)
        curvatures = partial(_fold_curvatures, phi=phi, y=sample.y, log_prior=log_prior, fold=fold, folds=folds)
        few = _few_rows(sample.y, fold, folds, phi.shape[1])
        start = _start(warm_start, phi, log_prior)
        final, fits = _all_fits(fit_rows, curvatures, few, fold, folds, seed, start, progress)
        fit = SelectionFit(self, sample, features, phi, fold, final, tuple(fits), log_prior)
        self._refuse(fit)
        return fit

    def _fit_rows(
        self, sample: MaskSample, features: FeatureMap, phi: Tensor, log_prior: Tensor, n_draws: int
    ) -> FitRows:
        """How one set of rows is fitted under this configuration."""
        y, k = sample.y, sample.n_classes
        if self._plugin:
            return lambda rows, *_: PluginFit.on(self.estimator, _taken(phi, rows), y[rows], k, self.probability_floor)
        if self.estimator == "permutation":
            pairs = Pairs.of(y, k, sample.x_features)
            n_products = phi.shape[1] * pairs.codes.shape[1]
            if n_products > MAX_PRODUCTS:
                raise InputError(
                    f"x_features: expected at most {MAX_PRODUCTS} products with the {phi.shape[1]} mask features, got "
                    f"{n_products}; use fewer x-features, or features=... of fewer columns"
                )
            return lambda rows, seed, start, refine, _: RatioFit.on(
                _taken(phi, rows), y[rows], pairs.rows(rows), self.copies, self.prior_precision, n_draws, seed,
                start if isinstance(start, RatioFit) else None, refine,
            )  # fmt: skip
        method = "laplace" if self.inference == "auto" else self.inference
        groups = None if self.prior_precision is not None else features.groups
        how = Inference(method, self.guide, self.prior_precision, groups)
        if self.response == "mlp":
            return lambda rows, seed, start, refine, _: NetworkFit.on(
                _taken(phi, rows), y[rows], log_prior, how, n_draws, seed, None, refine
            )
        return lambda rows, seed, start, refine, known: OutcomeFit.on(
            _with_intercept(phi, rows), y[rows], log_prior, how, n_draws, seed,
            start if isinstance(start, OutcomeFit) else None, refine, known,
        )  # fmt: skip

    def _refuse(self, fit: SelectionFit) -> None:
        if self._plugin:
            refuse_zero(fit.held_out_log_prob(), fit.sample.y, self.probability_floor)
        if self.estimator == "permutation":
            low, high = fit.deficit_interval
            if low > REFUSE_DEFICIT:
                what = "x-features" if fit.sample.x_features is not None else "masks"
                raise PositivityError(
                    f"sample: {low:.0%} to {high:.0%} of Q would need weights above {self.tau:g}; these {what} leave "
                    "no overlap, and no density ratio can stand for Q"
                )


def _taken(phi: Tensor, rows: Tensor) -> Tensor:
    """The picked rows; all of them without a copy, which for a million rows would be a gigabyte."""
    return phi if bool(rows.all()) else phi[rows]


def _with_intercept(phi: Tensor, rows: Tensor) -> Tensor:
    """The picked rows with a column of ones behind them, never held a second time."""
    index = rows.nonzero()[:, 0]
    out = phi.new_ones(len(index), phi.shape[1] + 1)
    for start in range(0, len(index), COPY_ROWS):
        block = index[start : start + COPY_ROWS]
        out[start : start + len(block), :-1] = phi[block]
    return out


def _all_fits(
    fit_rows: FitRows, curvatures: Callable[[RowFit], list[Curvature | None]], few: list[bool], fold: Tensor,
    folds: int, seed: int, start: RowFit | None, progress: bool,
) -> tuple[RowFit, list[RowFit]]:  # fmt: skip
    """The fit on all rows, and without each fold.

    Where rows are many for the parameters, a fold's search starts from the final fit's mode, which decides the time
    alone, and takes no variational steps, which would gain nothing: what one row's label could do by its part in that
    start is below the search's tolerance. Otherwise a fold sees its own rows alone. Which of the two is decided by the
    fold's own rows as well.
    """
    bar = tqdm(total=folds + 1, desc="selection model", disable=not progress, leave=False)
    final = fit_rows(torch.ones_like(fold, dtype=torch.bool), seed, start, True, None)
    bar.update()
    known = curvatures(final)
    fits = []
    for number in range(folds):
        alone = few[number]
        start, curvature = (None, None) if alone else (final, known[number])
        fits.append(fit_rows(fold != number, seed + number + 1, start, alone, curvature))
        bar.update()
    bar.close()
    return final, fits


def _few_rows(y: Tensor, fold: Tensor, folds: int, n_features: int) -> list[bool]:
    """For each fold, whether the rows outside it, or those of one class, are few for so many features."""
    counts = [torch.bincount(y[fold != number], minlength=int(y.max()) + 1) for number in range(folds)]
    return [len(y) < CHORD_ROWS or int(c.min()) < ROWS_PER_FEATURE * (n_features + 1) for c in counts]


def _fold_curvatures(
    final: RowFit, phi: Tensor, y: Tensor, log_prior: Tensor, fold: Tensor, folds: int
) -> list[Curvature | None]:
    """Of the rows outside each fold, at the final fit's mode, where one pass over all rows can give them."""
    if not isinstance(final, OutcomeFit) or len(y) < CHORD_ROWS:
        return [None] * folds
    theta = final.posterior.mode.theta
    if folds * theta.numel() ** 2 > MAX_SHARED:
        return [None] * folds
    rough = rough_will_do(len(y), final.posterior.mode.prior_precision)
    parts = [
        curvature(theta, _with_intercept(phi, rows), y[rows], log_prior, rough=rough)
        for rows in (fold == f for f in range(folds))
    ]
    return [Curvature.total([part for g, part in enumerate(parts) if g != f]) for f in range(folds)]


def _start(earlier: SelectionFit | None, phi: Tensor, log_prior: Tensor) -> RowFit | None:
    """The earlier fit's final one, where it has the same features and classes."""
    same = earlier is not None and earlier.phi.shape[1] == phi.shape[1] and len(earlier.log_prior) == len(log_prior)
    return earlier.final if same and earlier is not None else None
