"""What a weighted sample's masks still tell about the class: a refit under the weights, judged on held-out rows.

    residual bits = (H_w(Y) − weighted held-out log-loss of y given m) / log 2

H_w is the entropy of the weighted class shares. The difference is a lower bound on the information that M has about Y
under the weighted law (theory section 7); it is 0 or a little below where the weights did their work. The fit is the
logistic one of the selection model, its rows counting w·ESS/Σw each, so that its regularisation knows how few they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from causal_attn.selection.newton import find_mode
from causal_attn.selection.response import linear_log_prob, with_intercept
from causal_attn.weights.formula import effective_sample_size


@dataclass(frozen=True)
class Residual:
    """Weighted held-out figures of y from m.

    Args:
        auc: area under the ROC curve, one-against-rest mean for K > 2, probability.
        log_loss: nats.
        bits: residual information, bits; can fall below 0 where there is none.
    """

    auc: float
    log_loss: float
    bits: float


def residual_information(
    phi: Tensor, y: Tensor, log_w: Tensor, fold: Tensor, groups: Tensor | None = None
) -> Residual:  # fmt: skip
    """Fit y on φ(m) under the weights without each fold, and judge it there under the weights.

    Args:
        phi: features, shape (n, d).
        y: classes 0..K-1, shape (n,).
        log_w: log-weights, nats, shape (n,).
        fold: fold of each row, shape (n,).
        groups: the group of each feature, shape (d,); see `causal_attn.masks.FeatureMap.groups`.
    """
    k = int(y.max()) + 1
    share = log_w.softmax(0)
    w = share * effective_sample_size(log_w)
    x, log_prob, mode = with_intercept(phi), phi.new_empty(len(y), k), None
    for number in range(int(fold.max()) + 1):
        kept = fold != number
        law = _shares(y[kept], share[kept], k).log()
        mode = find_mode(x[kept], y[kept], law, start=mode, groups=groups, row_weights=w[kept])
        log_prob[~kept] = linear_log_prob(mode.theta, phi[~kept], law)
    law = _shares(y, share, k)
    loss = -float(share @ log_prob.gather(-1, y[:, None])[:, 0])
    entropy = float(torch.special.entr(law).sum())
    return Residual(_auc(log_prob.exp(), y, share, fold), loss, (entropy - loss) / math.log(2))


def _shares(y: Tensor, share: Tensor, k: int) -> Tensor:
    total = torch.zeros(k, dtype=torch.float64).index_add_(0, y, share)
    return total / total.sum()


def _auc(prob: Tensor, y: Tensor, share: Tensor, fold: Tensor) -> float:
    """Mean over folds: across folds the intercepts differ, and against the held-out shares, which pulls below 1/2."""
    each, mass = [], []
    for number in range(int(fold.max()) + 1):
        rows = fold == number
        for k in range(prob.shape[1]) if prob.shape[1] > 2 else [1]:
            hit = (y[rows] == k).numpy()
            if 0 < hit.sum() < len(hit):
                each.append(roc_auc_score(hit, prob[rows, k].numpy(), sample_weight=share[rows].numpy()))
                mass.append(float(share[rows].sum()))
    return sum(a * m for a, m in zip(each, mass)) / sum(mass) if each else math.nan
