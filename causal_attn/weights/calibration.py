"""Are held-out probabilities what they say? Reliability by class, with intervals."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.stats import binomtest
from torch import Tensor

from causal_attn.data.checks import whole


def reliability_table(log_prob: Tensor, y: Tensor, n_bins: int = 10) -> pd.DataFrame:
    """Predicted against observed share of each class, in bins of equally many rows by the predicted probability.

    Args:
        log_prob: held-out log P(k|m), nats, shape (n, K).
        y: classes, shape (n,).
        n_bins: bins per class.

    Returns:
        Columns class, rows, predicted, observed, low, high; `.attrs["expected_calibration_error"]` is the mean over
        rows and classes of |predicted − observed|.
    """
    whole(n_bins, "n_bins", 1)
    rows = []
    for k in range(log_prob.shape[1]):
        p, hit = log_prob[:, k].exp().numpy(), (y == k).numpy()
        for part in np.array_split(np.argsort(p, kind="stable"), min(n_bins, len(p))):
            interval = binomtest(int(hit[part].sum()), len(part)).proportion_ci(0.95)
            rows.append((k, len(part), p[part].mean(), hit[part].mean(), interval.low, interval.high))
    table = pd.DataFrame(rows, columns=["class", "rows", "predicted", "observed", "low", "high"])
    gap = (table["predicted"] - table["observed"]).abs()
    table.attrs["expected_calibration_error"] = float(np.average(gap, weights=table["rows"]))
    return table
