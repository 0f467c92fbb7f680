"""The love plot: points where the table says, the largest kept, and what is left out said."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from causal_attn.errors import InputError
from causal_attn.plots import love
from tests.plots.made import made_balance


def points(ax: Axes, filled: bool) -> np.ndarray:
    """x of the hollow or filled points, by row."""
    marked = [line for line in ax.lines if line.get_marker() == "o"]
    return np.asarray(marked[int(filled)].get_xdata(), dtype=float)


def pooled(table: pd.DataFrame) -> pd.DataFrame:
    return table[(table["measure"] == "smd") & (table["class"] == "pooled")].set_index("of")


@pytest.mark.parametrize(("positions", "shown"), [(10, 10), (30, 30), (500, 30)])
def test_points_are_the_tables_numbers(positions: int, shown: int) -> None:
    table = made_balance(positions)
    ax = love(table)
    rows = pooled(table)
    names = [t.get_text() for t in ax.get_yticklabels()]
    assert len(names) == shown + 3
    assert names[-3:] == ["mean log m", "entropy", "log sum m^2"]
    np.testing.assert_allclose(points(ax, False), rows.loc[names, "before"])
    np.testing.assert_allclose(points(ax, True), rows.loc[names, "after"])
    np.testing.assert_allclose([bar.get_width() for bar in ax.patches], rows.loc[names, "permuted"])
    largest = rows[rows["position"].notna()]["before"].nlargest(shown)
    assert names[:-3] == largest.index.tolist()
    title = ax.get_title(loc="left")
    assert title.startswith(f"{shown} of {positions} positions" if shown < positions else f"{positions} positions\n")
    over = (rows[rows["position"].notna()][["before", "after"]] > 0.1).sum()
    assert f"above 0.1: {over['before']} of {positions} before, {over['after']} after" in title


def test_signs_do_not_matter_and_other_classes_are_not_drawn() -> None:
    table = made_balance(5)
    turned = table.assign(before=-table["before"])
    np.testing.assert_allclose(points(love(turned), False), points(love(table), False))


def test_an_infinite_difference_stands_at_the_edge_and_is_marked() -> None:
    table = made_balance(5)
    first = table.index[(table["of"] == "m[2]") & (table["class"] == "pooled")]
    table.loc[first, ["before", "after"]] = np.inf
    ax = love(table)
    assert points(ax, False)[0] == points(ax, True)[0] == ax.get_xlim()[1]
    assert [t.get_text() for t in ax.texts] == ["∞"]
    assert np.isfinite(ax.get_xlim()).all()


def test_without_weights_only_before_is_drawn() -> None:
    ax = love(made_balance(5, weighted=False))
    assert np.isnan(points(ax, True)).all()
    assert "after" not in ax.get_title(loc="left")
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["before", "classes shuffled", "0.1"]


def test_subsets_have_no_concentration_and_a_missing_difference_comes_last() -> None:
    table = made_balance(4)
    table = table[~table["of"].isin(["mean log m", "entropy", "log sum m^2"])].copy()
    table.loc[table["of"] == "m[2]", "before"] = np.nan
    assert [t.get_text() for t in love(table).get_yticklabels()][-1] == "m[2]"


@pytest.mark.parametrize("positions", [10, 500])
def test_names_do_not_touch_and_the_axes_given_are_returned(positions: int) -> None:
    figure = Figure(figsize=(6, 4), layout="constrained")
    ax = figure.subplots()
    assert love(made_balance(positions), ax, top=15) is ax
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in ax.get_yticklabels()]
    assert all(one.y0 >= other.y1 - 1 for one, other in pairwise(boxes))


def test_wrong_arguments_are_named() -> None:
    table = made_balance(5)
    with pytest.raises(InputError, match=r"table: expected the DataFrame of causal_attn\.balance_table, got list"):
        love([1, 2])
    with pytest.raises(InputError, match="found no 'permuted'"):
        love(table.drop(columns="permuted"))
    with pytest.raises(InputError, match="table: expected rows of measure 'smd' and class 'pooled'"):
        love(table[table["class"] != "pooled"])
    with pytest.raises(InputError, match="table: expected numbers in column 'before'"):
        love(table.assign(before="much"))
    for bad in (0, -1, 2.5, True, "all"):
        with pytest.raises(InputError, match="top: expected a whole number of at least 1"):
            love(table, top=bad)
    with pytest.raises(InputError, match="ax: expected"):
        love(table, "ax")
