"""What weights say about themselves to a person: a table with a line per class, and a sentence or two."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from causal_attn.interop.arviz import khat_threshold
from causal_attn.weights.formula import effective_sample_size

if TYPE_CHECKING:
    from causal_attn.weights.core import Weights

LARGE, PARTIAL, SMALL = 0.25, 0.02, 0.1
"""Lower ends of the support deficit above which weighting cannot repair, or repairs a part; and an upper end below
which support is called good."""
SHORT = 0.5
"""A class whose share under the weights is below this part of Q's is named."""
NEAR_ONE = 0.95
NEARLY_EQUAL = 0.95
"""Share of rows that count, above which no tail matters, whatever its shape."""
WIDTH = 96
"""Columns at which printed words are wrapped."""
ENOUGH_ROWS = 30
"""Rows of a class below which its support is not judged."""
FEW_ROWS = 100
"""Effective sample sizes below this are named."""


class WeightSummary(pd.DataFrame):
    """A DataFrame that prints its `attrs["words"]` below itself."""

    @property
    def table(self) -> str:
        """The table as text, without the words."""
        return _rounded(self).to_string(na_rep="")

    def __str__(self) -> str:
        return f"{self.table}\n\n{textwrap.fill(self.attrs.get('words', ''), WIDTH)}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"{_rounded(self).to_html(na_rep='')}<p>{self.attrs.get('words', '')}</p>"


def _rounded(table: pd.DataFrame) -> pd.DataFrame:
    """Three significant digits, short headings: 80 columns hold it."""
    short = {
        "mean_weight": "mean w", "ess_share": "ess/n", "max_weight": "max w", "largest_share": "share",
        "log_w_sd_nats": "sd log w", "support_deficit": "D", "deficit_low": "low", "deficit_high": "high",
    }  # fmt: skip
    out = pd.DataFrame({short.get(c, c): [_digits(v) for v in table[c]] for c in table.columns}, index=table.index)
    return out.loc[:, [c for c in out.columns if (out[c] != "").any()]]


def _digits(value: float) -> str:
    if np.isnan(value):
        return ""
    if np.isinf(value):
        return "inf" if value > 0 else "-inf"
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 1000 else f"{value:.3g}"


def class_labels(n_classes: int, names: Sequence[str] | None) -> list[str]:
    """How classes are called in words: by name, or "class 0"."""
    return [f"class {k}" for k in range(n_classes)] if names is None else [str(name) for name in names]


def summarise(weights: Weights, names: Sequence[str] | None = None) -> WeightSummary:
    """See `Weights.summary`."""
    everyone = torch.ones_like(weights.y, dtype=torch.bool)
    total = weights.log_w.logsumexp(0)
    labels = class_labels(len(weights.prior), names)
    rows = [_row(weights, weights.y == k, total) for k in range(len(labels))] + [_row(weights, everyone, total)]
    table = WeightSummary(pd.DataFrame(rows, index=[*labels, "all"]).astype({"rows": int}))
    low, high = weights.support_deficit_interval
    found = {"khat": weights.khat, "support_deficit": weights.support_deficit, "deficit_low": low, "deficit_high": high}
    for column, value in found.items():
        table[column] = [np.nan] * len(labels) + [value]  # by place: a class may be called "all"
    table.attrs["words"] = in_words(weights, names)
    return table


def _row(weights: Weights, pick: Tensor, total: Tensor) -> dict[str, float]:
    log_w = weights.log_w[pick]
    if not len(log_w):
        names = ("mean_weight", "ess_share", "max_weight", "largest_share", "log_w_sd_nats")
        return {"rows": 0, "ess": 0.0} | dict.fromkeys(names, float("nan"))
    ess = float(effective_sample_size(log_w))
    return {
        "rows": len(log_w),
        "mean_weight": float(log_w.exp().mean()),
        "ess": ess,
        "ess_share": ess / len(log_w),
        "max_weight": float(log_w.max().exp()),
        "largest_share": float((log_w.max() - total).exp()),
        "log_w_sd_nats": float(weights.log_w_sd[pick].mean()),
    }


