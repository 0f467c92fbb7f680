"""A refresh: masks as shown, weights by the closed form, and the loss they weight."""

from __future__ import annotations

import copy
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom
from torch import Tensor

from causal_attn.data import Data, worlds
from causal_attn.errors import SupportWarning
from causal_attn.masks import MaskSample
from causal_attn.selection import SelectionModel
from causal_attn.training import InstanceWeighting, loop, train
from causal_attn.training.weighting import SWAP_BLOCK, Plan, _explore, _log_weights, _unusable, refresh

from .toys import Fixed, fixed_data, moved_names, small_text, wrapped


@pytest.fixture(scope="module")
def leaky() -> Data:
    """Rows whose fixed masks tell the class, not surely."""
    sample = worlds.Gaussian().sample(500, seed=0)
    return fixed_data(sample.masks, torch.randn(sample.masks.shape), sample.y)


def refreshed(data: Data, weighting: InstanceWeighting, seed: int = 0) -> Plan:
    """The plan of the second refresh, the first with weights."""
    model = Fixed("evidence")
    first = refresh(model, data.train, weighting, None, seed)
    assert first.fit is None
    assert (first.weight == 1).all()
    return refresh(model, data.train, weighting, first, seed + 1)


@pytest.mark.parametrize("explore", [0.0, 0.3])
@pytest.mark.parametrize("truncate", [None, 1.5])
def test_weights_have_mean_one_over_the_split(leaky: Data, explore: float, truncate: float | None) -> None:
    plan = refreshed(leaky, InstanceWeighting(explore=explore, truncate=truncate))
    assert float(plan.weight.double().mean()) == pytest.approx(1, abs=1e-6)
    assert float(plan.weight.std()) > 0.05
    w = plan.weight.double()
    assert plan.ess == pytest.approx(float(w.sum() ** 2 / w.square().sum()), rel=1e-5)
    if truncate is not None and not explore:
        assert plan.fit is not None
        whole = plan.fit.weights(n_draws=50).log_w.exp().clamp(max=truncate)
        torch.testing.assert_close(w, whole / whole.mean(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.7])
def test_explored_weights_follow_the_closed_form_and_stay_below_one_over_epsilon(share: float) -> None:
    sample = worlds.Gaussian(strength=1.5).sample(400, seed=1)
    fit = SelectionModel().fit(sample, seed=0, progress=False, n_draws=20)
    explored, shown = _explore(sample, fit.fold, share, np.random.default_rng(0))
    assert shown is not None
    log_w = _log_weights(fit, fit.weights(n_draws=20), explored, shown, share)
    prior = sample.prior
    for i in range(0, 400, 7):
        phi = fit.feature_map(shown[i : i + 1], sample.valid[i : i + 1])
        r = fit.fold_fits[int(fit.fold[i])].mean_log_prob(phi)[0].exp()  # the model that did not see row i
        p, k = float(prior[sample.y[i]]), int(sample.y[i])
        assert float(log_w[i].exp()) == pytest.approx(p / ((1 - share) * float(r[k]) + share * p), rel=1e-8)
    assert float(log_w.exp().max()) <= 1 / share + 1e-9


def test_without_exploration_weights_are_the_cross_fitted_ones() -> None:
    sample = worlds.Gaussian().sample(300, seed=1)
    fit = SelectionModel().fit(sample, seed=0, progress=False, n_draws=20)
    weights = fit.weights(n_draws=20)
    none, shown = _explore(sample, fit.fold, 0.0, np.random.default_rng(0))
    assert shown is None
    assert not none.any()
    assert torch.equal(_log_weights(fit, weights, none, None, 0.0), weights.log_w)


