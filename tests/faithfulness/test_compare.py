"""Models side by side: seeds paired, reasons kept, nothing measured on a wrong request."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import sem, ttest_rel

from causal_attn.attention import TextAttention
from causal_attn.data import Data, load
from causal_attn.errors import InputError, OutputError
from causal_attn.faithfulness import Comparison, compare, faithfulness_suite
from causal_attn.faithfulness.compare import DIRECTIONS
from causal_attn.training import InstanceWeighting, RandomAttentionPretraining, TrainResult, train
from tests.training.toys import bag_data, small_text, token_data, wrapped

MODULE = sys.modules["causal_attn.faithfulness.compare"]  # the package's attribute of that name is the function
FEW: dict[str, Any] = {"epochs": 2, "batch_size": 16, "learning_rate": 0.05, "progress": False}
QUICK: dict[str, Any] = {"n_permutations": 20, "progress": False, "k": 2}


def made(seed: int, rng: np.random.Generator, **given: Any) -> dict[str, Any]:
    return {"seed": seed, **{name: float(rng.random()) for name in DIRECTIONS}, **given}


@pytest.fixture
def comparison() -> Comparison:
    rng = np.random.default_rng(0)
    erm = [made(seed, rng) for seed in range(6)]
    warm = [made(seed, rng) for seed in (4, 0, 3, 2, 5, 9)]  # another order, and a seed without its pair
    warm[1]["lexicon_mass"] = None
    return Comparison({"erm": erm, "warm": warm, "single": [made(2, rng)]}, "test")


def test_differences_are_paired_by_seed(comparison: Comparison) -> None:
    paired = comparison.paired("erm").set_index(["model", "figure"])
    seeds = [0, 2, 3, 4, 5]
    of = lambda name, figure: {run["seed"]: run[figure] for run in comparison.runs[name]}  # noqa: E731
    for figure in ("accuracy", "gap"):
        warm, erm = ([of(name, figure)[seed] for seed in seeds] for name in ("warm", "erm"))
        test = ttest_rel(warm, erm)
        row, interval = paired.loc[("warm", figure)], test.confidence_interval(0.95)
        assert row["difference"] == pytest.approx(np.mean(warm) - np.mean(erm))
        assert (row["low"], row["high"]) == pytest.approx((interval.low, interval.high))
        assert row["seeds"] == 5
    assert paired.loc[("warm", "lexicon_mass"), "seeds"] == 4  # one of them could not be computed
    single = paired.loc[("single", "accuracy")]
    assert single["difference"] == pytest.approx(of("single", "accuracy")[2] - of("erm", "accuracy")[2])
    assert np.isnan(single["low"])
    assert "erm" not in paired.index.get_level_values(0)
    with pytest.raises(InputError, match="baseline: expected one of erm, warm, single, got 'base'"):
        comparison.paired("base")


def test_the_table_has_means_and_standard_errors(comparison: Comparison) -> None:
    table = comparison.table()
    values = [run["gap"] for run in comparison.runs["warm"]]
    assert list(table.index) == ["erm", "warm", "single"]
    assert table.loc["warm", "gap"] == pytest.approx(np.mean(values))
    assert table.loc["warm", "gap_se"] == pytest.approx(sem(values))
    known = [run["lexicon_mass"] for run in comparison.runs["warm"] if run["lexicon_mass"] is not None]
    assert table.loc["warm", "lexicon_mass"] == pytest.approx(np.mean(known))
    assert np.isnan(table.loc["single", "gap_se"])
    assert "warm" in str(comparison)


def test_saved_files_hold_the_rows_and_the_table(comparison: Comparison, tmp_path: Path) -> None:
    comparison.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["comparison.csv", "comparison.json"]
    saved = json.loads((tmp_path / "comparison.json").read_text("utf-8"))
    assert saved == {"split": "test", "runs": {name: list(runs) for name, runs in comparison.runs.items()}}
    table = pd.read_csv(tmp_path / "comparison.csv", index_col="model")
    pd.testing.assert_frame_equal(table, comparison.table(), check_names=False)
    with pytest.raises(OutputError, match="cannot be written"):
        comparison.save(tmp_path / "nowhere")


@pytest.fixture
def evaluators(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Evaluators untrained, and for which data and seed each was asked."""
    asked: list[tuple[int, int]] = []

    def untrained(model: Any, data: Data, seed: int = 0, progress: bool = True, **settings: Any) -> Any:
        asked.append((id(data), seed))
        return model.fresh(seed + 1)

    monkeypatch.setattr("causal_attn.faithfulness.subject.train_evaluator", untrained)
    return asked


def results(scheme: Any = None, seeds: int = 1, data: Data | None = None) -> list[TrainResult]:
    data = token_data() if data is None else data
    return [train(small_text(seed=seed), data, scheme, seed=seed, **FEW) for seed in range(seeds)]


