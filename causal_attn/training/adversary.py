"""Who reads the class off the mask during training: the adversary r(y|m) of the leakage penalty."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from causal_attn.attention.seeding import forked_rng

HIDDEN = 32
RATE = 0.01
STEPS = 2
"""Steps of the adversary in each step of the model: it should be near its best answer."""
FLOOR = 1e-3
"""δ of log(m + δ), the second form in which each mass is read."""
FROM_END = 8
"""Last positions that are read a second time, counted from the end: texts differ in length."""


class Adversary(nn.Module):
    """log r(y|m) − log P(y), r a network of one hidden layer that starts at the prior.

    It reads the masses, their logarithms, and the last positions counted from each row's end.

    Args:
        prior: P(y), shape (K,).
        width: T, the longest input; shorter masks are padded.
        seed: of its first parameters.
    """

    def __init__(self, prior: Tensor, width: int, seed: int) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("log_prior", prior.float().log())
        with forked_rng(seed):
            self.hidden = nn.Linear(2 * (width + FROM_END), HIDDEN)
            self.out = nn.Linear(HIDDEN, len(prior))
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        self.optimiser = torch.optim.Adam(self.parameters(), RATE)

    def _features(self, m: Tensor, valid: Tensor) -> Tensor:
        lengths = valid.sum(-1, keepdim=True)
        places = lengths - 1 - torch.arange(FROM_END, device=m.device)
        ends = m.gather(-1, places.clamp(min=0)) * (places >= 0)
        mass = torch.cat([nn.functional.pad(m, (0, self.width - m.shape[1])), ends], -1)
        return torch.cat([mass, (mass + FLOOR).log() / 4 + 1], -1)

    def gain(self, m: Tensor, valid: Tensor, y: Tensor) -> Tensor:
        """log r(y|m) − log P(y) of each row, nats, shape (B,)."""
        log_prior: Tensor = self.log_prior  # type: ignore[assignment]
        scores = log_prior + self.out(torch.tanh(self.hidden(self._features(m, valid))))
        return (scores.log_softmax(-1) - log_prior).gather(-1, y[:, None])[:, 0]

    def learn(self, m: Tensor, valid: Tensor, y: Tensor) -> None:
        """A few steps towards r's best answer on these masks, which are held fixed."""
        for _ in range(STEPS):
            loss = -self.gain(m.detach(), valid, y).mean()
            for parameter, gradient in zip(self.parameters(), torch.autograd.grad(loss, list(self.parameters()))):
                parameter.grad = gradient
            self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
