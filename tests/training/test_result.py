"""A result's masks, logits and accuracy are its model's."""

from __future__ import annotations

import pytest
import torch

from causal_attn.data import Data
from causal_attn.errors import InputError
from causal_attn.training import TrainResult, train

from .toys import small_text


@pytest.fixture(scope="module")
def result(tokens: Data) -> TrainResult:
    return train(small_text(), tokens, epochs=3, batch_size=16, learning_rate=0.05, progress=False)


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_accuracy_and_log_loss_row_by_row(result: TrainResult, split: str) -> None:
    part = result.data.split(split)
    right, loss = 0, 0.0
    for i in range(len(part)):
        x, y = part.batch([i])
        with torch.no_grad():
            p = result.model(x).double().softmax(-1)[0]
        right += int(p.argmax()) == int(y)
        loss -= float(p[int(y)].log())
    found = result.evaluate(split)
    assert found.n == len(part)
    assert found.accuracy == pytest.approx(right / len(part))
    assert found.log_loss == pytest.approx(loss / len(part), rel=1e-5)


def test_masks_come_with_their_classes_once(result: TrainResult) -> None:
    sample = result.masks("test")
    assert torch.equal(sample.y, result.data.test.y)
    assert sample.n_classes == 2
    x = result.data.test.batch([5])[0]
    with torch.no_grad():
        torch.testing.assert_close(sample.masks[5, : x.shape[1]], result.model.masks(x)[0])
    assert result.masks("test") is sample
    with pytest.raises(InputError, match="split: expected 'train', 'valid' or 'test', got 'dev'"):
        result.masks("dev")
    with pytest.raises(InputError, match="split: expected"):
        result.evaluate("dev")


def test_the_validation_accuracy_of_the_history_is_the_models(result: TrainResult) -> None:
    assert result.history["valid_accuracy"].max() == pytest.approx(result.evaluate("valid").accuracy)
