"""Mass on positions, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from causal_attn.data import load
from causal_attn.errors import InputError
from causal_attn.faithfulness.mass import by_class, first_positions, mass_on, profile, word_positions
from causal_attn.masks import MaskSample

SAMPLE = MaskSample(
    torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.9, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64),
    torch.tensor([0, 1, 0]),
    torch.tensor([[True, True, True], [True, True, False], [True, False, False]]),
    n_classes=3,
)


def exact(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_mass_on_positions_and_its_mean_by_class() -> None:
    first = first_positions(SAMPLE, 1)
    assert first.tolist() == [[True, False, False]] * 3
    torch.testing.assert_close(mass_on(SAMPLE, first), exact(0.5, 0.1, 1.0))
    means = by_class(mass_on(SAMPLE, first), SAMPLE)
    torch.testing.assert_close(means[:2], exact(0.75, 0.1))
    assert means[2].isnan()
    torch.testing.assert_close(mass_on(SAMPLE, first_positions(SAMPLE, 2)), exact(0.8, 1.0, 1.0))
    with pytest.raises(InputError, match=r"positions: expected shape \(3, 3\), got \(3, 2\)"):
        mass_on(SAMPLE, first[:, :2])


def test_mass_of_a_subset_is_the_share_of_its_choices() -> None:
    subset = MaskSample([[1, 1, 0, 1], [0, 1, 0, 0]], [0, 1])
    torch.testing.assert_close(mass_on(subset, first_positions(subset, 2)), exact(2 / 3, 1.0))


def test_the_profile_is_over_rows_that_have_the_position() -> None:
    means, counts = profile(SAMPLE, 40)
    assert counts.tolist() == [3, 2, 1]
    torch.testing.assert_close(means[0], exact(0.75, 0.3, 0.2))
    torch.testing.assert_close(means[1, :2], exact(0.1, 0.9))
    assert means[1, 2].isnan()
    assert profile(SAMPLE, 2)[0].shape == (3, 2)


def test_words_are_found_where_the_model_sees_them(tmp_path: Path) -> None:
    rows = [f"{'good' if i % 2 else 'bad'} film number {i}, Good grief,{i % 2}" for i in range(40)]
    path = tmp_path / "a.csv"
    path.write_text("text,label\n" + "\n".join(f'"{r.rsplit(",", 1)[0]}",{r[-1]}' for r in rows) + "\n")
    data = load(path, default_tokens=2, max_tokens=5)
    where = word_positions(data.test, {"good", "grief", "bad"}, 9)
    for i in range(len(data.test)):
        tokens = data.test.tokens(i)
        assert tokens[:3] == ["[d1]", "[d2]", "good" if data.test.y[i] else "bad"]
        assert where[i].nonzero()[:, 0].tolist() == [t for t, token in enumerate(tokens) if token != "film"][2:3]
    assert where.sum() == len(data.test)
