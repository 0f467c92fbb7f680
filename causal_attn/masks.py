"""Masks with their labels, checked once; and the maps from masks to the features a model of P(y | m) reads.

A mask is what an attention layer did to an input: non-negative weights over T positions that sum to 1 (*simplex*), or
a 0/1 choice of positions (*subset*). `MaskSample` is the boundary: whatever reaches the estimators went through it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from causal_attn.errors import InputError

Kind = Literal["simplex", "subset"]
SUM_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 5e-2}
"""How far a row of a simplex mask may sum from 1, by the precision it came in."""
CLR_FLOOR = 1e-6
"""δ of log(m + δ): keeps the log-ratio of an exact zero finite."""
MAX_CLASSES = 100_000
"""A label beyond it is an id, not a class; a table of so many classes would not fit in memory."""
ROW_CHUNK = 50_000
N_FROM_END = 8
"""How many last positions are indexed a second time from the end, where lengths differ."""


def as_tensor(values: Any, name: str) -> Tensor:
    """A new tensor of `values` (NumPy, PyTorch or nested lists); the input is never written to or shared."""
    if isinstance(values, Tensor) and values.layout != torch.strided:
        raise InputError(f"{name}: expected a dense tensor, got {values.layout}")
    if np.ma.isMaskedArray(values) and np.ma.getmaskarray(values).any():
        raise InputError(f"{name}: expected an array without masked entries")
    try:
        if isinstance(values, Tensor):
            return values.detach().cpu().clone().contiguous()
        array = np.array(values)
        if array.dtype == object:  # a pandas column of strings, None among numbers, rows of different lengths
            raise InputError(f"{name}: expected an array of numbers, {_odd_entry(array)}")
        return torch.tensor(array)
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{name}: expected an array of numbers, got {type(values).__name__} ({error})") from error


def _odd_entry(array: np.ndarray) -> str:
    """The first entry of an object array that is no number."""
    for row, value in enumerate(array.ravel() if array.ndim else [array.item()]):
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
            return f"entry {row} is {value!r:.60}"
    return "got numbers of several kinds as objects; give one dtype"


def real(values: Tensor, name: str) -> Tensor:
    """`values`, unless they are complex: their imaginary parts would be dropped."""
    if values.is_complex():
        raise InputError(f"{name}: expected real numbers, got {values.dtype}")
    return values


def first_row(bad: Tensor) -> int:
    """The index of the first row with any true entry in `bad`, shape (n,) or (n, T)."""
    return int((bad if bad.ndim == 1 else bad.any(-1)).nonzero()[0])


def as_labels(y: Any, n: int | None, n_classes: int | None, name: str = "y") -> tuple[Tensor, int]:
    """Integer labels 0..K-1 as an int64 tensor of shape (n,), and K; never cast from fractions."""
    words = np.asarray(y).ravel() if not isinstance(y, Tensor) else np.zeros(0)
    if words.dtype.kind in "US" and len(words):
        raise InputError(f"{name}: expected integers 0..K-1, row 0 is {str(words[0])!r}; number the classes first")
    labels = as_tensor(y, name)
    if labels.ndim != 1 or (n is not None and len(labels) != n):
        raise InputError(f"{name}: expected shape ({'n' if n is None else n},), got {tuple(labels.shape)}")
    if labels.dtype == torch.bool or labels.is_complex():
        raise InputError(f"{name}: expected integers 0..K-1, got {labels.dtype}")
    if labels.is_floating_point():
        bad = ~torch.isfinite(labels) | (labels != labels.round())
        if bad.any():
            row = first_row(bad)
            raise InputError(f"{name}: expected integers 0..K-1, row {row} is {labels[row].item()}")
    if n_classes is not None and (
        isinstance(n_classes, bool) or not isinstance(n_classes, (int, np.integer)) or n_classes < 1
    ):
        raise InputError(f"n_classes: expected an integer of at least 1, got {n_classes!r}")
    whole = labels.long()
    k = int(n_classes or (int(whole.max()) + 1 if len(whole) else 0))
    if k > MAX_CLASSES:
        row = int(whole.argmax())
        raise InputError(
            f"{name}: expected at most {MAX_CLASSES} classes, numbered 0..K-1; row {row} is {int(whole[row])}"
        )
    bad = (whole < 0) | (whole >= k)
    if bad.any():
        row = first_row(bad)
        upper = f"0..{k - 1}" if n_classes is not None else "0..K-1"
        raise InputError(f"{name}: expected labels in {upper}, row {row} is {int(whole[row])}")
    return whole, k


@dataclass(frozen=True, init=False)
class MaskSample:
    """Masks, classes and validity of n rows, checked and frozen.

    Args:
        masks: m, shape (n, T): rows on the simplex over the valid positions, or 0/1. float64 and float32 keep their
            precision; half precision is read exactly into float32 (simplex rows may then sum to 1 within 5e-3).
        y: classes 0..K-1, shape (n,).
        valid: which positions exist, shape (n, T), bool or 0/1. None: all.
        kind: "simplex" or "subset"; None: found from the values (a 0/1 matrix with a row not summing to 1 is a subset).
        n_classes: K; None: the largest label plus one.
        x_features: φ(x), shape (n, p), for estimators that condition on the input.
        groups: an id per row, shape (n,); rows of one source share it and stay in one fold.

    Raises:
        InputError: a shape, a negative, NaN or unnormalised mask, mass on padding, an empty row, or a label out of
            range; the message names the argument and the first offending row.
    """

    masks: Tensor
    y: Tensor
    valid: Tensor
    kind: Kind
    n_classes: int
    x_features: Tensor | None
    groups: Tensor | None

    def __init__(
        self,
        masks: Any,
        y: Any,
        valid: Any = None,
        kind: Kind | None = None,
        n_classes: int | None = None,
        x_features: Any = None,
        groups: Any = None,
    ) -> None:
        m = _checked_masks(masks)
        here = checked_valid(valid, m.shape)
        labels, k = as_labels(y, len(m), n_classes)
        found = _checked_kind(m, kind)
        _check_rows(m, here, found, _tolerance(m))
        fields = {
            "masks": m,
            "y": labels,
            "valid": here,
            "kind": found,
            "n_classes": k,
            "x_features": _checked_x_features(x_features, len(m)),
            "groups": _checked_groups(groups, len(m)),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)  # frozen: set once, here

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.y)

    @property
    def T(self) -> int:
        """Number of positions, padding included."""
        return self.masks.shape[1]

    @cached_property
    def prior(self) -> Tensor:
        """The sample's P(y), shape (K,), probability, float64."""
        return torch.bincount(self.y, minlength=self.n_classes).double() / self.n

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        return f"MaskSample(n={self.n}, T={self.T}, n_classes={self.n_classes}, kind={self.kind!r})"

    def rows(self, index: Any) -> MaskSample:
        """The rows picked by `index` (integers, a slice or bools), K unchanged."""
        take = as_rows(index, self.n, "index")
        pick = lambda values: None if values is None else values[take]  # noqa: E731
        return MaskSample(
            self.masks[take], self.y[take], pick(self.valid), self.kind, self.n_classes, pick(self.x_features),
            pick(self.groups),
        )  # fmt: skip

    def save(self, path: str | Path) -> None:
        """Write all fields to `path` as .npz or .safetensors, whole or not at all; no pickle."""
        from causal_attn.storage import save_arrays

        fields = {name: getattr(self, name) for name in ("masks", "y", "valid", "x_features", "groups")}
        arrays = {name: value.numpy() for name, value in fields.items() if value is not None}
        save_arrays(path, arrays, {"kind": str(self.kind), "n_classes": str(self.n_classes)})

    @staticmethod
    def load(path: str | Path) -> MaskSample:
        """Read what `save` wrote."""
        from causal_attn.storage import load_arrays

        arrays, meta = load_arrays(path)
        for name in ("masks", "y"):
            if name not in arrays:
                raise InputError(f"{path}: expected arrays 'masks' and 'y', found {sorted(arrays) or 'none'}")
        n_classes = int(meta["n_classes"]) if "n_classes" in meta else None
        fields = {name: arrays[name] for name in ("masks", "y", "valid", "x_features", "groups") if name in arrays}
        return MaskSample(kind=meta.get("kind"), n_classes=n_classes, **fields)  # type: ignore[arg-type]

    @staticmethod
    def from_attentions(
        attentions: Sequence[Any], y: Any, valid: Any = None, layer: int = -1, heads: str | int = "mean", query: int = 0
    ) -> MaskSample:
        """The mask that query position `query` of one layer put on the keys of a transformer.

        Args:
            attentions: a tuple of (n, H, L, L), one per layer, as transformers models return.
            y: classes, shape (n,).
            valid: which tokens exist, shape (n, L); what transformers call the attention mask.
            layer: which layer.
            heads: "mean" over heads, or one head's index.
            query: the position whose attention is read (0: the classification token).
        """
        if not isinstance(attentions, (tuple, list)) or not attentions:
            raise InputError("attentions: expected a tuple of arrays of shape (n, H, L, L), one per layer")
        if not _is_index(layer, len(attentions)):
            raise InputError(f"layer: expected one of {len(attentions)} layers, got {layer!r}")
        if attentions[layer] is None:
            raise InputError(
                f"attentions: layer {layer} is None; transformers return them with attn_implementation='eager' alone"
            )
        a = as_tensor(attentions[layer], "attentions")
        if a.ndim != 4 or a.shape[2] != a.shape[3]:
            raise InputError(f"attentions: expected (n, H, L, L), layer {layer} has {tuple(a.shape)}")
        if not _is_index(query, a.shape[2]):
            raise InputError(f"query: expected one of {a.shape[2]} positions, got {query!r}")
        if heads == "mean":
            return MaskSample(a[:, :, query].double().mean(1).to(a.dtype), y, valid, "simplex")
        if not _is_index(heads, a.shape[1]):
            raise InputError(f"heads: expected 'mean' or one of {a.shape[1]} heads, got {heads!r}")
        return MaskSample(a[:, int(heads), query], y, valid, "simplex")


