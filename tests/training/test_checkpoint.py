"""A run that is killed at any moment goes on to the same bits; what is not its own is refused."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from causal_attn.data import Data
from causal_attn.errors import InputError, NotEstimableError, OutputError
from causal_attn.selection import SelectionModel
from causal_attn.training import (
    ERM,
    AlternatingRandomAttention,
    InstanceWeighting,
    LeakagePenalty,
    RandomAttentionPretraining,
    TrainResult,
    checkpoint,
    train,
)
from causal_attn.training.loop import _Run
from causal_attn.training.schemes import Scheme

from .toys import moved_names, small_text, token_data, wrapped

FEW: dict[str, Any] = {"epochs": 3, "batch_size": 16, "learning_rate": 0.02, "progress": False, "seed": 3}
SCHEMES: dict[str, Scheme] = {
    "erm": ERM(), "explored": InstanceWeighting(explore=0.3), "by steps": InstanceWeighting(refresh=4, unit="steps"),
    "frozen": RandomAttentionPretraining(), "alternating": AlternatingRandomAttention(), "penalty": LeakagePenalty(),
    "weighted warm": RandomAttentionPretraining("matched", "joint", InstanceWeighting(use="draw")),
}  # fmt: skip


class Stopped(Exception):
    """The run ends here."""


def stopped_after(epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training ends in the middle of the epoch after so many whole ones."""
    original, seen = _Run._validate, []

    def watched(run: Any, *args: Any) -> float:
        seen.append(0)
        if len(seen) > epochs:
            raise Stopped
        return original(run, *args)

    monkeypatch.setattr(_Run, "_validate", watched)


def same(one: TrainResult, other: TrainResult) -> None:
    assert not moved_names(one.model, other.model)
    drop = ["seconds"]
    assert one.history.drop(columns=drop).equals(other.history.drop(columns=drop))
    assert one.evaluate("test") == other.evaluate("test")


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
@pytest.mark.parametrize("after", [1, 2, 4])
def test_a_run_that_stopped_goes_on_to_the_same_bits(scheme: Scheme, after: int, tmp_path: Path) -> None:
    data = token_data()
    options = FEW | {"patience": 2}
    whole = train(small_text("recurrent", word_dropout=0.3), data, scheme, **options)
    with pytest.MonkeyPatch.context() as patch:
        stopped_after(after, patch)
        try:
            train(small_text("recurrent", word_dropout=0.3), data, scheme, checkpoint=tmp_path / "run", **options)
        except Stopped:
            pass
        else:
            assert len(whole.history) <= after
    again = train(
        small_text("recurrent", word_dropout=0.3), data, scheme, checkpoint=tmp_path / "run", resume=True, **options
    )
    same(whole, again)
    assert len(list((tmp_path / "run").iterdir())) == 1


KILLED = """
import sys
from causal_attn.training import InstanceWeighting, RandomAttentionPretraining, train
from tests.training.toys import small_text, token_data
scheme = RandomAttentionPretraining(then="joint", weighting=InstanceWeighting(explore=0.3))
print("ready", flush=True)
train(small_text("recurrent"), token_data(300), scheme, epochs=6, batch_size=8, learning_rate=0.02, progress=False,
      seed=3, checkpoint=sys.argv[1], resume=True)
print("done", flush=True)
"""


def test_a_run_killed_at_ten_moments_ends_with_the_same_bits(tmp_path: Path) -> None:
    scheme = RandomAttentionPretraining(then="joint", weighting=InstanceWeighting(explore=0.3))
    options = FEW | {"epochs": 6, "batch_size": 8}
    started = time.perf_counter()
    whole = train(small_text("recurrent"), token_data(300), scheme, **options)
    length = time.perf_counter() - started
    chance, kills = random.Random(0), 0
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([".", *sys.path]), "OMP_NUM_THREADS": "1"}
    for _ in range(10):
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True, env=env
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0, length / 5))
            process.send_signal(signal.SIGKILL)
            kills += process.wait() == -signal.SIGKILL
    assert kills >= 5  # a run that was done before its signal is no kill
    again = train(small_text("recurrent"), token_data(300), scheme, checkpoint=tmp_path / "run", resume=True, **options)
    same(whole, again)


