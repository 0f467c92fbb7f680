"""Several trained models side by side: accuracy, the shortcut tests, where the attention lies, and the cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from causal_attn.data.lexicon import sentiment_words
from causal_attn.errors import InputError, MissingExtraError
from causal_attn.faithfulness.mass import by_class, first_positions, mass_on, word_positions
from causal_attn.faithfulness.metrics import METRICS
from causal_attn.faithfulness.shortcut import shortcut_test
from causal_attn.faithfulness.subject import subject_of
from causal_attn.faithfulness.suite import faithfulness_suite
from causal_attn.storage import save_json, whole_file
from causal_attn.training import InstanceWeighting, TrainResult
from causal_attn.training.settings import Settings

DIRECTIONS: dict[str, bool | None] = {
    "accuracy": True, "leakage_bits": False, "leakage_auc": False, "reliance": False, "excess_reliance": False,
    "own_accuracy_at_k": True, "evalx_accuracy": True, "gap": False, "lexicon_mass": True, "seconds": False,
}  # fmt: skip
"""Whether higher is better, by figure."""

Row = dict[str, Any]


def measure(
    result: TrainResult, split: str = "test", *, evaluator: Any = None, k: int | None = None,
    n_permutations: int = 200, seed: int = 0, progress: bool = True,
) -> Row:  # fmt: skip
    """All figures of one trained model on a split, as one row of `results.json`.

    A figure that cannot be computed is None, with its reason under "notes".
    """
    test = shortcut_test(
        result, split, k=k, evaluator=evaluator, n_permutations=n_permutations, seed=seed, progress=progress
    )
    row: Row = {
        "seed": result.seed, "accuracy": test.own_accuracy, "leakage_bits": test.leakage_bits,
        "leakage_auc": test.leakage_auc, "p_value": test.p_value, "reliance": test.reliance,
        "excess_reliance": test.excess_reliance, "own_accuracy_at_k": test.own_accuracy_at_k, "evalx_k": test.k,
        "evalx_accuracy": test.evalx_accuracy, "gap": test.gap, "verdict": test.verdict,
        "seconds": round(result.seconds, 3),
    }  # fmt: skip
    intervals = {name: list(pair) for name, pair in test.intervals.items() if name in row}
    intervals["accuracy"] = list(test.intervals["own_accuracy"])
    notes: dict[str, str] = {}
    row |= _masses(result, split, notes) | _weights(result, notes)
    row |= {"intervals": intervals, "notes": notes}
    for name in ("p_value",):
        if row[name] != row[name]:
            row[name], notes[name] = None, "no permutations were asked for"
    return row


def _masses(result: TrainResult, split: str, notes: dict[str, str]) -> Row:
    """Attention on default tokens by class, and on a sentiment lexicon's words against their share of the words."""
    sample, part = result.masks(split), result.data.split(split)
    row: Row = {"default_token_mass": None, "lexicon_mass": None, "lexicon_share": None}
    n_default = result.data.default_tokens
    if n_default:
        row["default_token_mass"] = by_class(mass_on(sample, first_positions(sample, n_default)), sample).tolist()
    else:
        notes["default_token_mass"] = "no default tokens were put before the texts"
    if part.texts is None:
        notes["lexicon_mass"] = "the data are not text"
        return row
    try:
        where = word_positions(part, sentiment_words(), sample.T)
    except MissingExtraError as error:
        notes["lexicon_mass"] = str(error)
        return row
    if not where.any():
        notes["lexicon_mass"] = "no word of the texts is in the lexicon"
        return row
    row["lexicon_mass"] = float(mass_on(sample, where).mean())
    row["lexicon_share"] = float((where.sum(-1) / sample.valid.sum(-1)).double().mean())
    return row


def _weights(result: TrainResult, notes: dict[str, str]) -> Row:
    """Support deficit and ESS at the last refresh of a weighted phase."""
    known = result.history[["support_deficit", "ess"]].dropna()
    if known.empty:
        weighted = isinstance(result.scheme, InstanceWeighting) or getattr(result.scheme, "weighting", None) is not None
        why = "training ended before the first refresh" if weighted else "this scheme does not weight its rows"
        notes["support_deficit"] = notes["ess"] = why
        return {"support_deficit": None, "ess": None}
    return {name: float(known[name].iloc[-1]) for name in ("support_deficit", "ess")}