def _is_index(value: Any, n: int) -> bool:
    """Whether `value` is an integer that picks one of n, from the front or from the end."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(-n <= value < n)


def as_rows(index: Any, n: int, name: str) -> Tensor:
    """Row numbers 0..n-1, shape (r,), of integers from -n to n-1, a slice or a mask of n bools."""
    if isinstance(index, slice):
        return torch.arange(n)[index]
    picked = as_tensor(list(index) if isinstance(index, range) else index, name)
    if picked.dtype == torch.bool and picked.shape == (n,):
        return picked.nonzero()[:, 0]
    whole = not picked.is_floating_point() and not picked.is_complex() and picked.dtype != torch.bool
    if picked.ndim != 1 or not (whole or not len(picked)):
        raise InputError(
            f"{name}: expected row numbers or {n} bools, got {picked.dtype} of shape {tuple(picked.shape)}"
        )
    rows = picked.long()
    off = (rows < -n) | (rows >= n)
    if off.any():
        raise InputError(f"{name}: expected row numbers below {n}, entry {first_row(off)} is {int(rows[off][0])}")
    return torch.where(rows < 0, rows + n, rows)


def _tolerance(masks: Tensor) -> float:
    """The tolerance of the coarsest precision that holds these values exactly: float32 may have come from half, now or
    in an earlier sample, and must still be readable after `rows`, `load` or a fit's own check."""
    if masks.dtype == torch.float64:
        return SUM_TOLERANCE[torch.float64]
    held = [d for d in (torch.bfloat16, torch.float16) if torch.equal(masks, masks.to(d).float())]
    return max(SUM_TOLERANCE[d] for d in (torch.float32, *held))


