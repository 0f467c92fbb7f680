"""What predictions do when attention is replaced: uniform, permuted, frozen or adversarial attention.

    total variation = ½ Σ_k |p(k | x, m) − p(k | x, m′)|,    probability

Small under all of them: the attention layer hardly matters here, and no reading of it can be faithful or not. It is
context, neither better nor worse. Source: Jain & Wallace (2019), Wiegreffe & Pinter (2019).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from causal_attn.attention import fresh_copy
from causal_attn.attention.protocol import in_mode
from causal_attn.data.splits import Split
from causal_attn.masks import MaskSample, moved
from causal_attn.training.collect import batches, collect_logits, collect_masks, device_of, to_device, width_of

N_PERMUTATIONS = 5
ASCENT_STEPS, ASCENT_RATE = 20, 1.0
BATCH = 256


def total_variation(p: Tensor, q: Tensor) -> Tensor:
    """½ Σ_k |p_k − q_k|. (..., K) -> (...)."""
    return 0.5 * (p - q).abs().sum(-1)


def uniform(model: Any, split: Split, sample: MaskSample, seed: int) -> list[Tensor]:
    """The same mass on every valid position; of a choice, every position chosen."""
    return [moved(sample.valid.float(), sample.valid, sample.kind)]


def permuted(model: Any, split: Split, sample: MaskSample, seed: int) -> list[Tensor]:
    """Each row's masses dealt out anew over its valid positions, N_PERMUTATIONS times."""
    rng = np.random.default_rng([seed, 41])
    first = (~sample.valid).to(torch.int8).argsort(dim=-1, stable=True)  # valid positions, in order, then padding
    out = []
    for _ in range(N_PERMUTATIONS):
        key = torch.from_numpy(rng.random(tuple(sample.masks.shape))).masked_fill(~sample.valid, 2.0)
        masks = torch.zeros_like(sample.masks)
        out.append(masks.scatter_(1, first, sample.masks.gather(1, key.argsort(dim=-1, stable=True))))
    return out


def frozen(model: Any, split: Split, sample: MaskSample, seed: int) -> list[Tensor]:
    """Masks of the same attention with parameters drawn anew, never trained."""
    return [collect_masks(fresh_copy(model, seed + 104_729), split)[0][:, : sample.T].to(sample.masks)]


def adversarial(model: Any, split: Split, sample: MaskSample, seed: int) -> list[Tensor]:
    """The mask that moves the prediction most: gradient ascent on its logits from the model's own, as a lower bound.

    Of a choice of positions: the permuted one of those drawn that moves it most.
    """
    if sample.kind == "subset":
        options = permuted(model, split, sample, seed)
        p = collect_logits(model, split, sample.masks.float()).softmax(-1)
        moves = torch.stack([total_variation(p, collect_logits(model, split, m.float()).softmax(-1)) for m in options])
        return [torch.stack(options)[moves.argmax(0), torch.arange(sample.n)]]
    out = torch.zeros(sample.masks.shape)
    device = device_of(model)
    with in_mode(model, training=False), torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        for index in batches(split.lengths, len(split), BATCH):
            x = to_device(split.batch(index)[0], device)
            width = width_of(model, x)
            valid = sample.valid[index, :width].to(device)
            own = sample.masks[index, :width].float().to(device)
            out[index, :width] = _ascent(model, x, own, valid).cpu()
    return [out]


def _ascent(model: Any, x: Any, own: Tensor, valid: Tensor) -> Tensor:
    """The best mask met on the way, for each row."""
    with torch.no_grad():
        p = model.predict(x, own).softmax(-1)
    logits = (own + 1e-3).log().requires_grad_()
    optimiser = torch.optim.Adam([logits], ASCENT_RATE)
    best, furthest = own, torch.zeros(len(own), device=own.device)
    for _ in range(ASCENT_STEPS):
        m = logits.masked_fill(~valid, -torch.inf).softmax(-1)
        moved_by = total_variation(p, model.predict(x, m).softmax(-1))
        better = moved_by.detach() > furthest
        best = torch.where(better[:, None], m.detach(), best)
        furthest = torch.maximum(furthest, moved_by.detach())
        # where nothing moves yet, |p − q| has no slope: the predicted class's own probability has one
        target = p.argmax(-1, keepdim=True)
        loss = model.predict(x, m).log_softmax(-1).gather(-1, target).sum()
        if loss.grad_fn is None:  # the model does not use its mask: no other one is further away
            return best
        (logits.grad,) = torch.autograd.grad(loss, logits, materialize_grads=True)
        optimiser.step()
    return best


Control = Callable[[Any, Split, MaskSample, int], list[Tensor]]
CONTROLS: dict[str, Control] = {
    "uniform": uniform, "permuted": permuted, "frozen": frozen, "adversarial": adversarial,
}  # fmt: skip


def replaced(model: Any, split: Split, sample: MaskSample, control: str, seed: int = 0) -> Tensor:
    """Total variation of the prediction when attention is replaced, mean over the control's masks. Shape (n,)."""
    p = collect_logits(model, split, sample.masks.float()).softmax(-1)
    others = CONTROLS[control](model, split, sample, seed)
    moves = [total_variation(p, collect_logits(model, split, m.float()).softmax(-1)) for m in others]
    return torch.stack(moves).mean(0)
