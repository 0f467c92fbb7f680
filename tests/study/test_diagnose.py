"""The diagnosis of masks alone: what it says, what it writes, and the command."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from causal_attn import cli
from causal_attn.data.worlds import DeterministicLeak, Gaussian, Null
from causal_attn.errors import InputError, SupportWarning
from causal_attn.interop.arviz import load_netcdf
from causal_attn.masks import MaskSample
from causal_attn.report import draw_diagnosis
from causal_attn.selection import SelectionModel
from causal_attn.study import diagnose
from causal_attn.weights import Weights

FEW = {"n_permutations": 40, "progress": False}


def test_a_leak_a_null_and_what_is_written(tmp_path):
    null = diagnose(Null(n_positions=4).sample(300, 0), **FEW)
    assert "No leakage found" in null.words
    with pytest.warns(SupportWarning):
        leak = diagnose(DeterministicLeak(n_classes=3).sample(900, 0), ("a", "b", "c"), **FEW)
    assert "The mask tells the class" in leak.words
    assert "weighting cannot repair this" in leak.words
    assert "That alone is no shortcut" in str(leak)
    assert max(map(len, str(leak).split("\n\n")[2].splitlines())) < 90

    leak.save(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "balance.csv", "calibration.csv", "diagnosis.json", "selection.nc", "weights.nc", "weights.npz",
    ]  # fmt: skip
    figures = json.loads((tmp_path / "diagnosis.json").read_text())
    assert figures["support_deficit"] == leak.weights.support_deficit > 0.5
    assert figures["classes"] == ["a", "b", "c"]
    assert Weights.load(tmp_path / "weights.npz").support_deficit == leak.weights.support_deficit
    assert len(load_netcdf(tmp_path / "weights.nc").posterior.obs_id) == 900
    saved = pd.read_csv(tmp_path / "balance.csv")
    np.testing.assert_allclose(saved["before"], leak.balance["before"].astype(float))


def test_a_classifier_without_a_posterior_is_diagnosed_too(tmp_path):
    found = diagnose(
        Gaussian(n_positions=4).sample(200, 0), model=SelectionModel(estimator=LogisticRegression()), **FEW
    )
    found.save(tmp_path)
    draw_diagnosis(found, tmp_path)
    assert not (tmp_path / "weights.nc").exists()
    assert (tmp_path / "figures" / "overlap.png").exists()
    assert not (tmp_path / "figures" / "khat.png").exists()


def test_bad_arguments_are_named():
    sample = Null(n_positions=3).sample(40, 0)
    with pytest.raises(InputError, match="class_names: expected 2, got 1"):
        diagnose(sample, ["a"])
    with pytest.raises(InputError, match="sample: expected a MaskSample"):
        diagnose(3)
    with pytest.raises(InputError, match="n_permutations: expected"):
        diagnose(sample, n_permutations=0)
    with pytest.raises(InputError, match="model: expected a SelectionModel"):
        diagnose(sample, model=3)
    given = MaskSample(sample.masks, sample.y, x_features=np.ones((40, 1)))
    with pytest.raises(InputError, match="sample: expected one without x_features"):
        diagnose(given, model=SelectionModel(estimator="permutation"))


def test_the_command_prints_writes_and_refuses_in_one_line(tmp_path, capsys):
    Gaussian(n_positions=4).sample(300, 0).save(tmp_path / "a.npz")
    args = ["diagnose", str(tmp_path / "a.npz"), "--permutations", "20", "--quiet"]
    assert cli.main([*args, "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "LeakageTest" in out
    assert "energy_distance" in out
    assert {p.name for p in (tmp_path / "out" / "figures").iterdir()} == {
        "weights.png", "overlap.png", "balance.png", "calibration.png", "khat.png",
    }  # fmt: skip
    for wrong, message in (
        ([*args[:1], str(tmp_path / "none.csv")], "no such file"),
        ([*args, "--folds", "1"], "--folds: expected"),
        ([*args, "--tau", "0.5"], "--tau: expected"),
        ([*args, "--permutations", "0"], "--permutations: expected"),
    ):
        assert cli.main(wrong) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1


def test_the_command_runs_as_a_program(tmp_path):
    Null(n_positions=3).sample(80, 0).save(tmp_path / "a.safetensors")
    command = [sys.executable, "-m", "causal_attn.cli", "diagnose", str(tmp_path / "a.safetensors"), "--quiet"]
    done = subprocess.run([*command, "--permutations", "20"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr == ""
    assert "No leakage found" in done.stdout or "The mask tells the class" in done.stdout


def test_masks_that_look_misread_are_pointed_out():
    same = diagnose(MaskSample(np.tile([1.0, 0.0, 0.0], (60, 1)), np.arange(60) % 2), ("ham", "spam"), **FEW)
    assert "All masks are the same" in same.words
    assert "Many rows end in exact zeros" in same.words
    assert "ham" in str(same)
    assert repr(same) == str(same)
    assert max(map(len, str(same).splitlines())) <= 100
    few = diagnose(Null(n_positions=3).sample(20, 0), **FEW)
    assert "With so few rows of a class" in few.words
