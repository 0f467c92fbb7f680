"""The command: exit statuses, one line for a wrong request, and nothing left behind by it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from causal_attn import cli, data
from causal_attn.errors import NotEstimableError


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    try:
        status: Any = cli.main(list(args))
    except SystemExit as leaving:  # argparse
        status = leaving.code
    out, err = capsys.readouterr()
    return status, out, err


def write(path: Path, rows: list[str], head: str = "text,label") -> Path:
    path.write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")
    return path


GOOD_ROWS = [f"word number {i},{i % 2}" for i in range(60)]


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("causal_attn.study.run.run_cell", lambda *args: pytest.fail("trained"))


FILES: dict[str, tuple[list[str] | None, str, str]] = {
    "columns": (GOOD_ROWS, "review,stars", "expected columns 'text', 'label'"),
    "one column": (["a", "b"], "text", "no 'label' among 'text'"),
    "no rows": ([], "text,label", "there are no rows"),
    "one class": ([f"word {i},1" for i in range(60)], "text,label", "at least two different labels"),
    "no words": ([*GOOD_ROWS[:5], "(—),1", *GOOD_ROWS], "text,label", "row 6 (line 7 of the file): text has no words"),
    "lone label": ([*GOOD_ROWS, "another,2"], "text,label", "row 61 (line 62 of the file): label '2' has this row"),
    "few rows": (GOOD_ROWS[:6], "text,label", "too few rows"),
    "one test row a class": (GOOD_ROWS[:20], "text,label", "at least 2 test rows of every class"),
    "ragged": ([*GOOD_ROWS, "a,b,1"], "text,label", "row 61 (line 62 of the file): expected 2 fields"),
    "empty": (None, "", "the file is empty"),
}


@pytest.mark.usefixtures("no_training")
@pytest.mark.parametrize("case", FILES)
def test_a_file_that_cannot_be_used(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, head, message = FILES[case]
    path = tmp_path / "a.csv"
    if rows is None:
        path.write_bytes(b"")
    else:
        write(path, rows, head)
    status, out, err = run(capsys, "study", "--data", str(path), "--out", str(tmp_path / "new" / "out"), "--quiet")
    assert_refused(status, out, err, message)
    assert [p.name for p in tmp_path.iterdir()] == ["a.csv"]


def assert_refused(status: int, out: str, err: str, message: str) -> None:
    assert status == 2
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("causal-attn")
    assert message in err


@pytest.mark.usefixtures("no_training")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--data nowhere", "expected one of 'rotten_tomatoes', 'imdb', or a path"),
        ("--data no/such/file.csv", "no file at 'no/such/file.csv'"),
        ("--data .", "directory"),
        ("--epochs 0", "epochs: expected an integer of at least 1, got 0"),
        ("--epochs ten", "argument --epochs: invalid int value: 'ten'"),
        ("--word-dropout 1.5", "--word-dropout: expected a probability"),
        ("--word-dropout nan", "--word-dropout: expected a probability"),
        ("--schemes foo", "schemes: expected different names out of erm"),
        ("--schemes erm,erm", "schemes: expected different names"),
        ("--schemes=", "schemes: expected"),
        ("--downstream x", "downstream: expected recurrent, pooled or concatenated, got 'x'"),
        ("--limit 3", "limit: expected at least 20 rows"),
        ("--limit 0", "limit: expected"),
        ("--limit 20", "at least 2 test rows of every class"),
        ("--k 0", "k: expected an integer of at least 1"),
        ("--seeds 0", "seeds: expected"),
        ("--default-tokens -1", "--default-tokens: expected"),
        ("--max-tokens 0", "--max-tokens: expected"),
        ("--permutations -5", "--permutations: expected"),
        ("--device abacus", "device: expected"),
        ("--colour red", "unrecognized arguments: --colour red"),
    ],
)
def test_an_option_out_of_range(options: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.csv", GOOD_ROWS)
    given = ["--data", str(path), *options.split()]
    status, out, err = run(capsys, "study", *given, "--out", str(tmp_path / "out"), "--quiet")
    assert_refused(status, out, err, message)
    assert [p.name for p in tmp_path.iterdir()] == ["a.csv"]


@pytest.mark.usefixtures("no_training")
def test_a_place_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.csv", GOOD_ROWS)
    before = path.read_bytes()
    for out_dir in (path, path / "below", path / "below" / "that"):
        status, out, err = run(capsys, "study", "--data", str(path), "--out", str(out_dir), "--quiet")
        assert_refused(status, out, err, "cannot be written")
    assert path.read_bytes() == before


def test_no_command_or_another(capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(*run(capsys), "COMMAND")
    assert_refused(*run(capsys, "dance"), "invalid choice: 'dance'")
    assert_refused(*run(capsys, "report"), "DIR")


def test_a_report_without_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(*run(capsys, "report", str(tmp_path)), "results.json")
    assert_refused(*run(capsys, "report", str(tmp_path / "nowhere")), "nowhere")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (NotEstimableError("training: the loss\nbecame nan"), "causal-attn: training: the loss became nan"),
        (KeyboardInterrupt(), "causal-attn: interrupted; finished parts are kept, --resume goes on from them"),
    ],
)
def test_work_that_failed(
    error: BaseException, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(args: object) -> int:
        raise error

    monkeypatch.setitem(cli.COMMANDS, "data", fail)
    assert run(capsys, "data") == (1, "", line + "\n")


def test_options_reach_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def noted(config: Any, out: Any, resume: bool, progress: bool) -> Any:
        asked.append((config, out, resume, progress))
        raise NotEstimableError("enough")

    from causal_attn import study

    monkeypatch.setattr(study, "run_study", noted)
    options = (
        "--data imdb --downstream pooled --schemes warm,erm --default-tokens 2 --word-dropout 0.2 --seeds 3 --epochs 4 "
        "--limit 50 --max-tokens 60 --k 7 --permutations 8 --device cpu --resume --quiet --out"
    )
    assert cli.main(["study", *options.split(), str(tmp_path)]) == 1
    assert cli.main(["study"]) == 1
    config = study.StudyConfig("imdb", "pooled", ("warm", "erm"), 2, 0.2, 3, 4, 50, 60, 7, 8, "cpu")
    assert asked == [(config, str(tmp_path), True, False), (study.StudyConfig(), "study", False, True)]


def test_the_data_sets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "data")
    assert (status, err) == (0, "")
    for name in data.names():
        assert any(line.split()[0] == name for line in out.splitlines())


HEAVY = "import sys; heavy = [m for m in ('torch', 'pyro', 'arviz') if m in sys.modules]; assert not heavy, heavy"
ASKED = f"from causal_attn import cli\ntry: cli.main({{}})\nexcept SystemExit: {HEAVY}\nelse: raise AssertionError"
PROGRAMS = {
    "the package": f"import causal_attn; {HEAVY}",
    "help": ASKED.format(["--help"]),
    "help of study": ASKED.format(["study", "--help"]),
    "a misspelt option": ASKED.format(["study", "--eopchs"]),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_nothing_heavy_is_loaded_for(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_module_run_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "causal_attn.cli", "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    for command in cli.COMMANDS:
        assert command in done.stdout
