"""k̂ per observation: ArviZ's own numbers, drawn by index, those above the lines coloured and counted."""

from __future__ import annotations

import warnings

import arviz as az
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from causal_attn.data.worlds import Gaussian
from causal_attn.errors import InputError
from causal_attn.interop.arviz import khat_threshold, loo_khat, n_draws, to_arviz
from causal_attn.plots import khat, palette
from causal_attn.plots.tail import draw_khat
from causal_attn.selection import SelectionModel


@pytest.fixture(scope="module")
def data():
    fit = SelectionModel().fit(Gaussian(seed=1).sample(150, 0), folds=2, progress=False, n_draws=200)
    return fit.to_arviz()


def drawn(ax: Axes) -> dict[str, np.ndarray]:
    """Points by colour, triangles at the top included."""
    out: dict[str, list[np.ndarray]] = {}
    for group in ax.collections:
        if len(group.get_offsets()):
            out.setdefault(to_hex(group.get_facecolor()[0]).upper(), []).append(np.asarray(group.get_offsets()))
    return {colour: np.concatenate(parts) for colour, parts in out.items()}


def test_khat_is_arvizs_own_by_observation(data) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = np.asarray(az.loo(data, pointwise=True).pareto_k)
    np.testing.assert_array_equal(loo_khat(data), expected)
    assert n_draws(data) == 200
    ax = Figure().subplots()
    assert khat(data, ax) is ax
    found = np.concatenate(list(drawn(ax).values()))
    np.testing.assert_allclose(found[np.argsort(found[:, 0])][:, 1], expected)
    assert [line.get_ydata()[0] for line in ax.lines] == [khat_threshold(200), 0.7]


def test_points_above_the_lines_are_coloured_and_counted() -> None:
    values = np.array([0.1, 0.6, 0.8, np.inf, -0.2, 2.0, np.nan])
    ax = draw_khat(Figure().subplots(), values, 0.56)
    found = drawn(ax)
    assert found[palette.MUTED.upper()].tolist() == [[0, 0.1], [4, -0.2]]
    assert found[palette.WARN.upper()].tolist() == [[1, 0.6]]
    red = found[palette.BAD.upper()]
    assert red[:, 0].tolist() == [2, 5, 3]
    assert red[2, 1] == ax.get_ylim()[1]  # the infinite one stands at the top
    assert ax.get_title(loc="left") == "4 of 7 above 0.56, 3 above 0.7, 1 infinite, 1 unknown"


def test_with_many_draws_there_is_one_line() -> None:
    ax = draw_khat(Figure().subplots(), np.array([0.1, 0.9]), khat_threshold(10**6))
    assert [line.get_ydata()[0] for line in ax.lines] == [0.7]
    assert ax.get_title(loc="left") == "1 of 2 above 0.7"


def test_wrong_arguments_are_named(data) -> None:
    for bad in (np.zeros(3), "file.nc", None):
        with pytest.raises(InputError, match=r"data: expected fit\.to_arviz\(\)"):
            khat(bad)
    without = to_arviz({"posterior": {"a": np.zeros(5)}}, {}, {})
    with pytest.raises(InputError, match=r"got (InferenceData|DataTree) without them"):
        khat(without)
    two = {"posterior": {"a": np.zeros(5)}, "log_likelihood": {"y": np.zeros((5, 3)), "z": np.zeros((5, 3))}}
    with pytest.raises(InputError, match="data: expected one variable in the group log_likelihood"):
        khat(to_arviz(two, {}, {}))
    with pytest.raises(InputError, match="ax: expected"):
        khat(data, "ax")
