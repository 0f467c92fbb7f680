"""The weight itself, its effective sample size and its entropy, all from logs."""

from __future__ import annotations

import torch
from torch import Tensor

from causal_attn.errors import PositivityError


def stabilised_log_weights(log_prior: Tensor, log_prob_y: Tensor) -> Tensor:
    r"""Log of w = P(y) / P(y | m), the weight that makes the mask independent of the class.

    Args:
        log_prior: log P(y_i), nats. Shape ``(n,)``.
        log_prob_y: log P(y_i | m_i), nats, from a model that did not see row i. Shape ``(n,)`` or ``(S, n)``.

    Returns:
        Log-weights, not normalised: their exponentials average 1 under P where P(y | m) > 0. Shape of ``log_prob_y``.

    Raises:
        PositivityError: a probability is zero; names the first row.

    References:
        Bai et al. (2021), section on mask-neutral learning, arXiv 2006.05656.
    """
    zero = torch.isneginf(log_prob_y)
    if zero.any():
        row = int(zero.reshape(-1, zero.shape[-1]).any(0).nonzero()[0])
        raise PositivityError(f"log_prob_y: P(y | m) is zero for the class seen in row {row}; its weight is infinite")
    return log_prior - log_prob_y


def effective_sample_size(log_w: Tensor) -> Tensor:
    """Kish's (Σw)² / Σw², in rows. Shape (..., n) -> (...)."""
    return (2 * log_w.logsumexp(-1) - (2 * log_w).logsumexp(-1)).exp()


def weight_entropy(log_w: Tensor) -> Tensor:
    """Entropy of w_i / Σw, nats: log n for equal weights, 0 where one row has all. Shape (..., n) -> (...)."""
    share = log_w.log_softmax(-1)
    return -(share.exp() * share).sum(-1)
