"""What `InstanceWeighting` does at a refresh: masks as shown, a refitted selection model, a weight for every row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from causal_attn.data.splits import Split
from causal_attn.masks import MaskSample, moved
from causal_attn.selection import SelectionFit
from causal_attn.training.collect import collect_masks
from causal_attn.training.schemes import InstanceWeighting
from causal_attn.weights import Weights, effective_sample_size

N_DRAWS = 50
"""Posterior draws behind a refresh's weights: their mean alone is used, so few do."""
SWAP_BLOCK = 16
"""Rows of like length among which masks are swapped."""


@dataclass(frozen=True)
class Plan:
    """How the rows are shown until the next refresh.

    Args:
        weight: w / mean(w), shape (n,), float32.
        explored: which rows are shown another row's mask, shape (n,), bool.
        shown: their masks, shape (n, T); None without exploration.
        fit: the selection model behind the weights; None before the first.
        support_deficit, ess: of the weights; NaN before the first.
    """

    weight: Tensor
    explored: Tensor
    shown: Tensor | None
    fit: SelectionFit | None
    support_deficit: float = float("nan")
    ess: float = float("nan")


def refresh(model: Any, split: Split, weighting: InstanceWeighting, earlier: Plan | None, seed: int) -> Plan:
    """The plan for the coming epochs.

    Before anything was learnt (`earlier` None) masks carry no class, and every weight is 1.
    """
    masks, valid = collect_masks(model, split)
    kind = None if earlier is None or earlier.fit is None else earlier.fit.sample.kind
    sample = MaskSample(masks, split.y, valid, kind)
    rng = np.random.default_rng([seed, 1])
    if earlier is None:
        explored, shown = _explore(sample, torch.arange(sample.n) % 5, weighting.explore, rng)
        return Plan(torch.ones(sample.n), explored, shown, None)
    fit = weighting.selection.fit(sample, seed=seed, progress=False, warm_start=earlier.fit, n_draws=N_DRAWS)
    weights = fit.weights(n_draws=N_DRAWS)
    explored, shown = _explore(sample, fit.fold, weighting.explore, rng)
    log_w = _log_weights(fit, weights, explored, shown, weighting.explore)
    if weighting.truncate is not None:
        log_w = log_w.clamp(max=float(np.log(weighting.truncate)))
    weight = (log_w - log_w.logsumexp(0) + np.log(sample.n)).exp().float()
    return Plan(weight, explored, shown, fit, weights.support_deficit, float(effective_sample_size(log_w)))


def _explore(sample: MaskSample, fold: Tensor, share: float, rng: np.random.Generator) -> tuple[Tensor, Tensor | None]:
    """Which rows are explored, and the mask each of them is shown.

    Masks are permuted among rows of like length in the same fold: the fold's model saw neither row.
    """
    explored = torch.from_numpy(rng.random(sample.n) < share)
    if share == 0:
        return explored, None
    lengths = sample.valid.sum(-1).numpy()
    order = np.lexsort((rng.random(sample.n), lengths, fold.numpy()))
    partner = np.empty(sample.n, dtype=np.int64)
    for number in np.unique(fold.numpy()):
        rows = order[fold.numpy()[order] == number]
        block = np.minimum(np.arange(len(rows)) // SWAP_BLOCK, max(0, len(rows) // SWAP_BLOCK - 1))
        mixed = rows[np.lexsort((rng.random(len(rows)), block))]
        last = np.append(block[1:] != block[:-1], True)  # a random cycle in each block: no row keeps its own mask
        after = np.roll(mixed, -1)
        after[last] = mixed[np.append(True, block[1:] != block[:-1])]
        partner[mixed] = after
    own, given = sample.masks, moved(sample.masks[partner], sample.valid, sample.kind)
    return explored, torch.where(explored[:, None], given, own)


def _log_weights(fit: SelectionFit, weights: Weights, explored: Tensor, shown: Tensor | None, share: float) -> Tensor:
    """log w; with exploration P(y) / ((1−ε) r₀(y|m) + ε P(y)) at the mask shown, at most 1/ε."""
    if shown is None:
        return weights.log_w
    y, log_prior = fit.sample.y, fit.log_prior
    own = fit.held_out_log_prob(shown, fit.sample.valid).gather(-1, y[:, None])[:, 0]
    return log_prior[y] - torch.logaddexp(np.log1p(-share) + own, np.log(share) + log_prior[y])
