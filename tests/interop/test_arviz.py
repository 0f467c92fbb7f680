"""interop/arviz.py alone. Runs beside either generation of ArviZ, so it imports neither torch nor Pyro:
`make tests-arviz1` runs it a second time, with ArviZ 1.x on Python 3.12. Fits go to ArviZ in tests/selection and
tests/weights.
"""

import gc
import subprocess
import sys
import warnings
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
import xarray as xr
from scipy.special import ndtri

from causal_attn.errors import InputError, OutputError
from causal_attn.interop.arviz import arviz, generation, khat_threshold, load_netcdf, psis, save_netcdf, to_arviz

az = arviz()
FIXTURES = Path(__file__).parent / "fixtures"


# ------------------------------------------------------------------------------------------------ PSIS


def laws(n):
    """Log-weights by exact inversion: log-normal weights, and Pareto weights u^(-k), whose tail index is k."""
    u = np.random.default_rng(7).random(n)
    return {"normal": ndtri(u), **{f"pareto {k}": -k * np.log(u) for k in (0.3, 0.7, 1.2)}}


# k̂ of laws(n) by ArviZ 0.23.4, az.psislw(log_w), and by ArviZ 1.3.0 (arviz-stats 1.3.3), where
# arviz_stats.base.array_stats.psislw takes a log-likelihood and so is given -log_w.
REFERENCE = {
    (500, "normal"): (0.4632, 0.4545),
    (500, "pareto 0.3"): (0.2085, 0.2062),
    (500, "pareto 0.7"): (0.5091, 0.5045),
    (500, "pareto 1.2"): (0.8920, 0.8846),
    (5000, "normal"): (0.1327, 0.1319),
    (5000, "pareto 0.3"): (0.1468, 0.1569),
    (5000, "pareto 0.7"): (0.5229, 0.5350),
    (5000, "pareto 1.2"): (0.9942, 1.0090),
}


@pytest.mark.parametrize(("n", "law"), REFERENCE)
def test_khat_is_that_of_both_generations(n, law):
    k = psis(laws(n)[law])[1]
    assert k == pytest.approx(REFERENCE[n, law][0], abs=1e-4)  # the same rule for the tail's length
    assert k == pytest.approx(REFERENCE[n, law][1], abs=0.03)


def psis_of_arviz(log_weights):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if generation() == 0:
            return az.psislw(log_weights)
        from arviz_stats.base import array_stats

        return array_stats.psislw(-log_weights)


@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("n", [100, 900, 2000])
def test_psis_is_that_of_the_arviz_installed(n, spread):
    raw = spread * np.random.default_rng(0).normal(size=n)
    expected, khat = psis_of_arviz(raw)
    smoothed, k = psis(raw)
    same_tail = generation() == 0 or n != 2000  # at 100 and 900 rows there is nothing to round
    assert k == pytest.approx(float(khat), abs=1e-9 if same_tail else 0.03)
    np.testing.assert_allclose(smoothed, np.asarray(expected), atol=1e-9 if same_tail else 0.05)
    assert np.exp(smoothed).sum() == pytest.approx(1)


@pytest.mark.parametrize("k", [0.3, 0.5, 0.7, 1.2])
def test_psis_knows_the_tail_of_a_pareto_law(k):
    quantiles = (np.arange(20_000) + 0.5) / 20_000  # the law itself, without chance
    assert psis(-k * np.log(quantiles))[1] == pytest.approx(k, abs=0.03)


def test_smoothing_keeps_the_order_the_body_and_the_largest_weight():
    raw = laws(500)["pareto 0.7"]
    smoothed, _ = psis(raw)
    shift = smoothed - raw
    order = np.argsort(raw)
    assert (np.diff(smoothed[order]) >= 0).all()
    np.testing.assert_allclose(shift[order[:-68]], shift[order[0]], atol=1e-9)  # 68 = 3√500 rounded up
    assert smoothed.max() - shift[order[0]] <= raw.max() + 1e-9


@pytest.mark.parametrize("raw", [np.zeros(500), np.full(7, 3.0), np.array([1.0]), np.repeat([0.0, 1.0], 250)])
def test_where_the_largest_weights_are_equal_there_is_no_tail(raw):
    smoothed, k = psis(raw)
    assert k == 0.0
    np.testing.assert_allclose(np.exp(smoothed), np.exp(raw) / np.exp(raw).sum())


def test_tied_and_few_weights_have_a_khat_in_both_generations():
    rng = np.random.default_rng(1)
    tied = rng.choice([0.0, 0.1, 0.2, 0.3, 5.0], 1000, p=[0.9, 0.04, 0.03, 0.02, 0.01])
    assert psis(tied)[1] > 1  # ten rows hold half of the sum
    assert psis(np.repeat([0.0, 1.0], [950, 50]))[1] < 0
    assert np.isposinf(psis(np.repeat([0.0, 1.0], [999, 1]))[1])  # one weight stands out: nothing to fit
    assert np.isfinite(psis(rng.normal(size=25))[1])


