"""The loop: reproducible, free of side effects, and back at the best epoch."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from causal_attn.data import Data, from_datasets
from causal_attn.errors import InputError, NotEstimableError
from causal_attn.training import ERM, InstanceWeighting, RandomAttentionPretraining, loop, train
from causal_attn.training.schemes import Scheme

from .toys import moved_names, parameters, small_text

FEW: dict[str, Any] = {"epochs": 2, "batch_size": 16, "learning_rate": 0.02, "progress": False}


@pytest.mark.parametrize(
    "scheme", [ERM(), InstanceWeighting(explore=0.3), RandomAttentionPretraining(then="joint")], ids=repr
)
def test_one_seed_one_result_and_nothing_else_is_touched(scheme: Scheme, tokens: Data) -> None:
    model = small_text(word_dropout=0.3)
    before = parameters(model)
    one = train(model, tokens, scheme, seed=4, **FEW)
    torch.rand(3)  # what others draw between two runs changes nothing
    two = train(model, tokens, scheme, seed=4, **FEW)
    other = train(model, tokens, scheme, seed=5, **FEW)
    assert not moved_names(one.model, two.model)
    pd.testing.assert_frame_equal(one.history.drop(columns="seconds"), two.history.drop(columns="seconds"))
    assert moved_names(one.model, other.model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    assert not any(module.training for module in one.model.modules())


def test_global_random_state_is_untouched(tokens: Data) -> None:
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]  # noqa: NPY002
    python_state = random.getstate()
    train(small_text(word_dropout=0.3), tokens, InstanceWeighting(explore=0.3), **FEW)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # type: ignore[index]  # noqa: NPY002
    assert random.getstate() == python_state


class Drifting(nn.Module):
    """Score w·a + c for x = (a, c). Training pushes w upwards; validation is right for 0.5 < w < 1 only."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))

    def masks(self, x: Tensor) -> Tensor:
        return torch.full((len(x), 2), 0.5)

    def predict(self, x: Tensor, m: Tensor) -> Tensor:
        score = self.w * x[:, 0] + x[:, 1]
        return torch.stack([-score, score], -1)


def drifting_data() -> Data:
    train_rows = [(torch.tensor([1.0, 0.0]), 1), (torch.tensor([-1.0, 0.0]), 0)] * 8
    valid_rows = [(torch.tensor([1.0, -0.5]), 1), (torch.tensor([-1.0, 1.0]), 1)]
    return from_datasets(train_rows, valid_rows, valid_rows, n_classes=2)


DRIFT: dict[str, Any] = {"batch_size": 16, "learning_rate": 0.4, "weight_decay": 0.0, "progress": False}


def test_the_epoch_of_best_validation_accuracy_is_kept_and_patience_ends_the_phase() -> None:
    # a full batch per epoch: AdamW's steps are of the size of the learning rate, so w grows by at most 0.4
    result = train(Drifting(), drifting_data(), epochs=20, patience=2, **DRIFT)
    assert result.history["valid_accuracy"].tolist() == [0.5, 1.0, 0.5, 0.5]
    assert 0.5 < float(result.model.w.detach()) < 1
    assert result.evaluate("valid").accuracy == 1.0


def test_without_patience_the_last_epoch_is_kept() -> None:
    result = train(Drifting(), drifting_data(), epochs=6, patience=None, **DRIFT)
    assert len(result.history) == 6
    assert float(result.model.w.detach()) > 1.2
    assert result.evaluate("valid").accuracy == result.history["valid_accuracy"].iloc[-1] == 0.5


def test_the_moving_average_follows_its_recursion() -> None:
    model = Drifting()
    average = loop.moving_average(model)
    by_hand = 0.0
    for step, value in enumerate([0.3, -1.0, 2.5, 0.0, 7.0]):
        model.w.data.fill_(value)
        average.update_parameters(model)
        decay = min(loop.MAX_DECAY, (1 + step) / (10 + step))
        by_hand = value if step == 0 else decay * by_hand + (1 - decay) * value
        assert float(average.module.w.detach()) == pytest.approx(by_hand, rel=1e-5)


def test_the_history_is_of_the_masks_and_rows_it_says() -> None:
    result = train(Drifting(), drifting_data(), epochs=1, batch_size=16, learning_rate=1e-9, progress=False)
    row = result.history.iloc[0]
    assert row["loss_nats"] == pytest.approx(np.log(2), abs=1e-6)  # w = 0: every row at even odds
    assert (row["phase"], row["epoch"]) == ("joint", 0)
    assert result.seconds > 0
    assert result.scheme == ERM()


class Breaking(Drifting):
    def predict(self, x: Tensor, m: Tensor) -> Tensor:
        return super().predict(x, m) * (torch.nan if self.training else 1.0)


def test_a_loss_that_is_no_number_ends_the_run() -> None:
    with pytest.raises(NotEstimableError, match="the loss became nan at step 0 of phase 'joint'"):
        train(Breaking(), drifting_data(), epochs=1, progress=False)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("epochs", 0), ("epochs", 1.5), ("epochs", True), ("batch_size", 0), ("patience", 0), ("learning_rate", 0.0),
        ("learning_rate", float("nan")), ("learning_rate", "fast"), ("weight_decay", -1.0), ("seed", -1),
        ("seed", 0.5), ("device", "abacus"), ("scheme", "erm"), ("scheme", ERM), ("model", "text"), ("data", [1, 2]),
        ("model", nn.Linear(2, 2)),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named_before_any_work(
    argument: str, value: Any, tokens: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("causal_attn.training.loop._Run.phase", lambda *args: pytest.fail("trained"))
    given: dict[str, Any] = {"model": small_text(), "data": tokens, "scheme": ERM(), "progress": False}
    with pytest.raises(InputError, match=argument):
        train(**given | {argument: value})


def test_a_model_that_breaks_the_protocol_or_cannot_learn_is_refused(tokens: Data) -> None:
    wide = small_text()
    wide.predict = lambda x, m: torch.zeros(len(x), 3)  # type: ignore[method-assign]
    with pytest.raises(InputError, match=r"predict\(x, m\): expected logits of shape \(8, 2\)"):
        train(wide, tokens, progress=False)
    still = Drifting()
    still.w.requires_grad_(False)
    with pytest.raises(InputError, match="no parameter of its own to train in phase 'joint'"):
        train(still, drifting_data(), progress=False)


class Normed(nn.Module):
    """Bags of numbers; the downstream part has batch normalisation, whose running statistics are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.norm, self.out = nn.Linear(1, 1), nn.BatchNorm1d(1), nn.Linear(1, 2)

    def masks(self, x: torch.Tensor) -> torch.Tensor:
        return self.score(x[..., None])[..., 0].softmax(-1)

    def predict(self, x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm((x * m).sum(-1, keepdim=True)))


def test_a_frozen_downstream_part_keeps_its_running_statistics(monkeypatch):
    torch.manual_seed(0)
    x = torch.randn(120, 4)
    rows = [(x[i], int(x[i].sum() > 0)) for i in range(120)]
    data = from_datasets(rows[:80], rows[80:100], rows[100:])
    seen = []
    original = loop._Run.phase

    def watched(run, *args):
        original(run, *args)
        seen.append(run.model.norm.running_mean.clone())

    monkeypatch.setattr(loop._Run, "phase", watched)
    train(Normed(), data, RandomAttentionPretraining(), epochs=2, progress=False)
    assert len(seen) == 2
    assert torch.equal(seen[0], seen[1])
    assert seen[0].abs() > 0
