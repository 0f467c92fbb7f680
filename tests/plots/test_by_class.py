"""Weights and overlap: the bars are the counts, for any number of classes, and wrong arguments are named."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch

from causal_attn.errors import InputError
from causal_attn.plots import overlap, weight_histogram
from causal_attn.plots.by_class import shown_to
from causal_attn.plots.parts import HEAP, bar_heights, size_points
from causal_attn.weights import Weights
from tests.plots.made import made_weights


def filled(ax: Axes) -> list[StepPatch]:
    return [p for p in ax.patches if isinstance(p, StepPatch) and p.get_fill()]


def shares(heights: np.ndarray) -> np.ndarray:
    return heights / heights.sum()


@pytest.mark.parametrize("classes", [2, 20])
def test_the_bars_are_the_counts_of_the_weights(classes: int) -> None:
    weights = made_weights(1500, classes)
    ax = weight_histogram(weights)
    bars = filled(ax)
    assert len(bars) == classes
    w, y = weights.log_w.exp().numpy(), weights.y.numpy()
    for k, bar in enumerate(bars):
        values, edges, baseline = bar.get_data()
        mine = np.clip(w[y == k], edges[0], edges[-1])  # exp(log w) and the edges may differ by rounding
        np.testing.assert_allclose(shares(baseline - values), shares(np.histogram(mine, edges)[0]))
        assert np.max(baseline - values) == pytest.approx(HEAP)
    assert [t.get_text() for t in ax.get_yticklabels()] == [f"class {k}" for k in range(classes)]


@pytest.mark.parametrize("classes", [2, 20])
def test_the_bars_are_the_counts_of_the_probabilities(classes: int) -> None:
    weights = made_weights(1500, classes)
    bars = filled(overlap(weights))
    assert weights.log_prob is not None
    p, y = weights.log_prob.exp().numpy(), weights.y.numpy()
    for k, bar in enumerate(bars):
        values, edges, baseline = bar.get_data()
        np.testing.assert_allclose(baseline - values, bar_heights(p[y == k, k], edges))


def test_marks_stand_at_the_target_prior_and_at_one() -> None:
    weights = Weights.from_log([0.0, 0.3, -0.2], [0, 1, 1], prior=[0.4, 0.6])
    ax = weight_histogram(weights)
    upright = {float(line.get_xdata()[0]) for line in ax.lines if len(set(map(float, line.get_xdata()))) == 1}
    assert {0.4, 0.6, 1.0} <= upright


@pytest.mark.parametrize("draw", [weight_histogram, overlap])
@pytest.mark.parametrize("classes", [2, 20])
def test_the_axes_given_are_returned_with_every_name_on_a_line_of_its_own(draw, classes: int) -> None:
    figure = Figure(figsize=(5, 3.5), layout="constrained")
    ax = figure.subplots()
    assert draw(made_weights(600, classes), ax, class_names=[f"kind {k}" for k in range(classes)]) is ax
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in ax.get_yticklabels()]
    assert all(one.y0 >= other.y1 - 1 for one, other in pairwise(boxes))
    assert ax.get_legend().get_window_extent().x1 <= figure.bbox.width
    assert ax.xaxis.label.get_window_extent().x1 <= figure.bbox.width


def test_many_classes_get_an_axis_that_ends_sooner() -> None:
    even = np.log(np.full((200, 20), 0.05))
    assert shown_to(even) == pytest.approx(0.05)
    assert shown_to(np.log(np.tile([0.9, 0.1], (50, 1)))) == 1.0
    one_sure = even.copy()
    one_sure[0, 0] = 0.0
    assert shown_to(one_sure) < 0.5
    weights = Weights.from_log(
        np.zeros(200), np.arange(200) % 20, log_prob=one_sure - np.log(np.exp(one_sure).sum(1, keepdims=True))
    )
    assert "larger ones stand at the end" in overlap(weights).get_xlabel().replace("\n", " ")


def test_two_classes_need_no_probabilities_and_three_do() -> None:
    known, unknown = made_weights(300, 2), made_weights(300, 2, known=False)
    for one, other in zip(filled(overlap(known)), filled(overlap(unknown))):
        np.testing.assert_allclose(one.get_data().values, other.get_data().values)
    with pytest.raises(InputError, match=r"weights: expected ones with log_prob \(n, 3\)"):
        overlap(made_weights(300, 3, known=False))


def test_probabilities_of_zero_are_drawn() -> None:
    log_prob = torch.tensor([[0.0, -torch.inf], [-torch.inf, 0.0]], dtype=torch.float64)
    weights = Weights(torch.tensor([0.5, 0.5]).double().log(), torch.tensor([0, 1]), torch.tensor([0.5, 0.5]), log_prob)
    overlap(weights).figure.draw_without_rendering()


def test_a_class_without_rows_and_equal_weights_are_drawn() -> None:
    weights = Weights.from_log(np.zeros(4), [0, 0, 1, 1], prior=[0.4, 0.4, 0.2])
    weight_histogram(weights).figure.draw_without_rendering()


@pytest.mark.parametrize("draw", [weight_histogram, overlap])
def test_wrong_arguments_are_named(draw) -> None:
    weights = made_weights(60, 2)
    for bad in ("weights", None, np.zeros(3)):
        with pytest.raises(InputError, match=r"weights: expected a causal_attn\.Weights, got"):
            draw(bad)
    for bad in (Figure(), 3):
        with pytest.raises(InputError, match="ax: expected a matplotlib Axes or None, got"):
            draw(weights, bad)
    with pytest.raises(InputError, match="class_names: expected 2 names, got 3"):
        draw(weights, class_names=["a", "b", "c"])
    for bad in ("ab", 2):
        with pytest.raises(InputError, match="class_names: expected a sequence of 2 names"):
            draw(weights, class_names=bad)


def test_a_figure_made_here_grows_with_the_classes() -> None:
    few, many = (size_points(weight_histogram(made_weights(200, k)))[1] for k in (2, 20))
    assert many > 3 * few
