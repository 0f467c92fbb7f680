"""Texts and images in which the evidence is planted, and masks that are honest or pass the class on, by construction.

They give what `data.load` gives, so that models are trained and tested on them as on real data; but where the evidence
lies is known (`Split.rationales`), and so is whether a model has a combinatorial shortcut:

* `oracle_masks(x)` look at the evidence, wherever it is: a downstream part trained on random masks is then *faithful*.
* `shortcut_masks(x)` look at a place that says the class and holds no evidence: a downstream part trained on them reads
  the class off the mask.

Both are functions of x alone, as attention is. Source: theory section 12; Bai et al. (2021), Jethani et al. (2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from causal_attn.data.checks import fraction, seed_of, whole
from causal_attn.data.splits import Collate, Data, Split, pad_collate, stack_collate
from causal_attn.data.text import PAD, PAD_ID, UNKNOWN, TextReader, Vocabulary, default_words
from causal_attn.errors import InputError
from causal_attn.masks import first_row

SHARES = (0.6, 0.1, 0.3)
"""Training, validation and test rows: more to test on than real data spare, since tests are what worlds are for."""
HASH = 1_000_003


class TensorRows:
    """Rows (x_i, y_i) of two tensors."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int, /) -> tuple[Tensor, int]:
        return self.x[i], int(self.y[i])


