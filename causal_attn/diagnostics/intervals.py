"""The 95% interval of bootstrap draws, in one place."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm, t


def percentile_interval(draws: ArrayLike) -> tuple[float, float]:
    """The 2.5% and 97.5% quantiles of draws, shape (B,), in their own unit."""
    low, high = np.quantile(np.asarray(draws, dtype=float), [0.025, 0.975])
    return float(low), float(high)


def widened(
    point: float, interval: tuple[float, float], few: int, least: float = -np.inf, most: float = np.inf
) -> tuple[float, float]:  # fmt: skip
    """An interval for as few rows as the rarest class has: resampling them understates their spread.

    Both arms grow by sqrt(m/(m − 1)) and by Student's t of m − 1 degrees of freedom over the normal quantile.
    """
    factor = np.sqrt(few / (few - 1)) * t.ppf(0.975, few - 1) / norm.ppf(0.975)
    low, high = (point + factor * (end - point) for end in interval)
    return max(least, float(low)), min(most, float(high))