def _checked_masks(values: Any) -> Tensor:
    masks = as_tensor(values, "masks")
    if masks.ndim != 2 or 0 in masks.shape:
        raise InputError(f"masks: expected shape (n, T) with n, T >= 1, got {tuple(masks.shape)}")
    if masks.is_complex():
        raise InputError(f"masks: expected real numbers, got {masks.dtype}")
    if masks.dtype not in (torch.float32, torch.float64):
        masks = masks.float() if masks.is_floating_point() else masks.double()
    for bad, what in ((~torch.isfinite(masks), "a finite number"), (masks < 0, "a non-negative number")):
        if bad.any():
            row = first_row(bad)
            column = int(bad[row].nonzero()[0])
            raise InputError(f"masks: expected {what}, row {row} position {column} is {masks[row, column].item()}")
    return masks


def checked_valid(values: Any, shape: Sequence[int]) -> Tensor:
    """Validity as a bool tensor of `shape` (n, T); None means every position exists."""
    if values is None:
        return torch.ones(tuple(shape), dtype=torch.bool)
    valid = as_tensor(values, "valid")
    if valid.shape != tuple(shape):
        raise InputError(f"valid: expected the shape of masks, {tuple(shape)}, got {tuple(valid.shape)}")
    if valid.dtype != torch.bool:
        odd = (valid != 0) & (valid != 1)
        if odd.any():
            raise InputError(f"valid: expected true and false or 1 and 0, row {first_row(odd)} has another value")
        valid = valid.bool()
    empty = ~valid.any(-1)
    if empty.any():
        raise InputError(f"valid: expected a valid position in every row, row {first_row(empty)} is all padding")
    return valid


