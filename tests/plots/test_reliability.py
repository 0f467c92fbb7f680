"""Calibration: points where the table says, few classes named, of many the worst."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from causal_attn.errors import InputError
from causal_attn.plots import calibration, palette
from causal_attn.plots.reliability import class_error
from tests.plots.made import made_calibration


def named(ax: Axes) -> list[Line2D]:
    return [line for line in ax.lines if line.get_marker() == "o"]


@pytest.mark.parametrize("classes", [2, 6])
def test_points_and_intervals_are_the_tables(classes: int) -> None:
    table = made_calibration(classes)
    ax = calibration(table)
    lines = named(ax)
    assert len(lines) == classes
    for k, line in enumerate(lines):
        mine = table[table["class"] == k].sort_values("predicted")
        np.testing.assert_allclose(line.get_xdata(), mine["predicted"])
        np.testing.assert_allclose(line.get_ydata(), mine["observed"])
        ends = np.array(ax.collections[k].get_segments())
        np.testing.assert_allclose(ends[:, :, 1], mine[["low", "high"]])


def test_of_twenty_classes_the_four_worst_are_named() -> None:
    table = made_calibration(20)
    ax = calibration(table, class_names=[f"kind {k}" for k in range(20)])
    error = {k: class_error(table[table["class"] == k]) for k in range(20)}
    worst = sorted(sorted(error, key=lambda k: -error[k])[:4])
    said = [t.get_text() for t in ax.get_legend().get_texts()]
    assert said == [f"kind {k} ({error[k]:.3f})" for k in worst] + ["16 other classes"]
    assert sum(line.get_color() == palette.FAINT and len(line.get_xdata()) > 0 for line in ax.lines) == 16
    assert ax.get_xlim()[1] < 0.7  # no class is probable: the empty part is left out
    assert ax.get_xlim() == ax.get_ylim()


def test_errors_by_class_average_to_the_expected_calibration_error() -> None:
    table = made_calibration(3, n=900)
    errors = [class_error(rows) for _, rows in table.groupby("class")]
    assert np.mean(errors) == pytest.approx(table.attrs["expected_calibration_error"])


def test_the_title_says_what_the_table_knows() -> None:
    table = made_calibration(2)
    assert calibration(table).get_title(loc="left").splitlines() == [
        f"expected calibration error {table.attrs['expected_calibration_error']:.3f}",
        "log-loss 0.512 nats, without the mask 0.693",
    ]
    table.attrs.clear()
    assert calibration(table).get_title(loc="left") == ""


def test_the_axes_given_are_returned() -> None:
    ax = Figure().subplots()
    assert calibration(made_calibration(2), ax) is ax


def test_wrong_arguments_are_named() -> None:
    table = made_calibration(2)
    with pytest.raises(InputError, match=r"table: expected the DataFrame of SelectionFit\.calibration\(\), got dict"):
        calibration({})
    with pytest.raises(InputError, match="found no 'low', 'high'"):
        calibration(table.drop(columns=["low", "high"]))
    with pytest.raises(InputError, match="table: expected at least one row"):
        calibration(table.iloc[:0])
    with pytest.raises(InputError, match="class_names: expected 2 names, got 1"):
        calibration(table, class_names=["a"])
    with pytest.raises(InputError, match="ax: expected"):
        calibration(table, ax=3)
