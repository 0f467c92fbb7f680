"""The reliability table by hand."""

import numpy as np
import pytest
import torch
from scipy.stats import beta

from causal_attn.data.worlds import Gaussian
from causal_attn.errors import InputError
from causal_attn.selection import SelectionModel
from causal_attn.weights.calibration import reliability_table


def test_the_table_and_the_error_by_hand():
    p = torch.tensor([0.1, 0.8, 0.3, 0.9])
    y = torch.tensor([0, 1, 1, 0])
    table = reliability_table(torch.stack([1 - p, p], 1).log(), y, 2)
    assert table["class"].tolist() == [0, 0, 1, 1]
    assert table["rows"].tolist() == [2, 2, 2, 2]
    np.testing.assert_allclose(table["predicted"], [0.15, 0.8, 0.2, 0.85])
    np.testing.assert_allclose(table["observed"], [0.5, 0.5, 0.5, 0.5])
    assert table.attrs["expected_calibration_error"] == pytest.approx((0.35 + 0.3 + 0.3 + 0.35) / 4)
    np.testing.assert_allclose(table["low"], beta.ppf(0.025, 1, 2))
    np.testing.assert_allclose(table["high"], beta.ppf(0.975, 2, 1))


def test_bins_of_unequal_size_count_by_their_rows():
    p = torch.tensor([0.1, 0.2, 0.6])
    table = reliability_table(torch.stack([1 - p, p], 1).log(), torch.tensor([0, 0, 1]), 2)
    one = table[table["class"] == 1]
    assert one["rows"].tolist() == [2, 1]
    # class 1: |0.15 - 0| twice, |0.6 - 1| once; class 0: |0.6 - 0.5| twice, |0.9 - 1| once
    assert table.attrs["expected_calibration_error"] == pytest.approx((0.3 + 0.4 + 0.2 + 0.1) / 6)


def test_more_bins_than_rows_are_one_row_each_and_none_is_refused():
    log_p = torch.full((3, 2), 0.5).log()
    assert reliability_table(log_p, torch.tensor([0, 1, 1]), 10)["rows"].tolist() == [1] * 6
    with pytest.raises(InputError, match="n_bins: expected"):
        reliability_table(log_p, torch.tensor([0, 1, 1]), 0)


def test_a_fit_adds_its_log_losses():
    fit = SelectionModel().fit(Gaussian(seed=1).sample(120, 0), folds=2, progress=False, n_draws=5)
    attrs = fit.calibration(4).attrs
    assert attrs["log_loss_nats"] == fit.held_out_log_loss
    assert attrs["prior_log_loss_nats"] == fit.prior_log_loss
    assert 0 <= attrs["expected_calibration_error"] < 0.2
