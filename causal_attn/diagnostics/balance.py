"""Is the mask independent of the class, before and after weighting? One table, and what independence itself would show.

Per position t, class k against all other rows, weights normalised within each side (Hájek),

    standardised mean difference = (mean_k m_t − mean_rest m_t) / sqrt(½ (var_k m_t + var_rest m_t)),

variances unweighted, so that the unit is the same before and after. A mass that is constant within the classes and
differs between them is infinitely far apart (`permuted` then has the standard deviation of all rows for unit).
"pooled" over K > 2 classes is the root mean square under P(k). Three more rows do the same for the mask's
concentration; then the whole vector: energy distance, distance covariance, and what a weighted refit still tells about
the class on held-out rows.

The column `permuted` is what the weighted sample shows when classes, with their weights, are dealt out to masks at
random: balance cannot look better than that except by chance. Source: theory section 7; Austin (2009).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm

from causal_attn.data.checks import seed_of
from causal_attn.diagnostics.distances import distance_covariance, energy_distance, mask_distances, random_parts
from causal_attn.diagnostics.refit import residual_information
from causal_attn.errors import InputError
from causal_attn.masks import FeatureMap, MaskSample, concentration
from causal_attn.selection.crossfit import assign_folds, folds_within
from causal_attn.weights import Weights

N_PERMUTED = 20
"""Deals of classes to masks behind the reference; the refit is repeated for N_REFITS of them."""
N_REFITS = 3
N_LARGEST = 5
"""Mean differences that are printed."""
FOLDS = 5
CONSTANT = 1e-6
"""A spread below this share of the largest value is rounding: masks often come in float32."""
CONCENTRATION = ("mean log m", "entropy", "log sum m^2")
COLUMNS = ["measure", "of", "position", "class", "before", "after", "permuted", "standard_error"]


class BalanceTable(pd.DataFrame):
    """A DataFrame that prints what it says in a few lines: the largest differences, and the whole mask."""

    @property
    def brief(self) -> pd.DataFrame:
        """Before, after and permuted, pooled over classes: the largest differences, then those of the whole mask."""
        pooled = self[self["class"] == "pooled"]
        smd = pooled[pooled["measure"] == "smd"]
        largest = smd.loc[smd["before"].abs().sort_values(ascending=False).index[:N_LARGEST]]
        shown = pd.DataFrame(pd.concat([largest, pooled[pooled["measure"] != "smd"]]))
        names = [f"smd {of}" if m == "smd" else str(m) for m, of in zip(shown["measure"], shown["of"])]
        return pd.DataFrame(shown[["before", "after", "permuted"]]).set_axis(names, axis=0)

    def __str__(self) -> str:
        lines = self.brief.dropna(axis=1, how="all").to_string(float_format=lambda v: f"{v + 0.0:.4f}")
        return f"{lines}\n({len(self)} rows in all; averages are self-normalised, Hájek; permuted: classes shuffled)"

    __repr__ = __str__


def balance_table(
    sample: MaskSample, weights: Weights | None = None, seed: int = 0, progress: bool = False
) -> BalanceTable:  # fmt: skip
    """Dependence between mask and class, before and after weighting.

    Args:
        sample: masks and classes.
        weights: of the same rows; None: the columns `after` stay NaN, and `permuted` is that of equal weights.
        seed: of folds, permutations, and the parts that stand for more than 5,000 rows in the distances.
        progress: show a bar over the refits, which take longest.

    Returns:
        Columns measure, of, position (nullable integer), class ("0".., "pooled"), before, after, permuted,
        standard_error (of `after`, or `before` without weights, from taking parts of the rows; NaN where all were
        used). Measures: smd (no unit; of each position and of three figures of concentration), energy_distance and
        distance_covariance (of Hellinger distances), auc (probability), log_loss_nats, residual_bits; all weighted
        averages are self-normalised (Hájek). `.attrs` holds "support_deficit" and its "support_deficit_interval":
        balance is judged among the pairs (y, m) that were seen, and says nothing of those that never are.

    Raises:
        InputError: weights of other rows, or fewer than two rows of a class.

    Cost: O(n T K) for the differences, O(min(n, 5000)²) for the distances, O(n d² K²) for the refits.
    """
    if not isinstance(sample, MaskSample):
        raise InputError(f"sample: expected a MaskSample, got {type(sample).__name__}")
    _check_weights(sample, weights)
    fold = assign_folds(sample, folds_within(sample, FOLDS), seed_of(seed))
    log_w = torch.zeros(sample.n, dtype=torch.float64) if weights is None else weights.log_w
    rows = [
        *_mean_differences(sample, log_w, seed),
        *_distances(sample, log_w, seed),
        *_refits(sample, log_w, fold, seed, progress),
    ]
    table = BalanceTable(pd.DataFrame(rows, columns=COLUMNS).astype({"position": "Int64"}))
    if weights is None:
        table["after"] = np.nan
    else:
        low, high = weights.support_deficit_interval
        table.attrs = {"support_deficit": weights.support_deficit, "support_deficit_interval": (low, high)}
    return table


def _check_weights(sample: MaskSample, weights: Weights | None) -> None:
    if weights is None:
        return
    if not isinstance(weights, Weights):
        raise InputError(f"weights: expected Weights or None, got {type(weights).__name__}")
    if len(weights.y) != sample.n:
        raise InputError(f"weights: expected one for each of the {sample.n} rows, got {len(weights.y)}")
    other = weights.y != sample.y
    if other.any():
        row = int(other.nonzero()[0])
        raise InputError(
            f"weights: expected those of the sample's rows, row {row} has class {int(weights.y[row])} there and "
            f"{int(sample.y[row])} in the sample"
        )


def _deals(n: int, count: int, seed: int) -> Iterator[Tensor]:
    """Random orders of n rows."""
    rng = np.random.default_rng([seed, 7])
    return (torch.from_numpy(rng.permutation(n)) for _ in range(count))


# ------------------------------------------------------------------------------------------ mean differences


def _mean_differences(sample: MaskSample, log_w: Tensor, seed: int) -> Iterator[tuple[object, ...]]:
    names = [f"m[{t}]" for t in range(sample.T)] + (list(CONCENTRATION) if sample.kind == "simplex" else [])
    values = sample.masks.double()
    if sample.kind == "simplex":
        values = torch.cat([values, concentration(sample.masks, sample.valid)], -1)
    onehot = torch.nn.functional.one_hot(sample.y, sample.n_classes).double()
    unit, overall = _units(values, onehot)
    before = _smd(values, onehot, torch.zeros_like(log_w), unit)
    after = _smd(values, onehot, log_w, unit)
    chance_unit = torch.where(unit > 0, unit, overall)
    deals = _deals(sample.n, N_PERMUTED, seed)
    dealt = [_smd(values, onehot[order], log_w[order], chance_unit).abs() for order in deals]
    permuted = torch.stack(dealt).mean(0)
    classes = range(sample.n_classes) if sample.n_classes > 2 else [1]
    for j, name in enumerate(names):
        position = j if j < sample.T else pd.NA
        for k in classes:
            yield ("smd", name, position, str(k), *(float(v[k, j]) for v in (before, after, permuted)), math.nan)
        pooled = [float((sample.prior @ v[:, j].square()).sqrt()) for v in (before, after)]
        chance = float(torch.stack([(sample.prior @ v[:, j].square()).sqrt() for v in dealt]).mean())
        yield ("smd", name, position, "pooled", *pooled, chance, math.nan)


def _units(values: Tensor, onehot: Tensor) -> tuple[Tensor, Tensor]:
    """sqrt(½ (variance in the class + variance outside)), unweighted, shape (K, p), and the standard deviation over all
    rows, shape (p,); 0 where constant, to the digits that masks have."""
    equal = onehot.new_ones(len(onehot))
    centred = values - values.mean(0)  # what squares lose to a large mean, they cannot lose about 0
    inside, outside = _two_sides(centred, onehot, equal)
    squares = _two_sides(centred.square(), onehot, equal)
    variance = 0.5 * (squares[0] - inside.square() + squares[1] - outside.square())
    least = CONSTANT * values.abs().amax(0)
    unit, overall = variance.clamp(min=0).sqrt(), centred.square().mean(0).sqrt()
    return torch.where(unit > least, unit, 0.0), torch.where(overall > least, overall, 0.0)


def _smd(values: Tensor, onehot: Tensor, log_w: Tensor, unit: Tensor) -> Tensor:
    """Class k against the rest, shape (K, p); infinite where the means differ and the unit is 0."""
    inside, outside = _two_sides(values, onehot, log_w.softmax(0))
    difference = inside - outside
    same = difference.abs() <= CONSTANT * values.abs().amax(0)
    return torch.where(same & (unit == 0), 0.0, difference / unit)


def _two_sides(values: Tensor, onehot: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted means inside and outside each class, both (K, p)."""
    mass, sums = w @ onehot, (onehot * w[:, None]).T @ values
    return sums / mass[:, None], (w @ values - sums) / (w.sum() - mass)[:, None]


