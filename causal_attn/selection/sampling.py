"""Other inference for the same Pyro model: stochastic variational inference with any AutoGuide, and NUTS.

Both return draws of θ in the layout of the response. They start from the mode, and use the prior scale found there.
"""

from __future__ import annotations

from typing import Any

import pyro
import torch
from pyro.infer import MCMC, NUTS, SVI, Trace_ELBO, autoguide
from pyro.infer.autoguide.initialization import init_to_value
from pyro.optim import ExponentialLR  # type: ignore[attr-defined]  # made at import time
from torch import Tensor

from causal_attn.attention.seeding import forked_rng
from causal_attn.errors import InputError
from causal_attn.selection.model import SelectionStory

SVI_STEPS = 1500
SVI_RATE = 0.02
BATCH_ROWS = 20_000
"""Rows above which every SVI step sees a random part of them."""
ELBO_EVERY = 25
N_ELBO_DRAWS = 64
WARMUP = 300


ABSTRACT = ("AutoGuide", "AutoContinuous", "AutoGuideList", "AutoDiscreteParallel", "AutoMessenger")
"""Guides that are bases of others, or stand for discrete sites: none of them can be fitted here."""


def guide_class(guide: Any) -> type[autoguide.AutoGuide]:
    """The AutoGuide class meant by "auto", a name in pyro.infer.autoguide, or the class itself."""
    if guide == "auto":
        return autoguide.AutoMultivariateNormal
    found = getattr(autoguide, guide, None) if isinstance(guide, str) else guide
    if not (isinstance(found, type) and issubclass(found, autoguide.AutoGuide)) or found.__name__ in ABSTRACT:
        raise InputError(f"guide: expected 'auto', the name of a Pyro AutoGuide, or such a class, got {guide!r}")
    return found


def _start(theta: Tensor) -> dict[str, Tensor]:
    return {"weights": theta[:-1], "intercept": theta[-1]}


def svi_draws(
    story: SelectionStory, phi: Tensor, y: Tensor, theta: Tensor, guide: Any, n_draws: int, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Draws (S, d+1, J) of a fitted guide, the trace of its ELBO (nats), and log joint − log guide per draw (S,)."""
    s = torch.ones(len(y), dtype=phi.dtype)
    with pyro.get_param_store().scope(), forked_rng(seed), torch.enable_grad():
        kind: Any = guide_class(guide)
        made = kind(story.on_features, init_loc_fn=init_to_value(values=_start(theta)))
        rate: Any = ExponentialLR(
            {"optimizer": torch.optim.Adam, "optim_args": {"lr": SVI_RATE}, "gamma": 0.01 ** (1 / SVI_STEPS)}
        )
        svi = SVI(story.on_features, made, rate, Trace_ELBO())
        trace = [-svi.evaluate_loss(phi, y, s)]
        for step in range(SVI_STEPS):
            svi.step(phi, y, s, batch=min(BATCH_ROWS, len(y)))
            rate.step()
            if step % ELBO_EVERY == ELBO_EVERY - 1:
                trace.append(-svi.evaluate_loss(phi, y, s, batch=min(BATCH_ROWS, len(y))))
        with torch.no_grad():
            drawn = [_one_draw(story, made, phi, y, s) for _ in range(n_draws)]
    theta_draws = torch.stack([theta for theta, _ in drawn])
    ratios = torch.stack([ratio for _, ratio in drawn])
    trace.append(float(ratios[:N_ELBO_DRAWS].mean()))
    return theta_draws, torch.tensor(trace, dtype=torch.float64), ratios


def _one_draw(story: SelectionStory, guide: Any, phi: Tensor, y: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    own = pyro.poutine.trace(guide).get_trace(phi, y, s)
    joint = pyro.poutine.trace(pyro.poutine.replay(story.on_features, trace=own)).get_trace(phi, y, s)
    theta = torch.cat([own.nodes["weights"]["value"], own.nodes["intercept"]["value"][None]])
    return theta.double(), (joint.log_prob_sum() - own.log_prob_sum()).double()


def nuts_draws(story: SelectionStory, phi: Tensor, y: Tensor, theta: Tensor, n_draws: int, seed: int) -> Tensor:
    """Draws (S, d+1, J) by NUTS: exact in the limit, slow; the reference on small n."""
    s = torch.ones(len(y), dtype=phi.dtype)
    with pyro.get_param_store().scope(), forked_rng(seed), torch.enable_grad():
        kernel = NUTS(story.on_features)
        chain = MCMC(kernel, n_draws, WARMUP, initial_params=_start(theta), disable_progbar=True)
        chain.run(phi, y, s)
        drawn = chain.get_samples()
    return torch.cat([drawn["weights"], drawn["intercept"][:, None]], 1).double()
