"""Scores of positions that rivals of attention give on the same model, for the class it predicts.

All act on what `predict(x, m)` is given, so they need nothing of a model but the protocol: f is the log-odds of the
class ŷ predicted under the model's own mask, z_ŷ − log Σ_{k≠ŷ} exp z_k, and position t is absent where m_t = 0. Scores
have the sign of the support for that class; attention itself has none below 0.

    gradient×input          m_t ∂f/∂m_t
    integrated gradients    m_t ∫₀¹ ∂f/∂m_t(x, αm) dα, by the midpoint rule (Sundararajan et al. 2017); they sum to
                            f(x, m) − f(x, 0) where f is smooth. Where f does not change with the scale of m, as in
                            `PixelAttention`, f jumps at 0 and this is a multiple of gradient×input
    leave-one-out           p(ŷ | x, m) − p(ŷ | x, m with m_t = 0), the rest of the mask as it was

Each is (n, T), 0 on padding. Cost: one, `IG_STEPS`, and T predictions a row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from causal_attn.attention.protocol import in_mode
from causal_attn.data.splits import Split
from causal_attn.errors import InputError
from causal_attn.masks import MaskSample, as_tensor, first_row, real
from causal_attn.training.collect import batches, collect_logits, device_of, to_device, width_of

IG_STEPS = 16
GRADIENT_BATCH = 256
LOO_ENTRIES = 20_000_000
"""Entries of masks held at once by leave-one-out."""


def predicted_class(model: Any, split: Split, sample: MaskSample) -> Tensor:
    """ŷ under the given masks, shape (n,)."""
    return collect_logits(model, split, sample.masks.float()).argmax(-1)


def log_odds(logits: Tensor, target: Tensor) -> Tensor:
    """z_ŷ − log Σ_{k≠ŷ} exp z_k: a shift of all logits leaves it alone. (n, K), (n,) -> (n,)."""
    own = torch.nn.functional.one_hot(target, logits.shape[-1]).bool()
    return logits.gather(-1, target[:, None])[:, 0] - logits.masked_fill(own, -torch.inf).logsumexp(-1)


def gradient_times_input(model: Any, split: Split, sample: MaskSample, seed: int = 0) -> Tensor:
    """m_t ∂f/∂m_t, nats. Shape (n, T)."""
    return sample.masks.double() * _gradients(model, split, sample, predicted_class(model, split, sample), 1.0)


def integrated_gradients(model: Any, split: Split, sample: MaskSample, seed: int = 0) -> Tensor:
    """Along αm from 0 to 1, nats. Shape (n, T)."""
    target = predicted_class(model, split, sample)
    steps = [(i + 0.5) / IG_STEPS for i in range(IG_STEPS)]
    total = torch.stack([_gradients(model, split, sample, target, step) for step in steps]).mean(0)
    return sample.masks.double() * total


def _gradients(model: Any, split: Split, sample: MaskSample, target: Tensor, scale: float) -> Tensor:
    """∂f/∂m at scale·m, shape (n, T), float64 on the CPU."""
    out, device = torch.zeros(sample.masks.shape, dtype=torch.float64), device_of(model)
    # cuDNN's recurrent layers have no backward pass in eval mode
    with in_mode(model, training=False), torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        for index in batches(split.lengths, len(split), GRADIENT_BATCH):
            x = to_device(split.batch(index)[0], device)
            width = width_of(model, x)
            m = (scale * sample.masks[index, :width].float()).to(device).requires_grad_()
            chosen = log_odds(model.predict(x, m), target[index].to(device)).sum()
            if chosen.grad_fn is None:  # a model that does not use its mask: the gradient is 0
                continue
            out[index, :width] = torch.autograd.grad(chosen, m, materialize_grads=True)[0].double().cpu()
    return out * sample.valid


def leave_one_out(model: Any, split: Split, sample: MaskSample, seed: int = 0) -> Tensor:
    """Fall of the predicted class's probability when a position's mass is taken away. Shape (n, T), probability."""
    masks, n, width = sample.masks.float(), sample.n, sample.T
    logits = collect_logits(model, split, masks)
    target = logits.argmax(-1)
    whole = logits.softmax(-1).gather(-1, target[:, None])
    out = torch.zeros(n, width, dtype=torch.float64)
    block = max(1, LOO_ENTRIES // width**2)
    for start in range(0, n, block):
        rows = torch.arange(start, min(start + block, n))
        i, t = sample.valid[rows].nonzero(as_tuple=True)
        places = rows[i]
        without = masks[places].clone()
        without[torch.arange(len(t)), t] = 0
        p = collect_logits(model, split, without, places).softmax(-1).gather(-1, target[places][:, None])
        out[places, t] = (whole[places] - p)[:, 0]
    return out


def random_scores(model: Any, split: Split, sample: MaskSample, seed: int = 0) -> Tensor:
    """Uniform numbers: what a ranking is worth that knows nothing. Shape (n, T)."""
    drawn = np.random.default_rng([seed, 31]).random(tuple(sample.masks.shape))
    return torch.from_numpy(drawn) * sample.valid


Scorer = Callable[[Any, Split, MaskSample, int], Tensor]
SCORERS: dict[str, Scorer] = {
    "gradient": gradient_times_input, "integrated_gradients": integrated_gradients, "leave_one_out": leave_one_out,
    "random": random_scores,
}  # fmt: skip


def checked_scores(values: Any, name: str, sample: MaskSample) -> Tensor:
    """Scores made elsewhere: finite, of the masks' shape, float64; padding does not count.

    Raises:
        InputError: names the argument, and the first row that offends.
    """
    scores = real(as_tensor(values, name), name).double()
    if scores.shape != sample.masks.shape:
        raise InputError(f"{name}: expected shape {tuple(sample.masks.shape)}, got {tuple(scores.shape)}")
    bad = ~torch.isfinite(scores) & sample.valid
    if bad.any():
        raise InputError(f"{name}: expected finite numbers, row {first_row(bad)} has another value")
    return torch.where(sample.valid, scores, 0.0)
