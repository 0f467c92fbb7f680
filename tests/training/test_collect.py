"""A split in batches, and back in the order of its rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from causal_attn.data import Data
from causal_attn.errors import InputError
from causal_attn.training.collect import batches, collect_logits, collect_masks, pick_device, to_device, width_of

from .toys import Fixed, small_text, wrapped

LENGTHS = torch.randint(1, 40, (1000,), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("lengths", [LENGTHS, None], ids=["ragged", "alike"])
@pytest.mark.parametrize("seed", [None, 0])
def test_every_row_comes_once(lengths: Tensor | None, seed: int | None) -> None:
    rng = None if seed is None else np.random.default_rng(seed)
    parts = list(batches(lengths, 1000, 7, rng))
    assert sorted(torch.cat(parts).tolist()) == list(range(1000))
    assert max(map(len, parts)) == 7


def test_batches_are_of_like_length_and_shuffled_by_the_generator_alone() -> None:
    def shuffled(seed: int) -> list[list[int]]:
        return [part.tolist() for part in batches(LENGTHS, 1000, 8, np.random.default_rng(seed))]

    assert shuffled(1) == shuffled(1)
    assert shuffled(1) != shuffled(2)
    assert {frozenset(part) for part in shuffled(1)} != {frozenset(part) for part in shuffled(2)}
    spread = np.mean([float(LENGTHS[part].double().std()) for part in shuffled(1) if len(part) > 1])
    assert spread < 0.1 * float(LENGTHS.double().std())
    middles = [float(LENGTHS[part].double().mean()) for part in shuffled(1)]
    assert 0.3 < np.mean(np.diff(middles) > 0) < 0.7  # not from short to long


def test_masks_and_logits_equal_those_of_single_rows_in_the_order_of_the_split(tokens: Data) -> None:
    model, split = small_text("recurrent"), tokens.train
    model.eval()
    masks, valid = collect_masks(model, split, size=8)
    logits = collect_logits(model, split, size=8)
    assert split.lengths is not None
    for i in range(len(split)):
        x = split.batch([i])[0]
        with torch.no_grad():
            m = model.masks(x)
            alone = model.predict(x, m)
        length = int(split.lengths[i])
        torch.testing.assert_close(masks[i, :length], m[0])
        assert (masks[i, length:] == 0).all()
        assert valid[i].tolist() == [t < length for t in range(valid.shape[1])]
        torch.testing.assert_close(logits[i].float(), alone[0])


def test_mapping_inputs_without_lengths_are_padded_to_one_width(bags: Data) -> None:
    model = wrapped()
    masks, valid = collect_masks(model, bags.train, size=5)
    assert masks.shape == valid.shape == (80, 4)
    assert valid.sum(-1).tolist() == [1 + i % 4 for i in range(80)]
    torch.testing.assert_close(masks.sum(-1), torch.ones(80))
    torch.testing.assert_close(collect_logits(model, bags.train, size=5), collect_logits(model, bags.train, size=80))


def test_masks_given_are_used_and_rows_may_repeat(tokens: Data) -> None:
    model, split = small_text(), tokens.train
    rows = torch.tensor([3, 0, 3, 3, 17, 88, 0, 2])
    _, valid = collect_masks(model, split)
    g = torch.Generator().manual_seed(3)
    masks = torch.rand(len(rows), 7, generator=g) * valid[rows]
    masks = masks / masks.sum(-1, keepdim=True)
    logits = collect_logits(model, split, masks, rows, size=3)
    model.eval()
    for place, row in enumerate(rows.tolist()):
        x = split.batch([row])[0]
        with torch.no_grad():
            alone = model.predict(x, masks[place : place + 1, : x.shape[1]])
        torch.testing.assert_close(logits[place].float(), alone[0])
    own = collect_logits(model, split, None, rows, size=3)
    torch.testing.assert_close(own, collect_logits(model, split)[rows])
    assert not torch.allclose(own, logits)


def test_modes_are_as_before_and_eval_is_used(tokens: Data) -> None:
    model = small_text()
    model.train()
    model.drop.eval()
    before = [module.training for module in model.modules()]
    first, second = collect_logits(model, tokens.test), collect_logits(model, tokens.test)
    assert torch.equal(first, second)  # dropout is off
    assert torch.equal(collect_masks(model, tokens.test)[0], collect_masks(model, tokens.test)[0])
    assert [module.training for module in model.modules()] == before


class WithClassToken(Fixed):
    """One position more than x has tokens."""

    def valid(self, x: Tensor) -> Tensor:
        return torch.cat([x[:, :1] > 0, x > 0], -1)

    def masks(self, x: Tensor) -> Tensor:
        return self.valid(x) / self.valid(x).sum(-1, keepdim=True)

    def predict(self, x: Tensor, m: Tensor) -> Tensor:
        return torch.stack([m[:, 0], (m[:, 1:] * x).sum(-1)], -1)


def test_masks_given_are_cut_to_the_width_of_the_batch_whatever_sets_it(tokens: Data, bags: Data) -> None:
    x = tokens.train.batch([0, 1, 2])[0]
    assert width_of(small_text(), x) == x.shape[1]
    assert width_of(WithClassToken(""), x) == x.shape[1] + 1
    assert width_of(Fixed(""), torch.ones(3, 8)) == 4  # no validity: as wide as its masks
    for model, split in ((wrapped(), bags.train), (WithClassToken(""), tokens.train)):
        masks, _ = collect_masks(model, split)
        for rows in (torch.tensor([0, 1]), torch.tensor([3, 0])):  # narrow, then wide
            torch.testing.assert_close(
                collect_logits(model, split, masks[rows], rows), collect_logits(model, split, None, rows)
            )


def test_devices() -> None:
    x = {"a": torch.ones(1), "b": [torch.ones(2), "word"]}
    there = to_device(x, torch.device("meta"))
    assert there["a"].is_meta
    assert there["b"][0].is_meta
    assert there["b"][1] == "word"
    assert pick_device("cpu") == torch.device("cpu")
    with pytest.raises(InputError, match="device: expected 'auto' or a torch device, got 'abacus'"):
        pick_device("abacus")


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a GPU where there is none")
def test_a_gpu_that_is_not_there_is_a_wrong_request() -> None:
    with pytest.raises(InputError, match="device: 'cuda' is not available here"):
        pick_device("cuda")
