"""A study leaves what it promises, the same each time, and never half of it."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from causal_attn import report
from causal_attn.errors import DataError, InputError, OutputError
from causal_attn.interop.arviz import arviz, load_netcdf
from causal_attn.masks import MaskSample
from causal_attn.study import SCHEMES, StudyConfig, run, run_study

from .conftest import small_config, write_reviews

RUN_KEYS = {
    "seed", "accuracy", "leakage_bits", "leakage_auc", "reliance", "excess_reliance", "own_accuracy_at_k", "evalx_k",
    "evalx_accuracy", "gap", "default_token_mass", "lexicon_mass", "support_deficit", "ess", "seconds", "intervals",
}  # fmt: skip
QUIET: dict[str, Any] = {"progress": False}


def read(out: Path) -> dict[str, Any]:
    """results.json by the letter of JSON: NaN and infinity are no JSON."""

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is no JSON")

    return json.loads((out / "results.json").read_text("utf-8"), parse_constant=refuse)


def untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: untimed(inner) for name, inner in value.items() if name != "seconds"}
    return [untimed(inner) for inner in value] if isinstance(value, list) else value


def contents(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


# ------------------------------------------------------------------------------------------------ what it leaves


def test_results_have_the_promised_shape(finished: Path, reviews: Path) -> None:
    results = read(finished)
    assert results["version"] == 1
    assert results["config"]["data"] == str(reviews)
    assert StudyConfig(**results["config"] | {"schemes": tuple(results["config"]["schemes"])}).k == 5
    assert list(results["schemes"]) == ["erm", "warm"]
    assert sum(results["data"]["rows"].values()) == 300
    assert results["data"]["class_names"] == ["bad", "good"]
    for name, scheme in results["schemes"].items():
        assert scheme["label"] == SCHEMES[name][0]
        (row,) = scheme["runs"]
        assert set(row) >= RUN_KEYS
        assert len(row["default_token_mass"]) == 2
        assert {key for key, value in row.items() if value is None} <= set(row["notes"]) | {"lexicon_share"}
        assert set(row["intervals"]) <= RUN_KEYS
        for figure, (low, high) in row["intervals"].items():
            assert low <= row[figure] <= high
        assert row["gap"] == pytest.approx(row["own_accuracy_at_k"] - row["evalx_accuracy"])
        assert results["verdict"][name] == row["verdict"]


def test_every_file_named_is_there_and_opens(finished: Path) -> None:
    results = read(finished)
    for name in results["files"].values():
        assert (finished / name).is_file()
    fit = load_netcdf(finished / results["files"]["selection"])
    assert np.isfinite(arviz().summary(fit, kind="stats")["mean"]).all()
    weights = load_netcdf(finished / results["files"]["weights"])
    table = arviz().summary(weights, var_names=["mean_weight", "ess"], kind="stats")
    assert 0 < float(table.loc["mean_weight", "mean"]) < 5
    train_rows = results["data"]["rows"]["train"]
    for scheme in results["schemes"]:
        sample = MaskSample.load(finished / f"masks-{scheme}.npz")
        assert sample.n == train_rows
    details = np.load(finished / results["files"]["details"])
    assert details["log_w"].shape == (train_rows,)
    assert results["selection"]["mean_weight"] == pytest.approx(float(np.exp(details["log_w"]).mean()))
    examples = json.loads((finished / results["files"]["examples"]).read_text("utf-8"))
    for example in examples:
        for shown in example["schemes"].values():
            assert len(shown["mask"]) == len(example["tokens"])
            assert math.isclose(sum(shown["mask"]), 1, abs_tol=1e-3)
    page = (finished / "report.html").read_text("utf-8")
    assert "ERM" in page
    assert not [path for path in finished.rglob("*") if path.name.startswith(".")]


@pytest.fixture(scope="module")
def twice(reviews: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("twice")
    run_study(small_config(reviews), out, **QUIET)
    return out


def test_one_seed_one_result(finished: Path, twice: Path) -> None:
    assert untimed(read(finished)) == untimed(read(twice))
    for name in ("masks-erm.npz", "details.npz"):
        one, other = np.load(finished / name), np.load(twice / name)
        for array in one.files:
            np.testing.assert_array_equal(one[array], other[array])


# ------------------------------------------------------------------------------------------------ cells used again


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Which cells were computed."""
    computed: list[tuple[str, int]] = []
    true_run = run.run_cell

    def counting(config: StudyConfig, data: Any, scheme: str, seed: int, *rest: Any) -> Any:
        computed.append((scheme, seed))
        return true_run(config, data, scheme, seed, *rest)

    monkeypatch.setattr(run, "run_cell", counting)
    return computed


