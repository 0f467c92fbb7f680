"""Models with attention: the protocol they follow, a wrapper for other people's, and text classifiers built here."""

from causal_attn.attention.given import given_masks
from causal_attn.attention.pixels import PixelAttention
from causal_attn.attention.protocol import AttentionClassifier, check_model, fresh_copy, valid_of
from causal_attn.attention.roles import downstream_parameters, mask_parameters, parameter_roles
from causal_attn.attention.text import TextAttention
from causal_attn.attention.wrap import Wrapped, wrap

__all__ = [
    "AttentionClassifier",
    "PixelAttention",
    "TextAttention",
    "Wrapped",
    "check_model",
    "downstream_parameters",
    "fresh_copy",
    "given_masks",
    "mask_parameters",
    "parameter_roles",
    "valid_of",
    "wrap",
]
