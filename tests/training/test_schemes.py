"""What each scheme lets learn, and what it leaves as it was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from causal_attn.attention import TextAttention, parameter_roles
from causal_attn.data import Data, from_datasets, worlds
from causal_attn.diagnostics import leakage_test
from causal_attn.errors import InputError
from causal_attn.faithfulness import shortcut_test
from causal_attn.training import (
    ERM,
    AlternatingRandomAttention,
    InstanceWeighting,
    LeakagePenalty,
    RandomAttentionPretraining,
    RandomMasksOnly,
    laws,
    train,
)
from causal_attn.training.loop import _Run
from causal_attn.training.schemes import Scheme
from causal_attn.training.settings import Settings
from causal_attn.training.weighting import Plan

from .toys import N_WORDS, moved_names, parameters, small_text, token_data, token_rows, wrapped

FEW: dict[str, Any] = {"epochs": 2, "batch_size": 16, "learning_rate": 0.02, "progress": False, "seed": 3}
SCHEMES: dict[str, Scheme] = {
    "erm": ERM(), "weights": InstanceWeighting(), "explored": InstanceWeighting(explore=0.3),
    "frozen": RandomAttentionPretraining(), "warm": RandomAttentionPretraining(then="joint"),
    "weighted warm": RandomAttentionPretraining(law="subset", then="joint", weighting=InstanceWeighting(explore=0.2)),
    "random masks": RandomMasksOnly("dirichlet"), "alternating": AlternatingRandomAttention(),
    "alternating matched": AlternatingRandomAttention("matched"), "matched": RandomAttentionPretraining("matched"),
    "penalty": LeakagePenalty(), "one draw": InstanceWeighting(explore=0.2, use="draw"),
    "known law": InstanceWeighting(explore=0.2, law="subset"), "by steps": InstanceWeighting(refresh=2, unit="steps"),
}  # fmt: skip


def test_each_phase_of_random_pretraining_moves_its_own_part_alone(tokens: Data) -> None:
    model = small_text()
    mask_names, predict_names = parameter_roles(model, tokens.train.batch([0, 1])[0])
    first = train(model, tokens, RandomMasksOnly(), **FEW).model
    assert moved_names(model, first) == predict_names
    both = train(model, tokens, RandomAttentionPretraining(), **FEW).model  # its first phase is the run above
    assert moved_names(first, both) == mask_names
    joint = train(model, tokens, RandomAttentionPretraining(then="joint"), **FEW).model
    assert moved_names(first, joint) == mask_names | predict_names


def test_the_evaluators_scheme_leaves_the_attention_as_it_was(tokens: Data) -> None:
    model = small_text()
    trained = train(model, tokens, RandomMasksOnly("subset"), **FEW).model
    x = tokens.test.batch([0, 1, 2])[0]
    assert torch.equal(trained.masks(x), model.eval().masks(x))


def test_a_parameter_of_both_parts_stays_frozen_in_the_masks_phase(bags: Data) -> None:
    model = wrapped(shared=True)
    first = train(model, bags, RandomMasksOnly(), **FEW).model
    both = train(model, bags, RandomAttentionPretraining(), **FEW).model
    assert "module.encoder.weight" in moved_names(model, first)
    assert moved_names(first, both) == {"module.score.weight", "module.score.bias"}


def test_nothing_of_its_own_to_train_is_said_before_any_work(bags: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    model = wrapped(shared=True)
    model._masks = lambda net, x: (net.encoder(x["bag"]).sum(-1).masked_fill(~x["here"], -torch.inf)).softmax(-1)
    monkeypatch.setattr("causal_attn.training.loop._Run._epoch", lambda *args: pytest.fail("trained"))
    with pytest.raises(InputError, match="no parameter of its own to train in phase 'attention'"):
        train(model, bags, RandomAttentionPretraining(), **FEW)


def test_the_law_of_random_masks_is_the_one_given(tokens: Data) -> None:
    seen = []

    def law(valid: torch.Tensor, g: torch.Generator) -> torch.Tensor:
        seen.append(valid)
        return laws.subset(valid, g)

    by_name = train(small_text(), tokens, RandomMasksOnly("subset"), **FEW)
    given = train(small_text(), tokens, RandomMasksOnly(law), **FEW)
    assert not moved_names(by_name.model, given.model)
    assert sum(len(valid) for valid in seen) == 2 * (len(tokens.train) + len(tokens.valid))
    other = train(small_text(), tokens, RandomMasksOnly("dirichlet"), **FEW)
    assert moved_names(other.model, given.model)


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_a_users_module_with_mapping_inputs_goes_through(scheme: Scheme, bags: Data) -> None:
    model = wrapped()
    before = parameters(model)
    result = train(model, bags, scheme, **FEW)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    epochs = {phase.name: max(1, round(phase.share * FEW["epochs"])) for phase in scheme.phases()}
    assert result.history["phase"].value_counts(sort=False).to_dict() == epochs
    test = shortcut_test(result, "test", evaluator=wrapped(seed=5), k=2, n_permutations=20, progress=False)
    assert 0 <= test.own_accuracy <= 1
    assert test.k == 2


def test_bags_of_any_size_alone_in_a_batch(bags: Data) -> None:
    result = train(wrapped(), bags, RandomAttentionPretraining(), **FEW | {"batch_size": 1})
    assert result.history["phase"].nunique() == 2


def test_weights_are_on_record_after_the_first_refresh(bags: Data) -> None:
    history = train(wrapped(), bags, InstanceWeighting(refresh=2), **FEW | {"epochs": 4}).history
    assert history["support_deficit"].isna().tolist() == [True, True, False, False]
    ess = history["ess"].tolist()
    assert 0 < ess[2] == ess[3] <= len(bags.train)
    unweighted = train(wrapped(), bags, ERM(), **FEW).history
    assert unweighted["ess"].isna().all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: InstanceWeighting(refresh=0), "refresh: expected"),
        (lambda: InstanceWeighting(refresh=True), "refresh: expected"),
        (lambda: InstanceWeighting(explore=1.0), "explore: expected"),
        (lambda: InstanceWeighting(explore=-0.1), "explore: expected"),
        (lambda: InstanceWeighting(law="uniform"), "law: expected one of"),
        (lambda: InstanceWeighting(law="subset"), "law: has an effect with explore"),
        (lambda: InstanceWeighting(law="matched", explore=0.1), "law: expected 'swap' or"),
        (lambda: InstanceWeighting(explore=0.5, truncate=3.0), "truncate: has no effect"),
        (lambda: InstanceWeighting(unit="rows"), "unit: expected"),  # type: ignore[arg-type]
        (lambda: InstanceWeighting(use="mean"), "use: expected"),  # type: ignore[arg-type]
        (lambda: InstanceWeighting(explore=False), "explore: expected"),
        (lambda: AlternatingRandomAttention("odd"), "law: expected one of"),
        (lambda: LeakagePenalty(0), "strength: expected"),
        (lambda: LeakagePenalty(True), "strength: expected"),
        (lambda: RandomAttentionPretraining(then="joint", weighting=5), "weighting: expected"),  # type: ignore
        (lambda: InstanceWeighting(truncate=1.0), "truncate: expected"),
        (lambda: RandomAttentionPretraining(law="odd"), "law: expected one of"),
        (lambda: RandomAttentionPretraining(then="warm"), "then: expected"),  # type: ignore[arg-type]
        (lambda: RandomAttentionPretraining(weighting=InstanceWeighting()), "weighting: has an effect"),
    ],
)
def test_options_out_of_range_are_named(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_the_downstream_part_never_learns_from_its_own_masks_when_alternating(
    tokens: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The downstream part ends where random masks alone bring it: what the attention does changes nothing in it."""
    few = FEW | {"learning_rate": 1e-3}
    monkeypatch.setattr(Settings, "clip", 1e9)  # clipping is by the norm of both parts' gradients
    model = small_text()
    mask_names, predict_names = parameter_roles(model, tokens.train.batch([0, 1])[0])
    trained = train(model, tokens, AlternatingRandomAttention("dirichlet"), **few).model
    assert moved_names(model, trained) == mask_names | predict_names
    other = small_text()
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if name in mask_names:
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    same = train(other, tokens, AlternatingRandomAttention("dirichlet"), **few).model
    assert moved_names(trained, same) == mask_names  # the same downstream part, whatever the attention was


