"""What a `MaskSample` and its `Weights` say, without the model that made them."""

from causal_attn.diagnostics.balance import balance_table
from causal_attn.diagnostics.leakage import LeakageTest, leakage_test

__all__ = ["LeakageTest", "balance_table", "leakage_test"]
