"""What ArviZ makes of a fit: groups and dims, tables, plots and files."""

import dataclasses
import warnings

import arviz as az
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import xarray as xr

from causal_attn.data.worlds import Gaussian
from causal_attn.errors import InputError, NotEstimableError
from causal_attn.interop.arviz import load_netcdf, save_netcdf
from causal_attn.masks import MaskSample
from causal_attn.selection import SelectionModel
from causal_attn.selection import fit as fit_module

GROUPS = {
    "posterior", "sample_stats", "optimization", "observed_data", "constant_data", "log_likelihood",
    "posterior_predictive",
}  # fmt: skip


@pytest.fixture(scope="module")
def fit():
    return SelectionModel().fit(
        Gaussian(n_classes=3, n_positions=4, strength=0.7, seed=2).sample(400, 0), n_draws=60, seed=0, progress=False
    )


@pytest.fixture(scope="module")
def data(fit):
    return fit.to_arviz()


@pytest.fixture(autouse=True)
def _no_screen():
    mpl.use("Agg")
    yield
    plt.close("all")


def assert_same(back, data):
    assert set(back.groups()) == set(data.groups())
    for group in data.groups():
        xr.testing.assert_equal(back[group], data[group])


# ------------------------------------------------------------------------------------------------ groups and dims


def test_groups_and_dims_are_those_of_the_interface(fit, data):
    assert set(data.groups()) == GROUPS
    assert data.posterior.weights.dims == ("chain", "draw", "feature", "contrast")
    assert data.posterior.intercept.dims == ("chain", "draw", "contrast")
    assert data.sample_stats.lp.dims == ("chain", "draw")
    assert data.optimization.elbo.dims == ("step",)
    for group in (data.log_likelihood, data.posterior_predictive):
        assert group.y.dims == ("chain", "draw", "obs_id")
        assert group.y.shape == (1, 60, 400)
    assert data.observed_data.y.dims == data.constant_data.fold.dims == ("obs_id",)
    assert data.constant_data["prior"].dims == ("label",)
    assert list(data.posterior.feature.values) == list(fit.feature_map.names)
    assert data.observed_data.obs_id.values.tolist() == list(range(400))
    assert data.constant_data.label.values.tolist() == [0, 1, 2]


def test_values_are_those_of_the_fit(fit, data):
    own = fit.log_prob(fit.sample.masks)[:, torch.arange(fit.sample.n), fit.sample.y]
    np.testing.assert_allclose(data.log_likelihood.y[0], own, rtol=1e-9)
    np.testing.assert_array_equal(data.observed_data.y, fit.sample.y)
    np.testing.assert_array_equal(data.constant_data.fold, fit.fold)
    np.testing.assert_array_equal(data.optimization.elbo, fit.elbo)
    np.testing.assert_array_equal(data.posterior.weights[0], fit.final.theta[:, :-1])


# ------------------------------------------------------------------------------------------------ predictive


def test_posterior_predictive_is_drawn_from_each_draws_own_law(fit, data):
    y = data.posterior_predictive.y.values[0]
    assert y.dtype.kind == "i"
    assert set(np.unique(y)) == {0, 1, 2}
    p = fit.log_prob(fit.sample.masks).exp().numpy()  # (S, n, K)
    for k in range(3):
        hit, law = y == k, p[..., k]
        error = (hit - law) / np.sqrt((law * (1 - law)).sum())
        assert abs(error.sum()) < 4
        # draw by draw and row by row, not only all in all
        for axis in (0, 1):
            z = (hit - law).sum(axis) / np.sqrt((law * (1 - law)).sum(axis))
            assert 0.7 < (z**2).mean() < 1.3


def test_posterior_predictive_follows_the_seed_and_not_the_global_state(fit, data):
    torch.manual_seed(5)
    np.testing.assert_array_equal(fit.to_arviz().posterior_predictive.y, data.posterior_predictive.y)
    other = fit.to_arviz(seed=1).posterior_predictive.y
    assert 0.2 < float((other != data.posterior_predictive.y).mean()) < 0.8
    with pytest.raises(InputError, match="seed"):
        fit.to_arviz(seed=-1)


def test_classes_drawn_have_their_probabilities_and_never_a_class_of_none():
    rng = np.random.default_rng(0)
    p = torch.tensor([0.0, 0.2, 0.0, 0.8, 0.0], dtype=torch.float64)
    drawn = fit_module.classes_drawn(p.log().expand(100, 1000, 5), rng)
    share = torch.bincount(drawn.flatten(), minlength=5) / drawn.numel()
    torch.testing.assert_close(share.double(), p, atol=0.006, rtol=0)
    assert (share[p == 0] == 0).all()

    class Zero:
        def random(self, shape):
            return np.zeros(shape)

    assert fit_module.classes_drawn(p.log()[None], Zero()).tolist() == [1]


def test_either_group_is_left_out_when_asked(fit):
    assert set(fit.to_arviz(log_likelihood=False).groups()) == GROUPS - {"log_likelihood"}
    assert set(fit.to_arviz(posterior_predictive=False).groups()) == GROUPS - {"posterior_predictive"}
    neither = fit.to_arviz(log_likelihood=False, posterior_predictive=False)
    assert set(neither.groups()) == GROUPS - {"log_likelihood", "posterior_predictive"}


