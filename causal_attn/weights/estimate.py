"""Averages under Q from rows of P, which say how they are normalised and what part of Q they cannot see.

Horvitz–Thompson:  (1/n) Σ w_i v_i           unbiased for the part of Q that P shows
Hájek:             Σ w_i v_i / Σ w_i          self-normalised: silently an average over that part alone
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch

from causal_attn.errors import InputError, SupportWarning
from causal_attn.masks import as_tensor, first_row, real
from causal_attn.weights.core import Weights
from causal_attn.weights.support import SupportDeficit
from causal_attn.weights.words import LARGE

NAMES = {"hajek": "Hájek", "horvitz-thompson": "Horvitz–Thompson"}


@dataclass(frozen=True)
class WeightedMean:
    """An average under Q.

    Args:
        estimate: in the unit of the values.
        standard_error: of sampling, the weights taken as known.
        estimator: "hajek" or "horvitz-thompson".
        deficit: the support deficit of the weights: the part of Q the average says nothing about.
    """

    estimate: float
    standard_error: float
    estimator: str
    deficit: SupportDeficit

    @property
    def interval(self) -> tuple[float, float]:
        """95%, normal."""
        return self.estimate - 1.96 * self.standard_error, self.estimate + 1.96 * self.standard_error

    def __str__(self) -> str:
        seen = (
            "unknown part of Q out of reach"
            if math.isnan(self.deficit.estimate)
            else f"{self.deficit.estimate:.1%} of Q [{self.deficit.low:.1%}, {self.deficit.high:.1%}] out of reach"
        )
        return f"{self.estimate:.4g} ± {1.96 * self.standard_error:.2g} ({NAMES[self.estimator]}; {seen})"


def weighted_mean(values: Any, weights: Weights, estimator: str = "hajek") -> WeightedMean:
    """E_Q[v] from values v_i of the rows that were weighted.

    Args:
        values: one number per row, shape (n,), e.g. losses.
        weights: of the same rows.
        estimator: "hajek", self-normalised, or "horvitz-thompson".

    Warns:
        SupportWarning: the support deficit's interval lies above 0.25: the average covers a part of Q only.

    Raises:
        InputError: values of another length or not finite; an unknown estimator.

    References:
        theory sections 2 and 6.
    """
    if estimator not in NAMES:
        raise InputError(f"estimator: expected one of {', '.join(NAMES)}, got {estimator!r}")
    if not isinstance(weights, Weights):
        raise InputError(f"weights: expected Weights, got {type(weights).__name__}")
    v = real(as_tensor(values, "values"), "values").double()
    if v.shape != weights.log_w.shape:
        raise InputError(f"values: expected shape ({len(weights.log_w)},), got {tuple(v.shape)}")
    if not torch.isfinite(v).all():
        row = first_row(~torch.isfinite(v))
        raise InputError(f"values: expected finite numbers, row {row} is {v[row].item()}")
    deficit = weights.deficit  # before anything is normalised
    if deficit.low > LARGE:
        warnings.warn(weights.words, SupportWarning, stacklevel=2)
    if estimator == "hajek":
        share = weights.log_w.softmax(0)
        estimate = float(share @ v)
        error = float((share.square() @ (v - estimate).square()).sqrt())
    else:
        terms = weights.log_w.exp() * v
        estimate, error = float(terms.mean()), float(terms.std() / math.sqrt(len(v))) if len(v) > 1 else math.nan
    return WeightedMean(estimate, error, estimator, deficit)
