"""Does the downstream part take its answer from the mask? Tests with intervals, and a verdict."""

from causal_attn.faithfulness.compare import Comparison, compare
from causal_attn.faithfulness.evaluator import train_evaluator
from causal_attn.faithfulness.reliance import reliance
from causal_attn.faithfulness.shortcut import ShortcutTest, shortcut_test

__all__ = ["Comparison", "ShortcutTest", "compare", "reliance", "shortcut_test", "train_evaluator"]
