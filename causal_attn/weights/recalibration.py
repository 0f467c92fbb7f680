"""Held-out P(k|m) made independent of how its logits were scaled, so that only what they say of rows counts.

    s(k|m) = softmax_k( a · log r(k|m) ),      a by maximum likelihood on the rows themselves (one number)

With two classes this keeps the order of the rows, and is not needed. With more it does not: each row is normalised by
itself, so logits that are halved or stretched rank rows differently. s is the same for all of them. Source: Guo et al.
(2017), temperature scaling.
"""

from __future__ import annotations

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

LEAST_LOG = -50.0
"""Nats; log-probabilities below it count as this, which no rank can tell from it."""
MAX_ROWS = 20_000
"""Rows that a is found on; evenly spaced ones where there are more."""
MAX_SLOPE = 30.0
"""Of the standardised logits, where the classes are told apart without an error."""


def recalibrated(log_prob: Tensor, y: Tensor) -> Tensor:
    """log s(k|m), nats. (n, K), (n,) -> (n, K), float64; as given where the logits say nothing of the class."""
    logits = log_prob.double().clamp(min=LEAST_LOG)
    logits = logits - logits.mean(-1, keepdim=True)
    spread = float(logits.square().mean().sqrt())
    if not spread > 1e-9:
        return log_prob
    logits = logits / spread  # now the same for logits that were halved or stretched
    some = slice(None) if len(y) <= MAX_ROWS else torch.linspace(0, len(y) - 1, MAX_ROWS).long()
    rows, labels = logits[some], y[some]

    def loss(a: float) -> float:
        return float(torch.nn.functional.cross_entropy(a * rows, labels))

    a = minimize_scalar(loss, bounds=(0.0, MAX_SLOPE), method="bounded", options={"xatol": 1e-6}).x
    return (a * logits).log_softmax(-1) if a > 1e-3 else log_prob
