"""A small network as the response: hidden units learnt by gradient, the last layer as in the linear response.

    logits = log Q(y) + ([φ(m), tanh(A φ(m) + a)] W + b) H

A and a are point estimates, from AdamW with strong weight decay, stopped on a seventh of the rows; W and b have the
prior, evidence and Gaussian posterior of the linear response. Several members that differ in seed and inner split share
the draws, so their spread carries some of what one A leaves out (a deep ensemble; Lakshminarayanan et al. 2017).
Intervals are narrower than those of a full posterior: their coverage is measured in benchmarks/selection.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from causal_attn.selection.response import contrasts

N_MEMBERS = 5
HIDDEN = 16
STEPS = 600
BATCH = 512
LEARNING_RATE = 1e-2
WEIGHT_DECAY = 1.0
CHECK_EVERY = 20
"""Steps between looks at the inner validation loss."""


@dataclass(frozen=True)
class Hidden:
    """φ to [φ, tanh(Aφ + a)], standardised on the rows of the fit. (n, d) -> (n, d + HIDDEN), float64."""

    weight: Tensor
    bias: Tensor
    centre: Tensor
    scale: Tensor

    def __call__(self, phi: Tensor) -> Tensor:
        units = torch.tanh(phi @ self.weight + self.bias)
        return torch.cat([phi, (units - self.centre) / self.scale], -1)


def fit_hidden(phi: Tensor, y: Tensor, log_prior: Tensor, seed: int) -> Hidden:
    """Learn A and a on rows φ (n, d), y (n,); deterministic given the seed."""
    generator = torch.Generator().manual_seed(seed)
    x, d, n_out = phi.float(), phi.shape[1], len(log_prior) - 1
    shapes = ((HIDDEN,), (HIDDEN, n_out), (d, n_out), (n_out,))
    weight = torch.randn(d, HIDDEN, generator=generator, dtype=torch.float32) / d**0.5
    start = [weight, *(torch.zeros(shape, dtype=torch.float32) for shape in shapes)]
    parameters = [p.requires_grad_() for p in start]
    order = torch.randperm(len(x), generator=generator)
    held, rows = order[: max(1, len(x) // 7)], order[max(1, len(x) // 7) :]
    best = _descend(parameters, (x, y, log_prior.float()), rows, held, generator)
    weight, bias = best[0].double(), best[1].double()
    units = torch.tanh(phi @ weight + bias)
    scale = units.std(0, correction=0)
    return Hidden(weight, bias, units.mean(0), torch.where(scale > 1e-9, scale, torch.inf))


def _descend(
    parameters: list[Tensor],
    data: tuple[Tensor, Tensor, Tensor],
    rows: Tensor,
    held: Tensor,
    generator: torch.Generator,
) -> list[Tensor]:
    """AdamW with a cosine schedule; the parameters of lowest loss on the held rows."""
    optimiser = torch.optim.AdamW(parameters, LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    lowest, best = float("inf"), [p.detach().clone() for p in parameters]
    with torch.enable_grad():
        for step in range(STEPS):
            pick = rows[torch.randint(len(rows), (min(BATCH, len(rows)),), generator=generator)]
            gradients = torch.autograd.grad(_loss(parameters, data, pick), parameters)
            for parameter, gradient in zip(parameters, gradients):
                parameter.grad = gradient
            optimiser.step()
            schedule.step()
            if step % CHECK_EVERY == CHECK_EVERY - 1:
                with torch.no_grad():
                    loss = float(_loss(parameters, data, held))
                if loss < lowest:
                    lowest, best = loss, [p.detach().clone() for p in parameters]
    return best


def _loss(parameters: list[Tensor], data: tuple[Tensor, Tensor, Tensor], pick: Tensor) -> Tensor:
    weight, bias, out, skip, intercept = parameters
    x, y, log_prior = data
    eta = torch.tanh(x[pick] @ weight + bias) @ out + x[pick] @ skip + intercept
    logits = log_prior + eta @ contrasts(len(log_prior)).float()
    return torch.nn.functional.cross_entropy(logits, y[pick])
