"""What ArviZ makes of weights: tables, plots and files. Groups, dims and values are tested in test_core."""

import arviz as az
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import xarray as xr

from causal_attn.interop.arviz import load_netcdf, save_netcdf
from causal_attn.weights import Weights

N, S = 60, 80


@pytest.fixture(scope="module")
def weights():
    generator = torch.Generator().manual_seed(0)
    point = 0.5 * torch.randn(N, generator=generator, dtype=torch.float64)
    draws = point + 0.1 * torch.randn(S, N, generator=generator, dtype=torch.float64)
    return Weights.from_log(point, [0, 1] * (N // 2), draws=draws)


@pytest.fixture(scope="module")
def data(weights):
    return weights.to_arviz()


@pytest.fixture(autouse=True)
def _no_screen():
    mpl.use("Agg")
    yield
    plt.close("all")


def test_summary_of_every_figure(weights, data):
    figures = ["mean_weight", "ess", "ess_per_class", "largest_share", "support_deficit"]
    table = az.summary(data, var_names=figures, round_to="none")
    assert list(table.index) == [
        "mean_weight", "ess", "ess_per_class[0]", "ess_per_class[1]", "largest_share", "support_deficit"
    ]  # fmt: skip
    assert float(table.loc["mean_weight", "mean"]) == pytest.approx(float(weights.draws.exp().mean()), rel=1e-5)
    assert len(az.summary(data, var_names=["log_w"])) == N


def test_forest_plot(data):
    (axes,) = az.plot_forest(data, var_names=["mean_weight", "ess_per_class"], combined=True)
    axes.figure.canvas.draw()
    assert [label.get_text() for label in axes.get_yticklabels()][::-1] == [
        "mean_weight", "ess_per_class[0]", "[1]"
    ]  # fmt: skip
    (axes,) = az.plot_forest(data, var_names=["log_w"], coords={"obs_id": [3, 7]}, combined=True)
    assert len(axes.get_yticklabels()) == 2


@pytest.mark.parametrize("obs", [None, [5, 2]])
def test_netcdf_comes_back_with_equal_values(weights, obs, tmp_path):
    data = weights.to_arviz(obs)
    save_netcdf(data, tmp_path / "weights.nc")
    back = load_netcdf(tmp_path / "weights.nc")
    assert set(back.groups()) == set(data.groups()) == {"posterior", "constant_data"}
    for group in data.groups():
        xr.testing.assert_equal(back[group], data[group])
    np.testing.assert_array_equal(back.posterior.log_w[0], weights.draws[:, slice(None) if obs is None else obs])
