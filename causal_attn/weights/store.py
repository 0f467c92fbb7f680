"""Weights on disk: arrays and JSON, never pickle."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from causal_attn.errors import InputError
from causal_attn.storage import load_arrays, save_arrays
from causal_attn.weights.core import MAX_DRAW_ENTRIES, Weights
from causal_attn.weights.support import SupportDeficit

FORMAT = 1
OPTIONAL = ("log_prob", "fold", "given_draws", "given_deficit_draws")


def save_weights(weights: Weights, path: str | Path, draws: bool) -> None:
    """See `Weights.save`."""
    arrays: dict[str, Tensor | None] = {
        name: getattr(weights, name) for name in ("log_w", "y", "prior", "log_prob", "fold")
    }
    if draws and weights.n_draws:
        if weights.n_draws * len(weights.y) > MAX_DRAW_ENTRIES:
            raise InputError(
                f"draws: expected at most {MAX_DRAW_ENTRIES:.0e} entries to save, got {weights.n_draws} x "
                f"{len(weights.y)}; save with draws=False"
            )
        arrays["given_draws"] = weights.draws
        if len(weights.prior) > 2:  # with two classes the draws themselves tell it
            arrays["given_deficit_draws"] = weights.deficit_draws()
    known = weights.given_deficit
    meta = {
        "format": FORMAT, "tau": weights.tau, "record": list(weights.record),
        "deficit": None if known is None else [known.estimate, known.low, known.high],
    }  # fmt: skip
    present = {name: value.numpy() for name, value in arrays.items() if value is not None}
    save_arrays(path, present, {"causal_attn_weights": json.dumps(meta)})


def load_weights(path: str | Path) -> Weights:
    """See `Weights.load`."""
    stored, text = load_arrays(path)
    if "causal_attn_weights" not in text:
        raise InputError(f"path: {str(path)!r} holds no weights")
    try:
        meta = json.loads(text["causal_attn_weights"])
        if meta["format"] != FORMAT:
            raise InputError(f"path: expected weights of format {FORMAT}, {str(path)!r} has {meta['format']}")
        arrays = {name: torch.from_numpy(value) for name, value in stored.items()}
        base = Weights.from_log(
            arrays["log_w"],
            arrays["y"],
            arrays.get("given_draws"),
            arrays.get("log_prob"),
            meta["tau"],
            arrays["prior"],
        )
        deficit = None if meta["deficit"] is None else SupportDeficit(*meta["deficit"])
        return Weights(
            base.log_w, base.y, base.prior, base.log_prob, arrays.get("fold"), base.tau, tuple(meta["record"]),
            None, base.n_draws, base.given_draws, deficit, arrays.get("given_deficit_draws"),
        )  # fmt: skip
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise InputError(f"path: {str(path)!r} holds no whole weights ({error!r})") from error
