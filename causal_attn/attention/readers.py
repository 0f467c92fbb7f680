"""The parts of a text classifier that read embedded words: under a mask (downstream), or to make one (attention).

A downstream reader gets embedded words e, shape (B, T, d), and the mask m, shape (B, T). Beside the pooled one it sees
m_t·n e_t, n the row's number of valid positions, so that uniform attention shows the words as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from causal_attn.errors import InputError

CONSTANT = 3.0
"""The constant component of every embedded word, which a mask scales with the rest: the mask can be read from the first
step on, before words mean anything. Without it joint training on short texts builds a shortcut late or never."""


class BiGRU(nn.Module):
    """A bidirectional GRU over [s_t e_t, s_t c], c constant, whose states do not depend on how much padding follows.

    Without biases a GRU at state zero stays there while inputs are zero (h' = (1 − z) tanh(0) + z·0), so the backward
    direction crosses the padding unchanged; the constant component stands for the bias. On a CPU this takes less than
    half the time of packed sequences, and no more than reversing each row by an index.

    Shapes: e (B, T, d), scale s (B, T), 0 on padding -> states (B, T, 2·hidden), to be read at valid positions only.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gru = nn.GRU(width + 1, hidden, batch_first=True, bidirectional=True, bias=False)

    def forward(self, e: Tensor, scale: Tensor) -> Tensor:
        words = nn.functional.pad(e, (0, 1), value=CONSTANT)
        states, _ = self.gru(words * scale.unsqueeze(-1))
        return states


class AdditiveAttention(nn.Module):
    """m = softmax over valid t of v·tanh(W h_t), h the states of a BiGRU; exactly 0 on padding. -> (B, T).

    v starts at unit scale: attention that starts nearly uniform learns late, after the downstream part has the words.
    """

    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = BiGRU(width, hidden)
        self.project = nn.Linear(2 * hidden, hidden)
        self.score = nn.Linear(hidden, 1, bias=False)
        nn.init.normal_(self.score.weight)

    def forward(self, e: Tensor, valid: Tensor) -> Tensor:
        states = self.encoder(self.drop(e), valid.to(e.dtype))
        scores = self.score(torch.tanh(self.project(states))).squeeze(-1)
        return scores.masked_fill(~valid, -torch.inf).softmax(-1)


def scale_of(m: Tensor, valid: Tensor) -> Tensor:
    """m_t·n, n the row's number of valid positions: 1 everywhere under uniform attention. (B, T)."""
    return m * valid * valid.sum(-1, keepdim=True)


def last_states(states: Tensor, valid: Tensor) -> Tensor:
    """The forward direction's state at the last valid position, the backward one's at the first. -> (B, 2·hidden)."""
    hidden, rows = states.shape[-1] // 2, torch.arange(len(states), device=states.device)
    first = valid.byte().argmax(-1)
    last = valid.shape[1] - 1 - valid.flip(-1).byte().argmax(-1)
    return torch.cat([states[rows, last, :hidden], states[rows, first, hidden:]], -1)


class PooledReader(nn.Module):
    """A small network on Σ_t m_t e_t. -> (B, K)."""

    def __init__(self, width: int, hidden: int, n_classes: int, dropout: float) -> None:
        super().__init__()
        self.head = _head(width, hidden, n_classes, dropout)

    def forward(self, e: Tensor, m: Tensor, valid: Tensor) -> Tensor:
        return self.head((e * m.unsqueeze(-1)).sum(1))


class RecurrentReader(nn.Module):
    """A BiGRU over m_t·n [e_t, c], the last state of each direction, then a linear layer. -> (B, K)."""

    def __init__(self, width: int, hidden: int, n_classes: int, dropout: float) -> None:
        super().__init__()
        self.encoder = BiGRU(width, hidden)
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(2 * hidden, n_classes))

    def forward(self, e: Tensor, m: Tensor, valid: Tensor) -> Tensor:
        states = self.encoder(e, scale_of(m, valid))
        return self.head(last_states(states, valid))


class ConcatenatedReader(nn.Module):
    """A small network on m_t·n e_t laid side by side up to a fixed length, zero beyond the text. -> (B, K)."""

    def __init__(self, width: int, hidden: int, n_classes: int, dropout: float, max_length: int) -> None:
        super().__init__()
        self.max_length = max_length
        self.head = _head(width * max_length, hidden, n_classes, dropout)

    def forward(self, e: Tensor, m: Tensor, valid: Tensor) -> Tensor:
        length = int(valid.sum(-1).max()) if e.shape[1] > self.max_length else e.shape[1]
        if length > self.max_length:
            raise InputError(f"x: expected at most max_length={self.max_length} tokens a row, got {length}")
        words = (e * scale_of(m, valid).unsqueeze(-1))[:, :length]
        return self.head(nn.functional.pad(words, (0, 0, 0, self.max_length - length)).flatten(1))


def _head(width: int, hidden: int, n_classes: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, n_classes))
