"""What a study does: a frozen configuration, checked before any work."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from causal_attn.data.checks import whole
from causal_attn.data.splits import Data
from causal_attn.errors import InputError
from causal_attn.training import (
    ERM,
    AlternatingRandomAttention,
    InstanceWeighting,
    LeakagePenalty,
    RandomAttentionPretraining,
    Scheme,
)
from causal_attn.training.collect import pick_device
from causal_attn.training.loop import EPOCHS

CELL_FORMAT = 3
"""Raised whenever a change of the code changes what a cell would hold: older cells are then not used again."""
EXPLORE = 0.3
"""Share of rows shown another row's mask in the weighted scheme."""


def _weighted() -> InstanceWeighting:
    return InstanceWeighting(explore=EXPLORE)


SCHEMES: dict[str, tuple[str, Callable[[], Scheme]]] = {
    "erm": ("ERM, joint training", ERM),
    "weighted": (f"weights, exploration {EXPLORE:g}", _weighted),
    "weights-only": ("weights alone", InstanceWeighting),
    "random": ("random masks, frozen", RandomAttentionPretraining),
    "warm": ("random masks, then joint", lambda: RandomAttentionPretraining(then="joint")),
    "warm-weighted": (
        "random masks, then weights",
        lambda: RandomAttentionPretraining(then="joint", weighting=_weighted()),
    ),
    "matched": ("random masks, matched", lambda: RandomAttentionPretraining("matched")),
    "alternating": ("alternating random masks", AlternatingRandomAttention),
    "penalty": ("leakage penalty", LeakagePenalty),
}
"""Schemes by the name the command uses: a label for people, and how to make one."""


@dataclass(frozen=True)
class StudyConfig:
    """The main job.

    Args:
        data: a known set, or a path to CSV, TSV, JSONL or Parquet with columns text and label.
        downstream: "recurrent", "pooled" or "concatenated".
        schemes: names out of `SCHEMES`, in order; the selection model is fitted on the first one's masks.
        default_tokens: distinct tokens put before every text, the same in every text.
        word_dropout: probability that training hides a word from the downstream part only: the attention then sees
            more than the downstream part, which is when joint training builds a shortcut.
        seeds: number of seeds, 0 to seeds-1; each also draws its own split.
        epochs: most epochs of a phase.
        limit: rows to use; None: all.
        max_tokens: a text's first tokens to use; None: all.
        k: positions kept for the accuracies at k.
        n_permutations: of the leakage tests.
        device: "auto", or a torch device.
    """

    data: str = "rotten_tomatoes"
    downstream: str = "recurrent"
    schemes: tuple[str, ...] = ("erm", "weighted", "random", "warm")
    default_tokens: int = 5
    word_dropout: float = 0.5
    seeds: int = 1
    epochs: int = EPOCHS
    limit: int | None = None
    max_tokens: int | None = None
    k: int = 5
    n_permutations: int = 200
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("data", "device"):  # a Path or a torch.device reads as its name, which JSON can hold
            object.__setattr__(self, name, str(getattr(self, name)))
        if isinstance(self.schemes, str) or not all(isinstance(name, str) for name in _listed(self.schemes)):
            raise InputError(f"schemes: expected a sequence of names, got {self.schemes!r}")
        object.__setattr__(self, "schemes", tuple(self.schemes))
        if self.downstream not in ("recurrent", "pooled", "concatenated"):
            raise InputError(f"downstream: expected recurrent, pooled or concatenated, got {self.downstream!r}")
        unknown = [name for name in self.schemes if name not in SCHEMES]
        if unknown or not self.schemes or len(set(self.schemes)) < len(self.schemes):
            came = ",".join(self.schemes) or "none"
            raise InputError(f"schemes: expected different names out of {', '.join(SCHEMES)}, got {came!r}")
        for name, least in (("default_tokens", 0), ("seeds", 1), ("epochs", 1), ("k", 1), ("n_permutations", 0)):
            object.__setattr__(self, name, whole(getattr(self, name), name, least))
        for name in ("limit", "max_tokens"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole(getattr(self, name), name, 1))
        number = isinstance(self.word_dropout, (int, float)) and not isinstance(self.word_dropout, bool)
        if not number or not 0 <= self.word_dropout < 1:
            raise InputError(f"word_dropout: expected a probability in [0, 1), got {self.word_dropout!r}")
        pick_device(self.device)

    def as_dict(self) -> dict[str, Any]:
        """For `results.json`."""
        return {**asdict(self), "schemes": list(self.schemes)}

    def cell_key(self, data: Data) -> str:
        """What the figures of one scheme and seed depend on, as a short hash: cells with the same key can be reused."""
        own = {name: value for name, value in self.as_dict().items() if name not in ("schemes", "seeds")}
        digest = hashlib.sha256(json.dumps({"format": CELL_FORMAT, **own}, sort_keys=True).encode())
        for split in data.splits.values():
            digest.update(split.y.numpy().tobytes())
            digest.update("\0".join(split.texts or ()).encode())
        return digest.hexdigest()[:12]


def _listed(names: Any) -> list[Any]:
    if not isinstance(names, Sequence):
        raise InputError(f"schemes: expected a sequence of names, got {names!r}")
    return list(names)
