"""The figures: each usable alone, readable with few and many, and nothing of pyplot touched."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

from causal_attn.errors import InputError
from causal_attn.plots import palette
from causal_attn.plots.parts import log_edges, plain
from causal_attn.report import figures, read_results
from causal_attn.report.sheets import draw_all
from causal_attn.storage import load_arrays, save_arrays
from tests.report.made import LABELS, edit, write_results


@pytest.mark.parametrize(("classes", "schemes"), [(2, 8), (10, 2)])
def test_all_figures_are_drawn_without_a_warning(tmp_path: Path, classes: int, schemes: int) -> None:
    names = [f"$class_{i}$ with a long name" for i in range(classes)]
    out = write_results(tmp_path / "out", schemes=list(LABELS)[:schemes], class_names=names, n=400)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = draw_all(read_results(out))
    assert set(drawn) == {"shortcut", "profiles", "weights", "overlap", "balance", "training", "elbo"}
    assert all(sheet.png.startswith(b"\x89PNG") and b"<svg" in sheet.svg and sheet.alt for sheet in drawn.values())


def test_each_function_draws_on_the_axes_it_is_given(out: Path) -> None:
    results = read_results(out)
    for draw in (figures.reliance, figures.leakage, figures.weights, figures.overlap, figures.history, figures.elbo,
                 figures.balance, figures.calibration):  # fmt: skip
        ax = Figure().subplots()
        assert draw(ax, results) is ax
        assert ax.get_xlabel()
    ax = Figure().subplots()
    assert figures.profile(ax, results, "erm") is ax
    assert "default tokens" in [text.get_text() for text in ax.texts]


def test_reliance_is_drawn_where_the_numbers_are(out: Path) -> None:
    results = read_results(out)
    ax = figures.leakage(Figure().subplots(), results)
    run = results.schemes[0].runs[0]
    drawn = [tuple(line.get_xdata()) for line in ax.lines]
    assert (run.figures["leakage_auc"],) in drawn
    assert run.intervals["leakage_auc"] in drawn
    assert (0.5, 0.5) in [tuple(map(float, x)) for x in drawn if len(x) == 2]


def test_balance_and_calibration_are_drawn_as_they_are_in_the_file(out: Path) -> None:
    results = read_results(out)
    largest = results.arrays["balance"][:-3, 0].max()
    ax = figures.balance(Figure().subplots(), results)
    assert "15 of 40 positions" in ax.get_title(loc="left")
    drawn = [float(v) for points in ax.collections for v in np.asarray(points.get_offsets())[:, 0]]
    drawn += [float(v) for line in ax.lines for v in np.atleast_1d(line.get_xdata())]
    assert any(abs(v - largest) < 1e-9 for v in drawn)
    ax = figures.calibration(Figure().subplots(), results)
    assert "expected calibration error" in ax.get_title(loc="left")


@pytest.mark.parametrize(("name", "shape"), [("balance", (5, 2)), ("calibration", (4, 5)), ("balance", (7,))])
def test_tables_of_another_shape_are_refused(out: Path, name: str, shape: tuple[int, ...]) -> None:
    arrays, _ = load_arrays(out / "details.npz")
    save_arrays(out / "details.npz", arrays | {name: np.ones(shape)}, {})
    with pytest.raises(InputError, match=f"{name}: expected"):
        read_results(out)


def test_a_missing_figure_is_said_in_words(out: Path) -> None:
    edit(out, lambda raw: raw["schemes"]["erm"]["runs"][0].update(leakage_auc=None))
    ax = figures.leakage(Figure().subplots(), read_results(out))
    assert [text.get_text() for text in ax.texts] == ["leakage auc not computed"]


def test_equal_and_infinite_weights_are_drawn(out: Path) -> None:
    arrays, meta = load_arrays(out / "details.npz")
    flat = np.full(300, np.log(0.5))
    flat[0] = np.inf
    save_arrays(out / "details.npz", arrays | {"log_w": flat}, meta)
    assert "weights" in draw_all(read_results(out))
    assert np.ptp(np.log(log_edges(np.zeros(4)))) == pytest.approx(np.log(4))


def test_only_what_has_numbers_is_drawn(out: Path) -> None:
    arrays, meta = load_arrays(out / "details.npz")
    save_arrays(out / "details.npz", {"elbo": arrays["elbo"], "another_array": arrays["y"]}, meta)
    assert set(draw_all(read_results(out))) == {"shortcut", "elbo"}


def test_the_same_results_give_the_same_bytes(out: Path) -> None:
    results = read_results(out)
    first, second = draw_all(results), draw_all(results)
    assert all(first[name].svg == second[name].svg for name in first)


def test_neither_pyplot_nor_the_settings_of_the_user_are_touched(out: Path) -> None:
    before, loaded = dict(mpl.rcParams), "matplotlib.pyplot" in sys.modules
    draw_all(read_results(out))
    assert dict(mpl.rcParams) == before
    assert ("matplotlib.pyplot" in sys.modules) == loaded


def test_no_two_of_forty_classes_look_alike() -> None:
    assert len({(palette.class_colour(k), str(palette.class_line(k))) for k in range(40)}) == 40
    assert len({(palette.scheme_colour(i), palette.scheme_marker(i)) for i in range(8)}) == 8


def test_names_are_drawn_as_they_are() -> None:
    assert plain("$x$") == r"\$x\$"
    assert plain("_hidden").strip() == "_hidden"
    assert len(plain("n" * 50)) == 26