def test_a_finished_run_is_read_back_without_training(
    tokens: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = train(small_text(), tokens, checkpoint=tmp_path / "run", **FEW)
    monkeypatch.setattr(_Run, "_epoch", lambda *args: pytest.fail("trained"))
    again = train(small_text(), tokens, checkpoint=tmp_path / "run", resume=True, **FEW)
    same(first, again)
    assert again.seconds >= first.history["seconds"].sum()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 4}, "its seed is 3, here 4"), ({"epochs": 9}, "its settings is"),
        ({"scheme": AlternatingRandomAttention()}, r"its scheme is ERM\(\), here Alternating"),
    ],
)  # fmt: skip
def test_a_checkpoint_of_another_run_is_refused(
    tokens: Data, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    train(small_text(), tokens, checkpoint=tmp_path / "run", **FEW)
    with pytest.raises(InputError, match=message):
        train(small_text(), tokens, checkpoint=tmp_path / "run", resume=True, **FEW | change)


def test_a_checkpoint_of_another_model_data_or_version_is_refused(tokens: Data, bags: Data, tmp_path: Path) -> None:
    where = tmp_path / "run"
    train(small_text(), tokens, checkpoint=where, **FEW)
    for model, data, message in (
        (wrapped(), bags, "its model is TextAttention, here Wrapped"),
        (small_text("recurrent"), tokens, "its parameters is"),
        (small_text(seed=1), tokens, "its starting values is"),
        (small_text(), token_data(60), "its data is"),
    ):
        with pytest.raises(InputError, match=message):
            train(model, data, checkpoint=where, resume=True, **FEW)
    numbers = next(where.iterdir()) / checkpoint.NUMBERS
    stored = json.loads(numbers.read_text())
    numbers.write_text(json.dumps({**stored, "version": 0}))
    with pytest.raises(InputError, match=r"checkpoint: expected version 1, .* has 0"):
        train(small_text(), tokens, checkpoint=where, resume=True, **FEW)
    numbers.write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        train(small_text(), tokens, checkpoint=where, resume=True, **FEW)
    numbers.write_text(json.dumps(stored))
    (numbers.parent / checkpoint.TENSORS).write_bytes(b"half")
    with pytest.raises(InputError, match="cannot be read"):
        train(small_text(), tokens, checkpoint=where, resume=True, **FEW)


def test_wrong_requests_are_refused_before_any_work(tokens: Data, tmp_path: Path) -> None:
    train(small_text(), tokens, checkpoint=tmp_path / "run", **FEW)
    (tmp_path / "file").write_text("text")
    plug_in = InstanceWeighting(SelectionModel(features=lambda masks, valid: masks))
    for arguments, message in (
        ({"checkpoint": tmp_path / "run"}, "holds a run already"),
        ({"resume": True}, "resume: has an effect with a checkpoint only"),
        ({"checkpoint": tmp_path / "new", "resume": 1}, "resume: expected True or False"),
        ({"checkpoint": tmp_path / "file"}, "is a file"),
        ({"checkpoint": tmp_path / "none" / "run"}, "no directory at"),
        ({"checkpoint": 3}, "checkpoint: expected a directory"),
        ({"checkpoint": tmp_path / "new", "scheme": plug_in}, "kept without pickle"),
    ):
        with pytest.raises(InputError, match=message):
            train(small_text(), tokens, **FEW | arguments)
    assert not (tmp_path / "new").exists()


def test_a_disk_that_is_full_keeps_the_last_whole_state(
    tokens: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stopped_after(1, patch)
        with pytest.raises(Stopped):
            train(small_text(), tokens, checkpoint=tmp_path / "run", **FEW)
    before = sorted(p.name for p in (tmp_path / "run").iterdir())

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full)
        with pytest.raises(OutputError, match="No space left"):
            train(small_text(), tokens, checkpoint=tmp_path / "run", resume=True, **FEW)
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == before
    same(train(small_text(), tokens, **FEW),
         train(small_text(), tokens, checkpoint=tmp_path / "run", resume=True, **FEW))  # fmt: skip


def test_a_loss_that_is_no_number_names_the_step_and_the_checkpoint(
    tokens: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = _Run._class_losses

    def breaking(run: Any, *args: Any) -> Any:
        losses, hits = original(run, *args)
        return losses * (torch.nan if run.step >= 8 else 1), hits

    monkeypatch.setattr(_Run, "_class_losses", breaking)
    with pytest.raises(NotEstimableError, match=r"became nan at step 8 of phase 'joint'; the last whole .*run"):
        train(small_text(), tokens, checkpoint=tmp_path / "run", **FEW)
    monkeypatch.undo()
    again = train(small_text(), tokens, checkpoint=tmp_path / "run", resume=True, **FEW)
    same(train(small_text(), tokens, **FEW), again)
