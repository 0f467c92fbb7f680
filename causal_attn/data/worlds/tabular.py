"""Finitely many masks: every expectation is a finite sum, and selection can be run forwards from Q."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, islice
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from causal_attn.data.checks import fraction, margin, seed_of, table_of, whole
from causal_attn.data.worlds.base import World, all_valid, draw_classes, masks_of, set_fields
from causal_attn.errors import InputError
from causal_attn.masks import MaskSample, first_row

TypeKind = Literal["simplex", "one-hot", "subset"]
SAME_MASK = 1e-6
"""How far a mask may be from its type in any position."""


class Selected(NamedTuple):
    """Rows drawn from Q with their selection: classes, mask types and s, each of shape (n,), int64."""

    y: Tensor
    type_index: Tensor
    s: Tensor


@dataclass(frozen=True, eq=False)
class Tabular(World):
    r"""J mask types; a positive K×J matrix scaled to both margins is P(y, m).

    ratio(y, m) = P(y, m) / (P(y) P(m)), so w = 1 / ratio; under Q the pair is drawn from P(y) P(m), and keeping it with
    probability π = c · ratio gives back P, with acceptance rate c (theory, sections 3 and 12.1).

    Args:
        n_classes: K.
        n_types: J.
        n_positions: T.
        kind: of the masks: "simplex" (softmax of normal numbers), "one-hot" (type j is position j; J ≤ T), or "subset"
            (choices of two positions).
        strength: standard deviation of the logs of the matrix before scaling; 0 makes M ⟂ Y.
        seed: of the types and the matrix.
        matrix: the positive matrix before scaling, shape (K, J); None: drawn.
        prior: P(y), shape (K,); None: uniform.
        type_prior: P(m), shape (J,); None: uniform.

    Raises:
        InputError: a wrong shape, a number that is not positive, a margin that does not sum to 1.
    """

    n_classes: int = 3
    n_types: int = 6
    n_positions: int = 8
    kind: TypeKind = "simplex"
    strength: float = 1.0
    seed: int = 0
    matrix: Any = None
    prior: Tensor = None  # type: ignore[assignment]  # a tensor once built
    type_prior: Tensor = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        matrix = None if self.matrix is None else table_of(self.matrix, "matrix", (None, None), positive=True)
        if matrix is not None:
            set_fields(self, matrix=matrix, n_classes=matrix.shape[0], n_types=matrix.shape[1])
        for name, least in (("n_classes", 2), ("n_types", 1), ("n_positions", 2)):
            whole(getattr(self, name), name, least)
        seed_of(self.seed)
        fraction(self.strength, "strength", 0, 20)  # beyond, scaling to the margins may not converge
        set_fields(
            self,
            prior=margin(self.prior, "prior", self.n_classes),
            type_prior=margin(self.type_prior, "type_prior", self.n_types),
        )
        _ = self.types  # a wrong kind, or too many types, is told now

    @cached_property
    def types(self) -> Tensor:
        """The J masks, shape (J, T)."""
        J, T = self.n_types, self.n_positions
        if self.kind == "simplex":
            normal = np.random.default_rng([self.seed, 1]).standard_normal((J, T))
            return torch.from_numpy(normal).softmax(-1)
        chosen = list(islice(combinations(range(T), {"one-hot": 1, "subset": 2}.get(self.kind, 0)), J))
        if self.kind not in ("one-hot", "subset"):
            raise InputError(f"kind: expected 'simplex', 'one-hot' or 'subset', got {self.kind!r}")
        if len(chosen) < J:
            raise InputError(f"n_types: expected at most {len(chosen)} {self.kind} masks of {T} positions, got {J}")
        return torch.zeros(J, T, dtype=torch.float64).scatter(1, torch.tensor(chosen), 1.0)

    @cached_property
    def joint(self) -> Tensor:
        """P(y, m), shape (K, J)."""
        matrix = self.matrix
        if matrix is None:
            normal = np.random.default_rng([self.seed, 2]).standard_normal((self.n_classes, self.n_types))
            matrix = torch.from_numpy(self.strength * normal).exp()
        return scale_to_margins(matrix, self.prior, self.type_prior)

    @cached_property
    def ratio(self) -> Tensor:
        """P(y, m) / (P(y) P(m)) = 1 / w, shape (K, J)."""
        return self.joint / torch.outer(self.prior, self.type_prior)

    def propensity(self, base_rate: float | None = None) -> Tensor:
        """π(y, m) = c · ratio, probability, shape (K, J); c = `base_rate`, min_k P(k) when None.

        Raises:
            InputError: `base_rate` is not positive, or makes a propensity larger than 1.
        """
        largest = float(1 / self.ratio.max())
        c = float(self.prior.min()) if base_rate is None else base_rate
        if not 0 < c <= largest * (1 + 1e-12):
            raise InputError(f"base_rate: expected a number above 0 and at most {largest:.6g}, got {base_rate!r}")
        return (c * self.ratio).clamp(max=1.0)

    def sample_with_selection(self, n: int, seed: int, base_rate: float | None = None) -> Selected:
        """n rows run forwards: (y, m) from Q, then s ~ Bernoulli(π(y, m)). Rows with s = 1 follow P; mean of s is c."""
        rng = np.random.default_rng(seed_of(seed))
        propensity = self.propensity(base_rate)
        y = torch.from_numpy(draw_classes(self.prior, whole(n, "n", 1), rng))
        j = torch.from_numpy(draw_classes(self.type_prior, n, rng))
        return Selected(y, j, (torch.from_numpy(rng.random(n)) < propensity[y, j]).long())

    def type_of(self, masks: Any) -> Tensor:
        """Which type each mask is, int64, shape (n,); InputError names a row that is none."""
        m = masks_of(masks, self.n_positions)
        distance, index = torch.cdist(m, self.types, p=torch.inf).min(-1)
        if (distance > SAME_MASK).any():
            raise InputError(
                f"masks: expected one of this world's types, row {first_row(distance > SAME_MASK)} is none"
            )
        return index

    def log_prob(self, masks: Any, valid: Any = None) -> Tensor:
        """log P(y | m) = log joint − log P(m), nats. Shape (n, T) -> (n, K)."""
        index = self.type_of(masks)
        all_valid(valid, torch.as_tensor(masks))
        return (self.joint / self.type_prior).log().T[index]

    def second_moment(self) -> float:
        """E_P[w²] = Σ P(y, m) / ratio², by enumeration."""
        return float((self.joint / self.ratio.square()).sum())

    def _draw(self, n: int, rng: np.random.Generator) -> MaskSample:
        cell = torch.from_numpy(rng.choice(self.joint.numel(), size=n, p=self.joint.flatten().numpy()))
        y, j = cell // self.n_types, cell % self.n_types
        kind = "subset" if self.kind == "subset" else "simplex"
        return MaskSample(self.types[j], y, kind=kind, n_classes=self.n_classes)  # type: ignore[arg-type]


def scale_to_margins(matrix: Tensor, rows: Tensor, columns: Tensor, steps: int = 100_000) -> Tensor:
    """A positive matrix times row and column factors, so its margins are `rows` and `columns` (to about 1e-15 J)."""
    table = matrix / matrix.sum()
    for _ in range(steps):
        table = table * (rows / table.sum(1))[:, None]
        table = table * (columns / table.sum(0))
        if (table.sum(1) - rows).abs().max() < 1e-15 * len(columns):
            break
    return table / table.sum()
