"""The text classifiers: no mass on padding, no trace of padding, no path from predict to attention but m."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from causal_attn.attention import TextAttention, check_model
from causal_attn.errors import InputError

DOWNSTREAM = ["recurrent", "pooled", "concatenated"]


def small(downstream: str = "recurrent", **kwargs: Any) -> TextAttention:
    given = {"max_length": 12, "embedding": 6, "hidden": 5, **kwargs}
    return TextAttention(30, 3, downstream, **given)  # type: ignore[arg-type]


def texts(rows: int = 5, length: int = 9) -> Tensor:
    """Rows of falling length, padded with 0."""
    x = torch.randint(1, 30, (rows, length), generator=torch.Generator().manual_seed(1))
    for row in range(rows):
        x[row, length - row :] = 0
    return x


@pytest.mark.parametrize("downstream", DOWNSTREAM)
def test_keeps_to_the_protocol(downstream: str) -> None:
    check_model(small(downstream), texts(), n_classes=3)


def test_padding_never_gets_mass_and_rows_sum_to_one() -> None:
    model, x = small(), texts()
    with torch.no_grad():
        model.attention.score.weight.mul_(1e4)  # extreme scores
    m = model.masks(x)
    assert (m[x == 0] == 0).all()
    torch.testing.assert_close(m.sum(-1), torch.ones(5))


@pytest.mark.parametrize("downstream", DOWNSTREAM)
def test_a_row_alone_and_in_a_padded_batch_agree(downstream: str) -> None:
    model, x = small(downstream).eval(), texts()
    with torch.no_grad():
        m = model.masks(x)
        logits = model.predict(x, m)
        for row in range(5):
            alone = x[row : row + 1, : 9 - row]
            torch.testing.assert_close(model.masks(alone)[0], m[row, : 9 - row], atol=1e-6, rtol=0)
            torch.testing.assert_close(model(alone)[0], logits[row], atol=1e-6, rtol=0)


def test_more_padding_than_max_length_is_no_longer_text() -> None:
    model, x = small("concatenated").eval(), texts()
    torch.testing.assert_close(model(torch.nn.functional.pad(x, (0, 10))), model(x), atol=1e-6, rtol=0)
    with pytest.raises(InputError, match="at most max_length=12 tokens a row, got 13"):
        model(torch.ones(2, 13, dtype=torch.long))


@pytest.mark.parametrize("downstream", DOWNSTREAM)
def test_predict_reads_the_mask_and_reaches_attention_only_through_it(downstream: str) -> None:
    model, x = small(downstream), texts()
    m = model.masks(x)
    model.predict(x, m.detach()).sum().backward()
    eyes = [*model.attention.parameters(), *model.attention_embedding.parameters()]
    assert all(p.grad is None for p in eyes)
    model.predict(x, m).square().sum().backward()
    assert all(p.grad is not None for p in eyes)


@pytest.mark.parametrize("downstream", DOWNSTREAM)
def test_a_position_of_no_weight_is_not_seen(downstream: str) -> None:
    model, x = small(downstream).eval(), texts(rows=1)
    m = torch.full((1, 9), 1 / 8)
    m[0, 4] = 0
    other = x.clone()
    other[0, 4] = x[0, 4] % 29 + 1
    torch.testing.assert_close(model.predict(x, m), model.predict(other, m))


def test_word_dropout_hides_words_from_the_downstream_part_in_training_only() -> None:
    model, x = small(word_dropout=0.9, dropout=0.0), texts()
    m = model.masks(x)
    assert torch.equal(m, model.masks(x))
    assert not torch.equal(model.predict(x, m), model.predict(x, m))
    model.eval()
    assert torch.equal(model.predict(x, m), model.predict(x, m))


def test_fresh_is_drawn_from_the_seed_and_leaves_random_state_alone() -> None:
    model, rng = small(word_dropout=0.5, dropout=0.1), torch.get_rng_state()
    one, same, other = (model.fresh(seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(rng, torch.get_rng_state())
    assert all(torch.equal(one[k], same[k]) for k in one)
    assert not torch.equal(one["embedding.weight"], other["embedding.weight"])
    assert {**model.fresh(1).config, "seed": 0} == model.config


@pytest.mark.parametrize("downstream", DOWNSTREAM)
def test_config_rebuilds_the_model(downstream: str) -> None:
    model = small(downstream, seed=3)
    again = TextAttention(**model.config)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters()))


def data(lengths: tuple[list[int], ...] = ([3, 4], [6], [5])) -> Any:
    train, valid, test = (SimpleNamespace(lengths=torch.tensor(each)) for each in lengths)
    return SimpleNamespace(vocabulary=list(range(30)), n_classes=2, train=train, valid=valid, test=test, name="toy")


def test_for_data_takes_vocabulary_classes_and_the_longest_text() -> None:
    model = TextAttention.for_data(data(), "concatenated", word_dropout=0.5, seed=2, embedding=4, hidden=3)
    found = {
        name: model.config[name] for name in ("vocabulary_size", "n_classes", "max_length", "word_dropout", "seed")
    }
    assert found == {"vocabulary_size": 30, "n_classes": 2, "max_length": 6, "word_dropout": 0.5, "seed": 2}
    assert TextAttention.for_data(data(), embedding=4, hidden=3).config["max_length"] is None
    with pytest.raises(InputError, match="expected a text data set with a vocabulary, got 'digits'"):
        TextAttention.for_data(SimpleNamespace(vocabulary=None, name="digits"))


WRONG = [
    ({"downstream": "transformer"}, "downstream: expected one of"),
    ({"downstream": "concatenated", "max_length": None}, "max_length: expected a number of tokens"),
    ({"embedding": 0}, "embedding: expected a whole number of at least 1, got 0"),
    ({"hidden": 2.5}, "hidden: expected a whole number"),
    ({"word_dropout": 1.0}, r"word_dropout: expected a probability below 1, got 1\.0"),
    ({"dropout": -0.1}, "dropout: expected a probability"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_wrong_arguments_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        small(**given)


def test_wrong_inputs_are_named() -> None:
    model = small()
    with pytest.raises(InputError, match=r"x: expected integer token ids of shape \(B, T\), got torch.float32"):
        model.masks(torch.ones(2, 3))
    with pytest.raises(InputError, match=r"token ids in 0\.\.29, row 1 has 30"):
        model.masks(torch.tensor([[1, 2], [3, 30]]))
    with pytest.raises(InputError, match="row 1 is all padding"):
        model.masks(torch.tensor([[1, 2], [0, 0]]))
    with pytest.raises(InputError, match="m: expected the shape of x"):
        model.predict(texts(), torch.ones(5, 1))
