"""The network response."""

import pytest
import torch

from causal_attn.data.worlds import Logistic
from causal_attn.selection import SelectionModel, fits, network
from causal_attn.selection.network import fit_hidden

MLP = SelectionModel(response="mlp", features=lambda m, v: m.log()[:, :2] - m.log()[:, 2:3])


@pytest.fixture
def quick(monkeypatch):
    """Two members, few steps."""
    monkeypatch.setattr(fits, "N_MEMBERS", 2)
    monkeypatch.setattr(network, "STEPS", 120)


def fitted(sample, model=MLP, seed=0, n_draws=9):
    return model.fit(sample, folds=2, seed=seed, progress=False, n_draws=n_draws)


@pytest.fixture(scope="module")
def world():
    """Two classes that only the product of two features tells apart."""
    return Logistic(
        2, 3, law="logistic-normal", interaction=True, coefficients=[[0, 0, 0, -2.0], [0, 0, 0, 2.0]]
    )  # fmt: skip


def test_an_interaction_is_learnt_that_the_linear_response_cannot_see(world, quick):
    sample = world.sample(400, 0)
    linear = fitted(sample, SelectionModel(features=MLP.features))
    net = fitted(sample)
    assert linear.held_out_log_loss > linear.prior_log_loss - 0.03
    assert net.held_out_log_loss < linear.held_out_log_loss - 0.1
    error = lambda fit: (fit.weights().log_w - world.log_w(sample)).square().mean().sqrt()  # noqa: E731
    assert error(net) < 0.8 * error(linear)
    p = net.log_prob(sample.masks)
    assert p.shape == (9, 400, 2)  # 5 of one member, 4 of the other
    assert [m.n_draws for m in net.final.members] == [5, 4]
    torch.testing.assert_close(net.final.mean_log_prob(net.phi), p.logsumexp(0) - torch.tensor(9.0).log())
    assert net.weights().draws.shape == (9, 400)
    assert net.vi_khat < 0.7


def test_it_is_the_same_for_the_same_seed_and_leaves_the_global_state_alone(world, quick):
    sample = world.sample(100, 0)
    before = torch.get_rng_state()
    one = fitted(sample).weights().log_w
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(5)
    torch.set_default_dtype(torch.float32)
    assert torch.equal(fitted(sample).weights().log_w, one)
    assert not torch.equal(fitted(sample, seed=1).weights().log_w, one)


def test_a_warm_start_does_not_carry_units_over_between_folds(world, quick):
    sample = world.sample(100, 0)
    cold = fitted(sample)
    warm = MLP.fit(sample, folds=2, progress=False, n_draws=9, warm_start=cold)
    torch.testing.assert_close(warm.weights().log_w, cold.weights().log_w)
    assert not torch.equal(cold.final.hidden[0].weight, cold.fold_fits[0].hidden[0].weight)


def test_hidden_units_are_standardised_and_dead_ones_are_nothing(quick):
    phi = torch.randn(50, 2)
    hidden = fit_hidden(phi, torch.arange(50) % 2, torch.tensor([0.5, 0.5]).log(), 0)
    units = hidden(phi)
    assert torch.equal(units[:, :2], phi)
    torch.testing.assert_close(units[:, 2:].mean(0), torch.zeros(network.HIDDEN))
    torch.testing.assert_close(units[:, 2:].std(0, correction=0), torch.ones(network.HIDDEN))
    flat = fit_hidden(torch.zeros(10, 2), torch.arange(10) % 2, torch.tensor([0.5, 0.5]).log(), 0)
    assert torch.equal(flat(torch.zeros(3, 2)), torch.zeros(3, 2 + network.HIDDEN))


def test_fewer_draws_than_members_make_fewer_members(world, quick):
    assert len(fitted(world.sample(60, 0), n_draws=1).final.members) == 1
