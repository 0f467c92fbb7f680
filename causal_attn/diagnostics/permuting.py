"""Labels as they could have been if the mask told nothing: permuted, or permuted given features of what it shows."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from causal_attn.diagnostics.many_fits import BoundSolver, with_ones

SWEEPS = 50
"""Rounds of proposed swaps, each of half the rows, from one state of the chain to an independent one."""


def permutations(y: Tensor, fold: Tensor, n: int, rng: np.random.Generator) -> Tensor:
    """y and n permutations of it, shape (n+1, rows).

    Labels move within folds, so every refit is as stratified as the observed one: permuting across folds unbalances
    them and costs the permuted fits held-out loss (type I error 0.31).
    """
    labels = np.repeat(y.numpy()[None], n + 1, 0)
    for number in np.unique(fold.numpy()):
        rows = np.flatnonzero(fold.numpy() == number)
        labels[1:, rows] = rng.permuted(labels[1:, rows], axis=1)
    return torch.from_numpy(labels)


def conditional_permutations(
    y: Tensor, given: Tensor, fold: Tensor, k: int, n: int, rng: np.random.Generator
) -> Tensor:
    """y and n permutations π of it within folds, drawn with probability ∝ Π_i r(y_π(i) | φ_i). Shape (n+1, rows).

    r is a logistic model of y given φ, fitted on all rows. Under Y ⟂ M | φ, and as far as r is right, y and its
    permutations are exchangeable. A Markov chain of proposed swaps is run once from y to a hub, then n times from the
    hub (Besag & Clifford 1989): that keeps y exchangeable with the rest however short the chains are.

    Source: Berrett, Wang, Barber & Samworth (2020), algorithm 1.
    """
    free = with_ones(given)
    solver = BoundSolver.on(torch.empty(len(y), 0, dtype=torch.float64), k, free)
    log_r = solver.fit_predict(y[None], torch.empty(len(y), 0, dtype=torch.float64), free)[0].numpy()
    labels = np.repeat(y.numpy()[None], n + 1, 0)
    for number in np.unique(fold.numpy()):
        rows = np.flatnonzero(fold.numpy() == number)
        part = log_r[rows]
        hub = _swapped(labels[:1, rows], part, rng)
        labels[1:, rows] = _swapped(np.repeat(hub, n, 0), part, rng)
    return torch.from_numpy(labels)


def _swapped(labels: np.ndarray, log_r: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """SWEEPS rounds: rows are paired at random, and each pair swaps its labels by Barker's rule. Shape (R, n)."""
    labels, n = labels.copy(), labels.shape[1]
    for _ in range(SWEEPS):
        order = rng.permutation(n)
        i, j = order[: n // 2], order[n // 2 : 2 * (n // 2)]
        a, b = labels[:, i], labels[:, j]
        odds = log_r[i, b] + log_r[j, a] - log_r[i, a] - log_r[j, b]
        swap = rng.random(odds.shape) < 1 / (1 + np.exp(-np.clip(odds, -500, 500)))
        labels[:, i], labels[:, j] = np.where(swap, b, a), np.where(swap, a, b)
    return labels
