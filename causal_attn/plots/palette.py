"""Colours, markers and line styles: one per scheme and one per class, the same in every figure and on the page.

Schemes use the Okabe-Ito palette, classes Paul Tol's muted one, so that a class is never taken for a scheme. Both are
safe for colour-blind readers, and a marker or a line style always says the same thing again.
"""

from __future__ import annotations

INK = "#1d2433"
MUTED = "#5d6675"
GRID = "#e4e7ec"
SHADE = "#f0e6d2"
FAINT = "#c4cad4"
ACCENT = "#1f5fa8"
WARN = "#d08700"
BAD = "#b3261e"
"""Of figures that show neither schemes nor classes: what matters, what to look at, and what is wrong."""

_SCHEMES = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#595959", "#7A6A00")
_MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")
_GLYPHS = ("●", "■", "◆", "▲", "▼", "✚", "✖", "★")
_CLASSES = (
    "#332288", "#CC6677", "#117733", "#DDAA33", "#66B8E0", "#AA4499", "#44AA99", "#888822", "#882255", "#555555",
)  # fmt: skip
_LINES: tuple[str | tuple[int, tuple[float, ...]], ...] = ("-", "--", (0, (4, 1.5, 1, 1.5)), (0, (1, 1.2)))


def scheme_colour(i: int) -> str:
    """Colour of the i-th scheme."""
    return _SCHEMES[i % len(_SCHEMES)]


def scheme_marker(i: int) -> str:
    """Matplotlib's marker for the i-th scheme."""
    return _MARKERS[i % len(_MARKERS)]


def scheme_glyph(i: int) -> str:
    """The same marker as a character, for the page."""
    return _GLYPHS[i % len(_GLYPHS)]


def class_colour(k: int) -> str:
    """Colour of class k; beyond ten classes the line style tells repeated colours apart."""
    return _CLASSES[k % len(_CLASSES)]


def class_line(k: int) -> str | tuple[int, tuple[float, ...]]:
    """Line style of class k: neighbours differ, and no colour comes twice with one style below forty classes."""
    return _LINES[(k + k // len(_CLASSES)) % len(_LINES)]