# ------------------------------------------------------------------------------------------ the whole vector


def _distances(sample: MaskSample, log_w: Tensor, seed: int) -> Iterator[tuple[object, ...]]:
    """Energy distance by class and pooled, and distance covariance; averages over parts where rows are many."""
    parts = random_parts(sample.y, seed)
    found = torch.stack([_of_part(sample, log_w, *part, seed) for part in parts]).numpy()  # (parts, measures, 3)
    mean, error = found.mean(0), np.full(found.shape[1], np.nan)
    if len(parts) > 1:
        error = found[:, :, 1].std(0, ddof=1) / math.sqrt(len(parts))
    for name, values, e in zip(_distance_names(sample.n_classes), mean, error):
        yield (name[0], "mask", pd.NA, name[1], *(float(v) for v in values), float(e))


def _distance_names(n_classes: int) -> list[tuple[str, str]]:
    classes = [str(k) for k in range(n_classes)] if n_classes > 2 else []
    return [("energy_distance", k) for k in (*classes, "pooled")] + [("distance_covariance", "pooled")]


def _of_part(sample: MaskSample, log_w: Tensor, rows: Tensor, drawn: Tensor, seed: int) -> Tensor:
    """Before, after and permuted, of every distance on some of the rows. Shape (measures, 3).

    `drawn` are log-weights for how rows were drawn. A deal gives a mask another row's class, and both were drawn.
    """
    d, y, log_w = mask_distances(sample.masks[rows]), sample.y[rows], log_w[rows]
    deals = torch.stack(list(_deals(len(rows), N_PERMUTED, seed)))
    labels = torch.cat([y[None], y[None], y[deals]])
    logs = torch.cat([drawn[None], (drawn + log_w)[None], drawn + (drawn + log_w)[deals]])
    figures = _vector_figures(d, labels, logs.softmax(-1), sample)
    return torch.stack([figures[:, 0], figures[:, 1], figures[:, 2:].mean(1)], 1)


