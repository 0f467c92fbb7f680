"""Diagnosis of masks alone, whatever program made them: do they leak, can weights repair it, do the weights hold?"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from causal_attn.data.checks import seed_of, whole
from causal_attn.diagnostics import LeakageTest, balance_table, leakage_test
from causal_attn.diagnostics.balance import BalanceTable
from causal_attn.errors import InputError, OutputError
from causal_attn.interop.arviz import save_netcdf
from causal_attn.masks import MaskSample
from causal_attn.selection import SelectionFit, SelectionModel
from causal_attn.storage import save_json, whole_file
from causal_attn.weights import Weights
from causal_attn.weights.words import ENOUGH_ROWS, WIDTH

MAX_ARVIZ_ENTRIES = 5_000_000
"""Most numbers of log_w in weights.nc; above it every so-manieth row is written."""


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """What masks and labels alone can tell.

    Args:
        sample: the masks.
        class_names: names of the classes 0..K-1.
        leakage: does the mask tell the class?
        fit: the selection model P(y|m).
        weights: cross-fitted.
        balance: before and after weighting; see `balance_table`.
        calibration: of held-out P(y|m); see `SelectionFit.calibration`.
    """

    sample: MaskSample
    class_names: tuple[str, ...]
    leakage: LeakageTest
    fit: SelectionFit
    weights: Weights
    balance: BalanceTable
    calibration: pd.DataFrame

    @property
    def words(self) -> str:
        """The conclusion in a few sentences."""
        leak = self.leakage
        told = f"{leak.bits + 0.0:.3f} bits, AUC {leak.auc:.3f}, p {leak.p_value:.3f}"
        if self.sample.n_classes > 2:
            most = int(np.nanargmax(leak.auc_per_class))
            told += f"; most of {self.class_names[most]}, AUC {leak.auc_per_class[most]:.3f} against the rest"
        parts = [f"No leakage found ({told})."]
        if leak.p_value <= 0.05:
            parts = [
                f"The mask tells the class ({told}). That alone is no shortcut: a faithful mask can tell the class "
                "too; shortcut_test on the model decides."
            ]
        if int((self.sample.prior * self.sample.n).min()) < ENOUGH_ROWS:
            parts.append("With so few rows of a class, neither finding nor missing a leak says much.")
        return " ".join([*parts, *self._oddities(), self.weights.summary(self.class_names).attrs["words"]])

    def _oddities(self) -> list[str]:
        """What looks like masks read from the wrong place."""
        masks, valid = self.sample.masks, self.sample.valid
        said = []
        if bool((masks == masks[0]).all()):
            said.append("All masks are the same: was the right query position, layer or column read?")
        if self.sample.kind == "simplex" and bool(valid.all()) and float((masks[:, -1] == 0).double().mean()) > 0.25:
            said.append(
                "Many rows end in exact zeros: if that is padding, say so by `valid` (in a table, empty cells)."
            )
        return said

    def __str__(self) -> str:
        facts = self.calibration.attrs
        return "\n\n".join([
            repr(self.sample), str(self.leakage), self.weights.summary(self.class_names).table,
            f"Balance\n{self.balance}",
            f"P(y|m) on held-out rows: expected calibration error {facts['expected_calibration_error']:.3f}, log-loss "
            f"{facts['log_loss_nats']:.3f} nats, the prior's {facts['prior_log_loss_nats']:.3f}",
            textwrap.fill(self.words, WIDTH),
        ])  # fmt: skip

    __repr__ = __str__

    def save(self, out: str | Path) -> Path:
        """Write weights.npz, the tables as .csv, diagnosis.json and, with a posterior, weights.nc and selection.nc."""
        folder = Path(out)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"{folder}: cannot be made ({error.strerror})") from error
        self.weights.save(folder / "weights.npz", draws=False)
        if self.weights.n_draws:  # a plug-in has no posterior
            self._save_draws(folder)
        for name, table in (("balance", self.balance), ("calibration", self.calibration)):
            with whole_file(folder / f"{name}.csv") as temporary:
                table.to_csv(temporary, index=False)
        save_json(folder / "diagnosis.json", self._figures())
        return folder

    def _save_draws(self, folder: Path) -> None:
        every = max(1, self.weights.n_draws * self.sample.n // MAX_ARVIZ_ENTRIES)
        save_netcdf(self.weights.to_arviz(obs=slice(None, None, every)), folder / "weights.nc")
        save_netcdf(
            self.fit.to_arviz(log_likelihood=every == 1, posterior_predictive=every == 1), folder / "selection.nc"
        )

    def _figures(self) -> dict[str, object]:
        finite = lambda value: value if math.isfinite(value) else None  # noqa: E731  # JSON has no NaN, no infinity
        low, high = self.weights.support_deficit_interval
        leak = self.leakage
        return {
            "version": 1, "n": self.sample.n, "positions": self.sample.T, "classes": list(self.class_names),
            "leakage_bits": leak.bits, "leakage_auc": leak.auc,
            "leakage_auc_per_class": [finite(v) for v in leak.auc_per_class], "p_value": finite(leak.p_value),
            "support_deficit": finite(self.weights.support_deficit), "mean_weight": self.weights.mean,
            "calibration_residual": self.weights.calibration_residual, "ess": self.weights.ess,
            "ess_per_class": self.weights.ess_per_class.tolist(),
            "class_shares": self.weights.class_shares.tolist(),
            "support_deficit_per_class": [[finite(v) for v in one] for one in self.weights.deficit.per_class],
            "largest_share": self.weights.largest_share,
            "khat": finite(self.weights.khat), "entropy_nats": self.weights.entropy,
            "intervals": {
                "leakage_bits": list(leak.bits_interval), "leakage_auc": list(leak.auc_interval),
                "support_deficit": [low, high],
            },
            "words": self.words,
        }  # fmt: skip


def diagnose(
    sample: MaskSample, class_names: Sequence[str] | None = None, model: SelectionModel | None = None,
    folds: int = 5, n_permutations: int = 200, seed: int = 0, progress: bool = True,
) -> Diagnosis:  # fmt: skip
    """Leakage, weights, balance and calibration of masks and labels.

    Args:
        sample: masks and classes.
        class_names: names of the classes; None: their numbers.
        model: how P(y|m) is estimated; None: `SelectionModel()`.
        folds: of the cross-fit.
        n_permutations: of the leakage test.
        seed: of folds, draws and permutations.
        progress: show bars.

    Warns:
        SupportWarning: weighting cannot repair these masks.
    """
    if not isinstance(sample, MaskSample):
        raise InputError(f"sample: expected a MaskSample, got {type(sample).__name__}")
    names = tuple(range(sample.n_classes)) if class_names is None else tuple(class_names)
    names = tuple(f"class {name}" if str(name).isdigit() else str(name) for name in names)  # "2 has 16" would mislead
    if len(names) != sample.n_classes:
        raise InputError(f"class_names: expected {sample.n_classes}, got {len(names)}")
    n_permutations, seed = whole(n_permutations, "n_permutations", 1), seed_of(seed)
    chosen = SelectionModel() if model is None else model
    if not isinstance(chosen, SelectionModel):
        raise InputError(f"model: expected a SelectionModel or None, got {type(chosen).__name__}")
    if chosen.estimator == "permutation" and sample.x_features is not None:
        raise InputError("sample: expected one without x_features, given which there is no P(y|m) to diagnose")
    fit = chosen.fit(sample, folds=folds, seed=seed, progress=progress)
    leakage = leakage_test(sample, n_permutations, seed, progress=progress)
    weights = fit.weights()
    return Diagnosis(
        sample, names, leakage, fit, weights, balance_table(sample, weights, seed, progress), fit.calibration()
    )
