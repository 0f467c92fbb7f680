"""What each scheme lets learn, and what it leaves as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from causal_attn.attention import parameter_roles
from causal_attn.data import Data
from causal_attn.errors import InputError
from causal_attn.faithfulness import shortcut_test
from causal_attn.training import ERM, InstanceWeighting, RandomAttentionPretraining, RandomMasksOnly, laws, train
from causal_attn.training.schemes import Scheme

from .toys import moved_names, parameters, small_text, wrapped

FEW: dict[str, Any] = {"epochs": 2, "batch_size": 16, "learning_rate": 0.02, "progress": False, "seed": 3}
SCHEMES: dict[str, Scheme] = {
    "erm": ERM(), "weights": InstanceWeighting(), "explored": InstanceWeighting(explore=0.3),
    "frozen": RandomAttentionPretraining(), "warm": RandomAttentionPretraining(then="joint"),
    "weighted warm": RandomAttentionPretraining(law="subset", then="joint", weighting=InstanceWeighting(explore=0.2)),
    "random masks": RandomMasksOnly("dirichlet"),
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
        (lambda: InstanceWeighting(law="uniform"), "law: expected 'swap'"),
        (lambda: InstanceWeighting(truncate=1.0), "truncate: expected"),
        (lambda: RandomAttentionPretraining(law="odd"), "law: expected one of"),
        (lambda: RandomAttentionPretraining(then="warm"), "then: expected"),  # type: ignore[arg-type]
        (lambda: RandomAttentionPretraining(weighting=InstanceWeighting()), "weighting: has an effect"),
    ],
)
def test_options_out_of_range_are_named(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