@dataclass(frozen=True)
class Comparison:
    """Figures of several models; each name has one row per seed.

    Args:
        runs: rows by name, as in `results.json`.
        split: where they were measured.
    """

    runs: Mapping[str, Sequence[Row]]
    split: str

    def table(self) -> pd.DataFrame:
        """One row per model: the mean over its seeds, and for several seeds the standard error beside it; then the
        metrics that were asked for."""
        rows = {}
        for name, runs in self.runs.items():
            rows[name] = self._row(runs)
        return pd.DataFrame(rows).T

    def paired(self, baseline: str) -> pd.DataFrame:
        """Differences to `baseline`, paired by seed: mean, and a 95% t interval where there are several seeds."""
        if baseline not in self.runs:
            raise InputError(f"baseline: expected one of {', '.join(self.runs)}, got {baseline!r}")
        base = {run["seed"]: run for run in self.runs[baseline]}
        out = []
        for name, runs in self.runs.items():
            for figure in DIRECTIONS:
                pairs = [(r[figure], base[r["seed"]][figure]) for r in runs if r["seed"] in base]
                values = np.array([a - b for a, b in pairs if a is not None and b is not None], dtype=float)
                if name != baseline and len(values):
                    out.append({"model": name, "figure": figure, **_t_interval(values)})
        return pd.DataFrame(out, columns=["model", "figure", "difference", "low", "high", "seeds"])

    def _row(self, runs: Sequence[Row]) -> dict[str, float]:
        row: dict[str, float] = {}
        for figure in DIRECTIONS:
            values = np.array([run[figure] for run in runs if run[figure] is not None], dtype=float)
            row[figure] = float(values.mean()) if len(values) else float("nan")
            if len(values) > 1:
                row[f"{figure}_se"] = float(values.std(ddof=1) / np.sqrt(len(values)))
        for metric in runs[0].get("faithfulness", {}):
            row[metric] = float(np.mean([run["faithfulness"][metric] for run in runs]))
        return row

    def __str__(self) -> str:
        verdicts = [f"{name}: {verdict}" for name, runs in self.runs.items() for verdict in _verdicts(runs)]
        return "\n".join([self.table().round(3).T.to_string(na_rep="-"), *verdicts])

    def save(self, directory: str | Path) -> None:
        """Write comparison.json and comparison.csv into an existing directory."""
        where = Path(directory)
        save_json(where / "comparison.json", {"split": self.split, "runs": {k: list(v) for k, v in self.runs.items()}})
        with whole_file(where / "comparison.csv") as temporary:
            self.table().to_csv(temporary, index_label="model")


def _verdicts(runs: Sequence[Row]) -> list[str]:
    """The verdicts of several seeds, each with how often it came; one seed's with its reason."""
    said = [run["verdict"] for run in runs if "verdict" in run]
    if len(said) < 2:
        return said
    short = [verdict.split(":")[0] for verdict in said]
    return [f"{word} on {short.count(word)} of {len(short)} seeds" for word in dict.fromkeys(short)]


def _t_interval(values: np.ndarray) -> dict[str, float]:
    from scipy.stats import t

    n, mean = len(values), float(values.mean())
    half = float(t.ppf(0.975, n - 1) * values.std(ddof=1) / np.sqrt(n)) if n > 1 else float("nan")
    return {"difference": mean, "low": mean - half, "high": mean + half, "seeds": n}


def compare(
    results: Mapping[str, TrainResult | Sequence[TrainResult]], split: str = "test", *, k: int | None = None,
    n_permutations: int = 200, seed: int = 0, progress: bool = True, metrics: Sequence[str] = (),
) -> Comparison:  # fmt: skip
    """Measure several trained models on one split, with an EVAL-X evaluator per architecture, settings, seed and data.

    Args:
        results: trained models by name; a list holds one per seed.
        split: where they are measured.
        k: positions kept; see `shortcut_test`.
        n_permutations: of the leakage tests.
        seed: of the tests.
        progress: show bars.
        metrics: names in `METRICS`, of the attention itself, beside the rest (comprehensiveness, violation ...), each
            a column of its own. `faithfulness_suite` has the rivals and intervals.
    """
    odd = [name for name in metrics if name not in METRICS]
    if odd or isinstance(metrics, str):
        raise InputError(f"metrics: expected names among {', '.join(METRICS)}, got {odd[0] if odd else metrics!r}")
    evaluators: dict[tuple[int, int, Settings, str], Any] = {}
    runs: dict[str, list[Row]] = {}
    for name, given in _lists(results).items():
        for result in given:
            key = (id(result.data), result.seed, result.settings, repr(result.model))  # repr: its architecture
            if key not in evaluators:
                evaluators[key] = subject_of(result, split, None).evaluator(result.seed, progress, {})
            row = measure(
                result, split, evaluator=evaluators[key], k=k, n_permutations=n_permutations, seed=seed,
                progress=progress,
            )  # fmt: skip
            if metrics:
                row["faithfulness"] = _attention_metrics(result, split, metrics, evaluators[key], row["evalx_k"], seed)
            runs.setdefault(name, []).append(row)
    return Comparison(runs, split)


def _attention_metrics(
    result: TrainResult, split: str, metrics: Sequence[str], evaluator: Any, k: int, seed: int
) -> dict[str, float]:
    """Means of the metrics for the model's own masks, at the k of its shortcut test."""
    suite = faithfulness_suite(
        result, split, scores={}, evaluator=evaluator, k=k, metrics=metrics, controls=(), seed=seed,
        progress=False,
    )  # fmt: skip
    table = suite.table().set_index("metric")["value"]
    return {name: float(table[name]) for name in metrics}


def _lists(results: Any) -> dict[str, list[TrainResult]]:
    """A list of trained models for each name, all checked."""
    if not isinstance(results, Mapping) or not results:
        raise InputError(f"results: expected a mapping of names to trained models, got {results!r:.80}")
    lists = {}
    for name, given in results.items():
        lists[name] = list(given) if isinstance(given, Sequence) else [given]
        odd = [result for result in lists[name] if not isinstance(result, TrainResult)]
        if odd or not lists[name]:
            came = type(odd[0]).__name__ if odd else "an empty list"
            raise InputError(f"results: expected TrainResult for {name!r}, got {came}")
    return lists