def _checked_kind(masks: Tensor, kind: Kind | None) -> Kind:
    binary = bool(((masks == 0) | (masks == 1)).all())
    if kind is None:
        return "subset" if binary and bool((masks.sum(-1) != 1).any()) else "simplex"
    if kind not in ("simplex", "subset"):
        raise InputError(f"kind: expected 'simplex', 'subset' or None, got {kind!r}")
    if kind == "subset" and not binary:
        row = first_row((masks != 0) & (masks != 1))
        raise InputError(f"masks: expected only 0 and 1 for kind='subset', row {row} has another value")
    return kind


def _check_rows(masks: Tensor, valid: Tensor, kind: Kind, tolerance: float) -> None:
    stray = (masks > 0) & ~valid
    if stray.any():
        row = first_row(stray)
        raise InputError(
            f"masks: expected no mass on padding, row {row} has it at position {int(stray[row].nonzero()[0])}"
        )
    total = masks.double().sum(-1)
    if kind == "subset":
        if (total == 0).any():
            raise InputError(f"masks: expected at least one chosen position, row {first_row(total == 0)} has none")
        return
    off = (total - 1).abs() > tolerance
    if off.any():
        row = first_row(off)
        raise InputError(
            f"masks: expected rows that sum to 1 (within {tolerance:g}), row {row} sums to {total[row]:.9g}"
        )


def _checked_x_features(values: Any, n: int) -> Tensor | None:
    if values is None:
        return None
    features = real(as_tensor(values, "x_features"), "x_features").double()
    if features.ndim != 2 or len(features) != n:
        raise InputError(f"x_features: expected shape ({n}, p), got {tuple(features.shape)}")
    bad = ~torch.isfinite(features)
    if bad.any():
        raise InputError(f"x_features: expected finite numbers, row {first_row(bad)} has another value")
    return features


def _checked_groups(values: Any, n: int) -> Tensor | None:
    """Group ids as integers; strings and other labels are numbered in sorted order."""
    if values is None:
        return None
    ids = np.asarray(values)
    if ids.shape != (n,):
        raise InputError(f"groups: expected shape ({n},), got {ids.shape}")
    missing = pd.isna(ids) if ids.dtype != object else np.array([pd.isna(v) is True for v in ids])
    if missing.any():
        raise InputError(f"groups: expected an id for every row, row {int(np.flatnonzero(missing)[0])} has none")
    kinds = {isinstance(v, str) for v in values} if isinstance(values, (list, tuple)) else set()
    if len(kinds) > 1:
        raise InputError("groups: expected ids of one kind, got numbers and strings")
    return torch.from_numpy(np.unique(ids, return_inverse=True)[1].astype(np.int64))


# ---------------------------------------------------------------------------------------------- masks to features


def centred_log_ratio(masks: Tensor, valid: Tensor, floor: float = CLR_FLOOR) -> Tensor:
    """log(m+δ) minus its mean over the valid positions; 0 on padding. Shapes (n, T) -> (n, T), float64."""
    logs = (masks.double() + floor).log() * valid
    return (logs - logs.sum(-1, keepdim=True) / valid.sum(-1, keepdim=True)) * valid


