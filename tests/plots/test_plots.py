"""What holds for all figures: usable from the package's top, saved without pyplot or a change of settings."""

from __future__ import annotations

import io
import subprocess
import sys
import warnings

import matplotlib as mpl
import pytest

import causal_attn as ca
from causal_attn.plots import calibration, love, overlap, weight_histogram
from tests.plots.made import made_balance, made_calibration, made_weights

ALONE = """
import io, sys
from tests.plots.made import made_balance, made_calibration, made_weights
from causal_attn import plots
axes = [plots.love(made_balance()), plots.calibration(made_calibration())]
axes += [draw(made_weights()) for draw in (plots.weight_histogram, plots.overlap)]
for ax in axes:
    ax.figure.savefig(io.BytesIO(), format="png")
print([m for m in ("matplotlib.pyplot", "arviz") if m in sys.modules])
"""
"""k̂ is not among them: ArviZ before 1.0 imports pyplot itself."""


def test_pyplot_is_never_imported() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


HEAVY = """
import sys, causal_attn.plots
print([m for m in ('torch', 'pyro', 'arviz', 'matplotlib.pyplot') if m in sys.modules])
"""


def test_importing_the_figures_loads_neither_torch_nor_arviz() -> None:
    assert subprocess.run([sys.executable, "-c", HEAVY], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("many", [False, True])
def test_every_figure_is_saved_without_a_warning_or_a_changed_setting(many: bool) -> None:
    classes, positions = (20, 500) if many else (2, 10)
    before = dict(mpl.rcParams)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        axes = [love(made_balance(positions)), calibration(made_calibration(classes))]
        names = [f"$a_{k}$ with a rather long name" for k in range(classes)]
        axes += [draw(made_weights(500, classes), class_names=names) for draw in (weight_histogram, overlap)]
        for ax in axes:
            ax.figure.savefig(io.BytesIO(), format="png")
    assert dict(mpl.rcParams) == before


def test_the_public_names() -> None:
    assert sorted(ca.plots.__all__) == ["calibration", "khat", "love", "overlap", "weight_histogram"]
    assert all(callable(getattr(ca.plots, name)) for name in ca.plots.__all__)
