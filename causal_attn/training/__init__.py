"""One loop, and the schemes that say what changes in it."""

from causal_attn.training.injection import SkewedGenerator, SkewedPredictor
from causal_attn.training.loop import train
from causal_attn.training.result import Evaluation, TrainResult
from causal_attn.training.schemes import (
    ERM,
    AlternatingRandomAttention,
    InstanceWeighting,
    LeakagePenalty,
    RandomAttentionPretraining,
    RandomMasksOnly,
    Scheme,
)  # fmt: skip

__all__ = [
    "ERM", "AlternatingRandomAttention", "Evaluation", "InstanceWeighting",
    "LeakagePenalty", "RandomAttentionPretraining", "RandomMasksOnly", "Scheme",
    "SkewedGenerator", "SkewedPredictor", "TrainResult", "train",
]  # fmt: skip
