"""The generative story against enumeration: its trace, its forward run, and why the factor −log Z(m) is there."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO

from causal_attn.data.worlds import Tabular
from causal_attn.errors import InputError
from causal_attn.selection.model import SelectionStory, log1mexp, log_normaliser, log_propensity
from causal_attn.selection.response import contrasts, linear_log_prob

WORLD = Tabular(n_classes=3, n_types=4, n_positions=5, prior=[0.2, 0.3, 0.5], type_prior=[0.1, 0.2, 0.3, 0.4])


def story_of(world, **changes):
    """A story whose features are the one-hot type of each mask."""
    one_hot = lambda masks, valid: torch.nn.functional.one_hot(world.type_of(masks), world.n_types).double()  # noqa: E731
    return SelectionStory(world.prior.log(), 1.0, one_hot, **changes)


def right_parameters(world):
    """W (J, K−1) and b for which r(k|m) is the world's P(k|m) exactly."""
    log_ratio = world.ratio.log()  # log r − log Q, shape (K, J)
    return {"weights": log_ratio.T @ contrasts(world.n_classes).T, "intercept": torch.zeros(world.n_classes - 1)}


def conditioned(world, parameters=None, **changes):
    return poutine.condition(story_of(world, **changes), data=parameters or right_parameters(world))


def site_log_prob(model, *args, **kwargs):
    """log-probability of each site of one run, shape of its batch."""
    trace = poutine.trace(model).get_trace(*args, **kwargs)
    trace.compute_log_prob()
    return {name: site["log_prob"] for name, site in trace.nodes.items() if site["type"] == "sample"}


# ------------------------------------------------------------------------------------------------ the density


@pytest.mark.parametrize("log_base_rate", [None, torch.tensor(0.01, dtype=torch.float64).log()])
def test_the_trace_of_kept_rows_is_the_normalised_classifier(log_base_rate):
    sample = WORLD.sample(60, 0)
    theta = {"weights": torch.randn(4, 2), "intercept": torch.randn(2)}
    model = conditioned(WORLD, theta, log_base_rate=log_base_rate)
    sites = site_log_prob(model, sample.masks, sample.y, torch.ones(60))
    phi = torch.nn.functional.one_hot(WORLD.type_of(sample.masks), 4).double()
    log_r = linear_log_prob(torch.cat([theta["weights"], theta["intercept"][None]]), phi, WORLD.prior.log())
    own = log_r.gather(1, sample.y[:, None])[:, 0]
    # log Q(y) + log π(y,m) − log Z(m) with π = c·r/Q(y) and Z = c: nothing is left over but log r(y|m).
    torch.testing.assert_close(sites["y"] + sites["s"] + sites["selected"], own, atol=1e-10, rtol=0)
    torch.testing.assert_close(sites["y"], WORLD.prior.log()[sample.y])
    log_c = WORLD.prior.min().log() if log_base_rate is None else log_base_rate
    torch.testing.assert_close(sites["selected"], -log_c.expand(60), atol=1e-12, rtol=0)
    torch.testing.assert_close(sites["weights"], dist.Normal(0, 1).log_prob(theta["weights"]).sum())
    assert sites["intercept"] == 0


def test_the_normaliser_is_the_base_rate_for_any_classifier():
    log_r = (10 * torch.randn(500, 4)).log_softmax(-1)
    log_prior = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
    for c in (0.1, 1e-9):
        log_pi = log_propensity(log_r, log_prior, torch.tensor(c).log())
        torch.testing.assert_close(
            log_normaliser(log_pi, log_prior), torch.full((500,), math.log(c)), atol=1e-12, rtol=0
        )
    assert (log_propensity(log_r, log_prior, log_prior.min()) <= 1e-12).all()  # the convention keeps π ≤ 1


def test_unselected_rows_have_the_conditional_law_too():
    j = torch.arange(4).repeat_interleave(3)
    y = torch.arange(3).repeat(4)
    sites = site_log_prob(conditioned(WORLD), WORLD.types[j], y, torch.zeros(12))
    got = (sites["y"] + sites["s"] + sites["selected"]).exp().reshape(4, 3).T
    pi = WORLD.propensity()
    expected = WORLD.prior[:, None] * (1 - pi)
    torch.testing.assert_close(got, expected / expected.sum(0))


