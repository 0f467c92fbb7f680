"""causal_attn: does your attention leak the answer through the mask, and can weighting repair it?

    import causal_attn as ca

    data = ca.data.load("rotten_tomatoes", default_tokens=5)
    model = ca.attention.TextAttention.for_data(data, downstream="recurrent", word_dropout=0.5)
    erm = ca.train(model, data, scheme=ca.ERM(), seed=0)
    print(ca.shortcut_test(erm, "test"))             # leakage, reliance, gap, verdict

    fit = ca.SelectionModel().fit(erm.masks("train"), folds=5, seed=0)
    print(fit.weights().summary())                   # w = P(y)/P(y|m): effective sample size, support deficit

    warm = ca.train(model.fresh(seed=0), data, scheme=ca.RandomAttentionPretraining(then="joint"), seed=0)
    print(ca.compare({"erm": erm, "warm": warm}, "test"))

Names load on first use (PEP 562): importing the package loads neither torch, Pyro nor ArviZ.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from causal_attn import attention, data, plots, report, study
    from causal_attn.diagnostics import LeakageTest, balance_table, leakage_test
    from causal_attn.faithfulness import (
        Comparison,
        EncodingScore,
        FaithfulnessSuite,
        ShortcutTest,
        accuracy_at_k,
        compare,
        encoding_score,
        faithfulness_suite,
        shortcut_test,
        train_evaluator,
    )  # fmt: skip
    from causal_attn.masks import MaskSample
    from causal_attn.selection import SelectionFit, SelectionModel
    from causal_attn.study import Diagnosis, StudyConfig, StudyResult, diagnose, run_study
    from causal_attn.training import (
        ERM,
        AlternatingRandomAttention,
        InstanceWeighting,
        LeakagePenalty,
        RandomAttentionPretraining,
        SkewedGenerator,
        SkewedPredictor,
        TrainResult,
        train,
    )  # fmt: skip
    from causal_attn.weights import WeightedMean, Weights, weighted_mean

__version__ = "0.1.0"

_WHERE = {
    "LeakageTest": "diagnostics", "balance_table": "diagnostics", "leakage_test": "diagnostics",
    "Comparison": "faithfulness", "EncodingScore": "faithfulness", "FaithfulnessSuite": "faithfulness",
    "ShortcutTest": "faithfulness", "accuracy_at_k": "faithfulness", "compare": "faithfulness",
    "encoding_score": "faithfulness", "faithfulness_suite": "faithfulness", "shortcut_test": "faithfulness",
    "train_evaluator": "faithfulness",
    "MaskSample": "masks",
    "SelectionFit": "selection", "SelectionModel": "selection",
    "Diagnosis": "study", "StudyConfig": "study", "StudyResult": "study", "diagnose": "study", "run_study": "study",
    "AlternatingRandomAttention": "training", "LeakagePenalty": "training",
    "ERM": "training", "InstanceWeighting": "training", "RandomAttentionPretraining": "training",
    "SkewedGenerator": "training", "SkewedPredictor": "training",
    "TrainResult": "training", "train": "training",
    "WeightedMean": "weights", "Weights": "weights", "weighted_mean": "weights",
}  # fmt: skip
_MODULES = (
    "attention", "data", "diagnostics", "errors", "faithfulness", "masks", "plots", "report", "selection", "study",
    "training", "weights",
)  # fmt: skip

__all__ = [
    "ERM",
    "AlternatingRandomAttention",
    "Comparison",
    "Diagnosis",
    "EncodingScore",
    "FaithfulnessSuite",
    "InstanceWeighting",
    "LeakagePenalty",
    "LeakageTest",
    "MaskSample",
    "RandomAttentionPretraining",
    "SelectionFit",
    "SelectionModel",
    "ShortcutTest",
    "SkewedGenerator",
    "SkewedPredictor",
    "StudyConfig",
    "StudyResult",
    "TrainResult",
    "WeightedMean",
    "Weights",
    "accuracy_at_k",
    "attention",
    "balance_table",
    "compare",
    "data",
    "diagnose",
    "encoding_score",
    "faithfulness_suite",
    "leakage_test",
    "plots",
    "report",
    "run_study",
    "shortcut_test",
    "study",
    "train",
    "train_evaluator",
    "weighted_mean",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(f"causal_attn.{_WHERE[name]}"), name)
    if name in _MODULES:
        return import_module(f"causal_attn.{name}")
    raise AttributeError(f"module 'causal_attn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE, *_MODULES])
