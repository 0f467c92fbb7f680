"""Weighted distances against double sums, SciPy in one dimension, and rows that count twice."""

import numpy as np
import pytest
import scipy.stats
import torch

from causal_attn.diagnostics import distances
from causal_attn.diagnostics.distances import distance_covariance, energy_distance, mask_distances, random_parts


def made(n=40, k=3, seed=0):
    rng = np.random.default_rng(seed)
    masks = torch.from_numpy(rng.dirichlet(np.ones(5), n))
    return mask_distances(masks), torch.from_numpy(rng.integers(0, k, n)), torch.from_numpy(rng.random(n))


def test_distances_of_masks_are_hellingers():
    masks = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0], [0.5, 0.25, 0.25]])
    d = mask_distances(masks)
    assert d[0, 1] == pytest.approx(2**0.5)
    assert d[0, 2] == pytest.approx(float((masks[0].sqrt() - masks[2].sqrt()).norm()))
    assert (d.diagonal() == 0).all()
    subset = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 1, 1]])
    assert mask_distances(subset)[0, 1] == pytest.approx(1.0)


def test_energy_distance_in_one_dimension_is_scipys():
    rng = np.random.default_rng(1)
    x, w, pick = rng.normal(size=50), rng.random(50), rng.random(50) < 0.4
    d = torch.from_numpy(np.abs(x[:, None] - x))
    ours = energy_distance(d, torch.from_numpy(pick), torch.from_numpy(w))
    scipys = scipy.stats.energy_distance(x[pick], x[~pick], w[pick], w[~pick])
    assert float(ours) == pytest.approx(scipys**2)


def test_energy_distance_is_its_double_sums():
    d, y, w = made()
    a, b = (w * (y == 1)) / (w * (y == 1)).sum(), (w * (y != 1)) / (w * (y != 1)).sum()
    loop = sum(
        float((2 * a[i] * b[j] - a[i] * a[j] - b[i] * b[j]) * d[i, j]) for i in range(len(y)) for j in range(len(y))
    )
    assert float(energy_distance(d, y == 1, w)) == pytest.approx(loop)


def centred(d, p):
    return d - (d @ p)[:, None] - (d @ p)[None] + p @ d @ p


def test_distance_covariance_is_its_double_sum():
    d, y, w = made()
    p = w / w.sum()
    classes = (y[:, None] != y[None]).double()
    square = (torch.outer(p, p) * centred(d, p) * centred(classes, p)).sum()
    assert float(distance_covariance(d, y, w, 3)) == pytest.approx(float(square.sqrt()))


def test_many_weights_and_classes_at_once():
    d, y, w = made()
    order = torch.randperm(len(y))
    both = torch.stack([y, y[order]]), torch.stack([w, w[order]])
    for at, (labels, weight) in enumerate([(y, w), (y[order], w[order])]):
        assert energy_distance(d, both[0] == 1, both[1])[at] == pytest.approx(energy_distance(d, labels == 1, weight))
        one = distance_covariance(d, labels, weight, 3)
        assert distance_covariance(d, *both, 3)[at] == pytest.approx(one)


def test_a_weight_of_two_is_the_row_twice():
    d, y, _ = made()
    w = 1.0 + (torch.arange(len(y)) % 2)
    twice = torch.arange(len(y)).repeat_interleave(w.long())
    one = torch.ones(len(twice))
    assert energy_distance(d, y == 0, w) == pytest.approx(energy_distance(d[twice][:, twice], y[twice] == 0, one))
    many = distance_covariance(d[twice][:, twice], y[twice], one, 3)
    assert distance_covariance(d, y, w, 3) == pytest.approx(many)


def test_many_rows_are_taken_in_random_parts(monkeypatch):
    monkeypatch.setattr(distances, "MAX_ROWS", 50)
    y = torch.arange(200) % 2
    parts = random_parts(y, seed=3)
    assert [len(rows.unique()) for rows, _ in parts] == [50] * distances.N_PARTS
    assert all(torch.equal(a[0], b[0]) for a, b in zip(parts, random_parts(y, seed=3)))
    assert len(random_parts(y[:50], 0)) == 1


def test_a_part_holds_rows_of_every_class_and_weighs_them_down_again(monkeypatch):
    monkeypatch.setattr(distances, "MAX_ROWS", 400)
    y = torch.zeros(4000, dtype=torch.long)
    y[::50], y[:3] = 1, 2
    for rows, log_weight in random_parts(y, 0):
        counts = torch.bincount(y[rows], minlength=3)
        assert counts[2] == 3
        assert counts[1] == 400 // 6
        share = torch.zeros(3).double().index_add_(0, y[rows], log_weight.softmax(0))
        torch.testing.assert_close(share, torch.bincount(y).double() / 4000)
