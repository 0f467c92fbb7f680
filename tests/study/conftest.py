"""A small text file of two classes, and one study of it that several tests look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from causal_attn.cli import main
from causal_attn.study import StudyConfig

GOOD, BAD = ["great", "lovely", "superb", "moving"], ["awful", "dull", "boring", "weak"]
REST = ["the", "a", "film", "story", "of", "plot", "and", "with", "is", "in"]


def write_reviews(path: Path, n: int = 300, seed: int = 0) -> Path:
    """n texts, one telling word in each; the last word makes every text another."""
    rng = np.random.default_rng(seed)
    lines = []
    for i in range(n):
        words = [*rng.choice(REST, rng.integers(3, 9)), f"n{i}"]
        words.insert(int(rng.integers(len(words))), str(rng.choice(GOOD if i % 2 else BAD)))
        lines.append(f"{' '.join(words)},{'good' if i % 2 else 'bad'}")
    path.write_text("text,label\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reviews(tmp_path_factory.mktemp("reviews") / "reviews.csv")


@pytest.fixture
def config(reviews: Path) -> StudyConfig:
    return small_config(reviews)


def small_config(path: Path, **given: Any) -> StudyConfig:
    small: dict[str, Any] = {
        "data": str(path), "downstream": "pooled", "schemes": ("erm", "warm"), "default_tokens": 1, "epochs": 1,
        "n_permutations": 20, "device": "cpu",
    }  # fmt: skip
    return StudyConfig(**small | given)


@pytest.fixture(scope="session")
def finished(reviews: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command leaves behind."""
    out = tmp_path_factory.mktemp("study") / "new" / "out"
    options = "--downstream pooled --schemes erm,warm --default-tokens 1 --epochs 1 --permutations 20 --device cpu"
    assert main(["study", "--data", str(reviews), *options.split(), "--out", str(out), "--quiet"]) == 0
    return out
