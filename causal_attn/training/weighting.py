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
from causal_attn.training.laws import checked_random, choices_law, law_named
from causal_attn.training.schemes import InstanceWeighting
from causal_attn.weights import Weights, effective_sample_size

N_DRAWS = 50
"""Posterior draws behind a refresh's weights: their mean alone is used, so few do."""
SWAP_BLOCK = 16
"""Rows of like length among which masks are swapped."""


FLOOR = 0.05
"""Least share of the rows that the effective sample size may be: below it a step follows a few rows alone."""

OVER_CONFIDENT = 0.1
"""Nats by which held-out rows may be predicted worse than by the class shares."""


@dataclass(frozen=True)
class Plan:
    """How the rows are shown until the next refresh.

    Args:
        weight: w / mean(w), shape (n,), float32.
        explored: which rows are shown another mask, shape (n,), bool.
        shown: their masks, shape (n, T); None without exploration.
        fit: the selection model behind the weights; None before the first.
        support_deficit, ess: of the weights; NaN before the first.
        unusable: why the weights are not used, and all are 1; empty where they are.
    """

    weight: Tensor
    explored: Tensor
    shown: Tensor | None
    fit: SelectionFit | None
    support_deficit: float = float("nan")
    ess: float = float("nan")
    unusable: str = ""


def refresh(model: Any, split: Split, weighting: InstanceWeighting, earlier: Plan | None, seed: int) -> Plan:
    """The plan for the coming epochs or steps.

    Before anything was learnt (`earlier` None) masks carry no class, and every weight is 1.

    Warns:
        SupportWarning: the support deficit is large.
    """
    masks, valid = collect_masks(model, split)
    kind = None if earlier is None or earlier.fit is None else earlier.fit.sample.kind
    rng = np.random.default_rng([seed, 1])
    swaps = weighting.law == "swap"
    explored: Tensor
    shown: Tensor | None
    if not swaps:  # the law of the masks as shown is the one that P(y|m) is of
        sample, explored, shown = _drawn(MaskSample(masks, split.y, valid), weighting, rng)
        if earlier is None:
            return Plan(torch.ones(sample.n), explored, shown, None)
    else:
        sample = MaskSample(masks, split.y, valid, kind)
        if earlier is None:
            explored, shown = _explore(sample, torch.arange(sample.n) % 5, weighting.explore, rng)
            return Plan(torch.ones(sample.n), explored, shown, None)
    start = None if earlier.fit is None or earlier.fit.sample.kind != sample.kind else earlier.fit
    fit = weighting.selection.fit(sample, seed=seed, progress=False, warm_start=start, n_draws=N_DRAWS)
    weights = fit.weights(n_draws=N_DRAWS)
    draw = int(rng.integers(weights.n_draws)) if weighting.use == "draw" else None
    if swaps:
        explored, shown = _explore(sample, fit.fold, weighting.explore, rng)
        log_w = _log_weights(fit, weights, explored, shown, weighting.explore, draw)
    else:
        log_w = weights.log_w if draw is None else weights.draws[draw].double()
    if weighting.truncate is not None:
        log_w = log_w.clamp(max=float(np.log(weighting.truncate)))
    ess = float(effective_sample_size(log_w))
    why = _unusable(fit, ess)
    weight = (log_w - log_w.logsumexp(0) + np.log(sample.n)).exp().float()
    if why:
        weight = torch.ones_like(weight)
    return Plan(weight, explored, shown, fit, weights.support_deficit, ess, why)


def _unusable(fit: SelectionFit, ess: float) -> str:
    """Why these weights would do harm; empty where they would not.

    A cross-fit is over-confident where its held-out log-loss exceeds the prior's by more than OVER_CONFIDENT and two
    standard errors: a smaller excess is what few rows cost, and its weights are near 1.
    """
    y = fit.sample.y
    excess = fit.log_prior[y] - fit.held_out_log_prob().gather(-1, y[:, None])[:, 0]  # held-out loss over the prior's
    mean, error = float(excess.mean()), float(excess.std()) / np.sqrt(len(y))
    if mean - 2 * error > OVER_CONFIDENT:
        return (
            f"the cross-fitted model predicts held-out rows worse than the class shares do, by {mean:.3f} nats "
            f"(standard error {error:.3f})"
        )
    if ess < FLOOR * len(y):
        return f"their effective sample size is {ess:.0f} of {len(y)} rows, under the floor of {FLOOR:.0%}"
    return ""


def _drawn(
    sample: MaskSample, weighting: InstanceWeighting, rng: np.random.Generator
) -> tuple[MaskSample, Tensor, Tensor]:
    """The sample as it is shown, which rows are explored, and the masks shown, where explored ones come from a law."""
    law = law_named(weighting.law)
    assert not isinstance(law, str)
    if sample.kind == "subset":
        law = choices_law(law)
    given = checked_random(law(sample.valid, torch.Generator().manual_seed(int(rng.integers(2**31)))), sample.valid)
    explored = torch.from_numpy(rng.random(sample.n) < weighting.explore)
    shown = torch.where(explored[:, None], given.to(sample.masks), sample.masks)
    return MaskSample(shown, sample.y, sample.valid, sample.kind), explored, shown


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


def _log_weights(
    fit: SelectionFit, weights: Weights, explored: Tensor, shown: Tensor | None, share: float, draw: int | None = None
) -> Tensor:
    """log w; with exploration P(y) / ((1−ε) r₀(y|m) + ε P(y)) at the mask shown, at most 1/ε.

    `draw` None is the posterior predictive mean, else one draw of each fold's model.
    """
    if shown is None:
        return weights.log_w if draw is None else weights.draws[draw].double()
    y, log_prior = fit.sample.y, fit.log_prior
    if draw is None:
        log_r = fit.held_out_log_prob(shown, fit.sample.valid)
    else:
        phi = fit.features(shown, fit.sample.valid)
        log_r = torch.empty(len(phi), len(log_prior), dtype=torch.float64)
        for number, fitted in enumerate(fit.fold_fits):
            rows = fit.fold == number
            log_r[rows] = fitted.fast_draws(phi[rows], draw + 1)[draw].double()
    own = log_r.gather(-1, y[:, None])[:, 0]
    return log_prior[y] - torch.logaddexp(np.log1p(-share) + own, np.log(share) + log_prior[y])
