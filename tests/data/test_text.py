"""Tokens as a person would count them, and a vocabulary whose ids mean what they say."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from causal_attn.data.text import TextReader, Vocabulary, has_tokens, tokenise
from causal_attn.errors import InputError


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("It's GOOD, isn't it?", ["it's", "good", ",", "isn't", "it", "?"]),
        ("one<br /><br />two</i>", ["one", "two"]),
        ("3 < 4 and 5 > 2", ["3", "4", "and", "5", "2"]),  # not a tag: nothing is lost
        ("don’t stop!!", ["don't", "stop", "!", "!"]),
        ("'quoted' -- (aside); end: yes.", ["quoted", "aside", ";", "end", ":", "yes", "."]),
        ("Café, cafe\u0301", ["café", ",", "café"]),
        ("snake_case [unk] [d1]", ["snake", "case", "unk", "d1"]),  # no text can hold a special token
        ("<br /> *** ☺", []),
        ("\u037e", [";"]),  # the Greek question mark is a semicolon once composed
    ],
)
def test_tokenise(text: str, tokens: list[str]) -> None:
    assert tokenise(text) == tokens
    assert has_tokens(text) == bool(tokens)


@settings(deadline=None)
@given(st.text())
def test_tokenising_tokens_again_changes_nothing(text: str) -> None:
    tokens = tokenise(text)
    assert tokenise(" ".join(tokens)) == tokens
    assert has_tokens(text) == bool(tokens)


def test_words_come_by_falling_count_then_alphabet_after_the_special_ones() -> None:
    vocabulary = Vocabulary.build([["b", "a", "b", "rare"], ["c", "a", "c", "b"]], min_count=2, default_tokens=2)
    assert vocabulary.words == ("", "[unk]", "[d1]", "[d2]", "b", "a", "c")
    assert len(vocabulary) == 7


def test_encode_and_decode_are_inverse_but_for_unknown_words() -> None:
    vocabulary = Vocabulary.build([["a", "b"]], min_count=1, default_tokens=1)
    ids = vocabulary.encode(["[d1]", "b", "never", "a"])
    assert ids.dtype == torch.int64
    assert vocabulary.decode(ids) == ["[d1]", "b", "[unk]", "a"]
    assert vocabulary.decode(torch.tensor([2, 0, 0])) == ["[d1]", "", ""]
    with pytest.raises(InputError, match=r"ids: expected 0\.\.4, position 1 is 9"):
        vocabulary.decode([0, 9])


@pytest.mark.parametrize("words", [("a", "b"), ("", "[unk]", "a", "a")])
def test_a_vocabulary_refuses_words_that_are_not_ids(words: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="words: expected"):
        Vocabulary(words)


@pytest.mark.parametrize("min_count", [0, 1.5, True, "2"])
def test_min_count_is_a_positive_integer(min_count: object) -> None:
    with pytest.raises(InputError, match="min_count: expected an integer of at least 1"):
        Vocabulary.build([["a"]], min_count=min_count)  # type: ignore[arg-type]


def test_a_reader_cuts_a_texts_own_tokens_only() -> None:
    reader = TextReader(default_tokens=2, max_tokens=3)
    assert reader("One two three four five") == ["[d1]", "[d2]", "one", "two", "three"]
    assert reader.n_cut(tokenise("One two three four five")) == 2
    assert reader.n_cut(["one"]) == 0
    assert TextReader()("One two") == ["one", "two"]
