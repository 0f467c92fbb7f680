"""The three tests together: constructed models get the verdict they deserve, and wrong requests stop at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from causal_attn.data import Data, from_datasets
from causal_attn.diagnostics import leakage_test
from causal_attn.errors import InputError
from causal_attn.faithfulness import (
    accuracy_at_k,
    encoding_score,
    faithfulness_suite,
    shortcut_test,
    train_evaluator,
)
from causal_attn.faithfulness.evaluator import reads
from causal_attn.faithfulness.shortcut import FIGURES, ShortcutTest
from causal_attn.masks import MaskSample
from causal_attn.training import RandomMasksOnly, train
from causal_attn.training.collect import collect_masks
from tests.training.toys import Fixed, bag_data, fixed_data, moved_names, small_text, token_data, wrapped

QUICK: dict[str, Any] = {"n_permutations": 40, "progress": False}


def place_world(n: int = 300, tells: bool = True, t: int = 8) -> tuple[Data, MaskSample]:
    """Masks peaked at position y (or, where they tell nothing, anywhere); evidence 2y−1 under the peak."""
    g = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 2
    where = y if tells else torch.randint(t, (n,), generator=g)
    noise = torch.randn(n, t, generator=g)
    masks = (noise + 4 * torch.nn.functional.one_hot(where, t)).softmax(-1)
    evidence = torch.nn.functional.one_hot(where, t) * (2.0 * y - 1)[:, None]
    return fixed_data(masks, evidence, y), MaskSample(masks, y)


def test_an_answer_read_off_the_mask_is_a_shortcut() -> None:
    data, sample = place_world()
    test = shortcut_test(Fixed("mask", -8.0), "test", data=data, evaluator=Fixed("evidence"), **QUICK)
    assert test.verdict.startswith("shortcut: the mask tells the class")
    assert test.excess_reliance == test.reliance > 0.7
    assert test.own_accuracy > 0.9
    assert test.evalx_accuracy == test.evaluator_accuracy == 1
    assert test.leakage_auc > 0.9
    assert test.p_value == pytest.approx(1 / 41)
    leak = leakage_test(sample, 40, 0)
    assert (test.leakage_bits, test.leakage_auc) == (leak.bits, leak.auc)


def pair_world(n: int = 400) -> tuple[Data, MaskSample]:
    """Class 0 has masks on positions {0, 1} or {2, 3}, class 1 on {0, 2} or {1, 3}: all as often."""
    g = torch.Generator().manual_seed(3)
    y = torch.arange(n) % 2
    second = torch.randint(2, (n,), generator=g)
    places = torch.tensor([[[0, 1], [2, 3]], [[0, 2], [1, 3]]])[y, second]
    masks = torch.zeros(n, 6).scatter_(1, places, 1.0)
    evidence = torch.zeros(n, 6)
    evidence[:, 5] = 2.0 * y - 1
    return fixed_data(masks, evidence, y), MaskSample(masks, y)


class Pairs(Fixed):
    """Reads the class off which pair was chosen."""

    def predict(self, x: Tensor, m: Tensor) -> Tensor:
        score = self.c * (1 - 2 * (m[:, 0] * m[:, 1] + m[:, 2] * m[:, 3] > 0).float())
        return torch.stack([torch.zeros_like(score), score], -1)


def test_a_code_that_a_linear_leakage_test_misses_is_a_shortcut_all_the_same() -> None:
    data, _ = pair_world()
    test = shortcut_test(Pairs("mask", 6.0), "test", data=data, evaluator=Fixed("evidence"), **QUICK)
    assert test.p_value > 0.05
    assert test.excess_reliance > 0.9
    assert test.verdict.startswith("shortcut: the downstream part takes its answer from the mask")


def test_too_few_permutations_clear_and_condemn_nothing_by_themselves() -> None:
    data, _ = place_world()
    options: dict[str, Any] = {"data": data, "evaluator": Fixed("evidence"), "progress": False}
    test = shortcut_test(Fixed("mask", -8.0), "test", n_permutations=10, **options)
    assert test.verdict.startswith("shortcut")
    assert "10 permutations are too few" in test.verdict


def test_a_model_that_ignores_its_mask_is_asked_about() -> None:
    data, _ = place_world()
    test = shortcut_test(Fixed("evidence"), "test", data=data, evaluator=Fixed("evidence"), **QUICK)
    assert test.verdict.startswith("no shortcut")
    assert test.verdict.endswith("no swap moved any prediction: does predict use the mask?")


def test_an_evaluator_that_cannot_read_gives_no_verdict() -> None:
    data, _ = place_world()
    test = shortcut_test(Fixed("mask", -8.0), "test", data=data, evaluator=Fixed("nothing"), **QUICK)
    assert test.verdict.startswith("undecided: the evaluator, shown every position, does no better than guessing")


def test_hard_masks_whose_words_the_evaluator_cannot_read_are_not_cleared() -> None:
    """The choice is of the words by their meaning, at places that tell nothing: no swap shows it, the gap does."""
    g = torch.Generator().manual_seed(0)
    y = torch.arange(300) % 2
    where = torch.randint(8, (300,), generator=g)
    masks = torch.nn.functional.one_hot(where, 8).float()
    evidence = torch.zeros(300, 8)
    evidence[torch.arange(300), where] = 2.0 * y - 1
    evidence[torch.arange(300), (where + 1) % 8] = 0.5 * (2.0 * y - 1)
    data = fixed_data(masks, evidence, y)

    class Elsewhere(Fixed):
        """Reads what is left over where the mask is not, all of it where nothing is hidden."""

        def predict(self, x: Tensor, m: Tensor) -> Tensor:
            score = (x[:, 8:] * (m > 0) * (x[:, 8:].abs() < 1)).sum(-1)
            return torch.stack([torch.zeros_like(score), self.c * score], -1)

    test = shortcut_test(Fixed("evidence", 4.0), "test", data=data, evaluator=Elsewhere("evidence"), **QUICK)
    assert test.gap == pytest.approx(0.5, abs=0.1)
    assert test.verdict.startswith("undecided: no code in the places")


def test_an_evaluator_is_trained_as_the_model_was(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def trained(model: Any, data: Data, seed: int, progress: bool, **settings: Any) -> Any:
        asked.append(settings)
        return model

    monkeypatch.setattr("causal_attn.faithfulness.subject.train_evaluator", trained)
    result = train(small_text(), token_data(), epochs=3, learning_rate=0.02, weight_decay=0.1, progress=False)
    shortcut_test(result, k=2, **QUICK)
    shortcut_test(result, k=2, epochs=7, **QUICK)
    assert (asked[0]["epochs"], asked[0]["learning_rate"], asked[0]["weight_decay"]) == (3, 0.02, 0.1)
    assert asked[1]["epochs"] == 7
    with pytest.raises(InputError, match="epochs: has an effect only where no evaluator is given"):
        shortcut_test(result, evaluator=small_text(), epochs=7, **QUICK)


def test_a_faithful_model_is_cleared_though_its_mask_tells_the_class() -> None:
    data, _ = place_world()
    model = Fixed("evidence under the mask", 8.0)
    test = shortcut_test(model, "test", data=data, evaluator=Fixed("evidence under the mask", 8.0), **QUICK)
    assert test.leakage_auc > 0.9
    assert test.reliance > 0.3
    assert test.excess_reliance == 0
    assert test.gap == 0
    assert test.verdict.startswith("no shortcut")


def test_a_mask_that_tells_nothing_is_no_shortcut() -> None:
    data, _ = place_world(tells=False)
    test = shortcut_test(
        Fixed("evidence under the mask", 8.0), "test", data=data, evaluator=Fixed("evidence", 8.0), **QUICK
    )
    assert test.own_accuracy > 0.95
    assert test.p_value > 0.01
    assert abs(test.reliance) < 0.1
    assert test.verdict.startswith("no shortcut")


def test_without_permutations_the_verdict_is_open() -> None:
    data, _ = place_world()
    test = shortcut_test(
        Fixed("mask", -8.0), "test", data=data, evaluator=Fixed("nothing"), n_permutations=0, progress=False
    )
    assert np.isnan(test.p_value)
    assert test.verdict.startswith("undecided")


# ------------------------------------------------------------------------------------------------ accuracies at k


def accuracies(model: Any, evaluator: Any, data: Data, masks: Tensor, valid: Tensor, k: int) -> tuple[float, float]:
    """Own and evaluator's accuracy at the k largest positions, a row at a time."""
    own = evalx = 0
    for i in range(len(data.test)):
        x, y = data.test.batch([i])
        m = masks[i, : int(valid[i].nonzero().max()) + 1].clone()
        top = sorted(range(len(m)), key=lambda t: -float(m[t]))[:k]
        cut, flat = torch.zeros_like(m), torch.zeros_like(m)
        cut[top], flat[top] = m[top] / m[top].sum(), 1 / len(top)
        with torch.no_grad():
            own += int(model.predict(x, cut[None]).argmax()) == int(y)
            evalx += int(evaluator.predict(x, flat[None]).argmax()) == int(y)
    return own / len(data.test), evalx / len(data.test)


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("kind", ["text", "bags"])
def test_accuracies_at_k_row_by_row(k: int, kind: str) -> None:
    text = kind == "text"
    data = token_data() if text else bag_data()
    model, evaluator = (small_text(seed=s).eval() if text else wrapped(seed=s).eval() for s in (3, 4))
    test = shortcut_test(model, "test", data=data, k=k, evaluator=evaluator, **QUICK)
    masks, valid = collect_masks(model, data.test)
    own, evalx = accuracies(model, evaluator, data, masks, valid, k)
    assert test.own_accuracy_at_k == pytest.approx(own)
    assert test.evalx_accuracy == pytest.approx(evalx)
    assert test.gap == pytest.approx(own - evalx)
    assert test.k == k


