"""Faithfulness metrics: one function each, one value per input, its direction beside it as data.

m is the model's mask, s the scores that are judged (m itself, or a rival's), ŷ the class predicted under m, r the top
positions by s. "x restricted to r" is x under m on r, "x without r" x under m off r, both normalised again: the model
is never shown anything but a mask. Positions are ranked by s, ties by place; padding never counts.

Sources: comprehensiveness and sufficiency, DeYoung et al. (2020); agreement, Jain & Wallace (2019); violation, Liu et
al. (2022); accuracy at k, Jethani et al. (2021).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from causal_attn.data.splits import Split
from causal_attn.errors import InputError
from causal_attn.faithfulness.scores import gradient_times_input, leave_one_out
from causal_attn.masks import MaskSample, moved, ranks
from causal_attn.training.collect import collect_logits

SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
"""Of the positions, over which comprehensiveness and sufficiency are averaged; at least one position, never all."""


@dataclass(frozen=True)
class Setting:
    """What metrics are computed from; what several need is computed once.

    Args:
        model, evaluator: the classifier, and its EVAL-X evaluator (None: metrics that need one are left out).
        split, sample: inputs, and the model's masks on them with classes and validity.
        k: positions kept by the accuracies at k.
        rationales: where the evidence lies, bool (n, T); None: unknown.
    """

    model: Any
    evaluator: Any
    split: Split
    sample: MaskSample
    k: int
    rationales: Tensor | None
    _kept: dict[str, Tensor]

    def once(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """A tensor that is made when first asked for."""
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]

    @property
    def probability(self) -> Tensor:
        """p(y|x, m), shape (n, K)."""
        return self.once("p", lambda: collect_logits(self.model, self.split, self.sample.masks.float()).softmax(-1))

    @property
    def predicted(self) -> Tensor:
        """ŷ, shape (n,)."""
        return self.probability.argmax(-1)

    def own(self, masks: Tensor) -> Tensor:
        """p(ŷ | x, masks), shape (n,)."""
        p = collect_logits(self.model, self.split, masks.float()).softmax(-1)
        return p.gather(-1, self.predicted[:, None])[:, 0]

    @property
    def removals(self) -> Tensor:
        """Leave-one-out of every position, (n, T)."""
        return self.once("loo", lambda: leave_one_out(self.model, self.split, self.sample))

    @property
    def gradients(self) -> Tensor:
        """|m_t ∂f/∂m_t|, (n, T)."""
        return self.once("grad", lambda: gradient_times_input(self.model, self.split, self.sample).abs())


def top_by(scores: Tensor, valid: Tensor, count: Tensor) -> Tensor:
    """The `count` (n,) positions of each row with the largest scores, ties by place. (n, T) bool."""
    return (ranks(scores, valid) < count[:, None]) & valid


def kept_by(setting: Setting, kept: Tensor) -> Tensor:
    """The model's mask on the kept positions alone, normalised again; even over them where it has nothing there."""
    masks = setting.sample.masks.double() * kept
    empty = masks.sum(-1) <= 0
    masks[empty] = kept[empty].double()
    return moved(masks, kept, setting.sample.kind)


# ------------------------------------------------------------------------------------ what a ranking of positions shows


def _by_shares(setting: Setting, scores: Tensor, keep: bool) -> Tensor:
    """p(ŷ|x) − p(ŷ|x restricted to r, or without r), averaged over the shares."""
    lengths = setting.sample.valid.sum(-1)
    whole = setting.probability.gather(-1, setting.predicted[:, None])[:, 0]
    falls = []
    for share in SHARES:
        count = torch.minimum((share * lengths).ceil().long().clamp(min=1), (lengths - 1).clamp(min=1))
        r = top_by(scores, setting.sample.valid, count)
        kept = r if keep else setting.sample.valid & ~r
        kept = torch.where(
            kept.any(-1, keepdim=True), kept, setting.sample.valid
        )  # a single position cannot be removed
        falls.append(whole - setting.own(kept_by(setting, kept)))
    return torch.stack(falls).mean(0)


def comprehensiveness(setting: Setting, scores: Tensor) -> Tensor:
    """p(ŷ|x) − p(ŷ|x without r), mean over shares, probability. Shape (n,)."""
    return _by_shares(setting, scores, keep=False)


def sufficiency(setting: Setting, scores: Tensor) -> Tensor:
    """p(ŷ|x) − p(ŷ|x restricted to r), mean over shares, probability. Shape (n,)."""
    return _by_shares(setting, scores, keep=True)


def _evaluator_at_k(setting: Setting, scores: Tensor) -> Tensor:
    """Logits of the evaluator on the top k, every kept position alike, (n, K)."""
    if setting.evaluator is None:
        raise InputError("evaluator: expected an EVAL-X evaluator for accuracies at k, got None")
    k = torch.full((setting.sample.n,), setting.k)
    kept = top_by(scores, setting.sample.valid, k)
    mask_like = (scores >= 0).all(-1, keepdim=True) & (scores > 0).any(-1, keepdim=True)
    kept = (kept & ~(mask_like & (scores <= 0))).float()  # as `top_k` has it: what got nothing is not shown
    shown = moved(kept, setting.sample.valid, setting.sample.kind)
    return collect_logits(setting.evaluator, setting.split, shown)


def evalx_accuracy(setting: Setting, scores: Tensor) -> Tensor:
    """1 where the evaluator is right on the k top positions. Shape (n,)."""
    return (_evaluator_at_k(setting, scores).argmax(-1) == setting.sample.y).double()


