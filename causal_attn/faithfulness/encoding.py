"""How much of the answer a selector writes into *which* positions it shows, beyond what stands there.

Our reconstruction, in the spirit of the ENCODE-METER and STRIPE-X of Puli, Lozano and Ranganath (2024), "Explanations
that reveal all through the definition of encoding". A selection encodes if, given the shown words, knowing that the
selector chose to show just these still tells the class. With

    q(y | x_m)    the EVAL-X evaluator, trained on random masks: what the shown words tell by themselves,
    r(y | x_m)    a reader trained anew on the selector's own masks: what they tell when its habits are known,

    encoding (nats) = E[ log r(y | x_m) − log q(y | x_m) ] on held-out rows,
    score    (nats) = E[ log q(y | x_m) ] − strength · max(0, encoding).

Both are calibrated by one temperature each on the validation split, r under the selector's masks, q under random
choices of k positions: under the selector's a temperature could sharpen a chance preference of q into a reading of the
code. Honest selections have an encoding of about 0 where q reads as well as r, and more where q is the poorer fit (0.08
nats in `benchmarks/shortcut.py --part encoding`, and more with smaller models). So selectors are ranked by
the score; encodings alone compare only selectors that show the same words. Selections by position, by
prediction, or of one word by others that stay hidden (the marginal kind: to show one word for the class and hide one
against it is of that kind) have it above 0, and rank below honest ones that show as much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from causal_attn.attention import fresh_copy, given_masks, valid_of
from causal_attn.attention.protocol import in_mode
from causal_attn.data.checks import fraction, seed_of
from causal_attn.data.splits import Data, Split
from causal_attn.diagnostics.intervals import percentile_interval
from causal_attn.faithfulness.subject import checked_k, subject_of
from causal_attn.masks import Kind, MaskSample, moved, top_k
from causal_attn.training import train
from causal_attn.training.collect import collect_logits, collect_masks
from causal_attn.training.schemes import ReaderOnly

N_BOOTSTRAP = 1000
LOG_TEMPERATURES = (-4.0, 4.0)


@dataclass(frozen=True)
class EncodingScore:
    """What `encoding_score` found, in nats.

    Args:
        score: evaluator's mean log-probability of the class, less the encoding. Higher is better.
        encoding: what the choice of positions tells beyond their words. Lower is better; about 0 is honest.
        evaluator_log_prob: E[log q(y|x_m)]. Higher is better.
        reader_log_prob: E[log r(y|x_m)].
        intervals: (low, high) at 95% by name, by bootstrap over rows.
        k: positions shown.
    """

    score: float
    encoding: float
    evaluator_log_prob: float
    reader_log_prob: float
    intervals: dict[str, tuple[float, float]]
    k: int

    def __repr__(self) -> str:
        lines = [f"encoding score at k = {self.k}, nats; compare scores, not encodings, of different selectors"]
        for name, (low, high) in self.intervals.items():
            lines.append(f"  {name:<18} {getattr(self, name):7.3f}  [{low:7.3f}, {high:7.3f}]")
        return "\n".join(lines)


def shown_masks(masks: Tensor, valid: Tensor, kind: Kind, k: int) -> Tensor:
    """The k positions of largest mass, all alike: a choice says nothing by how much mass it gives."""
    return moved(top_k(masks, valid, k).float(), valid, kind)


def encoding_score(
    result: Any, split: str = "test", *, data: Data | None = None, evaluator: Any = None, k: int | None = None,
    strength: float = 1.0, seed: int = 0, progress: bool = True, **settings: Any,
) -> EncodingScore:  # fmt: skip
    """Score a selector by what its selections show, less what they encode.

    Args:
        result: a `TrainResult`, or a model with `masks` and `predict` (then `data` is needed). Its masks are judged,
            and its architecture gives evaluator and reader; its own downstream part is not used.
        split: where the score is taken.
        data: the splits; evaluator and reader are trained on `data.train`.
        evaluator: an EVAL-X evaluator; None: one is trained.
        k: positions shown; None: 5 for soft masks, the selector's own k for subsets.
        strength: how much a nat of encoding costs, 0 or more.
        seed: of evaluator, reader and bootstrap.
        progress: show bars.
        settings: passed to `train` for both (epochs, batch_size, ...), instead of the model's own.

    Raises:
        InputError: before any work, as in `shortcut_test`.
    """
    seed, strength = seed_of(seed), fraction(strength, "strength", 0, 1e6)
    subject = subject_of(result, split, data)
    model, source, sample = subject.model, subject.data, subject.sample
    k = checked_k(k, sample)
    subject.checked_evaluator(evaluator, {})  # the reader takes the settings all the same
    settings = {**subject.settings, **settings}
    if evaluator is None:
        evaluator = subject.evaluator(seed, progress, settings)
    reader = _reader(model, source, sample, k, seed, progress, settings)
    masks, valid = collect_masks(model, source.valid)
    generator = torch.Generator().manual_seed(seed)
    q_check = shown_masks(torch.rand(valid.shape, generator=generator), valid, sample.kind, k)
    r_check = shown_masks(masks, valid, sample.kind, k)
    seen = shown_masks(sample.masks, sample.valid, sample.kind, k)
    q = _log_prob(evaluator, temperature(evaluator, source.valid, q_check), subject.split, seen)
    r = _log_prob(reader, temperature(reader, source.valid, r_check), subject.split, seen)
    rng = np.random.default_rng([seed, 61])
    draws = []
    for _ in range(N_BOOTSTRAP):
        rows = rng.integers(0, sample.n, sample.n)
        draws.append(_figures(q[rows], r[rows], strength))
    names = ("score", "encoding", "evaluator_log_prob", "reader_log_prob")
    intervals = {name: percentile_interval(column) for name, column in zip(names, np.array(draws).T)}
    return EncodingScore(*_figures(q, r, strength), intervals, k)


def _figures(q: np.ndarray, r: np.ndarray, strength: float) -> tuple[float, float, float, float]:
    evaluator, reader = float(q.mean()), float(r.mean())
    encoding = reader - evaluator
    return evaluator - strength * max(0.0, encoding), encoding, evaluator, reader


def _reader(
    model: Any, data: Data, sample: MaskSample, k: int, seed: int, progress: bool, settings: dict[str, Any]
) -> Any:  # fmt: skip
    """A downstream part drawn anew and trained on the top k of the model's own masks."""

    def shown(x: Any) -> Tensor:
        with in_mode(model, training=False):
            m = model.masks(x).detach()
        return shown_masks(m, valid_of(model, x, m), sample.kind, k)

    made = given_masks(fresh_copy(model, seed + 15_485_863), shown)
    return train(made, data, ReaderOnly(), seed=seed + 15_485_863, progress=progress, **settings).model


def temperature(who: Any, split: Split, masks: Tensor) -> float:
    """What the logits under these masks are divided by so that the log-loss is least."""
    logits = collect_logits(who, split, masks)

    def loss(log_temperature: float) -> float:
        return float(torch.nn.functional.cross_entropy(logits * np.exp(-log_temperature), split.y))

    return float(np.exp(minimize_scalar(loss, bounds=LOG_TEMPERATURES, method="bounded").x))


def _log_prob(who: Any, heat: float, split: Split, masks: Tensor) -> np.ndarray:
    """log-probability of each row's class, nats, shape (n,)."""
    log_p = (collect_logits(who, split, masks) / heat).log_softmax(-1)
    return log_p.gather(-1, split.y[:, None])[:, 0].numpy()
