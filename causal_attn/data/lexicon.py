"""Sentiment words of the VADER lexicon (Hutto & Gilbert 2014): a stand-in for human rationales."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from causal_attn.errors import MissingExtraError


@cache
def sentiment_words() -> frozenset[str]:
    """The lexicon's lower-case single words, emoticons and phrases left out; read as a file, never imported.

    Raises:
        MissingExtraError: the package vaderSentiment is not installed.
    """
    spec = find_spec("vaderSentiment")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("the VADER lexicon needs `pip install causal-attn[study]`")
    path = Path(next(iter(spec.submodule_search_locations))) / "vader_lexicon.txt"
    words = (line.split("\t", 1)[0].strip().lower() for line in path.read_text(encoding="utf-8").splitlines() if line)
    return frozenset(word for word in words if word.replace("'", "").replace("-", "").isalpha())