def post_hoc_accuracy(setting: Setting, scores: Tensor) -> Tensor:
    """1 where the evaluator on the k top positions agrees with the model on x. Shape (n,)."""
    return (_evaluator_at_k(setting, scores).argmax(-1) == setting.predicted).double()


def violation(setting: Setting, scores: Tensor) -> Tensor:
    """1 where taking away the top position by |s| moves p(ŷ) against the score's sign. Shape (n,)."""
    top = scores.abs().masked_fill(~setting.sample.valid, -1.0).argmax(-1, keepdim=True)
    sign, fall = scores.gather(-1, top)[:, 0].sign(), setting.removals.gather(-1, top)[:, 0]
    return (sign * fall < 0).double()


# --------------------------------------------------------------------------------------------- agreement of rankings


def kendall_tau(a: Tensor, b: Tensor, valid: Tensor, entries: int = 20_000_000) -> Tensor:
    """Kendall's τ-b of each row's valid positions; NaN where one of the two is constant. (n, T) -> (n,).

    Over all pairs of positions, O(T²) a row, a block of rows at a time.
    """
    out = []
    block = max(1, entries // a.shape[1] ** 2)
    for x, y, v in zip(a.split(block), b.split(block), valid.split(block)):
        both = (v[:, :, None] & v[:, None, :]).triu(1)
        dx, dy = ((q[:, :, None] - q[:, None, :]).sign() * both for q in (x, y))
        agree, sizes = (dx * dy).sum((1, 2)), dx.abs().sum((1, 2)) * dy.abs().sum((1, 2))
        out.append(torch.where(sizes > 0, agree / sizes.clamp(min=1).sqrt(), torch.nan))
    return torch.cat(out)


def leave_one_out_agreement(setting: Setting, scores: Tensor) -> Tensor:
    """τ between the scores and the fall of p(ŷ) when a position is taken away. Shape (n,)."""
    return kendall_tau(scores, setting.removals, setting.sample.valid)


def gradient_agreement(setting: Setting, scores: Tensor) -> Tensor:
    """τ between the sizes of the scores and |m_t ∂f/∂m_t|. Shape (n,).

    As in Jain & Wallace (2019), whose gradient by the input is a multiple of the attention there, this quantity holds
    m: where ∂f/∂m knows nothing of m, τ of the mask itself is about 0.5, not 0. Gradient×input has 1 by definition.
    """
    return kendall_tau(scores.abs(), setting.gradients, setting.sample.valid)


# ---------------------------------------------------------------------------------------------------- plausibility


def _rationales(setting: Setting) -> Tensor:
    if setting.rationales is None:
        raise InputError("rationales: expected where the evidence lies, (n, T); this split has none")
    return setting.rationales


def rationale_mass(setting: Setting, scores: Tensor) -> Tensor:
    """Share of the positive scores that lies on the rationale; NaN where none is positive or there is none. (n,)."""
    positive, where = scores.clamp(min=0), _rationales(setting)
    share = (positive * where).sum(-1) / positive.sum(-1)
    return torch.where(where.any(-1) & (positive.sum(-1) > 0), share, torch.nan)


def token_f1(setting: Setting, scores: Tensor) -> Tensor:
    """F1 of the top |rationale| positions against the rationale, which is their overlap; NaN where there is none."""
    where = _rationales(setting)
    size = where.sum(-1)
    hits = (top_by(scores, setting.sample.valid, size) & where).sum(-1)
    return torch.where(size > 0, hits / size, torch.nan)


def average_precision(setting: Setting, scores: Tensor) -> Tensor:
    """Area under precision and recall of the ranking, Σ over rationale positions of the precision there / their number.

    Tied scores count as one threshold, as in scikit-learn. Shape (n,); NaN where there is no rationale.
    """
    where, valid = _rationales(setting), setting.sample.valid
    s = scores.masked_fill(~valid, -torch.inf)
    order = s.argsort(dim=-1, descending=True, stable=True)
    ranked, hit = s.gather(1, order), where.gather(1, order).double()
    precision = hit.cumsum(-1) / torch.arange(1, s.shape[1] + 1)
    last = torch.ones_like(ranked, dtype=torch.bool)
    last[:, :-1] = ranked[:, :-1] != ranked[:, 1:]  # a threshold lies behind the last of tied scores
    place = torch.where(last, torch.arange(s.shape[1]), s.shape[1] - 1)
    behind = place.flip(-1).cummin(-1).values.flip(-1)
    total = (precision.gather(1, behind) * hit).sum(-1)
    return torch.where(hit.sum(-1) > 0, total / hit.sum(-1), torch.nan)


# --------------------------------------------------------------------------------------------------- the directions


@dataclass(frozen=True)
class Metric:
    """A metric of scores: its function, whether higher is better, and what it needs beside the model."""

    function: Callable[[Setting, Tensor], Tensor]
    higher_is_better: bool
    needs: str = ""


METRICS: Mapping[str, Metric] = {
    "evalx_accuracy": Metric(evalx_accuracy, True, "evaluator"),
    "post_hoc_accuracy": Metric(post_hoc_accuracy, True, "evaluator"),
    "comprehensiveness": Metric(comprehensiveness, True),
    "sufficiency": Metric(sufficiency, False),
    "leave_one_out_agreement": Metric(leave_one_out_agreement, True),
    "gradient_agreement": Metric(gradient_agreement, True),
    "violation": Metric(violation, False),
    "rationale_mass": Metric(rationale_mass, True, "rationales"),
    "token_f1": Metric(token_f1, True, "rationales"),
    "average_precision": Metric(average_precision, True, "rationales"),
}
"""In the order of tables. None has a unit: shares, probabilities and rank correlations."""