def from_the_end(values: Tensor, valid: Tensor, width: int) -> Tensor:
    """The last `width` valid entries of each row, last first; 0 where a row is shorter. (n, T) -> (n, width)."""
    positions = torch.arange(valid.shape[1]).expand_as(valid)
    order = positions.masked_fill(~valid, -1).topk(width, dim=-1).indices  # valid positions, from the last backwards
    return values.gather(1, order) * valid.gather(1, order)


def concentration(masks: Tensor, valid: Tensor, floor: float = CLR_FLOOR) -> Tensor:
    """Mean of log(m+δ) over valid positions, entropy and log Σm² of each row, in nats. (n, T) -> (n, 3)."""
    m = masks.double()
    mean_log = ((m + floor).log() * valid).sum(-1) / valid.sum(-1)
    return torch.stack([mean_log, torch.special.entr(m).sum(-1), m.square().sum(-1).log()], -1)


def auto_features(masks: Tensor, valid: Tensor, kind: Kind, ragged: bool) -> Tensor:
    """φ(m) before standardising: see docs and theory section 4. (n, T) -> (n, d), float64."""
    place = masks.double() if kind == "subset" else centred_log_ratio(masks, valid)
    blocks = [place]
    if kind == "simplex":
        blocks.append(concentration(masks, valid))
    if ragged:
        blocks += [from_the_end(place, valid, min(N_FROM_END, masks.shape[1])), valid.double()]
    if kind == "simplex":
        blocks.append(masks.double())  # log-ratios drown a peak in the noise of tiny masses; the mass itself shows it
    return torch.cat(blocks, -1)


FeatureFunction = Callable[[Tensor, Tensor], Tensor]


def moved(masks: Tensor, valid: Tensor, kind: Kind = "simplex") -> Tensor:
    """Masks put on other inputs: kept where the new input has a position, and made to sum to 1 again (simplex).

    Position t stays position t. A mask with no mass left is spread evenly over the valid positions, since nothing of
    it can be shown. Shapes (n, T), (n, T) -> (n, T).
    """
    kept = masks * valid
    total = kept.sum(-1, keepdim=True)
    kept = torch.where(total > 0, kept, valid.to(masks.dtype))
    return kept if kind == "subset" else kept / kept.sum(-1, keepdim=True)


def top_k(masks: Tensor, valid: Tensor, k: int) -> Tensor:
    """Which positions are the k of largest mass, ties by place; positions without mass are never among them.

    A row with mass on fewer than k positions has just those: four words that a mask does not touch are no part of what
    it shows. Shape (n, T), bool.
    """
    return (ranks(masks, valid) < k) & valid & (masks > 0)


