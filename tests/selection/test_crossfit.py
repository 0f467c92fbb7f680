import numpy as np
import pytest
import torch

from causal_attn.errors import InputError
from causal_attn.masks import MaskSample
from causal_attn.selection.crossfit import assign_folds


def sample_of(y, groups=None, n_classes=None):
    return MaskSample(np.full((len(y), 2), 0.5), y, groups=groups, n_classes=n_classes)


@pytest.mark.parametrize("folds", [2, 5, 7])
@pytest.mark.parametrize("sizes", [(50, 50), (90, 11, 7), (3, 64)])
def test_every_fold_and_every_class_is_even_to_within_one_row(folds, sizes):
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    fold = assign_folds(sample_of(y), folds, seed=3)
    table = np.zeros((len(sizes), folds), dtype=int)
    np.add.at(table, (y, fold.numpy()), 1)
    assert np.ptp(table.sum(0)) <= 1
    assert (np.ptp(table, axis=1) <= 1).all()
    assert fold.dtype == torch.int64


def test_folds_are_the_same_for_the_same_seed_alone():
    sample = sample_of(np.arange(100) % 2)
    assert torch.equal(assign_folds(sample, 5, 1), assign_folds(sample, 5, 1))
    assert not torch.equal(assign_folds(sample, 5, 1), assign_folds(sample, 5, 2))


def test_groups_stay_whole():
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 30, 200)
    sample = sample_of(rng.integers(0, 2, 200), groups)
    fold = assign_folds(sample, 4, 0).numpy()
    assert all(len(set(fold[groups == g])) == 1 for g in range(30))
    assert set(fold) == {0, 1, 2, 3}
    assert torch.equal(assign_folds(sample, 4, 0), torch.from_numpy(fold))


@pytest.mark.parametrize(
    ("sample", "folds", "message"),
    [
        (sample_of([0, 1] * 5), 1, "folds: expected an integer of at least 2, got 1"),
        (sample_of([0, 1] * 5), 2.0, "folds: expected an integer"),
        (sample_of([0, 1] * 5), True, "folds: expected an integer"),
        (sample_of([1] * 5), 2, "y: expected at least two classes, every row is class 1"),
        (sample_of([0, 1, 0, 1]), 5, "folds: expected at most the number of rows, 4, got 5"),
        (sample_of([0, 0, 1, 0]), 2, r"y: .*class 1 has 1 \(row 2\)"),
        (sample_of([0, 0, 1, 1], n_classes=3), 2, "y: .*class 2 has 0"),
        (sample_of([0, 1, 0, 1], groups=["a", "a", "b", "b"]), 3, "groups: expected at least as many groups as folds"),
        (sample_of([0, 0, 1, 1, 0, 0], groups=[0, 0, 1, 1, 2, 2]), 2, "groups: class 1 lies in a single fold"),
    ],
)
def test_folds_that_cannot_be_made_are_refused(sample, folds, message):
    with pytest.raises(InputError, match=message):
        assign_folds(sample, folds, 0)
