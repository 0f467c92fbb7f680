"""A refit under the weights: what is left of the class in the mask."""

import math

import pytest
import torch
from sklearn.metrics import roc_auc_score

from causal_attn.data.worlds import DeterministicLeak, Gaussian, Logistic
from causal_attn.diagnostics.refit import residual_information
from causal_attn.masks import FeatureMap
from causal_attn.selection.crossfit import assign_folds


def run(world, n, weighted, seed=0):
    sample = world.sample(n, seed)
    log_w = world.log_w(sample) if weighted else torch.zeros(n)
    phi = FeatureMap.fit_transform(sample)[1]
    return residual_information(phi, sample.y, log_w, assign_folds(sample, 5, 0))


@pytest.mark.parametrize("world", [Gaussian(), Logistic(n_classes=3)], ids=["gaussian", "logistic"])
def test_right_weights_leave_nothing_to_tell(world):
    before, after = run(world, 4000, False), run(world, 4000, True)
    assert before.auc > 0.6
    assert before.bits > 0.03
    assert abs(after.auc - 0.5) < 0.05
    assert after.bits < 0.005


def test_unweighted_bits_are_the_information_of_the_world():
    """Theory section 5, identity 5: E_P[log w] = −I(M;Y)."""
    world = Gaussian(n_positions=3)
    big = world.sample(200_000, 5)
    truth = -float(world.log_w(big).mean()) / math.log(2)
    assert run(world, 8000, False).bits == pytest.approx(truth, abs=0.02)


def test_weights_of_a_leak_leave_it_where_it_was():
    assert run(DeterministicLeak(), 600, True).auc > 0.99


def test_auc_is_the_weighted_mean_over_folds():
    sample = Gaussian().sample(300, 1)
    phi, fold = FeatureMap.fit_transform(sample)[1], assign_folds(sample, 2, 0)
    seen = residual_information(phi, sample.y, torch.zeros(300), fold)
    assert 0.5 < seen.auc < 1
    assert seen.log_loss == pytest.approx(math.log(2) - seen.bits * math.log(2), abs=0.01)
    assert roc_auc_score(sample.y, phi[:, 0]) != seen.auc