def _vector_figures(d: Tensor, y: Tensor, w: Tensor, sample: MaskSample) -> Tensor:
    """Energy distance of each class, pooled, and distance covariance. y, w (R, n) -> (measures, R)."""
    classes = list(range(sample.n_classes)) if sample.n_classes > 2 else [1]
    each = torch.stack([energy_distance(d, y == k, w) for k in classes])
    share = sample.prior[classes] / sample.prior[classes].sum()
    own = each if len(each) > 1 else each[:0]
    return torch.cat([own, (share @ each)[None], distance_covariance(d, y, w, sample.n_classes)[None]])


def _refits(
    sample: MaskSample, log_w: Tensor, fold: Tensor, seed: int, progress: bool
) -> Iterator[tuple[object, ...]]:  # fmt: skip
    features, phi = FeatureMap.fit_transform(sample)
    asked = [(sample.y, torch.zeros_like(log_w), fold), (sample.y, log_w, fold)]
    asked += [(sample.y[order], log_w[order], fold[order]) for order in _deals(sample.n, N_REFITS, seed)]
    bar = tqdm(asked, desc="balance", disable=not progress, leave=False)
    before, after, *dealt = (residual_information(phi, *one, features.groups) for one in bar)
    for name, attribute in (("auc", "auc"), ("log_loss_nats", "log_loss"), ("residual_bits", "bits")):
        chance = float(np.mean([getattr(one, attribute) for one in dealt]))
        yield (name, "mask", pd.NA, "pooled", getattr(before, attribute), getattr(after, attribute), chance, math.nan)
