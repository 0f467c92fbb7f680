"""Small models with attention, right and wrong, shared by the tests of this folder."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Toy(nn.Module):
    """Softmax attention over a bag of instances x, shape (B, T, d); all positions exist."""

    def __init__(self, width: int = 3, n_classes: int = 2) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1)
        self.head = nn.Linear(width, n_classes)

    def masks(self, x: Tensor) -> Tensor:
        return self.score(x).squeeze(-1).softmax(-1)

    def predict(self, x: Tensor, m: Tensor) -> Tensor:
        return self.head((m.unsqueeze(-1) * x).sum(1))


class Shared(Toy):
    """One encoder serves attention and prediction; dropout and batch statistics on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(0.5)

    def masks(self, x: Tensor) -> Tensor:
        return super().masks(self.drop(self.encoder(x)))

    def predict(self, x: Tensor, m: Tensor) -> Tensor:
        return self.head(self.norm((m.unsqueeze(-1) * self.drop(self.encoder(x))).sum(1)))


class Hard(Toy):
    """A 0/1 choice of two positions, differentiable in train mode only."""

    def masks(self, x: Tensor) -> Tensor:
        soft = super().masks(x)
        hard = torch.zeros_like(soft).scatter(1, soft.topk(2).indices, 1.0)
        return hard + soft - soft.detach() if self.training else hard


def bags(rows: int = 6, positions: int = 4) -> Tensor:
    return torch.randn(rows, positions, 3, generator=torch.Generator().manual_seed(0))
