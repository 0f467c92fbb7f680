"""A text classifier whose attention has eyes of its own, built so that what the mask carries can be studied.

Attention and downstream part share no parameter: each has its own embedding, so that the only way from one to the other
is m. Word dropout on the downstream input alone is what makes joint training build a shortcut: attention then sees
every word, the downstream part only some of them, and m is a channel to tell it the class (Bai et al. 2021,
arXiv 2006.05656, for the phenomenon). With `word_dropout=0` joint training often builds none.
"""

from __future__ import annotations

import inspect
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from causal_attn.attention.readers import AdditiveAttention, ConcatenatedReader, PooledReader, RecurrentReader
from causal_attn.attention.seeding import forked_rng
from causal_attn.errors import InputError
from causal_attn.masks import first_row

Downstream = Literal["recurrent", "pooled", "concatenated"]
PADDING = 0
"""The token id of a position that does not exist; elsewhere in a row it is an error of the data, and never attended."""
ATTENTION_SCALE = 0.1
DOWNSTREAM_SCALE = {"recurrent": 0.3, "pooled": 0.3, "concatenated": 0.1}
"""Standard deviations of fresh embeddings. Adam learns words faster from small ones: attention learns them first here,
as it does where attention is the larger part of a model, and that is when joint training builds a shortcut."""
DROPOUT = {"recurrent": 0.6, "pooled": 0.6, "concatenated": 0.3}
"""Found on short film reviews. Side by side a word is learnt anew at each place, which leaves less room for noise."""