class Total(Fixed):
    """Class 1 where nearly all of the mask is there."""

    def predict(self, x: Tensor, m: Tensor) -> Tensor:
        return torch.stack([torch.full((len(m),), 0.99), m.sum(-1)], -1)


def test_the_top_k_is_renormalised() -> None:
    y = (torch.arange(60) % 3 > 0).long()
    masks = torch.rand(60, 8, generator=torch.Generator().manual_seed(0)).softmax(-1)
    data = fixed_data(masks, masks, y)
    test = shortcut_test(Total(""), "test", data=data, k=2, evaluator=Total(""), **QUICK)
    assert test.own_accuracy == test.own_accuracy_at_k == test.evalx_accuracy == pytest.approx(2 / 3)


class Chooser(torch.nn.Module):
    """A 0/1 choice of the `size` largest of x (B, T); reads the sum of what was chosen."""

    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.size = size

    def masks(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x).scatter(1, x.topk(self.size).indices, 1.0)

    def predict(self, x: Tensor, m: Tensor) -> Tensor:
        score = (m * x).sum(-1) - m.sum(-1)
        return torch.stack([-score, score], -1)


def test_subsets_keep_their_own_size_by_default() -> None:
    y = torch.arange(200) % 2
    x = torch.randn(200, 6, generator=torch.Generator().manual_seed(0)) + y[:, None]
    rows = list(zip(x, y.tolist(), strict=True))
    data = from_datasets(rows, rows, rows)
    test = shortcut_test(Chooser(), "test", data=data, evaluator=Chooser(), **QUICK)
    assert test.k == 3
    assert test.own_accuracy_at_k == test.own_accuracy == test.evalx_accuracy
    fewer = shortcut_test(Chooser(), "test", data=data, k=1, evaluator=Chooser(), **QUICK)
    assert fewer.k == 1
    assert fewer.own_accuracy == test.own_accuracy
    soft, _ = place_world(60)
    assert shortcut_test(Fixed("mask"), "test", data=soft, evaluator=Fixed("nothing"), **QUICK).k == 5


