"""NumPy in, ArviZ out, for both generations; and PSIS behind one function. The only file that knows ArviZ.

ArviZ before 1.0 keeps groups in an `InferenceData`, from 1.0 on in an `xarray.DataTree`; the groups and dims here are
the same in both.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from causal_attn.errors import InputError
from causal_attn.storage import whole_file

Groups = Mapping[str, Mapping[str, np.ndarray]]
DRAW_GROUPS = ("posterior", "log_likelihood", "sample_stats", "posterior_predictive")
"""Groups whose arrays begin with the dims chain and draw."""


@cache
def arviz() -> ModuleType:
    """ArviZ, imported on first use (it is slow), without its notice of the coming generation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz as module
    return module


def generation() -> int:
    """0 for ArviZ before 1.0, else its major version."""
    return int(arviz().__version__.split(".")[0])


def to_arviz(groups: Groups, dims: Mapping[str, Sequence[str]], coords: Mapping[str, Any]) -> Any:
    """An `InferenceData` or `DataTree` of named groups.

    Args:
        groups: arrays by group and name. Draw groups get a leading chain of length 1: pass shape (draw, ...).
        dims: names of the dims behind chain and draw, by array name.
        coords: values along those dims.
    """
    shaped = {
        group: {name: np.asarray(a)[None] if group in DRAW_GROUPS else np.asarray(a) for name, a in arrays.items()}
        for group, arrays in groups.items()
    }
    named = {name: list(dims[name]) for arrays in groups.values() for name in arrays if name in dims}
    if generation() >= 1:
        return arviz().from_dict(shaped, dims=named, coords=dict(coords))
    return _inference_data(shaped, named, coords)


def _inference_data(groups: Groups, dims: Mapping[str, list[str]], coords: Mapping[str, Any]) -> Any:
    """ArviZ 0.x has a keyword per known group; others are added as data sets."""
    import xarray

    data = arviz().InferenceData()
    for group, arrays in groups.items():
        lead = ["chain", "draw"] if group in DRAW_GROUPS else []
        variables = {
            name: (lead + dims.get(name, [f"{name}_dim_{i}" for i in range(a.ndim - len(lead))]), a)
            for name, a in arrays.items()
        }
        used = {dim for names, _ in variables.values() for dim in names}
        index = {dim: np.arange(len(next(iter(arrays.values()))[0])) if dim == "draw" else [0] for dim in lead}
        dataset = xarray.Dataset(variables, {**index, **{k: v for k, v in coords.items() if k in used}})
        with warnings.catch_warnings():  # "optimization" is ours, not one of ArviZ's own group names
            warnings.simplefilter("ignore", UserWarning)
            data.add_groups({group: dataset})
    return data


def save_netcdf(data: Any, path: str | Path) -> None:
    """Write `data` to `path`, whole or not at all."""
    with whole_file(path) as temporary:
        data.to_netcdf(str(temporary))


def load_netcdf(path: str | Path) -> Any:
    """Read what `save_netcdf` wrote."""
    if not Path(path).is_file():
        raise InputError(f"path: no file at {str(path)!r}")
    return arviz().from_netcdf(str(path))


def psis(log_weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Pareto-smoothed log-weights, normalised to sum 1, and the tail index k̂ (Vehtari et al. 2024).

    Where the largest weights are all equal there is no tail to fit: k̂ is then 0, not infinite.

    Args:
        log_weights: shape (n,), nats; need not be normalised.

    Returns:
        Smoothed log-weights, shape (n,), and k̂; above min(1 - 1/log10(n), 0.7) the mean of the weights is unreliable.
    """
    raw = np.asarray(log_weights, dtype=np.float64)
    if raw.ndim != 1 or not np.isfinite(raw).all():
        raise InputError(f"log_weights: expected a vector of finite numbers, got shape {raw.shape}")
    n_tail = int(np.ceil(min(0.2 * len(raw), 3 * np.sqrt(len(raw)))))
    top = np.sort(raw)[-(n_tail + 1) :]
    if n_tail < 5 or top[-1] - top[0] < 1e-9:
        return raw - np.logaddexp.reduce(raw), 0.0
    smoothed, k = _psislw(raw)
    return np.asarray(smoothed), float(k)


def _psislw(log_weights: np.ndarray) -> tuple[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # k̂ is returned and judged by the caller
        if generation() >= 1:
            from arviz_stats.base import array_stats

            return array_stats.psislw(log_weights)
        return arviz().psislw(log_weights)


def khat_threshold(n: int) -> float:
    """The k̂ above which a mean of n weights is unreliable: min(1 - 1/log10(n), 0.7)."""
    return min(1 - 1 / np.log10(max(n, 11)), 0.7)


def loo_khat(data: Any) -> np.ndarray:
    """Pareto k̂ of leaving out each observation, by PSIS of its log-likelihood, in the order of the data.

    Args:
        data: with the groups posterior and log_likelihood, the latter of one variable.

    Returns:
        Shape (n,); infinite where the tail cannot be fitted.
    """
    n_draws(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # k̂ is returned and judged by the caller
        found = arviz().loo(data, pointwise=True)
    return np.asarray(found.pareto_k, dtype=np.float64).ravel()


def n_draws(data: Any) -> int:
    """Draws behind each log-likelihood, all chains together.

    Raises:
        InputError: `data` is no ArviZ data, or has no group log_likelihood of exactly one variable.
    """
    group = getattr(data, "log_likelihood", None)
    if group is None or not hasattr(data, "posterior"):
        raise InputError(
            "data: expected fit.to_arviz() with the groups posterior and log_likelihood, got "
            f"{type(data).__name__}{' without them' if hasattr(data, 'posterior') else ''}"
        )
    variables = list(group.data_vars)
    if len(variables) != 1:
        raise InputError(f"data: expected one variable in the group log_likelihood, found {variables}")
    sizes = group[variables[0]].sizes
    return int(sizes["chain"] * sizes["draw"])
