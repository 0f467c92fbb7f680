"""The suite, accuracy at several k, the controls and the encoding score on planted worlds, and wrong requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from causal_attn.attention import PixelAttention, TextAttention, given_masks, wrap
from causal_attn.data.worlds import PlantedPixels, PlantedText
from causal_attn.errors import InputError
from causal_attn.faithfulness import (
    CONTROLS,
    METRICS,
    SCORERS,
    accuracy_at_k,
    encoding_score,
    faithfulness_suite,
    train_evaluator,
)  # fmt: skip
from causal_attn.faithfulness.controls import adversarial, frozen, permuted, replaced, total_variation, uniform
from causal_attn.faithfulness.subject import subject_of
from causal_attn.faithfulness.suite import bootstrap_means
from causal_attn.training import RandomMasksOnly, train
from tests.training.toys import Fixed, fixed_data

WORLD = PlantedText(n_positions=14, shortest=10, vocabulary=60, default_tokens=2, per_class=6)
FAST: dict[str, Any] = {"epochs": 10, "progress": False}


def small(data: Any, seed: int = 0) -> TextAttention:
    return TextAttention.for_data(data, "pooled", embedding=8, hidden=8, seed=seed)


@pytest.fixture(scope="module")
def faithful() -> tuple[Any, Any, Any]:
    """Data, a model whose masks are the rationale and whose reader learnt from random masks, and an evaluator."""
    data = WORLD.sample(800, 0)
    result = train(given_masks(small(data), WORLD.oracle_masks), data, RandomMasksOnly(), **FAST)
    return data, result, train_evaluator(small(data, 1), data, 1, **FAST)


def test_a_faithful_model_scores_as_one(faithful: Any) -> None:
    data, result, evaluator = faithful
    suite = faithfulness_suite(result, evaluator=evaluator, k=3, progress=False)
    table = suite.table().set_index(["scores", "metric"])
    assert suite.n == len(data.test)
    assert set(table.index) == {(s, m) for s in ("attention", *SCORERS) for m in METRICS} | {
        ("attention", f"tv_{c}") for c in CONTROLS
    }
    own = table.loc["attention"]["value"]
    assert own["rationale_mass"] == own["token_f1"] == own["average_precision"] == 1
    assert own["evalx_accuracy"] > 0.95
    assert own["violation"] < 0.1
    assert abs(own["sufficiency"]) < 0.05
    for metric in ("comprehensiveness", "evalx_accuracy", "token_f1"):
        assert own[metric] > table.loc["random", metric]["high"] + 0.02
    known = table[table["rows"] > 0]
    assert (known["low"] <= known["value"] + 1e-12).all()
    assert (known["value"] <= known["high"] + 1e-12).all()
    assert table.loc[("attention", "tv_frozen"), "value"] == 0  # these masks are not learnt
    assert table.loc[("attention", "tv_adversarial"), "value"] > table.loc[("attention", "tv_uniform"), "value"]
    text = str(suite)
    assert "higher" in text
    assert "integrated_gradients" in text
    assert max(map(len, text.splitlines())) <= 100


def test_scores_made_elsewhere_stand_beside_attention(faithful: Any) -> None:
    data, result, _ = faithful
    where = data.test.rationales[:, : result.masks("test").T].double()
    suite = faithfulness_suite(
        result, scores={"truth": where.numpy(), "loo": "leave_one_out"}, metrics=["token_f1", "comprehensiveness"],
        controls=[], progress=False,
    )  # fmt: skip
    values = suite.table().set_index(["scores", "metric"])["value"]
    assert values["truth", "token_f1"] == 1
    assert list(dict.fromkeys(values.index.get_level_values(0))) == ["attention", "truth", "loo"]
    assert len(values) == 6


def test_it_is_repeatable_and_leaves_the_model_alone(faithful: Any) -> None:
    _, result, evaluator = faithful
    before = {k: v.clone() for k, v in result.model.state_dict().items()}
    one, same = (faithfulness_suite(result, evaluator=evaluator, k=2, seed=4, progress=False).table() for _ in range(2))
    assert one.equals(same)
    assert all(torch.equal(before[k], v) for k, v in result.model.state_dict().items())


def test_accuracy_at_several_k(faithful: Any) -> None:
    _, result, evaluator = faithful
    table = accuracy_at_k(result, k=[1, 3, 9], evaluator=evaluator, progress=False)
    assert table["k"].tolist() == [1, 3, 9]
    assert (table["gap"].abs() < 0.1).all()
    np.testing.assert_allclose(table["gap"], table["own_accuracy_at_k"] - table["evalx_accuracy"])
    alone = accuracy_at_k(result, k=3, evaluator=evaluator, progress=False)
    assert alone.iloc[0].to_dict() == table.iloc[1].to_dict()


def test_images_and_choices_of_pixels() -> None:
    world = PlantedPixels(side=6)
    data = world.sample(600, 0)
    reader = PixelAttention(6, 2, 2, hidden=16)
    options: dict[str, Any] = {"learning_rate": 1e-2, "weight_decay": 0.01, **FAST}
    evaluator = train_evaluator(reader, data, 0, **options)
    result = train(given_masks(reader, world.oracle_masks), data, RandomMasksOnly(), **options)
    assert result.masks("test").kind == "subset"
    table = accuracy_at_k(result, evaluator=evaluator, progress=False)
    assert table["k"].tolist() == [4]
    assert table["evalx_accuracy"][0] > 0.8
    suite = faithfulness_suite(result, evaluator=evaluator, progress=False).table().set_index(["scores", "metric"])
    assert suite.loc[("attention", "token_f1"), "value"] > 0.98  # noise hides a patch now and then
    assert np.isfinite(suite["value"]).all()


def test_selectors_that_encode_rank_below_honest_ones() -> None:
    data = WORLD.sample(3000, 0)
    evaluator = train_evaluator(small(data, 1), data, 1, **FAST)
    scores = {
        name: encoding_score(
            given_masks(small(data), masks), data=data, evaluator=evaluator, k=3 if name == "honest" else 1, **FAST
        )
        for name, masks in (
            ("honest", WORLD.oracle_masks), ("position", WORLD.shortcut_masks), ("prediction", WORLD.prediction_masks),
            ("marginal", WORLD.marginal_masks),
        )
    }  # fmt: skip
    honest = scores.pop("honest")
    assert abs(honest.encoding) < 0.2
    for score in scores.values():
        assert score.encoding > 0.2
        assert score.intervals["encoding"][0] > 0.1
        assert score.score < honest.score - 0.5
    # the position tells the class on 90% of rows: log 2 − H(0.9) nats
    entropy = -(0.9 * np.log(0.9) + 0.1 * np.log(0.1))
    assert scores["position"].encoding == pytest.approx(np.log(2) - entropy, abs=0.1)


# ------------------------------------------------------------------------------------------------ controls


def controlled() -> tuple[Any, Any, Any]:
    masks = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
    data = fixed_data(masks, torch.zeros(2, 3), torch.tensor([0, 1]))
    model = Fixed("mask", 3.0)
    return model, data.test, subject_of(model, "test", data).sample


def test_total_variation_by_hand() -> None:
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.3, 0.5])
    assert float(total_variation(p, q)) == pytest.approx(0.3)
    model, split, sample = controlled()
    expected = (torch.tensor([0.0, 0.0]).sigmoid() - torch.tensor([1.5, 0.0]).sigmoid()).abs()
    torch.testing.assert_close(replaced(model, split, sample, "uniform"), expected.double(), atol=1e-6, rtol=0)


def test_what_attention_is_replaced_by(faithful: Any) -> None:
    data, _, _ = faithful
    model = small(data).eval()
    subject = subject_of(model, "test", data)
    split, sample = subject.split, subject.sample
    for make in (uniform, permuted, frozen, adversarial):
        for masks in make(model, split, sample, 0):
            assert masks.shape == sample.masks.shape
            assert (masks[~sample.valid] == 0).all()
            torch.testing.assert_close(masks.sum(-1), torch.ones(sample.n), atol=1e-4, rtol=0)
    for masks in permuted(model, split, sample, 0):
        torch.testing.assert_close(masks.sort(-1).values, sample.masks.sort(-1).values)
    assert not torch.allclose(frozen(model, split, sample, 0)[0], sample.masks)


def test_the_adversary_finds_the_mask_that_matters() -> None:
    model, split, sample = controlled()
    moved = replaced(model, split, sample, "adversarial")
    assert (moved >= replaced(model, split, sample, "permuted")).all()
    best = torch.tensor([3.0 * 0.5, 0.0]).sigmoid() - torch.tensor(-3.0).sigmoid()  # all mass on position 1
    assert moved[0] > 0.9 * float(best[0])


# ------------------------------------------------------------------------------------------------ intervals and errors


def test_bootstrap_intervals_are_those_of_a_mean_over_what_is_known() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(1, 900))
    values[0, ::3] = np.nan
    low, high = bootstrap_means(values, 0)
    known = values[np.isfinite(values)]
    half = 1.96 * known.std() / np.sqrt(len(known))
    np.testing.assert_allclose([low[0], high[0]], [known.mean() - half, known.mean() + half], atol=0.15 * half)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 40}, "k: expected an integer from 1 to 14, got 40"),
        ({"k": 0}, "k: expected an integer from 1"),
        ({"scores": {"a": np.zeros((3, 3))}}, r"scores\['a'\]: expected shape \(240, 14\), got \(3, 3\)"),
        ({"scores": {"a": "lime"}}, r"scores\['a'\]: expected names among gradient"),
        ({"scores": {"attention": "random"}}, "scores: expected names other than 'attention'"),
        ({"scores": [1]}, "scores: expected a mapping"),
        ({"metrics": ["bleu"]}, "metrics: expected names among .*, got 'bleu'"),
        ({"metrics": "violation"}, "metrics: expected names among"),
        ({"controls": ["shuffled"]}, "controls: expected names among uniform"),
        ({"rationales": np.zeros((2, 2))}, r"rationales: expected shape \(240, 14\), got \(2, 2\)"),
        ({"rationales": np.full((240, 14), 0.5)}, "rationales: expected True and False"),
        ({"split": "dev"}, "split: expected 'train', 'valid' or 'test'"),
        ({"seed": -1}, "seed: expected an integer from 0"),
    ],
)
def test_wrong_requests_stop_before_any_work(
    faithful: Any, options: dict[str, Any], message: str, monkeypatch: Any
) -> None:
    _, result, _ = faithful
    monkeypatch.setattr("causal_attn.faithfulness.subject.train_evaluator", lambda *a, **k: pytest.fail("worked first"))
    with pytest.raises(InputError, match=message):
        faithfulness_suite(result, **{"progress": False, **options})


def test_several_k_are_checked_before_any_work(faithful: Any, monkeypatch: Any) -> None:
    _, result, _ = faithful
    monkeypatch.setattr("causal_attn.faithfulness.subject.train_evaluator", lambda *a, **k: pytest.fail("worked first"))
    for k, message in (([3, 99], "from 1 to 14, got 99"), ([], "an empty list"), ("3", "k: expected an integer")):
        with pytest.raises(InputError, match=message):
            accuracy_at_k(result, k=k, progress=False)  # type: ignore[arg-type]


def test_models_that_break_the_protocol(faithful: Any) -> None:
    data, result, _ = faithful
    inner = result.model.module

    def test_one(masks: Any, predict: Any = lambda net, x, m: net.predict(x, m)) -> None:
        model = wrap(inner, masks=masks, predict=predict, valid=lambda net, x: net.valid(x))
        faithfulness_suite(model, data=data, progress=False)

    with pytest.raises(InputError, match="rows that sum to 1"):
        test_one(lambda net, x: 0.5 * net.masks(x))
    with pytest.raises(InputError, match="no mass on padding"):
        test_one(lambda net, x: torch.full(x.shape, 1 / x.shape[1]))
    with pytest.raises(InputError, match="same result twice"):
        test_one(lambda net, x: net.masks(x), lambda net, x, m: net.predict(x, m) + torch.rand(len(x), 2))
    with pytest.raises(InputError, match=r"data: expected the data set where"):
        faithfulness_suite(inner, progress=False)
    with pytest.raises(InputError, match="data: expected splits"):
        faithfulness_suite(inner, data=3, progress=False)  # type: ignore[arg-type]


def test_given_masks_and_pixels_refuse_what_they_cannot_use() -> None:
    with pytest.raises(InputError, match=r"reader: expected an nn\.Module"):
        given_masks(torch.nn.Linear(2, 2), lambda x: x)
    with pytest.raises(InputError, match="masks: expected a function of x"):
        given_masks(PixelAttention(6, 2, 2), 3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="downstream: expected 'flat' or 'pooled'"):
        PixelAttention(6, 2, 2, "deep")  # type: ignore[arg-type]
    model = PixelAttention(6, 2, 2, hidden=4)
    with pytest.raises(InputError, match=r"x: expected shape \(B, 36, 2\), got \(3, 35, 2\)"):
        model.masks(torch.zeros(3, 35, 2))
    with pytest.raises(InputError, match=r"m: expected shape \(3, 36\), got \(3, 35\)"):
        model.predict(torch.zeros(3, 36, 2), torch.zeros(3, 35))


@pytest.mark.parametrize("downstream", ["flat", "pooled"])
def test_pixels_read_a_choice_and_its_normalised_form_alike(downstream: Any) -> None:
    model = PixelAttention(6, 2, 2, downstream, hidden=4).eval()
    x, choice = torch.randn(5, 36, 2), (torch.rand(5, 36) < 0.3).float()
    choice[:, 0] = 1
    torch.testing.assert_close(model.predict(x, choice), model.predict(x, choice / choice.sum(-1, keepdim=True)))
    torch.testing.assert_close(model.masks(x).sum(-1), torch.ones(5))
    assert not torch.equal(model.fresh(1).head[0].weight, model.head[0].weight)


def test_a_mask_that_is_not_used_has_no_gradient() -> None:
    y = torch.arange(40) % 2
    data = fixed_data(torch.full((40, 4), 0.25), (2.0 * y - 1)[:, None].expand(40, 4).clone(), y)
    suite = faithfulness_suite(Fixed("evidence"), data=data, evaluator=Fixed("evidence"), progress=False)
    table = suite.table().set_index(["scores", "metric"])
    assert table.loc[("gradient", "comprehensiveness"), "value"] == 0
