"""Does the mask's law differ between classes at all, as a vector? Weighted energy distance and distance covariance.

With row weights a_i of one class and b_j of the rest, each summing to 1, and d the distance of two masks,

    energy distance      2 Σ a_i b_j d_ij − Σ a_i a_j d_ij − Σ b_i b_j d_ij
    distance covariance  the square root of Σ p_i p_j A_ij B_ij,    p_i = w_i / Σw,

A, B the doubly centred distances of masks and of classes (0 or 1): A_ij = d_ij − d̄_i − d̄_j + d̄, means under p. Both
are 0 for independent M and Y, up to a bias of sampling that a permuted sample has as well. d is Hellinger's: Euclidean
between square roots of masses, so that small masses count and no distance exceeds √2. O(n²) in time and memory, so
beyond MAX_ROWS rows both are averages over random parts of that size, with the standard error of that average. Parts
are drawn within each class, in proportion, of a rare one as many as FEW, which its rows' weights make up for.

Source: Székely & Rizzo (2013); weights as in Huling, Greifer & Chen (2023).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

MAX_ROWS = 5000
N_PARTS = 4
FEW = 100
"""Rows of a class that a part holds at least, where the class has them and the classes are not too many."""


def mask_distances(masks: Tensor) -> Tensor:
    """Hellinger distances of masks, a subset mask's mass spread evenly over its choice. (n, T) -> (n, n), float64."""
    m = masks.double()
    root = (m / m.sum(-1, keepdim=True)).sqrt()
    return torch.cdist(root, root).fill_diagonal_(0.0)


def energy_distance(d: Tensor, pick: Tensor, w: Tensor) -> Tensor:
    """Between the picked rows and the others, weights normalised within each. d (n, n); pick, w (..., n) -> (...)."""
    a, b = w * pick, w * ~pick
    signed = a / a.sum(-1, keepdim=True) - b / b.sum(-1, keepdim=True)
    return -((signed @ d) * signed).sum(-1)


def distance_covariance(d: Tensor, y: Tensor, w: Tensor, n_classes: int) -> Tensor:
    """Between masks and classes. d (n, n); y, w (..., n) -> (...).

    B is minus the doubly centred indicator of equal classes, so the double sum splits into one per class.
    """
    p = w / w.sum(-1, keepdim=True)
    mean = (p @ d) * p  # p_i d̄_i
    within, across, squares = p.new_zeros(p.shape[:-1]), p.new_zeros(p.shape[:-1]), p.new_zeros(p.shape[:-1])
    for k in range(n_classes):
        rows = p * (y == k)  # p_i [y_i = k]
        share = rows.sum(-1)
        within = within + ((rows @ d) * rows).sum(-1)
        across = across + share * (mean * (y == k)).sum(-1)
        squares = squares + share.square()
    return (2 * across - within - mean.sum(-1) * squares).clamp(min=0).sqrt()


def random_parts(y: Tensor, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Rows, and the log-weight that makes up for how often each was drawn: all rows, equally, where there are at most
    MAX_ROWS, else N_PARTS random parts of about that size. Classes y (n,)."""
    n = len(y)
    if n <= MAX_ROWS:
        return [(torch.arange(n), torch.zeros(n, dtype=torch.float64))]
    rng = np.random.default_rng([seed, 11])
    members = [np.flatnonzero(y.numpy() == k) for k in np.unique(y.numpy())]
    few = max(2, min(FEW, MAX_ROWS // (2 * len(members))))
    sizes = [min(len(rows), max(few, round(MAX_ROWS * len(rows) / n))) for rows in members]
    log_weight = torch.from_numpy(np.log(np.repeat([len(rows) / size for rows, size in zip(members, sizes)], sizes)))
    parts = [
        np.concatenate([rng.choice(rows, size, replace=False) for rows, size in zip(members, sizes)])
        for _ in range(N_PARTS)
    ]
    return [(torch.from_numpy(part), log_weight) for part in parts]
