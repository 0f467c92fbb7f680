"""Seeded inside, untouched outside."""

from __future__ import annotations

import torch

from causal_attn.attention.seeding import forked_rng


def draw(seed: int | None) -> torch.Tensor:
    with forked_rng(seed):
        return torch.randn(3)


def test_the_same_seed_gives_the_same_and_the_outside_is_untouched() -> None:
    before = torch.get_rng_state()
    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
    assert torch.equal(draw(None), draw(None))
    assert torch.equal(before, torch.get_rng_state())
