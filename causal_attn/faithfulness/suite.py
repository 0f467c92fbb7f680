"""Every faithfulness metric for attention and for its rivals, with intervals, in one table."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm

from causal_attn.data.checks import seed_of
from causal_attn.data.splits import Data, Split
from causal_attn.errors import InputError
from causal_attn.faithfulness.controls import CONTROLS, replaced
from causal_attn.faithfulness.metrics import METRICS, Setting
from causal_attn.faithfulness.scores import SCORERS, checked_scores, leave_one_out
from causal_attn.faithfulness.subject import checked_k, subject_of
from causal_attn.masks import MaskSample, as_tensor

ATTENTION = "attention"
N_BOOTSTRAP = 1000
COLUMNS = ["scores", "metric", "value", "low", "high", "higher_is_better", "rows"]


@dataclass(frozen=True)
class FaithfulnessSuite:
    """What `faithfulness_suite` measured.

    Args:
        values: one value per input, by (scores, metric); NaN where a metric says nothing of an input.
        k: positions kept by the accuracies at k.
        n: inputs.
        seed: of the bootstrap.
    """

    values: Mapping[tuple[str, str], np.ndarray]
    k: int
    n: int
    seed: int

    def table(self) -> pd.DataFrame:
        """Columns scores, metric, value, low, high (95%, bootstrap over inputs), higher_is_better (True, False, or None
        where it is context), rows (inputs it says something of)."""
        if not self.values:
            return pd.DataFrame(columns=COLUMNS)
        low, high = bootstrap_means(np.stack(list(self.values.values())), self.seed)
        rows = []
        for (scores, metric), values, lo, hi in zip(self.values, self.values.values(), low, high):
            known = np.isfinite(values)
            mean = float(values[known].mean()) if known.any() else float("nan")
            better = METRICS[metric].higher_is_better if metric in METRICS else None
            rows.append((scores, metric, mean, lo, hi, better, int(known.sum())))
        return pd.DataFrame(rows, columns=COLUMNS).astype({"higher_is_better": object})

    def __str__(self) -> str:
        table = self.table()
        wide = table[table["higher_is_better"].notna()].pivot_table("value", "metric", "scores", dropna=False)
        judged = [m for m in METRICS if m in wide.index]
        arrows = ["higher" if METRICS[m].higher_is_better else "lower" for m in judged]
        order = list(dict.fromkeys(s for s, m in self.values if m in METRICS))
        shown = wide.loc[judged, order]
        shown.insert(0, "better", arrows)
        shown.columns.name = shown.index.name = None
        lines = [f"faithfulness on {self.n} inputs, k = {self.k}", shown.to_string(float_format="{:.3f}".format)]
        context = table[table["higher_is_better"].isna()]
        if len(context):
            moves = ", ".join(f"{m.removeprefix('tv_')} {v:.3f}" for m, v in zip(context["metric"], context["value"]))
            lines.append("predictions move (total variation) when attention is replaced:")
            lines.append(f"    {moves}")
        lines.append(".table() has 95% intervals; a method's agreement with itself is 1 by definition")
        return "\n".join(lines)

    __repr__ = __str__


def faithfulness_suite(
    result: Any, split: str = "test", *, data: Data | None = None, scores: Mapping[str, Any] | None = None,
    evaluator: Any = None, k: int | None = None, rationales: Any = None, metrics: Sequence[str] | None = None,
    controls: Sequence[str] = tuple(CONTROLS), seed: int = 0, progress: bool = True,
) -> FaithfulnessSuite:  # fmt: skip
    """Measure how faithful attention, and rival scores on the same model, are to what the model does.

    Args:
        result: a `TrainResult`, or a model with `masks` and `predict` (then `data` is needed).
        split: "train", "valid" or "test".
        data: the splits; an evaluator is trained on `data.train`.
        scores: scores of positions by name, beside attention's own masks: arrays (n, T) in the split's order, or the
            names of post-hoc methods, see `SCORERS`. None: all of those.
        evaluator: an EVAL-X evaluator; None: one is trained, as the model itself was.
        k: positions kept by the accuracies at k; None: 5 for soft masks, the selector's own k for subsets.
        rationales: where the evidence lies, bool (n, T); None: the split's own, if it has them.
        metrics: names in `METRICS`; None: all that can be computed.
        controls: what attention is replaced by, see `CONTROLS`.
        seed: of evaluator, random scores, controls and bootstrap.
        progress: show a bar.

    Raises:
        InputError: before any work: a model that breaks the protocol, scores or rationales of another shape, k larger
            than the longest input, an unknown name.

    Cost: linear in inputs; leave-one-out takes T predictions each, the rest about 60.
    """
    seed = seed_of(seed)
    subject = subject_of(result, split, data)
    sample, part, model = subject.sample, subject.split, subject.model
    k = checked_k(k, sample)
    subject.checked_evaluator(evaluator, {})
    where = _checked_rationales(rationales, part, sample)
    asked = _asked(scores, sample)
    names = _names(metrics, METRICS, "metrics")
    chosen = _names(controls, CONTROLS, "controls")
    wanted = [m for m in names if metrics is not None or METRICS[m].needs != "rationales" or where is not None]
    if where is None and any(METRICS[m].needs == "rationales" for m in wanted):
        raise InputError("rationales: expected where the evidence lies, (n, T); this split has none")
    if evaluator is None and any(METRICS[m].needs == "evaluator" for m in wanted):
        evaluator = subject.evaluator(seed, progress, {})
    setting = Setting(model, evaluator, part, sample, k, where, {})
    bar = tqdm(total=len(asked) * len(wanted) + len(chosen), desc="faithfulness", disable=not progress, leave=False)
    values: dict[tuple[str, str], np.ndarray] = {}
    for name, given in asked.items():
        s = _scores(given, setting, seed)
        for metric in wanted:
            values[name, metric] = METRICS[metric].function(setting, s).numpy()
            bar.update()
    for control in chosen:
        values[ATTENTION, f"tv_{control}"] = replaced(model, part, sample, control, seed).numpy()
        bar.update()
    bar.close()
    return FaithfulnessSuite(values, k, sample.n, seed)


def _asked(scores: Mapping[str, Any] | None, sample: MaskSample) -> dict[str, str | Tensor]:
    """Attention's own masks, then what was asked for: a method's name, or an array that was checked."""
    out: dict[str, str | Tensor] = {ATTENTION: sample.masks.double()}
    given = {name: name for name in SCORERS} if scores is None else scores
    if not isinstance(given, Mapping):
        raise InputError(f"scores: expected a mapping of names to arrays (n, T), got {type(given).__name__}")
    for name, value in given.items():
        if name == ATTENTION or not isinstance(name, str):
            raise InputError(f"scores: expected names other than {ATTENTION!r}, got {name!r}")
        if isinstance(value, str):
            out[name] = _names([value], SCORERS, f"scores[{name!r}]")[0]
        else:
            out[name] = checked_scores(value, f"scores[{name!r}]", sample)
    return out


def _scores(given: str | Tensor, setting: Setting, seed: int) -> Tensor:
    """The scores themselves; leave-one-out, the dearest, is what agreement and violation need as well."""
    if isinstance(given, Tensor):
        return given
    if SCORERS[given] is leave_one_out:
        return setting.removals
    return SCORERS[given](setting.model, setting.split, setting.sample, seed)


def _names(asked: Sequence[str] | None, known: Mapping[str, Any], argument: str) -> list[str]:
    names = list(known) if asked is None else list(asked)
    odd = [name for name in names if name not in known]
    if odd or isinstance(asked, str):
        raise InputError(f"{argument}: expected names among {', '.join(known)}, got {asked if not odd else odd[0]!r}")
    return names


def _checked_rationales(given: Any, split: Split, sample: MaskSample) -> Tensor | None:
    if given is None:
        own = split.rationales
        return None if own is None else own[:, : sample.T] & sample.valid
    where = as_tensor(given, "rationales")
    if where.shape != sample.masks.shape:
        raise InputError(f"rationales: expected shape {tuple(sample.masks.shape)}, got {tuple(where.shape)}")
    if where.dtype != torch.bool and not ((where == 0) | (where == 1)).all():
        raise InputError("rationales: expected True and False, or 0 and 1")
    return where.bool() & sample.valid


def bootstrap_means(values: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """95% intervals of each row's mean over its finite entries, the same inputs drawn for all. (m, n) -> (m,), (m,)."""
    rng = np.random.default_rng([seed, 51])
    n = values.shape[1]
    known = np.isfinite(values)
    filled = np.where(known, values, 0.0)
    means = np.empty((N_BOOTSTRAP, len(values)))
    for b in range(N_BOOTSTRAP):
        counts = np.bincount(rng.integers(0, n, n), minlength=n)
        total = known @ counts
        with np.errstate(invalid="ignore"):
            means[b] = filled @ counts / total
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice")  # a metric that says nothing of any input: NaN is the answer
        low, high = np.nanquantile(means, [0.025, 0.975], axis=0)
    return low, high
