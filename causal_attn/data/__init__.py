"""Data as splits: real sets, users' own files and torch Datasets; and `worlds`, simulated, whose weights are known.

data = load("rotten_tomatoes")          # or load("reviews.csv"): columns text,label
data.train.batch([0, 1, 2])             # token ids (B, T), padded with 0, and classes (B,)
sample = worlds.Gaussian().sample(1000, seed=0)
"""

from causal_attn.data import worlds
from causal_attn.data.loading import from_datasets, load
from causal_attn.data.sources import describe, names
from causal_attn.data.splits import Data, Split, pad_collate
from causal_attn.data.text import Vocabulary, tokenise

__all__ = [
    "Data", "Split", "Vocabulary", "describe", "from_datasets", "load", "names", "pad_collate", "tokenise", "worlds",
]  # fmt: skip
