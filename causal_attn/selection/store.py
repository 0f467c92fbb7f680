"""Selection fits on disk: arrays and JSON, never pickle; a loaded fit predicts what the saved one did."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from pyro.infer import autoguide
from torch import Tensor

from causal_attn.errors import InputError
from causal_attn.masks import FeatureFunction, FeatureMap, MaskSample
from causal_attn.selection.estimator import SelectionModel
from causal_attn.selection.fit import SelectionFit
from causal_attn.selection.fits import NetworkFit, OutcomeFit, RowFit
from causal_attn.selection.gaussian import Posterior
from causal_attn.selection.kronecker import KroneckerFactor
from causal_attn.selection.network import Hidden
from causal_attn.selection.newton import Mode
from causal_attn.selection.permutation import RatioFit
from causal_attn.selection.prior import ClassPrior, Prior, base_of
from causal_attn.storage import load_arrays, save_arrays

FORMAT = 1
Arrays = dict[str, Tensor]


def save_fit(fit: SelectionFit, path: str | Path) -> None:
    """See `SelectionFit.save`."""
    config = fit.config
    if not isinstance(config.estimator, str):
        raise InputError("estimator: a plug-in classifier can only be kept by pickling, which save does not do")
    if not isinstance(config.guide, str) and getattr(autoguide, config.guide.__name__, None) is not config.guide:
        raise InputError(f"guide: expected one of Pyro's own to save by name, got {config.guide!r}")
    fits = [fit.final, *fit.fold_fits]
    arrays = {f"fit{i}/{name}": value for i, one in enumerate(fits) for name, value in _pack(one).items()}
    arrays |= {"phi": fit.phi, "fold": fit.fold, "log_prior": fit.log_prior, "centre": fit.feature_map.centre,
               "scale": fit.feature_map.scale}  # fmt: skip
    sample = {name: getattr(fit.sample, name) for name in ("masks", "y", "valid", "x_features", "groups")}
    arrays |= {f"sample/{name}": value for name, value in sample.items() if value is not None}
    meta = {"format": FORMAT, "fits": len(fits), "config": _config(config), "ragged": fit.feature_map.ragged,
            "kind": fit.sample.kind, "n_classes": fit.sample.n_classes,
            "own_features": callable(config.features)}  # fmt: skip
    save_arrays(path, {name: value.numpy() for name, value in arrays.items()}, {"causal_attn": json.dumps(meta)})


def load_fit(path: str | Path, features: FeatureFunction | None) -> SelectionFit:
    """See `SelectionFit.load`."""
    try:
        return _read(path, features)
    except (KeyError, TypeError, json.JSONDecodeError) as error:  # an array or an entry is missing
        raise InputError(f"path: {str(path)!r} is not a whole selection fit ({error!r})") from error


def _read(path: str | Path, features: FeatureFunction | None) -> SelectionFit:
    stored, text = load_arrays(path)
    if "causal_attn" not in text:
        raise InputError(f"path: {str(path)!r} holds no selection fit")
    meta = json.loads(text["causal_attn"])
    if meta["format"] != FORMAT:
        raise InputError(f"path: expected a fit of format {FORMAT}, {str(path)!r} has {meta['format']}")
    if meta["own_features"] != (features is not None):
        expected = "the callable it was made with" if meta["own_features"] else "none, the fit was made with 'auto'"
        raise InputError(f"features: expected {expected}")
    arrays = {name: torch.from_numpy(value) for name, value in stored.items()}
    own = {name.split("/")[1]: value for name, value in arrays.items() if name.startswith("sample/")}
    sample = MaskSample(kind=meta["kind"], n_classes=meta["n_classes"], **own)
    feature_map = FeatureMap(sample.T, sample.kind, meta["ragged"], arrays["centre"], arrays["scale"], features)
    config = SelectionModel(**{**meta["config"], "features": features or "auto"})
    fits = [_unpack(_part(arrays, f"fit{i}/")) for i in range(meta["fits"])]
    return SelectionFit(
        config, sample, feature_map, arrays["phi"], arrays["fold"], fits[0], tuple(fits[1:]), arrays["log_prior"]
    )  # fmt: skip


def _config(config: SelectionModel) -> dict[str, Any]:
    names = ("estimator", "response", "inference", "prior_scale")
    numbers = {"tau": float(config.tau), "copies": int(config.copies)}
    guide = config.guide if isinstance(config.guide, str) else config.guide.__name__
    prior = None if config.prior is None else torch.as_tensor(config.prior).tolist()
    return {name: getattr(config, name) for name in names} | numbers | {"guide": guide, "prior": prior}


def _part(arrays: Arrays, prefix: str) -> Arrays:
    return {name[len(prefix) :]: value for name, value in arrays.items() if name.startswith(prefix)}


def _pack(fit: RowFit) -> Arrays:
    if isinstance(fit, OutcomeFit):
        extra = {} if fit.log_ratio is None else {"log_ratio": fit.log_ratio}
        return {"theta": fit.theta, "log_prior": fit.log_prior, "elbo": fit.elbo, "exact": torch.tensor(fit.exact),
                **_pack_posterior(fit.posterior), **extra}  # fmt: skip
    if isinstance(fit, NetworkFit):
        out: Arrays = {}
        for i, (hidden, member) in enumerate(zip(fit.hidden, fit.members)):
            out |= {f"member{i}/hidden/{name}": getattr(hidden, name) for name in ("weight", "bias", "centre", "scale")}
            out |= {f"member{i}/outcome/{name}": value for name, value in _pack(member).items()}
        return out
    assert isinstance(fit, RatioFit)
    names = ("products", "alone", "reference", "log_mass")
    khat = torch.tensor(fit.vi_khat, dtype=torch.float64)
    return {**{name: getattr(fit, name) for name in names}, "vi_khat": khat, **_pack_posterior(fit.posterior)}


def _unpack(arrays: Arrays) -> RowFit:
    if "theta" in arrays:
        return OutcomeFit(_unpack_posterior(arrays), arrays["theta"], arrays["log_prior"], arrays["elbo"],
                          arrays.get("log_ratio"), bool(arrays["exact"]))  # fmt: skip
    if "products" in arrays:
        return RatioFit(_unpack_posterior(arrays), arrays["products"], arrays["alone"], arrays["reference"],
                        arrays["log_mass"], float(arrays["vi_khat"]))  # fmt: skip
    if "member0/outcome/theta" not in arrays:
        raise KeyError("theta")
    count = 1 + max(int(name.split("/")[0].removeprefix("member")) for name in arrays)
    hidden = tuple(Hidden(**_part(arrays, f"member{i}/hidden/")) for i in range(count))
    members = tuple(_unpack(_part(arrays, f"member{i}/outcome/")) for i in range(count))
    return NetworkFit(hidden, members)  # type: ignore[arg-type]


def _pack_posterior(q: Posterior) -> Arrays:
    return {"q/mode": q.mode.theta, "q/mean": q.mean, "q/elbo": q.elbo, "q/log_prior": q.log_prior,
            **_pack_prior(q.mode.prior_precision),
            "q/steps": torch.tensor(q.mode.n_steps),
            **_pack_factor("q/factor", q.factor), **_pack_factor("q/precision", q.mode.precision)}  # fmt: skip


def _pack_prior(prior: Prior) -> Arrays:
    extra = {"q/class_variance": prior.extra} if isinstance(prior, ClassPrior) else {}
    return {"q/lambda": torch.as_tensor(base_of(prior), dtype=torch.float64), **extra}


def _pack_factor(name: str, value: Tensor | KroneckerFactor) -> Arrays:
    if isinstance(value, Tensor):
        return {name: value}
    return {f"{name}/{part.name}": getattr(value, part.name) for part in fields(KroneckerFactor)}


def _unpack_factor(arrays: Arrays, name: str) -> Tensor | KroneckerFactor:
    return arrays[name] if name in arrays else KroneckerFactor(**_part(arrays, f"{name}/"))


def _unpack_posterior(arrays: Arrays) -> Posterior:
    q = _part(arrays, "q/")
    precision: Prior = q["lambda"] if q["lambda"].ndim else float(q["lambda"])
    if "class_variance" in q:
        precision = ClassPrior(q["lambda"], q["class_variance"])
    mode = Mode(q["mode"], precision, _unpack_factor(q, "precision"), int(q["steps"]))
    return Posterior(mode, q["mean"], _unpack_factor(q, "factor"), q["elbo"], q["log_prior"])