def test_finished_cells_are_used_again_and_lost_ones_made_anew(
    config: StudyConfig, twice: Path, counted: list[tuple[str, int]]
) -> None:
    before = contents(twice)
    results = read(twice)
    assert run_study(config, twice, **QUIET).results == results
    assert counted == []
    assert read(twice) == results
    for lost in twice.glob("cells/*/warm-seed0*"):
        lost.unlink()
    run_study(config, twice, **QUIET)
    assert counted == [("warm", 0)]
    assert untimed(read(twice)) == untimed(results)
    assert set(contents(twice)) == set(before)


def test_without_resume_everything_is_computed(
    config: StudyConfig, twice: Path, counted: list[tuple[str, int]]
) -> None:
    run_study(replace(config, schemes=("erm",)), twice, resume=False, **QUIET)
    assert counted == [("erm", 0)]


def test_cells_of_other_rows_are_not_used(tmp_path: Path, counted: list[tuple[str, int]]) -> None:
    path = write_reviews(tmp_path / "a.csv", 120)
    config = small_config(path, schemes=("erm",), n_permutations=0)
    run_study(config, tmp_path / "out", **QUIET)
    write_reviews(path, 120, seed=1)
    run_study(config, tmp_path / "out", **QUIET)
    assert counted == [("erm", 0)] * 2


def test_each_seeds_cells_depend_on_its_own_rows(tmp_path: Path, counted: list[tuple[str, int]]) -> None:
    """With a limit a seed sees only some rows: a change among those of seed 1 alone must not leave its cell in use."""
    path = write_reviews(tmp_path / "a.csv", 300)
    config = small_config(path, schemes=("erm",), n_permutations=0, limit=80, seeds=2)
    keys = {seed: config.cell_key(run._load(config, seed)) for seed in (0, 1)}
    lines = path.read_text("utf-8").splitlines()
    seen = {seed: {text for split in run._load(config, seed).splits.values() for text in split.texts or ()}
            for seed in (0, 1)}  # fmt: skip
    row = next(i for i, line in enumerate(lines) if line.split(",")[0] in seen[1] - seen[0])
    lines[row] = lines[row].replace("n", "m")
    run_study(config, tmp_path / "out", **QUIET)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert config.cell_key(run._load(config, 0)) == keys[0]
    assert config.cell_key(run._load(config, 1)) != keys[1]
    run_study(config, tmp_path / "out", **QUIET)
    assert counted == [("erm", 0), ("erm", 1), ("erm", 1)]


