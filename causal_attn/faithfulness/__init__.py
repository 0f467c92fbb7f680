"""Does the downstream part take its answer from the mask? Tests with intervals, and a verdict.

* `shortcut_test`: leakage, reliance and the own − EVAL-X gap, and what they say together.
* `accuracy_at_k`, `encoding_score`: what a selection shows, and what it gives away by being that selection.
* `faithfulness_suite`: every metric of `METRICS` for attention and its rivals, and what replacing attention does.
"""

from causal_attn.faithfulness.at_k import accuracy_at_k
from causal_attn.faithfulness.compare import Comparison, compare
from causal_attn.faithfulness.controls import CONTROLS
from causal_attn.faithfulness.encoding import EncodingScore, encoding_score
from causal_attn.faithfulness.evaluator import train_evaluator
from causal_attn.faithfulness.metrics import METRICS
from causal_attn.faithfulness.reliance import reliance
from causal_attn.faithfulness.scores import SCORERS
from causal_attn.faithfulness.shortcut import ShortcutTest, shortcut_test
from causal_attn.faithfulness.suite import FaithfulnessSuite, faithfulness_suite

__all__ = [
    "CONTROLS", "METRICS", "SCORERS", "Comparison", "EncodingScore", "FaithfulnessSuite", "ShortcutTest",
    "accuracy_at_k", "compare", "encoding_score", "faithfulness_suite", "reliance", "shortcut_test", "train_evaluator",
]  # fmt: skip
