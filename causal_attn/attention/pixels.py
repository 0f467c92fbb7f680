"""A small classifier of images with attention over pixels; the two parts share no parameter."""

from __future__ import annotations

import inspect
from typing import Any, Literal

import torch
from torch import Tensor, nn

from causal_attn.attention.seeding import forked_rng
from causal_attn.data.checks import whole
from causal_attn.errors import InputError


class PixelAttention(nn.Module):
    """m = softmax over pixels of a small convolutional net; then *flat*, a network on the masked pixels side by side,
    which can see where the mask lies, or *pooled*, one on their sum, which cannot.

    x is (B, T, C), T = side² pixels of C numbers. `predict` reads s_t·[x_t, 1] with s = m / max(m), so that a choice
    (0 or 1) and the same choice with a mass of 1/k each are one mask.

    Args:
        side: height and width.
        channels: C.
        n_classes: K.
        downstream: "flat" or "pooled".
        hidden: width of the hidden layers.
        seed: draws the parameters; global random state is untouched.
    """

    def __init__(
        self, side: int, channels: int, n_classes: int, downstream: Literal["flat", "pooled"] = "flat",
        hidden: int = 64, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        given = locals()
        self.config: dict[str, Any] = {name: given[name] for name in _ARGUMENTS}
        for name, least in (("side", 2), ("channels", 1), ("n_classes", 2), ("hidden", 1)):
            whole(self.config[name], name, least)
        if downstream not in ("flat", "pooled"):
            raise InputError(f"downstream: expected 'flat' or 'pooled', got {downstream!r}")
        width = (channels + 1) * (side**2 if downstream == "flat" else 1)
        with forked_rng(seed):
            first, last = nn.Conv2d(channels, hidden, 3, padding=1), nn.Conv2d(hidden, 1, 3, padding=1)
            self.attention = nn.Sequential(first, nn.ReLU(), last)
            self.head = nn.Sequential(
                nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, n_classes)
            )

    def masks(self, x: Tensor) -> Tensor:
        """Attention over pixels, shape (B, T)."""
        side = self.config["side"]
        image = self._checked(x).transpose(1, 2).reshape(len(x), -1, side, side)
        return self.attention(image).flatten(1).softmax(-1)

    def predict(self, x: Tensor, m: Tensor) -> Tensor:
        """Logits, shape (B, K), of the pixels x (B, T, C) under the mask m (B, T)."""
        pixels = nn.functional.pad(self._checked(x), (0, 1), value=1.0)
        if m.shape != x.shape[:2]:
            raise InputError(f"m: expected shape {tuple(x.shape[:2])}, got {tuple(m.shape)}")
        m = m.to(pixels)
        scaled = pixels * (m / m.amax(-1, keepdim=True).clamp(min=torch.finfo(m.dtype).tiny)).unsqueeze(-1)
        if self.config["downstream"] == "flat":
            return self.head(scaled.flatten(1))
        # an average would show a mask of evidence alone as nothing that random masks had shown
        return self.head(scaled.sum(1) * (2 / self.config["side"]))

    def forward(self, x: Tensor) -> Tensor:
        """Logits under the model's own attention, shape (B, K)."""
        return self.predict(x, self.masks(x))

    def fresh(self, seed: int) -> PixelAttention:
        """A new model of the same configuration, on the same device, drawn from `seed`."""
        return type(self)(**{**self.config, "seed": seed}).to(next(self.parameters()).device)

    def _checked(self, x: Tensor) -> Tensor:
        wanted = (self.config["side"] ** 2, self.config["channels"])
        if not isinstance(x, Tensor) or x.ndim != 3 or tuple(x.shape[1:]) != wanted:
            came = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise InputError(f"x: expected shape (B, {wanted[0]}, {wanted[1]}), got {came}")
        return x


_ARGUMENTS = tuple(inspect.signature(PixelAttention.__init__).parameters)[1:]
