"""Folds: a row's weight comes from a model that did not see that row."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from causal_attn.data.checks import seed_of, whole
from causal_attn.errors import InputError
from causal_attn.masks import MaskSample


def assign_folds(sample: MaskSample, folds: int, seed: int) -> Tensor:
    """A fold 0..folds-1 for each row, stratified by class; rows of one group share a fold. Shape (n,).

    Raises:
        InputError: fewer than two folds, rows or groups than folds, or a class with a single row or group (its
            model would never see that class).
    """
    seed, folds = seed_of(seed), whole(folds, "folds", 2)
    counts = torch.bincount(sample.y, minlength=sample.n_classes)
    if (counts > 0).sum() < 2:
        raise InputError(f"y: expected at least two classes, every row is class {int(sample.y[0])}")
    if sample.n < folds:
        raise InputError(f"folds: expected at most the number of rows, {sample.n}, got {folds}")
    if (counts < 2).any():
        k = int((counts < 2).nonzero()[0])
        where = f" (row {int((sample.y == k).nonzero()[0])})" if counts[k] else "; classes are numbered from 0"
        raise InputError(f"y: expected at least 2 rows of every class, class {k} has {int(counts[k])}{where}")
    if sample.groups is not None:
        return _grouped(sample, folds, seed)
    return _stratified(sample.y, folds, np.random.default_rng(seed))


def folds_within(sample: MaskSample, wanted: int) -> int:
    """`wanted` folds, or as many as there are groups or rows, where those are fewer."""
    return min(wanted, sample.n if sample.groups is None else len(sample.groups.unique()))


def _stratified(y: Tensor, folds: int, rng: np.random.Generator) -> Tensor:
    """Shuffle, sort by class, deal out in turn: every class and every fold is even to within one row."""
    shuffled = rng.permutation(len(y))
    by_class = shuffled[np.argsort(y.numpy()[shuffled], kind="stable")]
    fold = np.empty(len(y), dtype=np.int64)
    fold[by_class] = np.arange(len(y)) % folds
    return torch.from_numpy(fold)


def _grouped(sample: MaskSample, folds: int, seed: int) -> Tensor:
    from sklearn.model_selection import StratifiedGroupKFold

    assert sample.groups is not None
    n_groups = len(sample.groups.unique())
    if n_groups < folds:
        raise InputError(f"groups: expected at least as many groups as folds, {folds}, got {n_groups}")
    splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    fold = torch.zeros(sample.n, dtype=torch.long)
    y, groups = sample.y.numpy(), sample.groups.numpy()
    for number, (_, held_out) in enumerate(splitter.split(np.zeros(sample.n), y, groups)):
        fold[torch.from_numpy(held_out)] = number
    for k in range(sample.n_classes):
        spread = fold[sample.y == k].unique()
        if len(spread) < 2:
            raise InputError(f"groups: class {k} lies in a single fold; its held-out model would never see it")
    return fold