def test_psis_ignores_the_scale_of_the_weights():
    raw = laws(500)["normal"]
    for shift in (-800.0, 800.0):
        np.testing.assert_allclose(psis(raw + shift)[0], psis(raw)[0], atol=1e-9)
        assert psis(raw + shift)[1] == pytest.approx(psis(raw)[1], abs=1e-9)
    smoothed, k = psis(500 * raw)  # the smallest weights underflow
    assert np.isfinite(smoothed).all()
    assert k > 1


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


# ------------------------------------------------------------------------------------------------ groups and dims


def example(draws=20, n=6):
    """The groups of a `SelectionFit`, in small."""
    rng = np.random.default_rng(0)
    return to_arviz(
        {
            "posterior": {"weights": rng.normal(size=(draws, 2, 1)), "mean_weight": rng.normal(size=draws)},
            "sample_stats": {"lp": rng.normal(size=draws)},
            "log_likelihood": {"y": -0.5 - 0.2 * rng.random((draws, n))},
            "posterior_predictive": {"y": rng.integers(0, 2, (draws, n), dtype=np.int32)},
            "observed_data": {"y": rng.integers(0, 2, n)},
            "constant_data": {"fold": np.arange(n) % 2, "prior": np.array([0.4, 0.6])},
            "optimization": {"elbo": np.arange(4.0)},
        },
        {
            "weights": ["feature", "contrast"],
            "y": ["obs_id"],
            "fold": ["obs_id"],
            "prior": ["label"],
            "elbo": ["step"],
        },
        {
            "feature": ["first", "zweite Lücke"],
            "contrast": [0],
            "obs_id": 10 * np.arange(n),
            "label": [0, 1],
            "step": range(4),
        },
    )


DIMS = {
    "posterior": {"weights": ("chain", "draw", "feature", "contrast"), "mean_weight": ("chain", "draw")},
    "sample_stats": {"lp": ("chain", "draw")},
    "log_likelihood": {"y": ("chain", "draw", "obs_id")},
    "posterior_predictive": {"y": ("chain", "draw", "obs_id")},
    "observed_data": {"y": ("obs_id",)},
    "constant_data": {"fold": ("obs_id",), "prior": ("label",)},
    "optimization": {"elbo": ("step",)},
}


KEPT = ("posterior", "posterior_predictive", "observed_data", "optimization")
"""The groups of `example()` in the files under fixtures, which are to stay small."""


def datasets(data):
    """{group: Dataset}, of an InferenceData or a DataTree."""
    if generation() == 0:
        return {name: data[name] for name in data.groups()}
    return {name: node.to_dataset() for name, node in data.children.items()}


def assert_same(got, expected):
    assert set(got) == set(expected)
    for name, dataset in expected.items():
        xr.testing.assert_equal(got[name], dataset)  # values, dims and coords
        for variable in dataset.variables:
            assert got[name][variable].dtype.kind == dataset[variable].dtype.kind


def test_it_is_what_this_arviz_works_on():
    assert type(example()).__name__ == ("InferenceData" if generation() == 0 else "DataTree")


def test_groups_have_one_chain_and_named_dims():
    data = example()
    groups = datasets(data)
    assert {name: {v: a.dims for v, a in ds.data_vars.items()} for name, ds in groups.items()} == DIMS
    assert data.posterior.weights.shape == (1, 20, 2, 1)
    assert data.posterior.chain.values.tolist() == [0]
    assert data.posterior.draw.values.tolist() == list(range(20))
    assert data.posterior.feature.values.tolist() == ["first", "zweite Lücke"]
    assert set(groups["posterior"].coords) == {"chain", "draw", "feature", "contrast"}  # no coordinate it does not use
    assert set(groups["constant_data"].coords) == {"obs_id", "label"}
    assert data.observed_data.obs_id.values.tolist() == [0, 10, 20, 30, 40, 50]


def test_dims_without_names_get_them():
    data = to_arviz({"posterior": {"a": np.zeros((3, 2))}, "constant_data": {"b": np.zeros((4, 5))}}, {}, {})
    assert data.posterior.a.dims == ("chain", "draw", "a_dim_0")
    assert data.constant_data.b.dims == ("b_dim_0", "b_dim_1")


# ------------------------------------------------------------------------------------------------ what people call


@pytest.fixture
def data():
    return example(draws=100, n=30)


def test_summary_has_a_row_per_number(data):
    table = az.summary(data, round_to="none")
    assert len(table) == 3
    assert "weights[first, 0]" in table.index
    mean = data.posterior.mean_weight.values.mean()
    assert float(table.loc["mean_weight", "mean"]) == pytest.approx(mean, abs=1e-9)


