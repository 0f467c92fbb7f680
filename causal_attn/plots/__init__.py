"""Figures of masks and weights: results in, matplotlib Axes in and out, each usable alone.

    ax = causal_attn.plots.weight_histogram(weights)
    ax.figure.savefig("weights.png")

Every function draws on the `ax` it is given, or in a figure of its own where that is None. pyplot is never used: it
keeps global state, and a library must not touch its user's.
"""

from causal_attn.plots.balance import love
from causal_attn.plots.by_class import overlap, weight_histogram
from causal_attn.plots.reliability import calibration
from causal_attn.plots.tail import khat

__all__ = ["calibration", "khat", "love", "overlap", "weight_histogram"]