# ------------------------------------------------------------------------------------------------ interrupted


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_run_leaves_earlier_results_as_they_were(
    stop: type[BaseException], config: StudyConfig, twice: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = {name: data for name, data in contents(twice).items() if not name.startswith("cells")}
    true_run = run.run_cell

    def stopping(config: StudyConfig, data: Any, scheme: str, *rest: Any) -> Any:
        if scheme == "warm":
            raise stop
        return true_run(config, data, scheme, *rest)

    monkeypatch.setattr(run, "run_cell", stopping)
    with pytest.raises(stop):
        run_study(replace(config, k=3), twice, resume=False, **QUIET)
    after = contents(twice)
    assert {name: data for name, data in after.items() if not name.startswith("cells")} == earlier
    assert not [name for name in after if Path(name).name.startswith(".")]
    kept = list(twice.glob("cells/*/erm-seed0.json"))
    assert any(json.loads(path.read_text("utf-8"))["row"]["evalx_k"] == 3 for path in kept)


def test_failing_while_writing_leaves_earlier_results_as_they_were(
    config: StudyConfig, twice: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = contents(twice)
    monkeypatch.setattr(run, "_examples", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_study(config, twice, **QUIET)
    assert contents(twice) == earlier


SLOW_STUDY = """
import sys, time
from causal_attn import cli
from causal_attn.study import run
true_run = run.run_cell
def slow(config, data, scheme, *rest):
    if scheme == "warm":
        print("second scheme", flush=True)
        time.sleep(60)
    return true_run(config, data, scheme, *rest)
run.run_cell = slow
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGKILL])
def test_a_killed_command_leaves_earlier_results_and_resumes(
    kill: signal.Signals, reviews: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run_study(small_config(reviews, k=2), out, **QUIET)
    earlier = {name: data for name, data in contents(out).items() if not name.startswith("cells")}
    options = "--downstream pooled --schemes erm,warm --default-tokens 1 --epochs 1 --permutations 20 --device cpu"
    command = ["study", "--data", str(reviews), *options.split(), "--out", str(out), "--quiet"]
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_STUDY, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "second scheme\n"
    time.sleep(0.2)
    process.send_signal(kill)
    _, err = process.communicate(timeout=30)
    if kill == signal.SIGINT:
        assert process.returncode == 1
        assert err.splitlines()[-1].startswith("causal-attn: interrupted")
        assert "Traceback" not in err
    assert {name: data for name, data in contents(out).items() if not name.startswith("cells")} == earlier
    done = subprocess.run(
        [sys.executable, "-m", "causal_attn.cli", *command, "--resume"], capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert read(out)["config"]["k"] == 5
    assert not [path for path in out.rglob("*") if path.name.startswith(".")]


# ------------------------------------------------------------------------------------------------ refused


def test_a_place_that_cannot_be_written_is_refused_before_any_work(
    config: StudyConfig, tmp_path: Path, counted: list[tuple[str, int]]
) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OutputError, match=r"out: '.*file.*' cannot be written"):
            run_study(config, out, **QUIET)
    assert counted == []
    assert contents(tmp_path) == {"file": b"mine"}


def test_too_few_test_rows_to_swap_masks_between_are_refused_before_any_work(
    config: StudyConfig, tmp_path: Path, counted: list[tuple[str, int]]
) -> None:
    with pytest.raises(DataError, match=r"data: expected at least 2 test rows of every class, label '\w+' has 1"):
        run_study(replace(config, limit=20), tmp_path / "out", **QUIET)
    assert counted == []
    assert not (tmp_path / "out").exists()


def test_more_seeds_more_runs(reviews: Path, tmp_path: Path) -> None:
    results = run_study(
        small_config(reviews, schemes=("random",), seeds=2, n_permutations=0, limit=100), tmp_path, **QUIET
    ).results
    runs = results["schemes"]["random"]["runs"]
    assert [row["seed"] for row in runs] == [0, 1]
    assert runs[0]["accuracy"] != runs[1]["accuracy"] or runs[0]["reliance"] != runs[1]["reliance"]
    assert read(tmp_path) == results


def test_a_directory_in_the_way_is_refused_with_nothing_moved(config: StudyConfig, twice: Path) -> None:
    (twice / "examples.json").unlink()
    (twice / "examples.json").mkdir()
    before = (twice / "results.json").read_bytes()
    with pytest.raises(OutputError, match=r"'examples.json' in .* is a directory"):
        run_study(config, twice, **QUIET)
    assert (twice / "results.json").read_bytes() == before
    (twice / "examples.json").rmdir()


def test_files_of_two_runs_are_told_apart(config: StudyConfig, tmp_path: Path, reviews: Path) -> None:
    run_study(replace(config, schemes=("erm",)), tmp_path, **QUIET)
    (tmp_path / "examples.json").write_text("[]")
    with pytest.raises(InputError, match=r"examples\.json: expected the file that results.json was written with"):
        report.read_results(tmp_path)
