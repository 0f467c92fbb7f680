"""Selection weights w(y, m) = P(y) / P(y | m): what they are, and whether they can stand for Q.

E_P[w L] = E_Q[L] when S depends on (Y, M) alone and P, Q share both margins (theory, assumptions A1 to A3). Under that
law Q the mask is independent of the class. Everything is kept as logs; nothing is self-normalised before the support
deficit has been reported, since a mask that determines the class gives perfect-looking equal weights.

`formula` has the weight, `support` the support deficit, `core` the object users hold, `estimate` averages under Q.
"""

from causal_attn.weights.core import Weights
from causal_attn.weights.estimate import WeightedMean, weighted_mean
from causal_attn.weights.formula import effective_sample_size, stabilised_log_weights, weight_entropy
from causal_attn.weights.support import SupportDeficit, rank_inversion, support_deficit

__all__ = [
    "SupportDeficit", "WeightedMean", "Weights", "effective_sample_size", "rank_inversion", "stabilised_log_weights",
    "support_deficit", "weight_entropy", "weighted_mean",
]  # fmt: skip