def test_each_half_step_has_its_own_gradients(tokens: Data) -> None:
    run = run_of(small_text().eval(), tokens)  # without dropout
    phase = AlternatingRandomAttention("dirichlet").phases()[0]
    index = torch.arange(16)
    x, y = tokens.train.batch(index)
    learning, mask_only = run.learning(phase, x)
    _, _, gradients = run._gradients(phase, x, y, index, learning, mask_only, laws.dirichlet)
    law_masks = laws.dirichlet(run._valid("train")[index, : x.shape[1]], torch.Generator().manual_seed(0)).float()
    model = small_text().eval()
    names = [name for name, _ in run.model.named_parameters() if any(_ is p for p in learning)]
    own = {name for name, p in run.model.named_parameters() if any(p is q for q in mask_only)}
    torch.nn.functional.cross_entropy(model.predict(x, law_masks), y).backward()
    downstream = {name: p.grad for name, p in model.named_parameters() if name not in own}
    model.zero_grad(set_to_none=True)
    torch.nn.functional.cross_entropy(model.predict(x, model.masks(x)), y).backward()
    attention = {name: p.grad for name, p in model.named_parameters() if name in own}
    for name, gradient in zip(names, gradients, strict=True):
        assert gradient is not None
        torch.testing.assert_close(gradient, (attention if name in own else downstream)[name])