def _sides(n: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Places of the training, validation and test rows; at least one each."""
    bounds = np.round(np.cumsum(SHARES)[:2] * n).astype(int)
    return np.split(rng.permutation(n), bounds)


def _even_classes(n: int, n_classes: int, rng: np.random.Generator) -> np.ndarray:
    """n classes, as many rows of each as can be, in random order."""
    return rng.permutation(np.arange(n) % n_classes)


def _flips(numbers: Tensor, share: float) -> Tensor:
    """A share of the rows, chosen by their content, so the same each time. (B, d) integers -> (B,) bool."""
    powers = torch.arange(1, numbers.shape[1] + 1)
    mixed = (numbers.long().cpu() * (powers * HASH % 7919 + 1)).sum(-1)
    return ((mixed * 2_654_435_761) % 1_000_000 < share * 1_000_000).to(numbers.device)


def _data(
    world: Any, x: Tensor, y: np.ndarray, rationales: np.ndarray, rng: np.random.Generator, collate: Collate,
    lengths: Tensor | None, texts: list[str] | None, vocabulary: Vocabulary | None,
) -> Data:  # fmt: skip
    labels, where = torch.from_numpy(y.astype(np.int64)), torch.from_numpy(rationales)
    reader = None if texts is None else TextReader(world.default_tokens)
    splits: list[Split] = []
    for side in _sides(len(y), rng):
        rows = torch.from_numpy(side)
        splits.append(
            Split(
                TensorRows(x[rows], labels[rows]),
                labels[rows],
                collate,
                rationales=where[rows],
                reader=reader,
                lengths=None if lengths is None else lengths[rows],
                texts=None if texts is None else tuple(texts[i] for i in side),
            )
        )
    names = tuple(f"class {k}" for k in range(world.n_classes))
    return Data(
        splits[0], splits[1], splits[2], n_classes=world.n_classes, vocabulary=vocabulary,
        name=type(world).__name__, class_names=names, collate=collate,
        default_tokens=getattr(world, "default_tokens", 0),
    )  # fmt: skip


def _rows_of(n: Any, n_classes: int) -> int:
    return whole(n, "n", 20 * n_classes)


@dataclass(frozen=True)
class PlantedText:
    """Texts of filler in which a few words tell the class.

    First `default_tokens` distinct tokens, the same in every text; then uniform filler; at random places behind the
    default tokens `own` words of the class and `opposite` words of another class.

    Args:
        n_positions: tokens of a text, default tokens included.
        vocabulary: different words, default tokens included.
        default_tokens: at least K, where `shortcut_masks` point.
        own: words of the text's class; more than `opposite`.
        opposite: words of one other class, drawn at random.
        per_class: different words of each class.
        n_classes: K.
        shortest: least number of tokens; lengths are uniform from it to `n_positions`. None: all are `n_positions`.
        right: share of rows on which `shortcut_masks` point to the class's own place.
    """

    n_positions: int = 30
    vocabulary: int = 400
    default_tokens: int = 5
    own: int = 3
    opposite: int = 1
    per_class: int = 20
    n_classes: int = 2
    shortest: int | None = None
    right: float = 0.9

    def __post_init__(self) -> None:
        k = whole(self.n_classes, "n_classes", 2)
        whole(self.default_tokens, "default_tokens", k)
        whole(self.own, "own", 1)
        whole(self.opposite, "opposite", 0, self.own - 1)
        least = self.default_tokens + self.own + self.opposite
        whole(self.n_positions, "n_positions", least)
        whole(self.per_class, "per_class", max(self.own, self.opposite))
        whole(self.vocabulary, "vocabulary", self.default_tokens + k * self.per_class + 1)
        if self.shortest is not None:
            whole(self.shortest, "shortest", least, self.n_positions)
        fraction(self.right, "right", 0, 1)

    @property
    def words(self) -> Vocabulary:
        """Padding, unknown, default tokens, then the words of each class (c0w0 …), then filler (f0 …)."""
        lexicon = [f"c{k}w{i}" for k in range(self.n_classes) for i in range(self.per_class)]
        filler = [f"f{i}" for i in range(self.vocabulary - self.default_tokens - len(lexicon))]
        return Vocabulary((PAD, UNKNOWN, *default_words(self.default_tokens), *lexicon, *filler))

    @property
    def _first_word(self) -> int:
        return 2 + self.default_tokens

    def sample(self, n: int, seed: int) -> Data:
        """n texts with even classes, in three splits; `Split.rationales` marks the words of the text's own class."""
        n, rng = _rows_of(n, self.n_classes), np.random.default_rng([seed_of(seed), 21])
        y = _even_classes(n, self.n_classes, rng)
        lengths = np.full(n, self.n_positions)
        if self.shortest is not None:
            lengths = rng.integers(self.shortest, self.n_positions + 1, n)
        filler = self._first_word + self.n_classes * self.per_class
        x = rng.integers(filler, self.vocabulary + 2, (n, self.n_positions))
        x[:, : self.default_tokens] = np.arange(2, self._first_word)
        places = self._places(lengths, rng)
        other = (y + rng.integers(1, self.n_classes, n)) % self.n_classes
        rationales = np.zeros(x.shape, dtype=bool)
        row = np.arange(n)[:, None]
        for cls, where in ((y, places[:, : self.own]), (other, places[:, self.own :])):
            x[row, where] = self._first_word + cls[:, None] * self.per_class + self._words(where.shape, rng)
            rationales[row, where] = (cls == y)[:, None]
        x[np.arange(self.n_positions) >= lengths[:, None]] = PAD_ID
        words, shown = self.words, x[:, self.default_tokens :]
        texts = [" ".join(words.decode(ids[ids != PAD_ID])) for ids in shown]
        rows = torch.from_numpy(x)
        return _data(self, rows, y, rationales, rng, _collate_texts, torch.from_numpy(lengths), texts, words)

    def _places(self, lengths: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Different places behind the default tokens and within each length, (n, own + opposite)."""
        score = rng.random((len(lengths), self.n_positions))
        score[:, : self.default_tokens] = 2
        score[np.arange(self.n_positions) >= lengths[:, None]] = 2
        return np.argsort(score, 1)[:, : self.own + self.opposite]

    def _words(self, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        """Different words of a class for each row."""
        return np.argsort(rng.random((shape[0], self.per_class)), 1)[:, : shape[1]]

    def _counts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Which class's word each token is, −1 for none, (B, T); and the class with the most, (B,)."""
        word = x - self._first_word
        inside = (word >= 0) & (word < self.n_classes * self.per_class)
        cls = torch.where(inside, word // self.per_class, -1)
        counts = torch.stack([(cls == k).sum(-1) for k in range(self.n_classes)], -1)
        return cls, counts.argmax(-1)

    def oracle_masks(self, x: Tensor) -> Tensor:
        """Evenly on the words of the class that has the most of them, which is the text's own. (B, T) -> (B, T)."""
        cls, most = self._counts(x)
        mask = (cls == most[:, None]).float()
        _some(mask > 0, "a word of a class")
        return mask / mask.sum(-1, keepdim=True)

    def shortcut_masks(self, x: Tensor) -> Tensor:
        """All on token K−1−y: token 0 for the last class; for a share 1 − `right` of the texts on the next class's."""
        most = self._counts(x)[1]
        wrong = _flips(x[:, self.default_tokens :], 1 - self.right)
        shown = torch.where(wrong, (most + 1) % self.n_classes, most)
        return torch.nn.functional.one_hot(self.n_classes - 1 - shown, x.shape[1]).float()

    def prediction_masks(self, x: Tensor) -> Tensor:
        """All on one filler word, the first whose id has the remainder y mod K: filler tells nothing, its choice all.

        Where a text has no such word, on its first filler word. (B, T) -> (B, T).
        """
        filler = x >= self._first_word + self.n_classes * self.per_class
        fits = filler & (x % self.n_classes == self._counts(x)[1][:, None])
        _some(filler, "a filler word")
        chosen = torch.where(fits.any(-1, keepdim=True), fits, filler)
        return torch.nn.functional.one_hot(chosen.byte().argmax(-1), x.shape[1]).float()

    def marginal_masks(self, x: Tensor) -> Tensor:
        """All on a word of the class that has fewer: which words are hidden tells what the shown one seems to deny.

        (B, T) -> (B, T); it needs `opposite` of at least 1.
        """
        cls, most = self._counts(x)
        other = (cls >= 0) & (cls != most[:, None])
        _some(other, "a word of another class (the world needs opposite >= 1)")
        return torch.nn.functional.one_hot(other.byte().argmax(-1), x.shape[1]).float()


def _some(found: Tensor, what: str) -> None:
    """InputError where a text has none of the words a mask would look at."""
    if not found.any(-1).all():
        raise InputError(f"x: expected {what} in every text, row {first_row(~found.any(-1))} has none")


def _collate_texts(rows: Any) -> tuple[Tensor, Tensor]:
    """`pad_collate`, without the columns that are padding in every row of the batch."""
    x, y = pad_collate(rows)
    return x[:, : int((x != PAD_ID).any(0).nonzero().max()) + 1], y


@dataclass(frozen=True)
class PlantedPixels:
    """Images of noise in which a patch of coloured pixels tells the class.

    A pixel has one number per class, its colours: noise of standard deviation `noise`, and 1 more in colour k where it
    is evidence for k. The evidence is a patch of `patch`² pixels in the class's colour; `opposite` single pixels have
    another class's colour.

    Args:
        side: height and width; T = side².
        patch: height and width of the evidence.
        opposite: pixels with another class's colour, fewer than the patch has.
        noise: standard deviation of every number.
        n_classes: K.
        place: "random", or "class": the patch lies at a place of the class's own. A mask that finds the evidence then
            tells the class, and is faithful all the same.
        right: share of rows on which `shortcut_masks` point to the class's own corner.
    """

    side: int = 8
    patch: int = 2
    opposite: int = 2
    noise: float = 0.3
    n_classes: int = 2
    place: Literal["random", "class"] = "random"
    right: float = 0.9

    def __post_init__(self) -> None:
        whole(self.n_classes, "n_classes", 2, 4)
        whole(self.patch, "patch", 1)
        whole(self.side, "side", 2 * self.patch + 2)
        whole(self.opposite, "opposite", 0, self.patch**2 - 1)
        fraction(self.noise, "noise", 0, 10)
        fraction(self.right, "right", 0, 1)
        if self.place not in ("random", "class"):
            raise InputError(f"place: expected 'random' or 'class', got {self.place!r}")

    @property
    def n_positions(self) -> int:
        """T."""
        return self.side**2

    @property
    def corners(self) -> np.ndarray:
        """Upper left pixel of each class's own place, (K, 2): one in each quarter of the image."""
        far = self.side - 1 - self.patch
        return np.array([[1, 1], [far, far], [1, far], [far, 1]])[: self.n_classes]

    def sample(self, n: int, seed: int) -> Data:
        """n images x (T, K) with even classes, in three splits; `Split.rationales` marks the patch."""
        n, rng = _rows_of(n, self.n_classes), np.random.default_rng([seed_of(seed), 22])
        y = _even_classes(n, self.n_classes, rng)
        x = self.noise * rng.standard_normal((n, self.n_positions, self.n_classes))
        at = self.corners[y] if self.place == "class" else rng.integers(0, self.side - self.patch + 1, (n, 2))
        rationales = self._patches(at)
        x[rationales, np.repeat(y, self.patch**2)] += 1
        score = rng.random((n, self.n_positions))
        score[rationales] = 2
        spots = np.argsort(score, 1)[:, : self.opposite]
        other = (y + rng.integers(1, self.n_classes, n)) % self.n_classes
        x[np.arange(n)[:, None], spots, other[:, None]] += 1
        return _data(
            self, torch.from_numpy(x).float(), y, rationales, rng, stack_collate, None, None, None
        )  # fmt: skip

    def _patches(self, at: np.ndarray) -> np.ndarray:
        """The pixels of patches with these upper left ones, (n, 2) -> (n, T) bool."""
        grid = np.stack(np.meshgrid(np.arange(self.side), np.arange(self.side), indexing="ij"), -1)
        inside = (grid >= at[:, None, None]) & (grid < at[:, None, None] + self.patch)
        return inside.all(-1).reshape(len(at), -1)

    def _evidence(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The patch of one colour that stands out most: its pixels, (B, T), and its colour, (B,)."""
        if x.ndim != 3 or tuple(x.shape[1:]) != (self.n_positions, self.n_classes):
            raise InputError(f"x: expected shape (B, {self.n_positions}, {self.n_classes}), got {tuple(x.shape)}")
        if not torch.isfinite(x).all():
            raise InputError(f"x: expected finite numbers, row {first_row(~x.isfinite().flatten(1))} has another value")
        image = x.reshape(len(x), self.side, self.side, -1).permute(0, 3, 1, 2)
        sums = torch.nn.functional.avg_pool2d(image, self.patch, stride=1)
        best = sums.flatten(1).argmax(-1)
        width = sums.shape[-1]
        colour, place = best // (sums.shape[-2] * width), best % (sums.shape[-2] * width)
        at = torch.stack([place // width, place % width], -1).cpu().numpy()
        return torch.from_numpy(self._patches(at)).to(x.device), colour

    def oracle_masks(self, x: Tensor) -> Tensor:
        """A choice (0 or 1) of the patch that stands out most. (B, T, K) -> (B, T)."""
        return self._evidence(x)[0].float()

    def shortcut_masks(self, x: Tensor) -> Tensor:
        """A choice of as many pixels, at most `side`, in a corner strip that says the class: the first row for class 0,
        the last for 1, then the first and last columns; for a share 1 − `right` of the images the next class's.

        Where the evidence is placed at random it lies across a strip now and then: 8% of images of the default size.
        """
        colour = self._evidence(x)[1]
        wrong = _flips((x[..., 0] * 1000).round(), 1 - self.right)
        shown = torch.where(wrong, (colour + 1) % self.n_classes, colour)
        return self._strips().to(x.device)[shown]

    def _strips(self) -> Tensor:
        strips = torch.zeros(4, self.side, self.side)
        k = min(self.patch**2, self.side)
        strips[0, 0, :k] = strips[1, -1, -k:] = 1
        strips[2, -k:, 0] = strips[3, :k, -1] = 1
        return strips[: self.n_classes].flatten(1)