# ------------------------------------------------------------------------------------------------ as a whole


@pytest.fixture(scope="module")
def shortcut() -> ShortcutTest:
    data, _ = place_world()
    return shortcut_test(Fixed("mask", -8.0), "test", data=data, evaluator=Fixed("evidence under the mask"), **QUICK)


def test_every_figure_has_an_interval_around_it(shortcut: ShortcutTest) -> None:
    assert set(shortcut.intervals) == set(FIGURES)
    for name in FIGURES:
        low, high = shortcut.intervals[name]
        assert low <= getattr(shortcut, name) <= high


def test_it_prints_as_a_small_table(shortcut: ShortcutTest) -> None:
    lines = str(shortcut).splitlines()
    assert repr(shortcut) == str(shortcut)
    assert len(lines) == len(FIGURES) + 3
    assert lines[0] == "shortcut test on 300 rows, k = 5"
    for name, line in zip(FIGURES, lines[1:], strict=False):
        low, high = shortcut.intervals[name]
        assert line.split()[:2] == [name, f"{getattr(shortcut, name):.3f}"]
        assert f"{low:.3f}" in line
        assert f"{high:.3f}]" in line
    assert lines[-1] == f"verdict: {shortcut.verdict}"


def test_a_result_and_its_bare_model_give_the_same_with_one_seed() -> None:
    data = token_data()
    result = train(small_text(), data, epochs=2, batch_size=16, learning_rate=0.05, progress=False)
    one = shortcut_test(result, "test", k=2, seed=1, **QUICK)
    alike: dict[str, Any] = {"epochs": 2, "batch_size": 16, "learning_rate": 0.05}  # a result knows how it was trained
    two = shortcut_test(result.model, "test", data=data, k=2, seed=1, **alike, **QUICK)
    other = shortcut_test(result, "test", k=2, seed=2, **QUICK)
    assert one == two
    assert str(one) == str(two)
    assert one != other
    assert one.own_accuracy == other.own_accuracy == result.evaluate("test").accuracy
    assert shortcut_test(result, "valid", k=2, evaluator=small_text(seed=9), **QUICK).n == len(data.valid)


