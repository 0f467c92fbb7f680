"""One loop, and the schemes that say what changes in it."""

from causal_attn.training.injection import SkewedGenerator, SkewedPredictor
from causal_attn.training.loop import train
from causal_attn.training.result import Evaluation, TrainResult
from causal_attn.training.schemes import ERM, InstanceWeighting, RandomAttentionPretraining, RandomMasksOnly, Scheme

__all__ = [
    "ERM", "Evaluation", "InstanceWeighting", "RandomAttentionPretraining", "RandomMasksOnly", "Scheme",
    "SkewedGenerator", "SkewedPredictor", "TrainResult", "train",
]  # fmt: skip
