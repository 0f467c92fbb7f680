"""Post-hoc scores on a linear bag of words, where gradient, integrated gradients, leave-one-out and Shapley agree."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from causal_attn.errors import InputError
from causal_attn.faithfulness import SCORERS
from causal_attn.faithfulness.scores import checked_scores, log_odds
from causal_attn.masks import MaskSample
from causal_attn.training.collect import collect_masks
from tests.training.toys import Fixed, fixed_data, small_text, token_data

C = 2.0


def linear(n: int = 12, t: int = 5, seed: int = 0) -> tuple[Fixed, Any, MaskSample, Tensor]:
    """log-odds of class 1 are C Σ_t m_t e_t."""
    g = torch.Generator().manual_seed(seed)
    masks = torch.randn(n, t, generator=g).softmax(-1)
    evidence, y = torch.randn(n, t, generator=g), torch.arange(n) % 2
    data = fixed_data(masks, evidence, y)
    return Fixed("evidence under the mask", C), data.test, MaskSample(masks, y), C * masks * evidence


def shapley(values: np.ndarray) -> np.ndarray:
    """Over all orders, of the game whose worth is the log-odds of the words that are present."""
    t = len(values)
    total, count = np.zeros(t), 0
    for order in permutations(range(t)):
        worth = 0.0
        for place in order:
            total[place] += (worth + values[place]) - worth
            worth += values[place]
        count += 1
    return total / count


def test_they_agree_on_a_linear_model() -> None:
    model, split, sample, terms = linear()
    predicted = (terms.sum(-1) > 0).long()
    expected = (terms * (2 * predicted - 1)[:, None]).double()
    for name in ("gradient", "integrated_gradients"):
        torch.testing.assert_close(SCORERS[name](model, split, sample, 0), expected, atol=1e-5, rtol=1e-4)
    np.testing.assert_allclose(shapley(expected[0].numpy()), expected[0].numpy(), atol=1e-12)
    whole = expected.sum(-1, keepdim=True)
    falls = whole.sigmoid() - (whole - expected).sigmoid()
    torch.testing.assert_close(SCORERS["leave_one_out"](model, split, sample, 0), falls, atol=1e-5, rtol=1e-4)


def test_integrated_gradients_sum_to_the_change_of_the_log_odds() -> None:
    data = token_data(60)
    model = small_text("recurrent", seed=1).eval()
    masks, valid = collect_masks(model, data.test)
    sample = MaskSample(masks, data.test.y, valid)
    scores = SCORERS["integrated_gradients"](model, data.test, sample, 0)
    x, _ = data.test.batch(torch.arange(len(data.test)))
    with torch.no_grad():
        at, zero = model.predict(x, masks[:, : x.shape[1]]), model.predict(x, torch.zeros_like(masks[:, : x.shape[1]]))
    target = at.argmax(-1)
    change = (log_odds(at, target) - log_odds(zero, target)).double()
    torch.testing.assert_close(scores.sum(-1), change, atol=2e-3, rtol=2e-2)
    assert (scores[~valid] == 0).all()


@pytest.mark.parametrize("name", sorted(SCORERS))
def test_padding_has_no_score_and_models_keep_their_state(name: str) -> None:
    data = token_data(60)
    model = small_text("recurrent")
    model.train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    masks, valid = collect_masks(model, data.test)
    sample = MaskSample(masks, data.test.y, valid)
    one, same = (SCORERS[name](model, data.test, sample, 3) for _ in range(2))
    assert one.shape == masks.shape
    assert (one[~valid] == 0).all()
    assert torch.equal(one, same)
    assert model.training
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_leave_one_out_in_blocks_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from causal_attn.faithfulness import scores

    model, split, sample, _ = linear(n=30)
    whole = scores.leave_one_out(model, split, sample)
    monkeypatch.setattr(scores, "LOO_ENTRIES", 100)
    torch.testing.assert_close(scores.leave_one_out(model, split, sample), whole)


def test_log_odds_do_not_move_with_a_shift() -> None:
    z, k = torch.randn(6, 4, dtype=torch.float64), torch.arange(6) % 4
    torch.testing.assert_close(log_odds(z + 7, k), log_odds(z, k))
    p = z.softmax(-1).gather(-1, k[:, None])[:, 0]
    torch.testing.assert_close(log_odds(z, k), p.log() - (1 - p).log())


def test_scores_made_elsewhere_are_checked() -> None:
    *_, sample, _ = linear()
    with pytest.raises(InputError, match=r"lime: expected shape \(12, 5\), got \(12, 4\)"):
        checked_scores(np.zeros((12, 4)), "lime", sample)
    bad = np.zeros((12, 5))
    bad[3, 1] = np.nan
    with pytest.raises(InputError, match="lime: expected finite numbers, row 3"):
        checked_scores(bad, "lime", sample)
