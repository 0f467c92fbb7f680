"""The evaluator: the architecture of a model, nothing of its parameters, and random masks alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from causal_attn.attention import fresh_copy, parameter_roles
from causal_attn.errors import InputError
from causal_attn.faithfulness import train_evaluator
from causal_attn.training import RandomMasksOnly, train
from causal_attn.training.collect import collect_logits, collect_masks
from tests.training.toys import Fixed, bag_data, fixed_data, moved_names, parameters, small_text, token_data, wrapped

FEW: dict[str, Any] = {"epochs": 2, "batch_size": 16, "learning_rate": 0.05, "progress": False}


def test_it_takes_the_architecture_and_no_parameter() -> None:
    data, model = token_data(), small_text()
    before = parameters(model)
    one = train_evaluator(model, data, seed=1, **FEW)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for parameter in model.parameters():
        parameter.data.add_(1)
    assert not moved_names(one, train_evaluator(model, data, seed=1, **FEW))
    assert moved_names(one, train_evaluator(model, data, seed=2, **FEW))


def test_only_its_downstream_part_was_trained_and_it_did_not_start_as_the_model() -> None:
    data = bag_data()
    names = [name for name, _ in wrapped().named_parameters()]
    evaluator = train_evaluator(wrapped(), data, seed=0, **FEW)
    drawn = fresh_copy(wrapped(), 7919)
    assert moved_names(evaluator, drawn) == parameter_roles(drawn, data.test.batch([0, 1])[0])[1]
    assert moved_names(evaluator, fresh_copy(wrapped(), 0)) == set(names)
    again = train(drawn, data, RandomMasksOnly(), seed=7919, **FEW).model
    assert not moved_names(evaluator, again)


def test_it_learns_the_evidence_from_random_masks() -> None:
    data = bag_data(200)
    evaluator = train_evaluator(wrapped(), data, epochs=30, batch_size=16, learning_rate=0.05, progress=False)
    evidence = torch.zeros(48, 4)
    evidence[:, 0] = 1  # where the toys put it
    right = collect_logits(evaluator, data.test, evidence).argmax(-1) == data.test.y
    assert float(right.double().mean()) > 0.9
    assert float(collect_masks(evaluator, data.test)[0].max()) <= 1


def test_a_model_that_cannot_be_drawn_anew_is_refused() -> None:
    bare = wrapped()
    bare.module.register_parameter("own", torch.nn.Parameter(torch.ones(2)))
    with pytest.raises(InputError, match=r"expected reset_parameters\(\) for every parameter.*module.own"):
        train_evaluator(bare, bag_data(), **FEW)
    masks = torch.full((20, 4), 0.25)
    with pytest.raises(InputError, match="no parameter of its own to train in phase 'evaluator'"):
        train_evaluator(Fixed("mask"), fixed_data(masks, masks, torch.arange(20) % 2), **FEW)
