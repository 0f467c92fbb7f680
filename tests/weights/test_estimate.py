"""Averages under Q: by hand, against the truth of a world, and with what they cannot see."""

import math

import numpy as np
import pytest
import torch

from causal_attn.data.worlds import DeterministicLeak, Gaussian
from causal_attn.errors import InputError, SupportWarning
from causal_attn.weights import Weights, weighted_mean

HALF = math.log(0.5)


def test_both_estimators_by_hand():
    weights = Weights.from_log(np.log([1.0, 3.0, 2.0]), [0, 1, 1])
    hajek = weighted_mean([1.0, 0.0, 2.0], weights)
    plain = weighted_mean([1.0, 0.0, 2.0], weights, "horvitz-thompson")
    assert hajek.estimate == pytest.approx(5 / 6)
    assert plain.estimate == pytest.approx(5 / 3)
    assert hajek.standard_error == pytest.approx(math.sqrt((1 / 6) ** 2 + 9 * (5 / 6) ** 2 + 4 * (7 / 6) ** 2) / 6)
    assert plain.standard_error == pytest.approx(np.std([1, 0, 4], ddof=1) / math.sqrt(3))
    assert "Hájek" in str(hajek)
    assert "Horvitz" in str(plain)


@pytest.mark.parametrize("estimator", ["hajek", "horvitz-thompson"])
def test_intervals_hold_the_mean_under_q(estimator):
    """v = first mask entry where y = 1: under Q it averages P(y=1) E[m_0], by theory section 5, identity 7."""
    world = Gaussian(n_positions=3, strength=0.5)
    big = world.sample(400_000, 99)
    truth = float(world.prior[1]) * float(big.masks[:, 0].mean())
    hits = []
    for seed in range(200):
        sample = world.sample(400, seed)
        weights = Weights.from_log(world.log_w(sample), sample.y, log_prob=world.log_prob(sample.masks))
        low, high = weighted_mean((sample.y == 1) * sample.masks[:, 0], weights, estimator).interval
        hits.append(low <= truth <= high)
    assert np.mean(hits) > 0.95 - 3 * math.sqrt(0.95 * 0.05 / 200)


def test_an_average_over_half_of_q_is_warned_of_and_says_so():
    sample = DeterministicLeak(n_classes=2).sample(500, 0)
    log_prob = torch.where(torch.nn.functional.one_hot(sample.y, 2) > 0, math.log(0.999), math.log(0.001))
    weights = Weights.from_log(torch.full((500,), HALF), sample.y, log_prob=log_prob)
    with pytest.warns(SupportWarning, match="weighting cannot repair"):
        mean = weighted_mean(torch.ones(500), weights)
    assert mean.deficit.low > 0.25
    assert "out of reach" in str(mean)


@pytest.mark.parametrize(
    ("values", "estimator", "message"),
    [
        ([1.0, 2.0], "hajek", r"values: expected shape \(3,\), got \(2,\)"),
        ([1.0, math.nan, 2.0], "hajek", "values: expected finite numbers, row 1 is nan"),
        ("abc", "hajek", "values: expected an array of numbers"),
        ([1.0, 2.0, 3.0], "ht", "estimator: expected one of hajek, horvitz-thompson, got 'ht'"),
    ],
)
def test_bad_input_is_named(values, estimator, message):
    weights = Weights.from_log([0.0, 0.0, 0.0], [0, 1, 1])
    with pytest.raises(InputError, match=message):
        weighted_mean(values, weights, estimator)
    with pytest.raises(InputError, match="weights: expected Weights"):
        weighted_mean([1.0], [1.0])
