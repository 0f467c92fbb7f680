"""A made-up results directory in the form that the study writes, with numbers that look like a real one's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from causal_attn.storage import save_arrays, save_json

LABELS = {
    "erm": "ERM (ordinary joint training)",
    "weighted": "Instance weighting",
    "random": "Random attention pretraining",
    "warm": "Random warm start, then joint",
    "penalty": "Leakage penalty",
    "alternating": "Alternating random attention",
    "explore": "Weights with exploration",
    "both": "Warm start with weights",
}
# leakage AUC, bits, reliance, excess, accuracy, EVAL-X, gap, lexicon mass
TYPICAL = {
    "erm": (0.807, 0.271, 0.477, 0.452, 0.752, 0.644, 0.071, 0.101),
    "weighted": (0.689, 0.094, 0.070, 0.041, 0.707, 0.700, 0.012, 0.165),
    "random": (0.522, 0.002, 0.002, -0.004, 0.718, 0.741, -0.021, 0.238),
    "warm": (0.506, 0.000, 0.001, -0.001, 0.754, 0.728, 0.013, 0.157),
}
FIGURES = (
    "leakage_auc", "leakage_bits", "reliance", "excess_reliance", "accuracy", "evalx_accuracy", "gap", "lexicon_mass"
)  # fmt: skip
WORDS = (
    "a", "the", "film", "is", "and", "of", "this", "warm", "funny", "dull", "movie", "story", "never", "quite",
    "gripping", "script", "with", "its", "cast", "too", "long", "but", "it", "charming", "mess", "bland", "tender",
    "clever", "empty", "grows", "tired", "moving", "portrait", "falls", "flat", "delight", "unforgettable",
)  # fmt: skip


def write_results(
    out: Path,
    schemes: Sequence[str] = ("erm", "weighted", "random", "warm"),
    class_names: Sequence[str] = ("negative", "positive"),
    seeds: int = 1,
    n: int = 1200,
    defaults: int = 5,
) -> Path:
    """Write results.json, details.npz and examples.json under `out`, and return it."""
    out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    save_json(out / "results.json", made_results(rng, schemes, class_names, seeds, n, defaults))
    save_arrays(out / "details.npz", made_arrays(rng, schemes, len(class_names), n, defaults), {})
    save_json(out / "examples.json", made_examples(rng, schemes, len(class_names), defaults))
    (out / "selection.nc").write_bytes(b"not read by the report")
    return out


def made_results(
    rng: np.random.Generator, schemes: Sequence[str], names: Sequence[str], seeds: int, n: int, defaults: int
) -> dict[str, Any]:
    """The content of results.json."""
    classes = len(names)
    return {
        "version": 1,
        "a_key_from_later": {"ignored": True},
        "config": {
            "data": "rotten_tomatoes",
            "downstream": "recurrent",
            "schemes": list(schemes),
            "default_tokens": defaults,
            "word_dropout": 0.5,
            "seeds": seeds,
            "epochs": 10,
            "limit": None,
            "k": 5,
        },
        "data": {
            "name": "rotten_tomatoes",
            "rows": {"train": 6824, "valid": 853, "test": 853},
            "class_names": list(names),
            "vocabulary": 9000,
            "tokens_cut": 0,
        },
        "verdict": {name: _verdict(name) for name in schemes},
        "summary": "Ordinary joint training writes the class into its mask and the model reads it there: excess "
        "reliance 0.45, leakage AUC 0.81. Random warm start removes it and keeps the accuracy.",
        "schemes": {
            name: {"label": LABELS.get(name, name), "runs": [_run(rng, name, s, classes) for s in range(seeds)]}
            for name in schemes
        },
        "selection": _selection(classes, n),
        "files": {"selection": "selection.nc", "weights": "weights.nc", "details": "details.npz"},
        "versions": {"causal_attn": "0.1.0", "numpy": np.__version__},
    }


def _verdict(name: str) -> str:
    if name == "erm":
        return "shortcut: the mask tells the class (AUC 0.81) and the model uses it (excess reliance 0.45)"
    if name == "weighted":
        return "leak, hardly used: the mask tells the class (AUC 0.69), excess reliance 0.04"
    return "no shortcut: excess reliance is not above 0.02, and the mask does not tell the class"


def _run(rng: np.random.Generator, name: str, seed: int, classes: int) -> dict[str, Any]:
    values = np.array(TYPICAL.get(name, TYPICAL["warm"])) + rng.normal(0, 0.008, 8)
    figures = dict(zip(FIGURES, values.round(4).tolist(), strict=True))
    half = {"leakage_bits": 0.02, "lexicon_mass": 0.004, "reliance": 0.015, "excess_reliance": 0.02}
    ends = {k: [round(v - half.get(k, 0.028), 4), round(v + half.get(k, 0.028), 4)] for k, v in figures.items()}
    mass = rng.uniform(0.05, 0.12, classes) + (np.linspace(0, 0.7, classes) if name == "erm" else 0)
    weighted = name == "weighted"
    run: dict[str, Any] = {
        "seed": seed,
        **figures,
        "p_value": 0.005 if name in ("erm", "weighted") else 0.41,
        "own_accuracy_at_k": figures["evalx_accuracy"] + figures["gap"],
        "evalx_k": 5,
        "default_token_mass": mass.round(3).tolist(),
        "lexicon_share": 0.09,
        "support_deficit": 0.08 if weighted else None,
        "ess": 2410.0 if weighted else None,
        "seconds": 61.2 + seed,
        "intervals": ends,
        "notes": {}
        if weighted
        else {"support_deficit": "no weights in this scheme", "ess": "no weights in this scheme"},
        "verdict": _verdict(name),
    }
    if name == "random":
        run |= {"gap": None, "notes": run["notes"] | {"gap": "EVAL-X did not converge <b>here</b>"}}
        del run["intervals"]["gap"]
    return run


def _selection(classes: int, n: int) -> dict[str, Any]:
    return {
        "scheme": "erm",
        "n": n,
        "mean_weight": 0.981,
        "calibration_residual": 0.019,
        "support_deficit": 0.231,
        "support_deficit_interval": [0.204, 0.262],
        "ess": 0.35 * n,
        "ess_per_class": [round(0.35 * n / classes, 1)] * classes,
        "largest_share": 0.011,
        "khat": 0.58,
        "vi_khat": None,
        "held_out_log_loss": 0.52,
        "prior_log_loss": 0.693,
        "tau": 10,
        "words": "About 23% of Q lies where weights above 10 would be needed. Weighting alone cannot repair this "
        "model; use random attention pretraining, or exploration.",
        "notes": {"vi_khat": "Laplace inference has no importance ratios"},
    }


def made_arrays(
    rng: np.random.Generator, schemes: Sequence[str], classes: int, n: int, defaults: int
) -> dict[str, np.ndarray]:
    """The content of details.npz."""
    y = rng.integers(0, classes, n)
    logits = rng.normal(0, 1.1, (n, classes))
    logits[np.arange(n), y] += 1.6
    log_prob = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    prior = np.bincount(y, minlength=classes) / n
    arrays = {"log_w": np.log(prior[y]) - log_prob[np.arange(n), y], "y": y, "log_prob": log_prob}
    positions = 40
    for name in schemes:
        arrays[f"profile_{name}"] = _profile(rng, name, classes, positions, defaults)
        t = np.arange(1, 11)[:, None]
        arrays[f"history_{name}"] = np.hstack([0.69 * np.exp(-t / 6), 0.9 - 0.4 / t, 0.76 - 0.2 / t])
        arrays[f"history_{name}"] += rng.normal(0, 0.006, (10, 3))
    before = rng.uniform(0, 0.5, positions + 3)
    arrays["balance"] = np.stack([before, 0.3 * before, np.full(positions + 3, 0.05)], 1)
    predicted = np.tile(np.linspace(0.05, 0.9, 10), classes)
    observed = np.clip(predicted + rng.normal(0, 0.03, len(predicted)), 0.01, 0.99)
    rows = [np.repeat(np.arange(classes), 10), np.full(len(predicted), n // 10), predicted, observed]
    arrays["calibration"] = np.stack([*rows, np.maximum(observed - 0.05, 0), np.minimum(observed + 0.05, 1)], 1)
    if "weighted" in schemes:
        arrays["deficit_history_weighted"] = 0.3 * np.exp(-np.arange(10) / 4)
    arrays["profile_count"] = np.linspace(853, 5, positions).astype(int)
    arrays["elbo"] = -4000 - 6000 * np.exp(-np.arange(600) / 70) + rng.normal(0, 60, 600)
    return arrays


def _profile(rng: np.random.Generator, name: str, classes: int, positions: int, defaults: int) -> np.ndarray:
    base = np.full((classes, positions), 0.6 / positions) * rng.uniform(0.8, 1.2, (classes, positions))
    if name == "erm" and defaults:
        base[np.arange(classes), np.arange(classes) % defaults] += np.linspace(0.15, 0.5, classes)
    return base


def made_examples(
    rng: np.random.Generator, schemes: Sequence[str], classes: int, defaults: int
) -> list[dict[str, Any]]:
    """The content of examples.json: twelve texts, one of them long, one with markup for tokens."""
    lengths = [14, 22, 9, 80, 17, 25, 12, 30, 19, 8, 21, 16]
    return [_example(rng, schemes, classes, defaults, length, i) for i, length in enumerate(lengths)]


def _example(
    rng: np.random.Generator, schemes: Sequence[str], classes: int, defaults: int, length: int, i: int
) -> dict[str, Any]:
    tokens = [f"<d{j}>" for j in range(defaults)] + [str(w) for w in rng.choice(WORDS, length)]
    if i == 1:
        tokens[-1] = "<script>alert('x')</script>"
    shown = {}
    for name in schemes:
        raw = rng.gamma(0.35, 1.0, len(tokens))
        if name == "erm" and defaults:
            raw[i % defaults] += 2.5 * raw.max()
        mask = raw / raw.sum()
        prediction, probability = int(rng.integers(0, classes)), round(float(rng.uniform(0.5, 0.99)), 3)
        shown[name] = {"mask": mask.round(5).tolist(), "prediction": prediction, "probability": probability}
    return {"tokens": tokens, "label": i % classes, "schemes": shown}


def edit(out: Path, change: Any) -> None:
    """Change results.json in place: `change` gets the parsed object."""
    path = out / "results.json"
    raw = json.loads(path.read_text(encoding="utf-8"))
    change(raw)
    path.write_text(json.dumps(raw), encoding="utf-8")