def test_the_propensity_of_the_story_is_the_worlds():
    log_r = (WORLD.joint / WORLD.type_prior).log().T
    log_pi = log_propensity(log_r, WORLD.prior.log(), WORLD.prior.min().log())
    torch.testing.assert_close(log_pi.exp().T, WORLD.propensity())


def test_s_without_y_is_refused():
    with pytest.raises(InputError, match="y: expected classes where s is given"):
        story_of(WORLD)(WORLD.types, None, torch.ones(4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log1mexp_and_its_gradient_at_both_ends(dtype):
    log_p = torch.tensor([-800.0, -50.0, -1.0, -math.log(2), -1e-3, -1e-6], dtype=dtype, requires_grad=True)
    got = log1mexp(log_p)
    truth = [-0.0, -math.exp(-50), math.log1p(-math.exp(-1)), -math.log(2)]
    truth += [math.log(-math.expm1(-x)) for x in (1e-3, 1e-6)]
    torch.testing.assert_close(
        got, torch.tensor(truth, dtype=dtype), rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=0
    )
    got.sum().backward()
    assert torch.isfinite(log_p.grad).all()
    assert torch.isfinite(log1mexp(torch.tensor([-1e-15], dtype=torch.float64))).all()


@pytest.mark.parametrize("scale", [30.0, 300.0])
def test_extreme_propensities_keep_their_log_density_and_gradient(scale):
    sample = WORLD.sample(40, 1)
    weights = (scale * torch.randn(4, 2)).requires_grad_()
    model = conditioned(WORLD, {"weights": weights, "intercept": torch.zeros(2)})
    sites = site_log_prob(model, sample.masks, sample.y, torch.ones(40))
    phi = torch.nn.functional.one_hot(WORLD.type_of(sample.masks), 4).double()
    log_r = linear_log_prob(torch.cat([weights, torch.zeros(1, 2)]), phi, WORLD.prior.log())
    own = log_r.gather(1, sample.y[:, None])[:, 0]
    total = sites["y"] + sites["s"] + sites["selected"]
    torch.testing.assert_close(total, own, atol=1e-10, rtol=1e-12)
    (gradient,) = torch.autograd.grad(total.sum(), weights, retain_graph=True)
    torch.testing.assert_close(gradient, torch.autograd.grad(own.sum(), weights)[0], atol=1e-8, rtol=1e-8)


# ------------------------------------------------------------------------------------------------ run forwards


def test_run_forwards_the_kept_rows_follow_p_and_the_share_kept_is_c():
    n = 100_000
    j = dist.Categorical(WORLD.type_prior).sample((n,))
    rows = conditioned(WORLD)(WORLD.types[j])
    y, kept = rows["y"], rows["s"] == 1
    c = float(WORLD.prior.min())
    assert abs(float(kept.double().mean()) - c) < 4 * math.sqrt(c * (1 - c) / n)
    table = torch.zeros(3, 4).index_put((y[kept], j[kept]), torch.ones(int(kept.sum())), accumulate=True)
    size = float(kept.sum())
    error = (WORLD.joint * (1 - WORLD.joint) / size).sqrt()
    assert ((table / size - WORLD.joint).abs() < 4.5 * error).all()
    assert ((WORLD.joint - torch.outer(WORLD.prior, WORLD.type_prior)).abs() > 10 * error).any()  # P is not Q
    q = torch.zeros(3, 4).index_put((y, j), torch.ones(n), accumulate=True) / n
    product = torch.outer(WORLD.prior, WORLD.type_prior)
    assert ((q - product).abs() < 4.5 * (product / n).sqrt()).all()


def test_an_unconditioned_run_starts_from_the_prior():
    rows = story_of(WORLD)(WORLD.types[torch.zeros(50, dtype=torch.long)])
    assert rows["y"].shape == rows["s"].shape == (50,)


# ------------------------------------------------------------------------------------------------ outer plates


@pytest.mark.parametrize("n", [1, 20])
def test_particles_at_once_are_the_same_as_one_by_one(n):
    sample = WORLD.sample(n, 0)
    drawn = {}

    def guide(masks, y, s):
        for name, shape in (("weights", (4, 2)), ("intercept", (2,))):
            law = dist.Normal(torch.zeros(shape), 0.7 * torch.ones(shape)).to_event(len(shape))
            drawn[name] = pyro.sample(name, law)

    data = (sample.masks, sample.y, torch.ones(n))
    elbo = Trace_ELBO(num_particles=5, vectorize_particles=True, max_plate_nesting=1)
    together = elbo.loss(story_of(WORLD), guide, *data)
    parts = []
    for i in range(5):
        one = {name: value[i].reshape(shape) for (name, value), shape in zip(drawn.items(), ((4, 2), (2,)))}
        density = sum(float(lp.sum()) for lp in site_log_prob(conditioned(WORLD, one), *data).values())
        parts.append(density - sum(float(dist.Normal(0, 0.7).log_prob(v).sum()) for v in one.values()))
    assert together == pytest.approx(-sum(parts) / 5, rel=1e-10)


def test_predictive_in_parallel_and_in_turn_follow_the_same_law():
    draws = {"weights": 2 * torch.randn(3, 4, 2), "intercept": torch.randn(3, 2)}
    masks = WORLD.types[torch.arange(4).repeat(5000)]
    for parallel in (True, False):
        out = Predictive(story_of(WORLD), draws, return_sites=("y", "s"), parallel=parallel)(masks)
        assert out["y"].shape == out["s"].shape == (3, 20_000)
        for i in range(3):  # P(s=1, y=k | m) = Q(k) π(k, m) = c r(k|m)
            theta = torch.cat([draws["weights"][i], draws["intercept"][i][None]])
            expected = WORLD.prior.min() * linear_log_prob(theta, torch.eye(4), WORLD.prior.log()).exp()
            hit = torch.nn.functional.one_hot(out["y"][i], 3) * out["s"][i][:, None]
            share = hit.reshape(5000, 4, 3).mean(0)
            assert ((share - expected).abs() < 5 * (expected / 5000).sqrt() + 1e-3).all()


def test_nuts_runs_on_the_story():
    sample = WORLD.sample(60, 0)
    mcmc = MCMC(NUTS(story_of(WORLD), max_tree_depth=4), num_samples=8, warmup_steps=8, disable_progbar=True)
    mcmc.run(sample.masks, sample.y, torch.ones(60))
    samples = mcmc.get_samples()
    assert samples["weights"].shape == (8, 4, 2)
    assert samples["intercept"].shape == (8, 2)
    assert torch.isfinite(samples["weights"]).all()
    assert samples["intercept"].std() > 0
    out = Predictive(story_of(WORLD), samples, return_sites=("s",), parallel=True)(sample.masks)
    assert out["s"].shape == (8, 60)


# ------------------------------------------------------------------------------------------------ the factor


def fitted_classifier(world, factor):
    """r(k|m) after SVI on kept rows with a propensity π = sigmoid(table) that is free in every cell."""
    sample = world.sample(2000, 0)
    j = world.type_of(sample.masks)
    log_prior = world.prior.log()

    def model():
        log_pi = torch.nn.functional.logsigmoid(pyro.param("table", torch.zeros(world.n_types, world.n_classes)))[j]
        with pyro.plate("rows", len(j)):
            y = pyro.sample("y", dist.Categorical(logits=log_prior.expand(len(j), -1)), obs=sample.y)
            own = log_pi.gather(1, y[:, None])[:, 0]
            pyro.sample("s", dist.Bernoulli(logits=own - log1mexp(own)), obs=torch.ones(len(j)))
            if factor:
                pyro.factor("selected", -log_normaliser(log_pi, log_prior))

    svi = SVI(model, lambda: None, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
    for _ in range(300):
        svi.step()
    log_pi = torch.nn.functional.logsigmoid(pyro.param("table").detach())
    log_r = (log_prior + log_pi).log_softmax(-1)
    return log_pi, -float((world.joint.T * log_r).sum())


def test_a_free_propensity_collapses_to_the_prior_without_the_factor():
    world = Tabular(n_classes=3, n_types=4, strength=1.5, prior=[0.2, 0.3, 0.5])
    entropy = -float((world.prior * world.prior.log()).sum())
    best = -float((world.joint * (world.joint / world.type_prior).log()).sum())
    log_pi, loss = fitted_classifier(world, factor=False)
    assert log_pi.exp().min() > 0.99
    assert loss == pytest.approx(entropy, abs=0.01)
    pyro.clear_param_store()
    _, loss = fitted_classifier(world, factor=True)
    assert loss == pytest.approx(best, abs=0.01)
    assert best < entropy - 0.1
