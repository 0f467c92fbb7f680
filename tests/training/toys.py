"""Small data sets and models with known properties, for the tests of training, faithfulness and the study."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from causal_attn.attention import TextAttention, Wrapped, wrap
from causal_attn.data import Data, from_datasets

N_WORDS = 12


def token_rows(n: int, seed: int, longest: int = 7) -> list[tuple[Tensor, int]]:
    """Ragged token rows; words 2 to 4 speak for class 0, words 5 to 7 for class 1, the rest for nothing."""
    g = torch.Generator().manual_seed(seed)
    rows = []
    for i in range(n):
        y, length = i % 2, int(torch.randint(2, longest + 1, (), generator=g))
        x = torch.randint(8, N_WORDS, (length,), generator=g)
        x[int(torch.randint(length, (), generator=g))] = 2 + 3 * y + int(torch.randint(3, (), generator=g))
        rows.append((x, y))
    return rows


def token_data(n: int = 90, seed: int = 0) -> Data:
    return from_datasets(token_rows(n, seed), token_rows(40, seed + 1), token_rows(40, seed + 2))


def small_text(downstream: str = "pooled", seed: int = 0, **kwargs: Any) -> TextAttention:
    return TextAttention(N_WORDS, 2, downstream, 7, embedding=6, hidden=4, seed=seed, **kwargs)  # type: ignore[arg-type]


class Net(nn.Module):
    """Attention over a bag of instances by a small convolution; with `shared`, one encoder serves both parts."""

    def __init__(self, shared: bool = False) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, 3)
        self.score = nn.Conv1d(3, 1, 1)
        self.head = nn.Linear(3, 2)
        self.shared = shared

    def read(self, x: dict[str, Tensor]) -> Tensor:
        return self.encoder(x["bag"]) if self.shared else x["bag"]


def attend(net: Net, x: dict[str, Tensor]) -> Tensor:
    h = net.encoder(x["bag"]).transpose(1, 2)
    return net.score(h)[:, 0].masked_fill(~x["here"], -torch.inf).softmax(-1)


def answer(net: Net, x: dict[str, Tensor], m: Tensor) -> Tensor:
    return net.head((m[..., None] * net.read(x)).sum(1))


def wrapped(shared: bool = False, seed: int = 0) -> Wrapped:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return wrap(Net(shared), masks=attend, predict=answer, valid=lambda net, x: x["here"])


def bag_rows(n: int, seed: int) -> list[tuple[dict[str, Tensor], int]]:
    """Bags of 1 to 4 instances with 3 numbers; one instance's last number tells the class."""
    g = torch.Generator().manual_seed(seed)
    rows = []
    for i in range(n):
        bag = torch.randn(1 + i % 4, 3, generator=g)
        bag[:, 2] = 0
        bag[0, 2] = 3.0 if i % 2 else -3.0
        rows.append(({"bag": bag}, i % 2))
    return rows


def pad_bags(rows: list[Any]) -> tuple[dict[str, Tensor], Tensor]:
    bags = [x["bag"] for x, _ in rows]
    here = nn.utils.rnn.pad_sequence([torch.ones(len(b), dtype=torch.bool) for b in bags], batch_first=True)
    return {"bag": nn.utils.rnn.pad_sequence(bags, batch_first=True), "here": here}, torch.tensor([y for _, y in rows])


def bag_data(n: int = 80) -> Data:
    return from_datasets(bag_rows(n, 0), bag_rows(48, 1), bag_rows(48, 2), collate=pad_bags)


class Fixed(nn.Module):
    """The mask is written in x, shape (B, 2T): masks in the first T numbers, evidence in the others.

    `reads` says what the downstream part takes its answer from, at strength `c`: "mask" (m_0 − m_1), "evidence under
    the mask" (Σ m_t x_t), "evidence" (Σ x_t), or "nothing".
    """

    def __init__(self, reads: str, c: float = 2.0) -> None:
        super().__init__()
        self.reads, self.c = reads, c

    def masks(self, x: Tensor) -> Tensor:
        return x[:, : x.shape[1] // 2]

    def predict(self, x: Tensor, m: Tensor) -> Tensor:
        evidence = x[:, x.shape[1] // 2 :]
        score = {
            "mask": m[:, 0] - m[:, 1], "evidence under the mask": (m * evidence).sum(-1), "evidence": evidence.sum(-1),
            "nothing": torch.full((len(x),), 0.4),
        }[self.reads]  # fmt: skip
        return torch.stack([torch.zeros_like(score), self.c * score], -1)


def fixed_data(masks: Tensor, evidence: Tensor, y: Tensor) -> Data:
    """The same rows on every side."""
    rows = list(zip(torch.cat([masks, evidence], -1).float(), y.tolist(), strict=True))
    return from_datasets(rows, rows, rows)


def parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def moved_names(one: nn.Module, other: nn.Module) -> set[str]:
    """Names of the parameters and buffers in which two models differ, bit for bit."""
    first, second = parameters(one), parameters(other)
    return {name for name in first if not torch.equal(first[name], second[name])}