def test_swapping_permutes_masks_within_folds() -> None:
    masks = torch.rand(203, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sample = MaskSample(masks / masks.sum(-1, keepdim=True), torch.arange(203) % 2)
    fold = torch.arange(203) % 5
    explored, shown = _explore(sample, fold, 1.0, np.random.default_rng(0))
    assert explored.all()
    assert shown is not None
    for number in range(5):
        rows = fold == number
        torch.testing.assert_close(shown[rows].sort(0).values, sample.masks[rows].sort(0).values)
    same = float(torch.isclose(shown, sample.masks).all(-1).double().mean())
    assert same < 3 / SWAP_BLOCK  # a random permutation fixes one row a block


def ragged(n: int) -> MaskSample:
    g = torch.Generator().manual_seed(2)
    valid = torch.arange(30) < torch.randint(1, 31, (n, 1), generator=g)
    masks = torch.rand(n, 30, generator=g, dtype=torch.float64) * valid
    return MaskSample(masks / masks.sum(-1, keepdim=True), torch.arange(n) % 2, valid)


def test_explored_masks_lie_on_what_exists_and_come_from_rows_of_like_length() -> None:
    sample = ragged(1000)
    explored, shown = _explore(sample, torch.zeros(1000, dtype=torch.long), 1.0, np.random.default_rng(1))
    assert explored.all()
    assert shown is not None
    assert (shown[~sample.valid] == 0).all()
    torch.testing.assert_close(shown.sum(-1), torch.ones(1000, dtype=torch.float64))
    lengths = sample.valid.sum(-1)
    reach = (shown > 0).sum(-1)  # the shorter of a row and its partner
    assert int((lengths - reach).max()) <= 2  # 16 neighbours of 1000 rows with 30 lengths


def test_a_refresh_swaps_within_the_folds_of_its_selection_model(leaky: Data) -> None:
    plan = refreshed(leaky, InstanceWeighting(explore=0.9))
    assert plan.fit is not None
    assert plan.shown is not None
    for i in plan.explored.nonzero()[:, 0].tolist():
        donors = torch.isclose(plan.fit.sample.masks, plan.shown[i]).all(-1)
        assert (plan.fit.fold[donors] == plan.fit.fold[i]).any()


def test_the_share_explored_is_the_one_asked_for_and_the_others_keep_their_masks() -> None:
    sample = ragged(5000)
    explored, shown = _explore(sample, torch.arange(5000) % 5, 0.3, np.random.default_rng(3))
    assert shown is not None
    low, high = binom.interval(0.9999, 5000, 0.3)
    assert low <= int(explored.sum()) <= high
    assert torch.equal(shown[~explored], sample.masks[~explored])
    assert abs(float(explored[sample.y == 0].double().mean() - explored[sample.y == 1].double().mean())) < 0.06


def test_a_leak_without_support_is_warned_of_and_none_is_not() -> None:
    leak = worlds.DeterministicLeak().sample(1200, seed=0)
    data = fixed_data(leak.masks, torch.randn(leak.masks.shape), leak.y)
    with pytest.warns(SupportWarning, match=r"\d+% of Q .* would need weights above 10"):
        refreshed(data, InstanceWeighting())
    null = worlds.Null().sample(400, seed=0)
    data = fixed_data(null.masks, torch.randn(null.masks.shape), null.y)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SupportWarning)
        plan = refreshed(data, InstanceWeighting(explore=0.2))
    assert plan.support_deficit < 0.2


# ------------------------------------------------------------------------------------------------ the weighted loss


def plan_of(n: int, width: int | None = None) -> Plan:
    g = torch.Generator().manual_seed(0)
    w = torch.rand(n, generator=g).double() ** 3
    explored = torch.rand(n, generator=g) < 0.5
    shown = None if width is None else torch.rand(n, width, generator=g)
    return Plan((w / w.mean()).float(), explored & (shown is not None), shown, None)


def by_hand(model: Any, data: Data, plan: Plan) -> Tensor:
    """Σ w L / Σ w over the training split, masks as shown."""
    x, y = data.train.batch(torch.arange(len(data.train)))
    m = model.masks(x)
    if plan.shown is not None:
        m = torch.where(plan.explored[:, None], plan.shown[:, : m.shape[1]], m)
    losses = torch.nn.functional.cross_entropy(model.predict(x, m), y, reduction="none")
    return (plan.weight * losses).sum() / plan.weight.sum()


