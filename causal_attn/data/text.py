"""Text to tokens to ids: one regular expression, and a vocabulary made from the training split alone."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from causal_attn.data.checks import whole
from causal_attn.errors import InputError

PAD, UNKNOWN = "", "[unk]"
"""The words of ids 0 and 1."""
PAD_ID, UNKNOWN_ID = 0, 1
TAG = re.compile(r"</?[a-z][^<>]*>", re.IGNORECASE)
TOKEN = re.compile(r"[^\W_]+(?:'[^\W_]+)*|[!?.,;:]")
"""A word with its apostrophes, or one of the marks that carry tone."""


def tokenise(text: str) -> list[str]:
    """Lower-case words, apostrophes kept, and the marks ! ? . , ; : as tokens of their own; HTML tags become a space.

    >>> tokenise("It's <br />GOOD, isn't it?")
    ["it's", 'good', ',', "isn't", 'it', '?']
    """
    return [sys.intern(token) for token in TOKEN.findall(_plain(text))]  # interned: long corpora repeat few words


def has_tokens(text: str) -> bool:
    """Whether `tokenise` would find anything in `text`."""
    return TOKEN.search(_plain(text)) is not None


def _plain(text: str) -> str:
    return unicodedata.normalize("NFC", TAG.sub(" ", text).lower()).replace("’", "'")


def default_words(n: int) -> list[str]:
    """The n tokens "[d1]".."[dn]" put before every text, the same in each; no text can contain them."""
    return [f"[d{i}]" for i in range(1, n + 1)]


@dataclass(frozen=True)
class TextReader:
    """How one data set turns a text into tokens: default tokens, then at most `max_tokens` of the text's own."""

    default_tokens: int = 0
    max_tokens: int | None = None

    def __call__(self, text: str) -> list[str]:
        """The tokens of `text` as a model is shown them."""
        return self.shown(tokenise(text))

    def shown(self, own: list[str]) -> list[str]:
        """Default tokens before a text's `own` tokens, cut to `max_tokens`."""
        return default_words(self.default_tokens) + own[: self.max_tokens]

    def n_cut(self, own: Sequence[str]) -> int:
        """How many of a text's `own` tokens are cut."""
        return 0 if self.max_tokens is None else max(0, len(own) - self.max_tokens)


@dataclass(frozen=True)
class Vocabulary:
    """Words and their ids: padding "" is 0, "[unk]" is 1, then default tokens, then words by falling count.

    Args:
        words: every word, its id being its place.
    """

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        words = tuple(self.words)
        object.__setattr__(self, "words", words)
        if words[:2] != (PAD, UNKNOWN):
            raise InputError(f"words: expected {PAD!r} and {UNKNOWN!r} first, got {words[:2]!r}")
        twice = [word for word, count in Counter(words).items() if count > 1]
        if twice:
            raise InputError(f"words: expected each word once, {twice[0]!r} comes more than once")

    @staticmethod
    def build(texts: Iterable[Sequence[str]], min_count: int = 2, default_tokens: int = 0) -> Vocabulary:
        """The vocabulary of the tokens of `texts`, the training split's.

        Args:
            texts: token lists, without the default tokens.
            min_count: words seen less often than this are unknown.
            default_tokens: N of "[d1]".."[dN]"; they are in whatever their count.
        """
        least = whole(min_count, "min_count", 1)
        counts = Counter(token for tokens in texts for token in tokens)
        kept = sorted((word for word, c in counts.items() if c >= least), key=lambda word: (-counts[word], word))
        return Vocabulary((PAD, UNKNOWN, *default_words(whole(default_tokens, "default_tokens", 0)), *kept))

    @cached_property
    def ids(self) -> dict[str, int]:
        """Word to id."""
        return {word: i for i, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} words)"

    def encode(self, tokens: Sequence[str]) -> Tensor:
        """Ids of `tokens`, int64, shape (T,); 1 for a word that is not here."""
        return torch.tensor([self.ids.get(token, UNKNOWN_ID) for token in tokens], dtype=torch.int64)

    def decode(self, ids: Any) -> list[str]:
        """The word of every id, "" for padding; ids of shape (T,).

        Raises:
            InputError: an id is out of range; names its position.
        """
        numbers = torch.as_tensor(ids).tolist()
        for position, i in enumerate(numbers):
            if not 0 <= i < len(self):
                raise InputError(f"ids: expected 0..{len(self) - 1}, position {position} is {i}")
        return [self.words[i] for i in numbers]
