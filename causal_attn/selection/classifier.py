"""The outcome model as a scikit-learn classifier: P(y|x) of any feature matrix, with a prior scale it finds itself."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data
from torch import Tensor

from causal_attn.data.checks import whole
from causal_attn.errors import InputError
from causal_attn.selection.fit import N_DRAWS
from causal_attn.selection.fits import Inference, OutcomeFit
from causal_attn.selection.response import with_intercept


class SelectionClassifier(ClassifierMixin, BaseEstimator):
    """Multinomial logistic regression with a Gaussian posterior; probabilities are posterior predictive means.

    The response, evidence and inference of `SelectionModel()` for a matrix of features instead of masks. Features are
    standardised inside; a constant one is left out.

    Args:
        prior_scale: standard deviation of each standardised feature's weight; "auto" maximises the evidence.
        n_draws: posterior draws behind a probability.
        random_state: seed of the draws, an integer; None or a RandomState: drawn from it.

    Attributes:
        classes_: the labels, sorted, shape (K,).
        n_features_in_: d.
        centre_, scale_: what standardises the features, shape (d,); scale infinity for a constant one.
        fit_: the `OutcomeFit` on the standardised features.
    """

    def __init__(self, prior_scale: str | float = "auto", n_draws: int = N_DRAWS, random_state: Any = 0) -> None:
        self.prior_scale = prior_scale
        self.n_draws = n_draws
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> SelectionClassifier:
        """Fit on features X (n, d), real numbers, and labels y (n,) of any kind.

        Raises:
            InputError: a parameter out of range, or labels of a single class.
            ValueError: X or y cannot be used; scikit-learn's own message.
        """
        n_draws = whole(self.n_draws, "n_draws", 1)
        scale = self.prior_scale
        number = isinstance(scale, Real) and not isinstance(scale, bool) and 0 < scale < float("inf")
        if not number and not (isinstance(scale, str) and scale == "auto"):
            raise InputError(f"prior_scale: expected 'auto' or a positive number, got {scale!r}")
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"y: expected at least two classes, got one class, {self.classes_[0]!r}")
        self.centre_, spread = X.mean(0), X.std(0)
        self.scale_ = np.where(spread > 1e-9, spread, np.inf)
        given = self.random_state
        seed = int(given) if isinstance(given, (int, np.integer)) else check_random_state(given).randint(2**31 - 1)
        shares = torch.bincount(torch.from_numpy(labels), minlength=len(self.classes_)).double() / len(labels)
        how = Inference("laplace", "auto", None if isinstance(scale, str) else float(scale) ** -2)
        self.fit_ = OutcomeFit.on(
            with_intercept(self._phi(X)), torch.from_numpy(labels).long(), shares.log(), how, n_draws, seed
        )
        return self

    def _phi(self, X: np.ndarray) -> Tensor:
        return torch.from_numpy((X - self.centre_) / self.scale_)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """log P(k|x), posterior predictive mean, nats. (n, d) -> (n, K), columns as in `classes_`."""
        check_is_fitted(self)
        phi = self._phi(validate_data(self, X, dtype=np.float64, reset=False))
        return np.asarray(self.fit_.mean_log_prob(phi).numpy())

    def predict_proba(self, X: Any) -> np.ndarray:
        """P(k|x), posterior predictive mean. (n, d) -> (n, K), columns as in `classes_`."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label of each row. (n, d) -> (n,)."""
        best = self.predict_log_proba(X).argmax(1)
        return np.asarray(self.classes_[best])
