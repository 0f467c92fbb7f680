"""NumPy in, ArviZ out, for both generations; and PSIS behind one function. The only file that knows ArviZ.

ArviZ before 1.0 keeps groups in an `InferenceData`, from 1.0 on in an `xarray.DataTree`; the groups and dims here are
the same in both, and each reads the other's files.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from causal_attn.errors import InputError, OutputError
from causal_attn.storage import whole_file

if TYPE_CHECKING:
    from xarray import Dataset

Groups = Mapping[str, Mapping[str, np.ndarray]]
DRAW_GROUPS = ("posterior", "log_likelihood", "sample_stats", "posterior_predictive")
"""Groups whose arrays begin with the dims chain and draw."""
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError)
"""What xarray and HDF5 raise, by version and engine, on a file that is damaged or of another kind."""


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
    datasets = {group: _dataset(arrays, group in DRAW_GROUPS, dims, coords) for group, arrays in groups.items()}
    if generation() >= 1:
        from xarray import DataTree

        return DataTree.from_dict(datasets)
    data = arviz().InferenceData()
    with warnings.catch_warnings():  # "optimization" is ours, not one of ArviZ's own group names
        warnings.simplefilter("ignore", UserWarning)
        data.add_groups(datasets)
    return data


def _dataset(
    arrays: Mapping[str, np.ndarray], draws: bool, dims: Mapping[str, Sequence[str]], coords: Mapping[str, Any]
) -> Dataset:
    """One group, built here: ArviZ's own `from_dict` treats unknown groups as draws, each generation in its own way."""
    from xarray import Dataset

    lead = ["chain", "draw"] if draws else []
    shaped = {name: np.asarray(a)[None] if draws else np.asarray(a) for name, a in arrays.items()}
    variables = {
        name: (lead + list(dims.get(name, [f"{name}_dim_{i}" for i in range(a.ndim - len(lead))])), a)
        for name, a in shaped.items()
    }
    used = {dim for names, _ in variables.values() for dim in names}
    index: dict[str, Any] = {}
    if draws:
        index = {"chain": [0], "draw": np.arange(next(iter(shaped.values())).shape[1])}
    return Dataset(variables, {**index, **{name: v for name, v in coords.items() if name in used}})


def save_netcdf(data: Any, path: str | Path) -> None:
    """Write `data` to `path`, whole or not at all.

    Raises:
        OutputError: it cannot be written; a disk too full is told beforehand, since HDF5 crashes on one.
    """
    parent = Path(path).parent
    size, free = _bytes(data), shutil.disk_usage(parent).free if parent.is_dir() else 0
    if parent.is_dir() and size > free:
        raise OutputError(f"{path}: cannot be written (it needs {size / 1e6:.1f} MB, {free / 1e6:.1f} MB are free)")
    with whole_file(path) as temporary:
        try:
            data.to_netcdf(str(temporary))
        except RuntimeError as error:  # h5py's, for instance beyond a quota
            raise OutputError(f"{path}: cannot be written ({str(error).splitlines()[0]})") from error


def _bytes(data: Any) -> int:
    """What an InferenceData or DataTree holds, before compression."""
    groups = [data[name] for name in data.groups()] if callable(data.groups) else [data]
    return int(sum(group.nbytes for group in groups))


def load_netcdf(path: str | Path) -> Any:
    """Read what `save_netcdf` wrote, by either generation of ArviZ, into memory; the file is closed again.

    Raises:
        InputError: there is no such file, it cannot be read as NetCDF, or it has no group "posterior".
    """
    if not Path(path).is_file():
        raise InputError(f"path: no file at {str(path)!r}")
    try:
        data = _read(str(path))
    except UNREADABLE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]  # xarray adds lines of advice
        raise InputError(
            f"path: {str(path)!r} cannot be read as NetCDF by ArviZ {arviz().__version__} ({reason})"
        ) from error
    if "posterior" not in data:
        raise InputError(f"path: {str(path)!r} has no group 'posterior'; expected a file written from to_arviz()")
    return data


def _read(path: str) -> Any:
    from h5py import File

    with File(path, "r") as file:  # first, since a h5netcdf file that fails to open prints a traceback when collected
        file.visititems(lambda name, item: None)
    if generation() >= 1:
        tree = arviz().from_netcdf(path)
        try:
            return tree.load()  # now, so that a damaged file is found here
        finally:
            tree.close()
    with arviz().rc_context({"data.load": "eager"}):
        return arviz().from_netcdf(path)


def psis(log_weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Pareto-smoothed log-weights, normalised to sum 1, and the tail index k̂ (Vehtari et al. 2024).

    Written out here so that the same weights have the same k̂ beside either ArviZ. The paper's tail, that of 0.x, is
    min(n/5, 3√n) rounded up; 1.x rounds down, which moves k̂ by a few hundredths at 500 rows, and it gives NaN or an
    error where weights tie or rows are below 30. Where the largest weights are all equal there is no tail to fit: k̂ is
    then 0, not infinite.

    Args:
        log_weights: shape (n,), nats; need not be normalised.

    Returns:
        Smoothed log-weights, shape (n,), and k̂; above min(1 - 1/log10(n), 0.7) the mean of the weights is unreliable.
        k̂ is infinite where fewer than five weights stand out from equal ones.
    """
    raw = np.asarray(log_weights, dtype=np.float64)
    if raw.ndim != 1 or not np.isfinite(raw).all():
        raise InputError(f"log_weights: expected a vector of finite numbers, got shape {raw.shape}")
    n_tail = int(np.ceil(min(0.2 * len(raw), 3 * np.sqrt(len(raw)))))
    top = np.sort(raw)[-(n_tail + 1) :]
    if n_tail < 5 or top[-1] - top[0] < 1e-9:
        return raw - np.logaddexp.reduce(raw), 0.0
    x = raw - top[-1]
    cutoff = max(top[0] - top[-1], float(np.log(np.finfo(float).tiny)))
    tail = np.flatnonzero(x > cutoff)
    tail = tail[np.argsort(x[tail], kind="stable")]
    k = np.inf
    if len(tail) >= 5:
        k, scale = _generalised_pareto(np.exp(x[tail]) - np.exp(cutoff))
        if np.isfinite(k):
            level = np.arange(0.5, len(tail)) / len(tail)
            quantile = scale * (-np.log1p(-level) if abs(k) < 1e-9 else np.expm1(-k * np.log1p(-level)) / k)
            x[tail] = np.minimum(np.log(quantile + np.exp(cutoff)), 0)  # no weight above the largest raw one
    return x - np.logaddexp.reduce(x), float(k)


def _generalised_pareto(excess: np.ndarray) -> tuple[float, float]:
    """Shape k and scale of ascending excesses (n,), by Zhang and Stephens (2009) with PSIS's weak prior k = 0.5."""
    n = len(excess)
    grid = 30 + int(np.sqrt(n))
    quartile = excess[int(n / 4 + 0.5) - 1]
    b = (1 - np.sqrt(grid / (np.arange(1, grid + 1) - 0.5))) / (3 * quartile) + 1 / excess[-1]
    k = np.log1p(-b[:, None] * excess).mean(1)
    with np.errstate(over="ignore"):
        likelihood = n * (np.log(-b / k) - k - 1)
        weight = 1 / np.exp(likelihood - likelihood[:, None]).sum(1)
    kept = weight >= 10 * np.finfo(float).eps
    mean = float(b[kept] @ weight[kept] / weight[kept].sum())
    shape = float(np.log1p(-mean * excess).mean())
    return (n * shape + 5) / (n + 10), -shape / mean


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
