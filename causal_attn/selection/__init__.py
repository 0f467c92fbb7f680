"""P(y|m) with the selection variable S explicit, in Pyro; and the weights that follow from it."""

from causal_attn.selection.classifier import SelectionClassifier
from causal_attn.selection.estimator import SelectionModel
from causal_attn.selection.fit import SelectionFit
from causal_attn.selection.model import SelectionStory

__all__ = ["SelectionClassifier", "SelectionFit", "SelectionModel", "SelectionStory"]