class TextAttention(nn.Module):
    r"""Additive attention over words, and a downstream part that reads the words under it.

    m = softmax_t v·tanh(W h_t) with h a bidirectional GRU over the attention's own embedding. The downstream part reads
    its own embedding e: *pooled* a network of Σ_t m_t e_t; *recurrent* a bidirectional GRU over m_t·n e_t, n the number
    of tokens; *concatenated* a network of all m_t·n e_t side by side. x is a LongTensor (B, T), 0 where padded; a row
    has the same result whatever its padding.

    Args:
        vocabulary_size: number of token ids, padding included.
        n_classes: K >= 2.
        downstream: "recurrent", "pooled" or "concatenated".
        max_length: the most tokens of a row; needed by "concatenated", unused by the others.
        embedding: width of both embeddings.
        hidden: width of GRU states (per direction) and hidden layers.
        word_dropout: probability that training hides a token from the downstream part (its embedding becomes 0).
        dropout: probability of dropping single numbers of both embeddings, and before the last layer.
            None: what suits the downstream part, see `DROPOUT`.
        seed: draws the parameters; global random state is untouched.

    Raises:
        InputError: an argument out of range; at use, an x that is no batch of token ids, or is too long.
    """

    def __init__(
        self,
        vocabulary_size: int,
        n_classes: int,
        downstream: Downstream = "recurrent",
        max_length: int | None = None,
        embedding: int = 64,
        hidden: int = 32,
        word_dropout: float = 0.0,
        dropout: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        given = locals()
        self.config: dict[str, Any] = {name: given[name] for name in _ARGUMENTS}
        _check_config(self.config)
        dropout = self.config["dropout"] = DROPOUT[downstream] if dropout is None else dropout
        self.word_dropout = word_dropout
        with forked_rng(seed):
            self.attention_embedding = _embedding(vocabulary_size, embedding, ATTENTION_SCALE)
            self.attention = AdditiveAttention(embedding, hidden, dropout)
            self.embedding = _embedding(vocabulary_size, embedding, DOWNSTREAM_SCALE[downstream])
            self.drop = nn.Dropout(dropout)
            self.reader = _reader(downstream, embedding, hidden, n_classes, dropout, max_length)

    @classmethod
    def for_data(
        cls, data: Any, downstream: Downstream = "recurrent", word_dropout: float = 0.0, seed: int = 0, **kwargs: Any
    ) -> TextAttention:
        """A model that fits a text data set: its vocabulary, classes, and longest text where that is needed."""
        if getattr(data, "vocabulary", None) is None:
            raise InputError(f"data: expected a text data set with a vocabulary, got {getattr(data, 'name', data)!r}")
        if downstream == "concatenated" and kwargs.get("max_length") is None:
            kwargs["max_length"] = _longest(data)
        return cls(len(data.vocabulary), data.n_classes, downstream, word_dropout=word_dropout, seed=seed, **kwargs)

    def masks(self, x: Tensor) -> Tensor:
        """Attention m, shape (B, T): each row sums to 1 over its tokens and is exactly 0 on padding."""
        valid = self.valid(x)
        return self.attention(self.attention_embedding(x), valid)

    def predict(self, x: Tensor, m: Tensor) -> Tensor:
        """Logits, shape (B, K), of the tokens x, shape (B, T), under the mask m, shape (B, T)."""
        valid = self.valid(x)
        if m.shape != x.shape:
            raise InputError(f"m: expected the shape of x, {tuple(x.shape)}, got {tuple(m.shape)}")
        e = self.drop(self.embedding(x))
        if self.training and self.word_dropout > 0:
            e = e * (torch.rand(x.shape, device=x.device) >= self.word_dropout).unsqueeze(-1)
        return self.reader(e, m.to(e.dtype), valid)

    def forward(self, x: Tensor) -> Tensor:
        """Logits under the model's own attention, shape (B, K)."""
        return self.predict(x, self.masks(x))

    def valid(self, x: Tensor) -> Tensor:
        """Which positions hold a token, bool, shape (B, T)."""
        self._check_tokens(x)
        valid = x != PADDING
        empty = ~valid.any(-1)
        if empty.any():
            raise InputError(f"x: expected a token in every row, row {first_row(empty)} is all padding")
        return valid

    def fresh(self, seed: int) -> TextAttention:
        """A new model of the same configuration, on the same device, drawn from `seed`."""
        return type(self)(**{**self.config, "seed": seed}).to(self.embedding.weight.device)

    def _check_tokens(self, x: Any) -> None:
        if not isinstance(x, Tensor) or x.ndim != 2 or x.dtype not in (torch.int64, torch.int32):
            came = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise InputError(f"x: expected integer token ids of shape (B, T), got {came}")
        bad = (x < 0) | (x >= self.config["vocabulary_size"])
        if bad.any():
            row = first_row(bad)
            size = self.config["vocabulary_size"]
            raise InputError(f"x: expected token ids in 0..{size - 1}, row {row} has {int(x[row][bad[row]][0])}")


_ARGUMENTS = [name for name in inspect.signature(TextAttention.__init__).parameters if name != "self"]


def _embedding(size: int, width: int, scale: float) -> nn.Embedding:
    embedding = nn.Embedding(size, width, padding_idx=PADDING)
    with torch.no_grad():
        embedding.weight.mul_(scale)  # the padding row is zero and stays so
    return embedding


def _reader(
    downstream: str, width: int, hidden: int, n_classes: int, dropout: float, max_length: int | None
) -> nn.Module:
    if downstream == "pooled":
        return PooledReader(width, hidden, n_classes, dropout)
    if downstream == "recurrent":
        return RecurrentReader(width, hidden, n_classes, dropout)
    return ConcatenatedReader(width, hidden, n_classes, dropout, int(max_length or 0))


def _longest(data: Any) -> int:
    splits = [getattr(data, name, None) for name in ("train", "valid", "test")]
    return max(int(max(split.lengths)) for split in splits if split is not None and len(split.lengths))


def _check_config(config: dict[str, Any]) -> None:
    if config["downstream"] not in get_args(Downstream):
        raise InputError(f"downstream: expected one of {get_args(Downstream)}, got {config['downstream']!r}")
    if config["downstream"] == "concatenated" and config["max_length"] is None:
        raise InputError("max_length: expected a number of tokens for downstream='concatenated', got None")
    least = {"vocabulary_size": 2, "n_classes": 2, "embedding": 1, "hidden": 1, "max_length": 1}
    for name, bound in least.items():
        value = config[name]
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not (name == "max_length" and value is None) and not (whole and value >= bound):
            raise InputError(f"{name}: expected a whole number of at least {bound}, got {value!r}")
    for name in ("word_dropout", "dropout"):
        value = config[name]
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not (name == "dropout" and value is None) and not (number and 0 <= value < 1):
            raise InputError(f"{name}: expected a probability below 1, got {value!r}")
