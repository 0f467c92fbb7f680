"""Texts with their masks, made ready for the page: each word with how strongly it is marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from causal_attn.plots import palette
from causal_attn.report.read import Example, Results, Shown

MAX_WORDS = 60
"""Longer texts are cut, and the page says how much was left out."""

STRONG = 0.5
"""Words at or above this share of the row's maximum are also set in bold, so that colour is not alone in saying it."""


@dataclass(frozen=True)
class Word:
    """One token: its mask as text, its intensity from 0 to 1 relative to the row's largest, and what it is."""

    text: str
    mask: str
    intensity: str
    strong: bool
    default: bool


@dataclass(frozen=True)
class Row:
    """One scheme's reading of a text."""

    label: str
    glyph: str
    colour: str
    words: tuple[Word, ...]
    rest: str
    said: str
    right: bool | None
    top: str


@dataclass(frozen=True)
class Text:
    """A text, its class, and a row per scheme."""

    label: str
    rows: tuple[Row, ...]


def texts(results: Results) -> list[Text]:
    """All example texts, their schemes in the order of the table."""
    return [_text(example, results) for example in results.examples]


def _text(example: Example, results: Results) -> Text:
    known = [scheme.name for scheme in results.schemes]
    order = [name for name in known if name in example.schemes] + [n for n in example.schemes if n not in known]
    rows = tuple(_row(example, name, known.index(name) if name in known else len(known), results) for name in order)
    return Text(results.class_name(example.label), rows)


def _row(example: Example, name: str, index: int, results: Results) -> Row:
    shown = example.schemes[name]
    known = shown.prediction is not None and example.label is not None
    return Row(
        label=results.label(name),
        glyph=palette.scheme_glyph(index),
        colour=palette.scheme_colour(index),
        words=_words(example.tokens, shown.mask, results.default_tokens),
        rest=_rest(shown.mask),
        said=_said(shown, results),
        right=shown.prediction == example.label if known else None,
        top=_top(example.tokens, shown.mask),
    )


def _words(tokens: Sequence[str], mask: Sequence[float], defaults: int) -> tuple[Word, ...]:
    largest = max(mask, default=0.0)
    shares = [max(m, 0.0) / largest if largest > 0 else 0.0 for m in mask]
    every = zip(tokens[:MAX_WORDS], mask, shares, strict=False)
    return tuple(
        Word(token, f"{m:.3f}", f"{share:.2f}", share >= STRONG, i < defaults)
        for i, (token, m, share) in enumerate(every)
    )


def _rest(mask: Sequence[float]) -> str:
    """What a cut text leaves out; empty when nothing was cut."""
    left = mask[MAX_WORDS:]
    if not left:
        return ""
    return f"… ({len(left)} more word{'s' if len(left) > 1 else ''}, mass {sum(left):.2f})"


def _said(shown: Shown, results: Results) -> str:
    if shown.prediction is None:
        return "no prediction"
    sure = "" if shown.probability is None else f" ({shown.probability:.2f})"
    return f"{results.class_name(shown.prediction)}{sure}"


def _top(tokens: Sequence[str], mask: Sequence[float], n: int = 3) -> str:
    """The words of most attention with their numbers, for print and for those who cannot see the colours."""
    order = sorted(range(len(mask)), key=lambda i: -mask[i])[:n]
    return ", ".join(f"{tokens[i]} {mask[i]:.2f}" for i in order)