@pytest.mark.parametrize("width", [None, 4], ids=["own masks", "explored masks"])
def test_a_full_batch_step_goes_down_the_weighted_loss(
    bags: Data, width: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(len(bags.train), width)
    monkeypatch.setattr(loop, "refresh", lambda *args: plan)
    model = wrapped()
    result = train(
        model, bags, InstanceWeighting(), epochs=1, batch_size=len(bags.train), learning_rate=0.1, weight_decay=0.01,
        progress=False,
    )  # fmt: skip
    mine = copy.deepcopy(model)
    loss = by_hand(mine, bags, plan)
    assert result.history["loss_nats"][0] == pytest.approx(float(loss.detach()), rel=1e-5)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(mine.parameters(), 1.0)
    optimiser = torch.optim.AdamW(mine.parameters(), 0.1, weight_decay=0.01)
    optimiser.step()
    for value, other in zip(mine.parameters(), result.model.parameters(), strict=True):
        assert value.grad is not None
        told = (
            value.grad.abs() > 1e-5
        )  # a bias before the softmax has gradient 0 but for rounding, and AdamW blows it up
        torch.testing.assert_close(value[told], other[told], rtol=1e-4, atol=1e-5)
    assert sum(int((value.grad.abs() > 1e-5).sum()) for value in mine.parameters() if value.grad is not None) > 15


def test_the_loss_of_an_epoch_is_weighted_over_the_split_not_per_batch(
    bags: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(len(bags.train))
    monkeypatch.setattr(loop, "refresh", lambda *args: plan)
    result = train(
        wrapped(), bags, InstanceWeighting(), epochs=1, batch_size=7, learning_rate=1e-12, weight_decay=0.0,
        progress=False,
    )  # fmt: skip
    with torch.no_grad():
        assert result.history["loss_nats"][0] == pytest.approx(float(by_hand(wrapped(), bags, plan)), rel=1e-5)


def test_constant_weights_are_no_weights(tokens: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    n = len(tokens.train)
    flat = Plan(torch.ones(n), torch.zeros(n, dtype=torch.bool), None, None)
    monkeypatch.setattr(loop, "refresh", lambda *args: flat)
    few: dict[str, Any] = {"epochs": 2, "batch_size": 16, "learning_rate": 0.02, "progress": False}
    weighted, plain = train(small_text(), tokens, InstanceWeighting(), **few), train(small_text(), tokens, **few)
    assert not moved_names(weighted.model, plain.model)


@pytest.mark.parametrize("n", [10, 97, 400])
def test_an_explored_row_is_shown_another_rows_mask_and_every_mask_is_used_once(n: int) -> None:
    sample = worlds.Gaussian(n_positions=6).sample(n, seed=2)
    _, shown = _explore(sample, torch.arange(n) % 5, 0.999999, np.random.default_rng(0))
    assert shown is not None
    gap = torch.cdist(shown, sample.masks)  # moved masks are normalised again, so equal up to rounding
    source = gap.argmin(1)
    assert gap.amin(1).max() < 1e-7
    assert (source != torch.arange(n)).all()
    assert len(source.unique()) == n
    assert (source % 5 == torch.arange(n) % 5).all()  # and of the same fold


# ------------------------------------------------------------------------------- swaps in a world of a few mask types


@pytest.mark.parametrize("share", [0.1, 0.3, 0.7])
def test_swap_weights_equal_those_of_the_exact_mixture(share: float) -> None:
    """P'(y, j) = (1−ε) P(y, j) + ε P(y) P(j) by the table; w = P(y) / P'(y | j), and averages under it are Q's."""
    world = worlds.Tabular(n_classes=3, n_types=6, strength=1.5)
    sample = world.sample(20_000, seed=2)
    fold = torch.arange(sample.n) % 5
    explored, shown = _explore(sample, fold, share, np.random.default_rng(1))
    assert shown is not None
    exact: Any = SimpleNamespace(
        sample=sample, log_prior=world.prior.log(), held_out_log_prob=lambda masks, valid: world.log_prob(masks)
    )
    log_w = _log_weights(exact, exact, explored, shown, share)
    posterior = world.log_prob(world.types).exp()  # (J, K)
    joint = posterior * world.type_prior[:, None]
    mixed = (1 - share) * joint + share * world.type_prior[:, None] * world.prior
    table = world.prior / (mixed / mixed.sum(-1, keepdim=True))
    kind = (shown[:, None] - world.types).abs().sum(-1).argmin(-1)
    torch.testing.assert_close(log_w.exp(), table[kind, sample.y], rtol=1e-8, atol=1e-8)
    w = log_w.exp()
    for j in range(6):
        for k in range(3):
            part = w * ((kind == j) & (sample.y == k))
            expected = float(world.type_prior[j] * world.prior[k])
            error = float(part.std()) / sample.n**0.5
            assert abs(float(part.mean()) - expected) < 4.5 * error + 0.002  # swaps are within blocks of 16, not draws


def test_a_known_law_is_part_of_the_masks_that_are_fitted(leaky: Data) -> None:
    plan = refreshed(leaky, InstanceWeighting(explore=0.5, law="dirichlet"))
    assert plan.fit is not None
    assert plan.shown is not None
    n = len(leaky.train)
    low, high = binom.interval(0.9999, n, 0.5)
    assert low <= int(plan.explored.sum()) <= high
    w = plan.fit.weights(n_draws=50).log_w.exp()
    torch.testing.assert_close(w / w.mean(), plan.weight.double(), rtol=1e-5, atol=1e-6)


def test_weights_by_one_draw_are_a_draw(leaky: Data) -> None:
    plan = refreshed(leaky, InstanceWeighting(use="draw"))
    assert plan.fit is not None
    draws = plan.fit.weights(n_draws=50).draws.double().exp()
    draws = draws / draws.mean(-1, keepdim=True)
    assert float((draws - plan.weight.double()).abs().amax(-1).min()) < 1e-4


def test_an_over_confident_cross_fit_gives_no_weights() -> None:
    y = torch.arange(200) % 2
    held_out = torch.where(y[:, None] == torch.arange(2), 0.05, 0.95).log()  # sure, and wrong
    fit: Any = SimpleNamespace(
        sample=SimpleNamespace(y=y), log_prior=torch.tensor([0.5, 0.5]).log(), held_out_log_prob=lambda: held_out
    )
    assert "worse than the class shares do, by 2.3" in _unusable(fit, 200.0)
    fit.held_out_log_prob = lambda: torch.tensor([[0.5, 0.5]]).log().expand(200, 2)
    assert _unusable(fit, 200.0) == ""
    assert "effective sample size is 9 of 200 rows" in _unusable(fit, 9.0)