def in_words(weights: Weights, names: Sequence[str] | None = None) -> str:
    """See `Weights.words`: support first, then the tail, then few rows, then what was changed."""
    labels = class_labels(len(weights.prior), names)
    parts = [_of_support(weights, labels)]
    if weights.khat > khat_threshold(len(weights.y)) and weights.ess < NEARLY_EQUAL * len(weights.y):
        limit = khat_threshold(len(weights.y))
        parts.append(
            f"The weights' tail is heavy (k̂ {weights.khat:.2f}, above {limit:.2f}): averages under them are unreliable."
        )
    few = [k for k, ess in enumerate(weights.ess_per_class.tolist()) if 0 < ess < FEW_ROWS]
    worn = [k for k in few if float(weights.ess_per_class[k]) < 0.5 * int((weights.y == k).sum())]
    if worn:
        counts = [(labels[k], float(weights.ess_per_class[k])) for k in worn[:3]]
        said = ", ".join(f"{label} counts as {ess:.0f} row{'' if round(ess) == 1 else 's'}" for label, ess in counts)
        parts.append(f"Few effective rows: {said}{' and others' if len(worn) > 3 else ''}.")
    parts += _of_shares(weights, labels)
    if weights.record:
        parts.append("Changed: " + "; ".join(weights.record) + ".")
    return " ".join(parts)


def _of_shares(weights: Weights, labels: Sequence[str]) -> list[str]:
    """Classes that the weights give less than half of what Q has of them."""
    achieved = weights.class_shares
    short = [k for k, (a, q) in enumerate(zip(achieved.tolist(), weights.prior.tolist())) if a < SHORT * q]
    if not short:
        return []
    said = ", ".join(f"{labels[k]} {float(achieved[k]):.1%} for {float(weights.prior[k]):.1%}" for k in short[:3])
    more = " and others" if len(short) > 3 else ""
    return [f"Under the weights classes do not have the shares that Q has: {said}{more}."]


def _of_support(weights: Weights, labels: Sequence[str]) -> str:
    low, high = weights.support_deficit_interval
    deficit, tau = weights.support_deficit, weights.tau
    own = weights.deficit.per_class
    if np.isnan(low):
        return "Support deficit unknown: give log_prob (n, K) with more than two classes."
    if low > LARGE:
        certain = weights.share_certain(NEAR_ONE)
        sure = f"P(y|m) is above {NEAR_ONE:g} on {certain:.0%} of rows: " if certain > 0.5 else ""
        return (
            f"{sure}{deficit:.0%} of Q [{low:.0%}, {high:.0%}] would need weights above {tau:g}; "
            "weighting cannot repair this. Use random attention pretraining or exploration."
        )
    lost = [k for k, (_, least, _) in enumerate(own) if least > LARGE]
    if lost:
        said = "; ".join(f"{labels[k]} {own[k][0]:.0%} [{own[k][1]:.0%}, {own[k][2]:.0%}]" for k in lost[:3])
        return (
            f"Classes that the mask gives away, with how much of their own part of Q would need weights above {tau:g}: "
            f"{said}{' and others' if len(lost) > 3 else ''}; {deficit:.1%} of Q in all. Weighting cannot repair that. "
            "Use random attention pretraining or exploration."
        )
    if low > PARTIAL:
        return (
            f"{deficit:.0%} of Q [{low:.0%}, {high:.0%}] would need weights above {tau:g}: "
            "weighting repairs a part only."
        )
    rows = torch.bincount(weights.y, minlength=len(labels)).tolist()
    rare = [f"{label} has {n}" for label, n in zip(labels, rows) if n < ENOUGH_ROWS]
    if high <= SMALL and rare:
        return f"Too few rows to judge support: {', '.join(rare[:3])}{' and others' if len(rare) > 3 else ''}."
    unsure = [k for k, (point, _, _) in enumerate(own) if point > LARGE]
    if high <= SMALL and unsure:
        said = "; ".join(f"{labels[k]} {own[k][0]:.0%} [{own[k][1]:.0%}, {own[k][2]:.0%}]" for k in unsure[:3])
        return (
            f"Support is uncertain for single classes, of whose own part of Q would need weights above {tau:g}: "
            f"{said}; more rows would tell."
        )
    if high <= SMALL:
        return (
            f"Support is good as far as this model ranks the masks: at most {high:.1%} of Q would need weights "
            f"above {tau:g}."
        )
    return (
        f"Support is uncertain: {deficit:.0%} of Q [{low:.0%}, {high:.0%}] would need weights "
        f"above {tau:g}; more rows would tell."
    )