def ranks(scores: Tensor, valid: Tensor) -> Tensor:
    """0 for the largest score of a row, ties by place, padding last. Shape (n, T), int."""
    order = scores.masked_fill(~valid, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    places = torch.arange(scores.shape[1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places)


def standardised(features: Tensor) -> Tensor:
    """Columns of mean 0 and standard deviation 1; a constant column becomes 0. Shape (n, p)."""
    centred = features - features.mean(0)
    spread = centred.std(0, correction=0)
    varies = spread > 1e-9 * features.abs().amax(0)  # relative: a small unit is no constant
    return torch.where(varies, centred / torch.where(varies, spread, 1.0), 0.0)


@dataclass(frozen=True)
class FeatureMap:
    """φ: masks to standardised features, with centre and scale fixed on the sample it was made from.

    Columns constant on that sample carry nothing and become 0. Shapes: (n, T) -> (n, d), float64.
    """

    T: int
    kind: Kind
    ragged: bool
    centre: Tensor
    scale: Tensor
    function: FeatureFunction | None = None

    @staticmethod
    def fit(sample: MaskSample, features: str | FeatureFunction = "auto") -> FeatureMap:
        """Fix φ on `sample`; `features` is "auto" or a callable (masks, valid) -> (n, d)."""
        return FeatureMap.fit_transform(sample, features)[0]

    @staticmethod
    def fit_transform(sample: MaskSample, features: str | FeatureFunction = "auto") -> tuple[FeatureMap, Tensor]:
        """`fit`, and φ of the sample itself, computed once."""
        if features != "auto" and not callable(features):
            raise InputError(f"features: expected 'auto' or a callable (masks, valid) -> (n, d), got {features!r}")
        function = features if callable(features) else None
        ragged = bool((sample.valid != sample.valid[:1]).any())
        blank = FeatureMap(sample.T, sample.kind, ragged, torch.zeros(()), torch.ones(()), function)
        raw = blank(sample.masks, sample.valid)
        largest, centre = torch.maximum(raw.amax(0), -raw.amin(0)), raw.mean(0)
        raw.sub_(centre)
        scale = (sum((block.square().sum(0) for block in raw.split(ROW_CHUNK)), torch.zeros(())) / len(raw)).sqrt()
        if not torch.isfinite(scale).all():
            column = int((~torch.isfinite(scale)).nonzero()[0])
            raise InputError(f"features: expected numbers of a size that can be squared, column {column} is too large")
        scale = torch.where(scale > 1e-9 * largest, scale, torch.inf)
        return FeatureMap(sample.T, sample.kind, ragged, centre, scale, function), raw.div_(scale)

    def __call__(self, masks: Tensor, valid: Tensor) -> Tensor:
        if masks.shape[1] > self.T:
            raise InputError(f"masks: expected at most the {self.T} positions of the fit, got {masks.shape[1]}")
        pad = (0, self.T - masks.shape[1])
        masks, valid = torch.nn.functional.pad(masks, pad), torch.nn.functional.pad(valid, pad)
        if self.function is None:
            raw = self._by_blocks(masks, valid)
        else:
            raw = self._checked(self.function(masks, valid), len(masks))
        return raw.sub_(self.centre).div_(self.scale)  # raw is ours alone: no copy of what may be a gigabyte

    def _by_blocks(self, masks: Tensor, valid: Tensor) -> Tensor:
        """`auto_features` of all rows, its temporaries held for a block of rows at a time."""
        parts = list(zip(masks.split(ROW_CHUNK), valid.split(ROW_CHUNK)))
        first = auto_features(*parts[0], self.kind, self.ragged)
        if len(parts) == 1:
            return first
        out = first.new_empty(len(masks), first.shape[1])
        for i, (m, v) in enumerate(parts):
            out[i * ROW_CHUNK : i * ROW_CHUNK + len(m)] = auto_features(m, v, self.kind, self.ragged)
        return out

    @cached_property
    def names(self) -> tuple[str, ...]:
        """A name per feature: place from the start, concentration, place from the end, validity."""
        if self.function is not None:
            return tuple(f"f{i}" for i in range(len(self.centre)))
        what = "chosen" if self.kind == "subset" else "clr"
        names = [f"{what}[{t}]" for t in range(self.T)]
        names += ["mean log m", "entropy", "log sum m^2"] if self.kind == "simplex" else []
        if self.ragged:
            names += [f"{what}[-{t + 1}]" for t in range(min(N_FROM_END, self.T))]
            names += [f"valid[{t}]" for t in range(self.T)]
        names += [f"m[{t}]" for t in range(self.T)] if self.kind == "simplex" else []
        return tuple(names)

    @cached_property
    def groups(self) -> Tensor | None:
        """The group of each feature, shape (d,): masses apart from all else; None where there is one group."""
        if self.function is not None or self.kind == "subset":
            return None
        return torch.tensor([int(name.startswith("m[")) for name in self.names])

    @staticmethod
    def _checked(raw: Any, n: int) -> Tensor:
        given = real(as_tensor(raw, "features"), "features")
        features = given.to(torch.float64, copy=True)  # standardised in place: not the user's own
        if features.ndim != 2 or len(features) != n:
            raise InputError(f"features: expected the callable to return ({n}, d), got {tuple(features.shape)}")
        if not torch.isfinite(features).all():
            row = first_row(~torch.isfinite(features))
            raise InputError(f"features: expected finite numbers, row {row} has another value")
        return features