def test_lists_share_an_evaluator_per_seed_and_data(evaluators: list[tuple[int, int]]) -> None:
    data = token_data()
    erm, warm = results(None, 2, data), results(RandomAttentionPretraining(then="joint"), 2, data)
    found = compare({"erm": erm, "warm": warm, "one": erm[1]}, "test", **QUICK)
    assert evaluators == [(id(data), 0), (id(data), 1)]
    assert [run["seed"] for run in found.runs["warm"]] == [0, 1]
    assert len(found.runs["one"]) == 1
    assert found.runs["one"][0] == found.runs["erm"][1]
    for result, run in zip(erm, found.runs["erm"], strict=True):
        assert run["accuracy"] == pytest.approx(result.evaluate("test").accuracy)
        assert run["gap"] == pytest.approx(run["own_accuracy_at_k"] - run["evalx_accuracy"])
        low, high = run["intervals"]["accuracy"]
        assert low <= run["accuracy"] <= high
    assert set(found.paired("erm")["seeds"]) == {1, 2}


@pytest.mark.usefixtures("evaluators")
def test_what_could_not_be_computed_has_a_reason() -> None:
    data = bag_data()
    schemes = {
        "erm": None, "weights": InstanceWeighting(), "never refreshed": InstanceWeighting(refresh=9),
        "random": RandomAttentionPretraining(),
    }  # fmt: skip
    trained = {name: train(wrapped(), data, scheme, **FEW | {"epochs": 3}) for name, scheme in schemes.items()}
    runs = {name: rows[0] for name, rows in compare(trained, "test", **QUICK | {"n_permutations": 0}).runs.items()}
    for name, run in runs.items():
        nulls = {key for key, value in run.items() if value is None and key != "lexicon_share"}
        assert nulls == set(run["notes"])
        json.dumps(run, allow_nan=False)
        assert run["p_value"] is None
        assert run["notes"]["lexicon_mass"] == "the data are not text"
        assert (run["support_deficit"] is None) == (name != "weights")
    assert runs["random"]["notes"]["ess"] == runs["erm"]["notes"]["ess"] == "this scheme does not weight its rows"
    assert "refresh" in runs["never refreshed"]["notes"]["ess"]
    history = trained["weights"].history
    last = history.iloc[-1]
    assert last["ess"] != history["ess"].dropna().iloc[0]
    assert (runs["weights"]["support_deficit"], runs["weights"]["ess"]) == (last["support_deficit"], last["ess"])


@pytest.mark.usefixtures("evaluators")
def test_text_has_its_masses(tmp_path: Path) -> None:
    pytest.importorskip("vaderSentiment")
    path = tmp_path / "reviews.csv"
    lines = [f"the {'great' if i % 2 else 'awful'} film of year {i},{i % 2}" for i in range(100)]
    path.write_text("text,label\n" + "\n".join(lines) + "\n", encoding="utf-8")
    data = load(path, default_tokens=1)
    model = TextAttention.for_data(data, "pooled", embedding=6, hidden=4)
    result = train(model, data, **FEW)
    run = compare({"erm": result}, "test", **QUICK).runs["erm"][0]
    sample = result.masks("test")
    first = [float(sample.masks[sample.y == k, 0].double().mean()) for k in (0, 1)]
    assert run["default_token_mass"] == pytest.approx(first)
    assert run["lexicon_mass"] == pytest.approx(float(sample.masks[:, 2].double().mean()))  # [d1] the great …
    assert run["lexicon_share"] == pytest.approx(1 / 7)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "results: expected a mapping of names to trained models"),
        ([1], "results: expected a mapping of names to trained models"),
        ({"a": 3}, "results: expected TrainResult for 'a', got int"),
        ({"a": []}, "results: expected TrainResult for 'a', got an empty list"),
        ({"a": "good", "b": ["erm"]}, "results: expected TrainResult for 'b', got str"),
        ({"a": "good", "b": "model"}, "results: expected TrainResult for 'b', got TextAttention"),
    ],
)
def test_wrong_results_are_named_before_any_work(
    given: Any, message: str, evaluators: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODULE, "measure", lambda *args, **kwargs: pytest.fail("measured"))
    if isinstance(given, dict):
        real = {"good": results()[0], "model": small_text()}
        given = {name: real.get(value, value) if isinstance(value, str) else value for name, value in given.items()}
    with pytest.raises(InputError, match=message):
        compare(given, "test", **QUICK)
    assert not evaluators


def test_metrics_asked_for_are_columns(evaluators: list[tuple[int, int]]) -> None:
    (result,) = results()
    asked = ["comprehensiveness", "violation"]
    found = compare({"a": result}, k=2, n_permutations=0, progress=False, metrics=asked)
    evaluator = result.model.fresh(1)
    table = faithfulness_suite(result, evaluator=evaluator, k=2, metrics=asked, progress=False).table()
    own = table[table["scores"] == "attention"].set_index("metric")["value"]
    for name in asked:
        assert found.table().loc["a", name] == pytest.approx(own[name])
        assert name in str(found)
    with pytest.raises(InputError, match=r"metrics: expected names among .*, got 'bleu'"):
        compare({"a": result}, metrics=["bleu"])


def test_each_architecture_has_an_evaluator_of_its_own(evaluators: list[tuple[int, int]]) -> None:
    data = token_data()
    one, other = (train(small_text(downstream), data, seed=0, **FEW) for downstream in ("pooled", "recurrent"))
    compare({"a": one, "b": other, "c": one}, k=2, n_permutations=0, progress=False)
    assert len(evaluators) == 2