def run_of(model: Any, data: Data) -> _Run:
    probe = data.train.batch([0, 1])[0]
    return _Run(model, data, Settings(), np.random.default_rng(0), 0, False, None, 0.0, probe)


def test_two_copies_of_a_row_equal_one_of_weight_two() -> None:
    rows = token_rows(12, 0)
    twice = from_datasets([*rows, rows[3]], rows, rows)
    once = from_datasets(rows, rows, rows)
    weight = torch.ones(12)
    weight[3] = 2
    gradients = []
    for data, plan_weight in ((once, weight / weight.mean()), (twice, torch.ones(13))):
        run = run_of(small_text().eval(), data)
        n = len(plan_weight)
        run.plan = Plan(plan_weight, torch.zeros(n, dtype=torch.bool), None, None)
        phase = InstanceWeighting().phases()[0]
        x, y = data.train.batch(torch.arange(n))
        learning, mask_only = run.learning(phase, x)
        gradients.append(run._gradients(phase, x, y, torch.arange(n), learning, mask_only, None)[2])
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-7)


def test_a_penalty_keeps_the_class_out_of_the_mask() -> None:
    """PlantedText's pooled part under ERM tells the class by its mask (the words it looks at); the penalty hides it."""
    data = worlds.PlantedText(n_positions=12, vocabulary=60, per_class=5, default_tokens=2).sample(900, seed=0)
    model = TextAttention.for_data(data, "recurrent", word_dropout=0.5, seed=0)
    few: dict[str, Any] = {"epochs": 4, "progress": False, "seed": 0}
    sharp = train(model, data, LeakagePenalty(10.0), **few)
    plain = train(model, data, **few)
    leak = [leakage_test(r.masks("test"), n_permutations=20).auc for r in (plain, sharp)]
    assert leak[1] < leak[0]


def test_an_exploration_law_with_mass_on_padding_is_refused_before_training(tokens: Data) -> None:
    scheme = InstanceWeighting(explore=0.2, law=lambda valid, g: torch.full(valid.shape, 1 / valid.shape[1]))
    with pytest.raises(InputError, match="law: expected mass on valid positions only"):
        train(small_text(), tokens, scheme, **FEW)


def test_a_class_without_training_rows_is_named() -> None:
    data = replace(token_data(), n_classes=3, class_names=("a", "b", "c"))
    with pytest.raises(InputError, match=r"class 2 .* of 3 has none"):
        train(TextAttention(N_WORDS, 3, seed=0), data, **FEW)


def test_weights_that_cannot_be_estimated_are_not_used(bags: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("causal_attn.training.weighting.FLOOR", 1.01)  # no sample is as good as that
    with pytest.warns(UserWarning, match="weights are not used until they can be estimated: .* floor") as caught:
        result = train(wrapped(), bags, InstanceWeighting(), **FEW | {"epochs": 4})
    assert sum("not used" in str(w.message) for w in caught) == 1
    plain = train(wrapped(), bags, ERM(), **FEW | {"epochs": 4})
    assert not moved_names(result.model, plain.model)
