"""What a `MaskSample` and its `Weights` say, without the model that made them."""

from causal_attn.diagnostics.leakage import LeakageTest, leakage_test

__all__ = ["LeakageTest", "leakage_test"]
