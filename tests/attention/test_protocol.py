"""The protocol's one check finds each way of breaking it; a fresh copy is fresh."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from causal_attn.attention import AttentionClassifier, check_model, fresh_copy, valid_of
from causal_attn.attention.protocol import batch_size, in_mode
from causal_attn.errors import InputError

from .toys import Hard, Shared, Toy, bags


@pytest.mark.parametrize("model", [Toy(), Shared(), Hard()])
def test_good_models_pass_and_are_left_as_they_were(model: Toy) -> None:
    model.train()
    model.head.eval()  # a frozen part keeps its own mode
    state, rng = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    check_model(model, bags(), n_classes=2)
    assert model.training
    assert not model.head.training
    assert torch.equal(rng, torch.get_rng_state())
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())


class NotSumming(Toy):
    def masks(self, x: Tensor) -> Tensor:
        m = super().masks(x).clone()
        m[3] *= 1.01
        return m


class Negative(Toy):
    def masks(self, x: Tensor) -> Tensor:
        m = super().masks(x).clone()
        m[2, 0] = -m[2, 0]
        return m


class NotFinite(Toy):
    def masks(self, x: Tensor) -> Tensor:
        m = super().masks(x).clone()
        m[1, 2] = torch.nan
        return m


class NothingChosen(Toy):
    def masks(self, x: Tensor) -> Tensor:
        m = torch.ones(x.shape[:2])
        m[4] = 0
        return m


class Flat(Toy):
    def masks(self, x: Tensor) -> Tensor:
        return super().masks(x).mean(0)


class OnPadding(Toy):
    def valid(self, x: Tensor) -> Tensor:
        valid = torch.ones(x.shape[:2], dtype=torch.bool)
        valid[5, 3] = False
        return valid


class OddValid(Toy):
    def valid(self, x: Tensor) -> Tensor:
        return torch.ones(len(x), 1, dtype=torch.bool)


class OneLogit(Toy):
    def predict(self, x: Tensor, m: Tensor) -> Tensor:
        return super().predict(x, m)[:, 0]


class InfiniteLogit(Toy):
    def predict(self, x: Tensor, m: Tensor) -> Tensor:
        logits = super().predict(x, m).clone()
        logits[2, 1] = torch.inf
        return logits


class Restless(Toy):
    def predict(self, x: Tensor, m: Tensor) -> Tensor:
        return super().predict(x, m) + torch.randn(len(x), 2)


class RestlessMasks(Toy):
    def masks(self, x: Tensor) -> Tensor:
        return super().masks(x + torch.randn_like(x))


BAD = [
    (NotSumming, r"masks\(x\): .*sum to 1.*row 3 sums to 1\.01"),
    (Negative, r"masks\(x\): .*non-negative.*row 2 fails at position 0"),
    (NotFinite, r"masks\(x\): .*finite.*row 1 fails at position 2"),
    (NothingChosen, r"a position chosen; row 4 sums to 0"),
    (Flat, r"masks\(x\): .*shape \(6, T\), got shape \(4,\)"),
    (OnPadding, r"no mass on padding, row 5 fails at position 3"),
    (OddValid, r"valid\(x\): .*\(6, 4\), got \(6, 1\)"),
    (OneLogit, r"predict\(x, m\): .*shape \(6, K\)"),
    (InfiniteLogit, r"predict\(x, m\): .*finite logits, row 2 fails at position 1"),
    (Restless, r"predict\(x, m\): .*same result twice"),
    (RestlessMasks, r"masks\(x\): .*same result twice"),
]


@pytest.mark.parametrize(("bad", "message"), BAD)
def test_each_bad_model_is_caught(bad: type[Toy], message: str) -> None:
    model, rng = bad(), torch.get_rng_state()
    with pytest.raises(InputError, match=message):
        check_model(model, bags())
    assert torch.equal(rng, torch.get_rng_state())


def test_wrong_number_of_classes_and_missing_methods_are_named() -> None:
    with pytest.raises(InputError, match=r"shape \(6, 3\), got shape \(6, 2\)"):
        check_model(Toy(), bags(), n_classes=3)
    with pytest.raises(InputError, match="expected methods masks"):
        check_model(nn.Linear(3, 2), bags())  # type: ignore[arg-type]


def test_the_protocol_asks_for_two_methods_only() -> None:
    assert isinstance(Toy(), AttentionClassifier)
    assert not isinstance(nn.Linear(3, 2), AttentionClassifier)
    assert valid_of(Toy(), bags(), torch.zeros(6, 4)).all()
    assert not valid_of(OnPadding(), bags(), torch.zeros(6, 4))[5, 3]


def test_batch_size_of_tensors_and_mappings() -> None:
    assert batch_size(bags()) == batch_size({"pixels": bags(), "more": bags()}) == batch_size((bags(), bags())) == 6
    with pytest.raises(InputError, match="x: expected a tensor"):
        batch_size(3)


def test_mode_is_restored_after_an_error() -> None:
    model, broken = Toy().train(), OneLogit().train()
    with in_mode(model, training=False):
        assert not model.training
    assert model.training
    with pytest.raises(InputError):
        check_model(broken, bags())
    assert broken.training


def test_fresh_copy_resets_every_parameter_from_the_seed() -> None:
    model, rng = Shared(), torch.get_rng_state()
    before = [p.clone() for p in model.parameters()]
    one, same, other = (fresh_copy(model, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(rng, torch.get_rng_state())
    assert all(torch.equal(one[k], same[k]) for k in one)
    assert not torch.equal(one["score.weight"], other["score.weight"])
    assert not torch.equal(one["score.weight"], model.score.weight)
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before))


def test_fresh_copy_prefers_the_models_own_and_names_what_nothing_resets() -> None:
    class Own(Toy):
        def fresh(self, seed: int) -> str:
            return f"fresh {seed}"

    class Raw(Toy):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))

    assert fresh_copy(Own(), 4) == "fresh 4"
    with pytest.raises(InputError, match=r"\['scale'\]"):
        fresh_copy(Raw(), 0)


def test_fresh_copy_covers_multi_head_attention() -> None:
    class Heads(Toy):
        def __init__(self) -> None:
            super().__init__()
            self.attend = nn.MultiheadAttention(4, 2)

    assert all(torch.isfinite(p).all() for p in fresh_copy(Heads(), 0).parameters())


def test_a_frozen_part_is_kept_and_the_rest_drawn_anew():
    """Drawn anew it could never learn, and an evaluator made so would judge pretrained models by noise."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    new = fresh_copy(model, 5)
    assert torch.equal(new[0].weight, model[0].weight)
    assert not new[0].weight.requires_grad
    assert not torch.equal(new[1].weight, model[1].weight)
