"""The 95% interval of bootstrap draws, in one place."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def percentile_interval(draws: ArrayLike) -> tuple[float, float]:
    """The 2.5% and 97.5% quantiles of draws, shape (B,), in their own unit."""
    low, high = np.quantile(np.asarray(draws, dtype=float), [0.025, 0.975])
    return float(low), float(high)
