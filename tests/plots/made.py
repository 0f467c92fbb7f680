"""Made-up weights and tables of any size, with numbers that look like real ones."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from causal_attn.weights import Weights
from causal_attn.weights.calibration import reliability_table


def made_log_prob(n: int, classes: int, strength: float = 1.0, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """log P(k|m), shape (n, K), and classes drawn from it: calibrated by construction."""
    rng = np.random.default_rng(seed)
    log_prob = torch.from_numpy(strength * rng.normal(size=(n, classes))).log_softmax(-1)
    below = log_prob.exp().cumsum(-1)[:, :-1] < torch.from_numpy(rng.random((n, 1)))
    y = below.sum(-1)
    y[:classes] = torch.arange(classes)  # every class is there
    return log_prob, y


def made_weights(n: int = 400, classes: int = 2, strength: float = 1.0, known: bool = True) -> Weights:
    """Weights P(y)/P(y|m) of those; without log_prob where not `known`."""
    log_prob, y = made_log_prob(n, classes, strength)
    prior = log_prob.exp().mean(0)
    log_w = prior.log()[y] - log_prob.gather(1, y[:, None])[:, 0]
    return Weights.from_log(log_w, y, log_prob=log_prob if known else None, prior=prior / prior.sum())


def made_calibration(classes: int = 2, n: int = 2000, off: float = 1.0) -> pd.DataFrame:
    """A reliability table whose log-odds are stretched by `off`."""
    log_prob, y = made_log_prob(n, classes)
    table = reliability_table((off * log_prob).log_softmax(-1), y)
    table.attrs |= {"log_loss_nats": 0.512, "prior_log_loss_nats": 0.693}
    return table


def made_balance(positions: int = 10, classes: int = 2, weighted: bool = True, seed: int = 0) -> pd.DataFrame:
    """A table in the form of `balance_table`: smd per class and pooled, and two measures of the whole mask."""
    rng = np.random.default_rng(seed)
    places = [(f"m[{t}]", t) for t in range(positions)]
    rows = []
    for of, position in [*places, ("mean log m", None), ("entropy", None), ("log sum m^2", None)]:
        for label in [*map(str, range(classes)), "pooled"]:
            before = rng.gamma(1.2, 0.2)
            after = before * rng.uniform(0, 0.4) if weighted else np.nan
            rows.append(("smd", of, position, label, before, after, rng.uniform(0.02, 0.05), 0.03))
    rows.append(("energy_distance", "mask", None, "pooled", 0.4, 0.1, 0.01, 0.02))
    rows.append(("auc", "mask", None, "0", 0.8, 0.55, 0.5, 0.01))
    names = ["measure", "of", "position", "class", "before", "after", "permuted", "standard_error"]
    return pd.DataFrame(rows, columns=names).astype({"position": "Int64"})
