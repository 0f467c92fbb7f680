"""A wrapped module is a module, keeps to the protocol, and can be made anew."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from causal_attn.attention import Wrapped, check_model, fresh_copy, parameter_roles, valid_of, wrap
from causal_attn.errors import InputError

from .toys import bags


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.eyes = nn.Linear(3, 1)
        self.drop = nn.Dropout(0.5)
        self.mouth = nn.Linear(3, 2)


def attend(net: Net, x: Tensor) -> Tensor:
    return net.eyes(x).squeeze(-1).softmax(-1)


def answer(net: Net, x: Tensor, m: Tensor) -> Tensor:
    return net.mouth(net.drop((m.unsqueeze(-1) * x).sum(1)))


def test_it_passes_the_check_and_its_parts_have_roles() -> None:
    model = wrap(Net(), masks=attend, predict=answer)
    check_model(model, bags(), n_classes=2)
    mask_names, predict_names = parameter_roles(model, bags())
    assert mask_names == {"module.eyes.weight", "module.eyes.bias"}
    assert predict_names == {"module.mouth.weight", "module.mouth.bias"}


def test_the_module_is_registered() -> None:
    net = Net()
    model = wrap(net, masks=attend, predict=answer)
    assert {id(p) for p in model.parameters()} == {id(p) for p in net.parameters()}
    model.eval()
    assert not net.drop.training
    assert model.double()(bags().double()).dtype == torch.float64
    other = wrap(Net(), masks=attend, predict=answer)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.module.eyes.weight, net.eyes.weight)  # type: ignore[union-attr, arg-type]
    twin = copy.deepcopy(model)
    assert twin.module is not net


def test_valid_is_all_by_default_or_the_function_given() -> None:
    x = bags()
    m = attend(Net(), x)
    assert valid_of(wrap(Net(), masks=attend, predict=answer), x, m).all()
    half = wrap(Net(), masks=attend, predict=answer, valid=lambda net, x: torch.arange(4).expand(len(x), 4) < 2)
    assert valid_of(half, x, m).sum() == 12
    with pytest.raises(InputError, match="no mass on padding, row 0"):
        check_model(half, x)


def test_fresh_by_reset_or_by_the_function_given() -> None:
    model = wrap(Net(), masks=attend, predict=answer)
    one, same, other = (fresh_copy(model, seed) for seed in (1, 1, 2))
    assert torch.equal(one(bags()).isfinite(), torch.ones(6, 2, dtype=torch.bool))
    assert torch.equal(one.masks(bags()), same.masks(bags()))
    assert not torch.equal(one.masks(bags()), other.masks(bags()))
    seeds: list[int] = []
    given = wrap(Net(), masks=attend, predict=answer, fresh=lambda net, seed: (seeds.append(seed), Net())[1])
    new = given.fresh(7)
    assert isinstance(new, Wrapped)
    assert new.module is not given.module
    assert seeds == [7]


@pytest.mark.parametrize("name", ["masks", "predict", "valid", "fresh"])
def test_wrong_arguments_are_named(name: str) -> None:
    given = {"masks": attend, "predict": answer, name: 3}
    with pytest.raises(InputError, match=f"{name}: expected a function, got int"):
        wrap(Net(), **given)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="module: expected"):
        wrap(attend, attend, answer)  # type: ignore[arg-type]
