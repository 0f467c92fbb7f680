import warnings

import arviz as az
import numpy as np
import pytest

from causal_attn.errors import InputError, OutputError
from causal_attn.interop.arviz import khat_threshold, load_netcdf, psis, save_netcdf, to_arviz


@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0])
def test_psis_is_arvizs_own(spread):
    raw = spread * np.random.default_rng(0).normal(size=2000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, khat = az.psislw(raw)
    smoothed, k = psis(raw)
    assert k == pytest.approx(float(khat), abs=0.03)
    np.testing.assert_allclose(smoothed, np.asarray(expected), atol=1e-6)
    assert np.exp(smoothed).sum() == pytest.approx(1)


def test_psis_knows_the_tail_of_a_pareto_law():
    uniform = np.random.default_rng(0).random(20_000)
    assert psis(-0.5 * np.log(uniform))[1] == pytest.approx(0.5, abs=0.1)  # w = u^(−k)


@pytest.mark.parametrize("raw", [np.zeros(500), np.full(7, 3.0), np.array([1.0])])
def test_constant_weights_have_no_tail(raw):
    smoothed, k = psis(raw)
    assert k == 0.0
    np.testing.assert_allclose(np.exp(smoothed), 1 / len(raw))


def test_psis_leaves_its_input_and_refuses_infinities():
    raw = np.random.default_rng(0).normal(size=300)
    copy = raw.copy()
    psis(raw)
    np.testing.assert_array_equal(raw, copy)
    for bad in (np.array([0.0, np.inf]), np.array([np.nan]), np.zeros((2, 2))):
        with pytest.raises(InputError, match="log_weights"):
            psis(bad)


def test_the_threshold_follows_the_sample_size():
    assert khat_threshold(100) == pytest.approx(0.5)
    assert khat_threshold(10**6) == 0.7
    assert khat_threshold(1) == khat_threshold(11)


def made():
    return to_arviz(
        {
            "posterior": {"a": np.arange(6.0).reshape(3, 2), "b": np.arange(3.0)},
            "optimization": {"elbo": np.arange(4.0)},
            "constant_data": {"y": np.array([0, 1])},
        },
        {"a": ["obs_id"], "elbo": ["step"], "y": ["obs_id"]},
        {"obs_id": [7, 9], "step": np.arange(4)},
    )


def test_groups_have_one_chain_and_named_dims():
    data = made()
    assert data.posterior.a.dims == ("chain", "draw", "obs_id")
    assert data.posterior.a.shape == (1, 3, 2)
    assert data.posterior.b.dims == ("chain", "draw")
    assert data.optimization.elbo.dims == ("step",)
    assert data.constant_data.y.dims == ("obs_id",)
    assert data.posterior.obs_id.values.tolist() == [7, 9]


def test_netcdf_comes_back(tmp_path):
    data = made()
    save_netcdf(data, tmp_path / "a.nc")
    back = load_netcdf(tmp_path / "a.nc")
    np.testing.assert_array_equal(back.posterior.a, data.posterior.a)
    np.testing.assert_array_equal(back.optimization.elbo, data.optimization.elbo)
    assert [p.name for p in tmp_path.iterdir()] == ["a.nc"]
    with pytest.raises(InputError, match="path: no file"):
        load_netcdf(tmp_path / "b.nc")
    with pytest.raises(OutputError):
        save_netcdf(data, tmp_path / "missing" / "a.nc")
