"""Random numbers that are seeded inside a block and untouched outside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def forked_rng(seed: int | None = None, tensors: Iterable[Tensor] = ()) -> Iterator[None]:
    """Run a block on its own random state; the state outside is as before when the block ends.

    Args:
        seed: seeds the CPU generator, and those of the CUDA devices in use. None: starts from the present state.
        tensors: their CUDA devices are forked too. Others are left alone (torch.manual_seed would seed them all).
    """
    devices = sorted({t.get_device() for t in tensors if t.is_cuda})
    with torch.random.fork_rng(devices=devices):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
            for device in devices:
                torch.cuda.default_generators[device].manual_seed(seed)
        yield