def test_too_many_entries_are_refused_with_what_to_pass(fit, monkeypatch):
    monkeypatch.setattr(fit_module, "MAX_DRAW_ENTRIES", 60 * 400 - 1)
    with pytest.raises(NotEstimableError, match=r"60 x 400 .* pass log_likelihood=False, posterior_predictive=False"):
        fit.to_arviz()
    with pytest.raises(NotEstimableError, match=r"pass posterior_predictive=False$"):
        fit.to_arviz(log_likelihood=False)
    assert "posterior" in fit.to_arviz(log_likelihood=False, posterior_predictive=False).groups()
    monkeypatch.setattr(fit_module, "MAX_DRAW_ENTRIES", 60 * 400)
    assert set(fit.to_arviz().groups()) == GROUPS


def test_blocks_of_rows_give_the_same_log_likelihood(fit, data, monkeypatch):
    seen = []
    final = fit.final

    class Watched(type(final)):
        def log_prob(self, phi):
            seen.append(len(phi))
            return super().log_prob(phi)

    fields = {field.name: getattr(final, field.name) for field in dataclasses.fields(final)}
    monkeypatch.setattr(fit_module, "DRAW_CHUNK", 60 * 3 * 70)
    blocked = dataclasses.replace(fit, final=Watched(**fields)).to_arviz()
    assert seen == [70] * 5 + [50]
    np.testing.assert_allclose(blocked.log_likelihood.y, data.log_likelihood.y, rtol=1e-12)


# ------------------------------------------------------------------------------------------------ what people call


def test_summary_has_a_row_per_parameter(fit, data):
    table = az.summary(data)
    assert len(table) == fit.final.theta[0].numel()
    assert np.isfinite(table["mean"]).all()
    assert any(fit.feature_map.names[0] in name for name in table.index)


def test_loo_and_its_khat_plot(fit, data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # 60 draws are few for a tail index
        loo = az.loo(data, pointwise=True)
    assert loo.n_data_points == 400
    assert (loo.pareto_k < 1).all()
    # 400 rows and 8 parameters: leaving one out is near the 5 folds
    assert -float(loo.elpd_loo) / 400 == pytest.approx(fit.held_out_log_loss, abs=0.05)
    axes = az.plot_khat(loo)
    axes.figure.canvas.draw()
    assert len(axes.collections) + len(axes.lines) > 0


def test_forest_plot(data):
    (axes,) = az.plot_forest(data, var_names=["weights", "intercept"], combined=True)
    axes.figure.canvas.draw()
    assert len(axes.get_yticklabels()) == data.posterior.weights[0, 0].size + 2


def test_posterior_predictive_plot_shows_the_observed_shares(data):
    axes = az.plot_ppc(data, num_pp_samples=20, random_seed=0)
    axes.figure.canvas.draw()
    assert len(axes.lines) + len(axes.patches) > 20


# ------------------------------------------------------------------------------------------------ files, other fits


def test_netcdf_comes_back_with_equal_values(data, tmp_path):
    save_netcdf(data, tmp_path / "fit.nc")
    back = load_netcdf(tmp_path / "fit.nc")
    assert_same(back, data)
    assert az.summary(back).equals(az.summary(data))
    assert_same(az.from_netcdf(str(tmp_path / "fit.nc")), data)  # by ArviZ alone, too


@pytest.mark.parametrize(
    ("model", "missing"),
    [
        (SelectionModel(response="mlp"), {"sample_stats"}),
        (SelectionModel(estimator="permutation"), {"sample_stats"}),
    ],
    ids=["mlp", "permutation"],
)
def test_other_fits_go_the_same_way(model, missing, tmp_path):
    sample = Gaussian(n_positions=3, seed=1).sample(150, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = model.fit(sample, folds=2, n_draws=20, seed=0, progress=False).to_arviz()
    assert set(data.groups()) == GROUPS - missing
    assert data.posterior_predictive.y.dims == ("chain", "draw", "obs_id")
    assert np.isfinite(az.summary(data, kind="stats")["mean"]).all()
    save_netcdf(data, tmp_path / "fit.nc")
    assert_same(load_netcdf(tmp_path / "fit.nc"), data)


def test_given_x_there_is_no_law_of_y_alone():
    sample = Gaussian(n_positions=3, seed=1).sample(150, 0)
    x = np.random.default_rng(0).normal(size=(150, 1))
    given = SelectionModel(estimator="permutation").fit(
        MaskSample(sample.masks, sample.y, x_features=x), folds=2, n_draws=20, seed=0, progress=False
    )
    assert not {"log_likelihood", "posterior_predictive"} & set(given.to_arviz().groups())


def test_weights_of_a_fit_go_to_arviz(fit):
    data = fit.weights(n_draws=10).to_arviz(obs=[1, 5])
    assert data.posterior.sizes["draw"] == 10
    assert data.posterior.obs_id.values.tolist() == [1, 5]
    np.testing.assert_array_equal(data.constant_data.fold, fit.fold[[1, 5]])