def one_class() -> Data:
    data, _ = place_world(60)
    only = [data.test[i] for i in range(0, 60, 2)]
    return from_datasets(data.train, data.valid, only)


def single_row() -> Data:
    data, _ = place_world(60)
    return from_datasets(data.train, data.valid, [data.test[i] for i in (0, 1, 2, 4, 6, 8)])


class Unnormalised(Fixed):
    def masks(self, x: Tensor) -> Tensor:
        return super().masks(x) * 1.1


class Noisy(Fixed):
    def predict(self, x: Tensor, m: Tensor) -> Tensor:
        return super().predict(x, m) + torch.randn(len(x), 2)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (Fixed("mask"), {"data": None}, "data: expected the data set where a bare model is given"),
        (Fixed("mask"), {"split": "dev"}, "split: expected 'train', 'valid' or 'test', got 'dev'"),
        (Fixed("mask"), {"k": 0}, "k: expected an integer from 1 to 8, got 0"),
        (Fixed("mask"), {"k": 9}, "k: expected an integer from 1 to 8, got 9"),
        (Fixed("mask"), {"k": True}, "k: expected"),
        (Fixed("mask"), {"k": 2.0}, "k: expected"),
        (Fixed("mask"), {"n_permutations": -1}, "n_permutations: expected"),
        (Fixed("mask"), {"data": one_class()}, "y: expected at least two classes"),
        (Fixed("mask"), {"data": single_row()}, "y: expected at least 2 rows of every class, class 1 has 1"),
        (Unnormalised("mask"), {}, r"masks\(x\): expected rows that sum to 1"),
        (Noisy("mask"), {}, r"predict\(x, m\): expected the same result twice"),
        ("model", {}, r"model: expected methods masks\(x\) and predict\(x, m\), got str"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_refused_before_any_training(
    model: Any, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "causal_attn.faithfulness.subject.train_evaluator", lambda *args, **settings: pytest.fail("trained")
    )
    with pytest.raises(InputError, match=message):
        shortcut_test(model, **{"data": place_world(60)[0], **QUICK, **options})


def test_an_evaluator_that_has_not_learnt_to_read_is_trained_longer() -> None:
    data = token_data()
    short = train_evaluator(small_text(), data, 0, False, epochs=1, learning_rate=1e-6)
    longer = train(
        small_text().fresh(7919), data, RandomMasksOnly(), epochs=3, learning_rate=1e-6, seed=7919, progress=False
    )
    assert not moved_names(short, longer.model)
    assert not reads(short, data)


@pytest.mark.parametrize("test", [shortcut_test, accuracy_at_k, encoding_score, faithfulness_suite])
def test_an_evaluator_that_is_no_model_is_named(test: Any) -> None:
    data, _ = place_world(40)
    with pytest.raises(InputError, match="evaluator: expected a model with predict"):
        test(Fixed("evidence"), data=data, evaluator="x", progress=False)


def test_logits_that_are_not_finite_are_no_answers() -> None:
    """Row 20 is beyond the rows a model is probed on."""
    data, _ = place_world(60)

    class Odd(Fixed):
        def predict(self, x: Tensor, m: Tensor) -> Tensor:
            logits = super().predict(x, m)
            logits[20:] = torch.nan
            return logits

    good, odd = Fixed("evidence under the mask"), Odd("evidence under the mask")
    for model, evaluator in ((odd, good), (good, odd)):
        with pytest.raises(InputError, match=r"predict\(x, m\): expected finite logits, row \d+"):
            shortcut_test(model, data=data, evaluator=evaluator, **QUICK)


def test_an_evaluator_that_is_none_is_refused() -> None:
    masks = torch.eye(4, dtype=torch.float64).repeat(30, 1)
    data = fixed_data(masks, torch.randn(120, 4, generator=torch.Generator().manual_seed(0)), torch.arange(120) % 2)
    model = Fixed("mask")

    class Three(Fixed):
        def predict(self, x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(x), 3)

    for evaluator, message in (
        (model, "evaluator: expected one trained on random masks, got the tested model itself"),
        (Three("mask"), "evaluator: expected logits of 2 classes"),
        ("model", "evaluator: expected a model with predict"),
    ):
        with pytest.raises(InputError, match=message):
            shortcut_test(model, "test", data=data, evaluator=evaluator, **QUICK)
    with pytest.raises(InputError, match="data: expected splits"):
        shortcut_test(model, "test", data=[], evaluator=Fixed("evidence"), **QUICK)  # type: ignore[arg-type]