def test_loo_and_its_khat_plot(data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loo = az.loo(data, pointwise=True)
    assert loo.n_data_points == 30
    elpd = loo.elpd_loo if generation() == 0 else loo.elpd
    log_lik = data.log_likelihood.y.values[0]
    # the likelihoods hardly differ between draws, so the plain importance weights are as good
    plain = (np.log(len(log_lik)) - np.logaddexp.reduce(-log_lik, axis=0)).sum()
    assert float(elpd) == pytest.approx(plain, abs=0.01)
    assert drawn(az.plot_khat(loo))


def drawn(made):
    """Whether a figure came out, whatever the generation returns; it is closed again."""
    import matplotlib.pyplot as plt

    figures = [plt.figure(number) for number in plt.get_fignums()]
    lines = sum(len(ax.lines) + len(ax.collections) + len(ax.patches) for figure in figures for ax in figure.axes)
    for figure in figures:
        figure.canvas.draw()
    plt.close("all")
    return made is not None and lines > 0


@pytest.fixture(autouse=True)
def _no_screen():
    mpl.use("Agg")


def test_forest_plot(data):
    assert drawn(az.plot_forest(data, var_names=["weights", "mean_weight"]))


@pytest.mark.filterwarnings("ignore:Variables y in:UserWarning")  # 1.x has further plots for classes
def test_posterior_predictive_plot(data):
    plot = az.plot_ppc if generation() == 0 else az.plot_ppc_dist
    assert drawn(plot(data))


# ------------------------------------------------------------------------------------------------ files


def test_netcdf_comes_back(tmp_path):
    data = example()
    save_netcdf(data, tmp_path / "a.nc")
    back = load_netcdf(tmp_path / "a.nc")
    assert type(back) is type(data)
    assert_same(datasets(back), datasets(data))
    assert [p.name for p in tmp_path.iterdir()] == ["a.nc"]
    save_netcdf(back, tmp_path / "a.nc")  # the file is not held open
    assert_same(datasets(load_netcdf(str(tmp_path / "a.nc"))), datasets(data))
    with pytest.raises(OutputError):
        save_netcdf(data, tmp_path / "missing" / "a.nc")


@pytest.mark.parametrize("name", ["arviz-0.23.4.nc", "arviz-1.3.0.nc"])
def test_files_of_both_generations_read_the_same(name, tmp_path):
    """Each was written by `python -m tests.interop.test_arviz` beside the ArviZ of its name."""
    expected = {group: dataset for group, dataset in datasets(example()).items() if group in KEPT}
    assert_same(datasets(load_netcdf(FIXTURES / name)), expected)
    save_netcdf(load_netcdf(FIXTURES / name), tmp_path / "again.nc")
    assert_same(datasets(load_netcdf(tmp_path / "again.nc")), expected)


BAD = {
    "text": b"mean,sd\n1.0,2.0\n",
    "empty": b"",
    "zip": b"PK\x03\x04" + bytes(100),
    "netcdf3": b"CDF\x01" + bytes(60),
    "cut": (FIXTURES / "arviz-1.3.0.nc").read_bytes()[:9000],
    "damaged": (FIXTURES / "arviz-1.3.0.nc").read_bytes()[:3000] + bytes(13_143),  # of the right size
}


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")  # nothing more on stderr either
@pytest.mark.parametrize("kind", BAD)
def test_a_file_that_is_not_ours_is_refused_in_one_line(kind, tmp_path):
    path = tmp_path / f"{kind}.nc"
    path.write_bytes(BAD[kind])
    with pytest.raises(InputError, match=r"path: '.*' cannot be read as NetCDF by ArviZ \d") as caught:
        load_netcdf(path)
    assert "\n" not in str(caught.value)
    del caught
    gc.collect()


def test_netcdf_of_something_else_is_refused(tmp_path):
    xr.Dataset({"a": ("x", [1.0])}).to_netcdf(tmp_path / "plain.nc", engine="h5netcdf")
    with pytest.raises(InputError, match="no group 'posterior'"):
        load_netcdf(tmp_path / "plain.nc")
    with pytest.raises(InputError, match="path: no file"):
        load_netcdf(tmp_path / "b.nc")
    with pytest.raises(InputError, match="path: no file"):
        load_netcdf(tmp_path)


def test_the_file_needs_neither_torch_nor_pyro():
    code = "import causal_attn.interop.arviz, sys; print(sorted({'torch', 'pyro', 'arviz'} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


if __name__ == "__main__":
    target, kept = str(FIXTURES / f"arviz-{az.__version__}.nc"), datasets(example())
    if generation() == 0:
        example().to_netcdf(target, compress=False, groups=list(KEPT))
    else:
        xr.DataTree.from_dict({group: kept[group] for group in KEPT}).to_netcdf(target)
