"""Roles of parameters are found by gradient reach, and looking leaves no trace."""

from __future__ import annotations

import pytest
import torch

from causal_attn.attention import TextAttention, downstream_parameters, mask_parameters, parameter_roles
from causal_attn.errors import InputError

from .toys import Hard, Shared, Toy, bags

SCORE, HEAD = {"score.weight", "score.bias"}, {"head.weight", "head.bias"}
ENCODER = {"encoder.weight", "encoder.bias"}


@pytest.mark.parametrize("model", [Toy(), Hard().eval()])
def test_separate_parts_are_told_apart(model: Toy) -> None:
    assert parameter_roles(model, bags()) == (SCORE, HEAD)
    assert mask_parameters(model, bags())[0] is model.score.weight
    assert downstream_parameters(model, bags())[0] is model.head.weight


def test_a_shared_parameter_is_in_both() -> None:
    norm = {"norm.weight", "norm.bias"}
    assert parameter_roles(Shared(), bags()) == (SCORE | ENCODER, HEAD | ENCODER | norm)


def test_looking_leaves_no_trace_and_sees_through_freezing() -> None:
    model = Shared().eval()
    model.head.requires_grad_(False)
    rng, buffers = torch.get_rng_state(), [b.clone() for b in model.buffers()]
    with torch.no_grad():
        first = parameter_roles(model, bags())
    assert first == parameter_roles(model, bags())
    assert first[1] >= HEAD
    assert torch.equal(rng, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(buffers, model.buffers()))
    assert all(p.grad is None for p in model.parameters())
    assert not model.head.weight.requires_grad
    assert model.encoder.weight.requires_grad
    assert not any(module.training for module in model.modules())


def test_masks_without_parameters_have_none() -> None:
    class Uniform(Toy):
        def masks(self, x: torch.Tensor) -> torch.Tensor:
            return torch.full(x.shape[:2], 1 / x.shape[1])

    assert parameter_roles(Uniform(), bags()) == (set(), HEAD)


def test_text_attention_shares_nothing() -> None:
    model = TextAttention(20, 2, embedding=4, hidden=3)
    mask_names, predict_names = parameter_roles(model, torch.tensor([[1, 2, 3], [4, 5, 0]]))
    assert not mask_names & predict_names
    assert mask_names | predict_names == {name for name, _ in model.named_parameters()}


def test_only_modules_have_roles() -> None:
    with pytest.raises(InputError, match=r"expected an nn\.Module"):
        parameter_roles(object(), bags())  # type: ignore[arg-type]
