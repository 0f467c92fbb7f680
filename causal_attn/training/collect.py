"""Running a model over a split: its masks, and its logits under given masks, in the split's row order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from causal_attn.attention import valid_of
from causal_attn.attention.protocol import in_mode
from causal_attn.data.splits import Split
from causal_attn.errors import InputError
from causal_attn.masks import first_row

EVAL_BATCH = 256
POOL = 16
"""Batches that are sorted by length together: more would order the epoch, fewer would pad."""


def pick_device(device: str | torch.device) -> torch.device:
    """ "auto" is CUDA where there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        made = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"device: expected 'auto' or a torch device, got {device!r}") from error
    try:
        torch.empty(0, device=made)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch built without it, or no such card
        raise InputError(f"device: {str(device)!r} is not available here") from error
    return made


def to_device(x: Any, device: torch.device) -> Any:
    """x, a tensor, mapping or sequence of tensors, on `device`."""
    if isinstance(x, Tensor):
        return x.to(device)
    if isinstance(x, Mapping):
        return {key: to_device(value, device) for key, value in x.items()}
    if isinstance(x, (tuple, list)):
        return type(x)(to_device(value, device) for value in x)
    return x


def device_of(model: Any) -> torch.device:
    """Where the model's parameters are."""
    first = next(iter(model.parameters()), None) if hasattr(model, "parameters") else None
    return torch.device("cpu") if first is None else first.device


def batches(lengths: Tensor | None, n: int, size: int, rng: np.random.Generator | None = None) -> Iterator[Tensor]:
    """Row indices in batches of like length, so that little is padding; shuffled where `rng` is given.

    Rows are shuffled, cut into pools of POOL batches, sorted by length within each, and the batches shuffled.
    """
    order = np.arange(n) if rng is None else rng.permutation(n)
    if lengths is None:
        parts = [order[i : i + size] for i in range(0, n, size)]
    else:
        known = lengths.numpy()
        pool = n if rng is None else size * POOL
        parts = []
        for start in range(0, n, pool):
            rows = order[start : start + pool]
            rows = rows[np.argsort(known[rows], kind="stable")]
            parts += [rows[i : i + size] for i in range(0, len(rows), size)]
    if rng is not None:
        rng.shuffle(parts)
    yield from (torch.from_numpy(part) for part in parts)


def collect_masks(model: Any, split: Split, size: int = EVAL_BATCH) -> tuple[Tensor, Tensor]:
    """The model's masks and validity on every row, eval mode, on the CPU. Shapes (n, T_max) float32 and bool."""
    masks, valid = [], []
    rows = []
    with torch.no_grad(), in_mode(model, training=False):
        for index in batches(split.lengths, len(split), size):
            x = to_device(split.batch(index)[0], device_of(model))
            m = model.masks(x)
            masks.append(m.cpu())
            valid.append(valid_of(model, x, m).cpu())
            rows.append(index)
    order = torch.cat(rows)
    return _in_order(masks, order), _in_order(valid, order)


def _in_order(parts: list[Tensor], order: Tensor) -> Tensor:
    width = max(part.shape[1] for part in parts)
    padded = torch.cat([torch.nn.functional.pad(part, (0, width - part.shape[1])) for part in parts])
    out = torch.empty_like(padded)
    out[order] = padded
    return out


def collect_logits(
    model: Any, split: Split, masks: Tensor | None = None, rows: Tensor | None = None, size: int = EVAL_BATCH
) -> Tensor:
    """Logits in eval mode, on the CPU, float64.

    Args:
        model: the classifier.
        split: where x comes from.
        masks: masks to show, shape (r, T), one for each of `rows`; None: the model's own.
        rows: places in the split, shape (r,), repeats allowed; None: all rows.

    Returns:
        Shape (r, K).

    Raises:
        InputError: logits that are not finite; names the first row.
    """
    places = torch.arange(len(split)) if rows is None else rows
    lengths = None if split.lengths is None else split.lengths[places]
    out, order = [], []
    with torch.no_grad(), in_mode(model, training=False):
        for index in batches(lengths, len(places), size):
            x = to_device(split.batch(places[index])[0], device_of(model))
            m = model.masks(x) if masks is None else masks[index, : width_of(model, x)].to(device_of(model))
            out.append(model.predict(x, m).double().cpu())
            order.append(index)
    logits = torch.cat(out)
    result = torch.empty_like(logits)
    result[torch.cat(order)] = logits
    odd = ~result.isfinite().all(-1)
    if odd.any():  # argmax would take NaN for a class
        raise InputError(f"predict(x, m): expected finite logits, row {int(places[first_row(odd)])} has another value")
    return result


def width_of(model: Any, x: Any) -> int:
    """T of the batch x, to which masks of T_max positions are cut: of `valid(x)` where the model has it, else of m."""
    own = getattr(model, "valid", None)
    valid = own(x) if callable(own) else None
    if valid is not None:
        return int(valid.shape[1])
    with torch.no_grad(), in_mode(model, training=False):
        return int(model.masks(x).shape[1])
