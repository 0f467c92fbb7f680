"""Each metric against a case computed by hand, or an independent implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau
from sklearn.metrics import average_precision_score
from torch import Tensor

from causal_attn.errors import InputError
from causal_attn.faithfulness import METRICS
from causal_attn.faithfulness import metrics as m
from causal_attn.masks import MaskSample
from tests.training.toys import Fixed, fixed_data


def setting(
    masks: Any, evidence: Any, y: Any, *, reads: str = "evidence under the mask", c: float = 2.0, k: int = 1,
    evaluator: Any = None, rationales: Any = None, valid: Any = None,
) -> m.Setting:  # fmt: skip
    masks, evidence, y = torch.tensor(masks), torch.tensor(evidence), torch.tensor(y)
    sample = MaskSample(masks, y, valid)
    where = None if rationales is None else torch.tensor(rationales)
    return m.Setting(Fixed(reads, c), evaluator, fixed_data(masks, evidence, y).test, sample, k, where, {})


def sigmoid(v: Any) -> Tensor:
    return torch.tensor(v, dtype=torch.float64).sigmoid()


@pytest.fixture
def two() -> m.Setting:
    """Row 0 predicts 1 with log-odds 2(.6·2 + .3·(−1) + .1·0) = 1.8; row 1 predicts 0 with 2(.5·1 + .4·1 − .1·5)."""
    return setting(
        [[0.6, 0.3, 0.1], [0.5, 0.4, 0.1]], [[2.0, -1.0, 0.0], [-1.0, -1.0, 5.0]], [1, 0],
        evaluator=Fixed("evidence under the mask", 1.0), rationales=[[True, False, False], [True, True, False]],
    )  # fmt: skip


def test_comprehensiveness_and_sufficiency_by_hand(two: m.Setting) -> None:
    """T = 3: shares 1, 5, 10, 20% keep one position, 50% two."""
    s = two.sample.masks.double()
    whole = sigmoid([1.8, 0.8])
    one_off = sigmoid([2 * (0.3 * -1) / 0.4, -2 * (0.4 * -1 + 0.1 * 5) / 0.5])
    two_off = sigmoid([0.0, -2 * 5.0])
    expected = whole - (4 * one_off + two_off) / 5
    torch.testing.assert_close(m.comprehensiveness(two, s), expected, atol=1e-6, rtol=0)
    one_on = sigmoid([2 * 2.0, 2 * 1.0])
    two_on = sigmoid([2 * (0.6 * 2 - 0.3) / 0.9, 2 * 1.0])
    expected = whole - (4 * one_on + two_on) / 5
    torch.testing.assert_close(m.sufficiency(two, s), expected, atol=1e-6, rtol=0)


def test_a_single_position_cannot_be_removed() -> None:
    lone = setting([[1.0, 0.0], [0.5, 0.5]], [[1.0, 0.0], [1.0, -2.0]], [1, 0], valid=[[True, False], [True, True]])
    assert m.comprehensiveness(lone, lone.sample.masks.double())[0] == 0
    assert m.sufficiency(lone, lone.sample.masks.double())[0] == 0


def test_accuracies_at_k_by_hand(two: m.Setting) -> None:
    """The evaluator sees the top position alone: evidence 2 and −1 there, −1 and 5 by the last position."""
    s = two.sample.masks.double()
    assert m.evalx_accuracy(two, s).tolist() == [1, 1]
    last = s.flip(-1)
    assert m.evalx_accuracy(two, last).tolist() == [0, 0]  # row 0: log-odds 0 is class 0; row 1: 5 is class 1
    assert m.post_hoc_accuracy(two, last).tolist() == [0, 0]
    rows = ([[0.6, 0.3, 0.1]] * 2, [[2.0, -1.0, 0.0]] * 2, [0, 1])
    other = setting(*rows, evaluator=Fixed("evidence under the mask", 1.0))
    assert m.evalx_accuracy(other, other.sample.masks.double()).tolist() == [0, 1]
    assert m.post_hoc_accuracy(other, other.sample.masks.double()).tolist() == [1, 1]  # wrong, but as the model


def test_violation_by_hand(two: m.Setting) -> None:
    """Taking away position 0 lowers p(ŷ) in both rows; position 2 of row 1 speaks against ŷ = 0."""
    assert m.violation(two, two.sample.masks.double()).tolist() == [0, 0]
    assert m.violation(two, torch.tensor([[-1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]).double()).tolist() == [1, 1]
    assert m.violation(two, torch.tensor([[0.0, -1.0, 0.0], [0.0, 0.0, -1.0]]).double()).tolist() == [0, 0]


def test_agreement_by_hand(two: m.Setting) -> None:
    """Falls of p(ŷ) are ordered as m_t e_t for row 0: 1.2, −0.3, 0; and as −m_t e_t for row 1: .5, .4, −.5."""
    s = two.sample.masks.double()
    torch.testing.assert_close(m.leave_one_out_agreement(two, s), torch.tensor([1 / 3, 1.0]).double())
    assert m.gradient_agreement(two, s)[0] == 1  # sizes 1.2, .3, 0 as the masses
    other = setting([[0.5, 0.4, 0.1], [0.6, 0.3, 0.1]], [[-1.0, -1.0, 7.0], [1.0, 1.0, 1.0]], [0, 1])
    s = other.sample.masks.double()  # sizes .5, .4, .7: one pair in order, two not
    torch.testing.assert_close(m.gradient_agreement(other, s), torch.tensor([-1 / 3, 1.0]).double())
    torch.testing.assert_close(m.gradient_agreement(other, -s), m.gradient_agreement(other, s))  # sizes alone


@pytest.mark.parametrize("t", [2, 5, 40])
def test_kendall_is_scipys(t: int) -> None:
    rng = np.random.default_rng(t)
    a, b = (torch.from_numpy(rng.integers(0, 5, (20, t)).astype(float)) for _ in range(2))
    valid = torch.from_numpy(rng.random((20, t)) < 0.8)
    valid[:, :2] = True
    found = m.kendall_tau(a, b, valid, entries=1)
    expected = [kendalltau(x[v], y[v]).statistic for x, y, v in zip(a.numpy(), b.numpy(), valid.numpy())]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


def test_plausibility_by_hand(two: m.Setting) -> None:
    s = two.sample.masks.double()
    torch.testing.assert_close(m.rationale_mass(two, s), torch.tensor([0.6, 0.9]).double(), atol=1e-6, rtol=0)
    assert m.token_f1(two, s).tolist() == [1, 1]
    assert m.token_f1(two, s.flip(-1)).tolist() == [0, 0.5]
    signed = torch.tensor([[-1.0, 2.0, 2.0], [3.0, -9.0, 1.0]]).double()
    torch.testing.assert_close(m.rationale_mass(two, signed), torch.tensor([0.0, 0.75]).double())


def test_average_precision_is_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    scores, where = rng.integers(0, 4, (50, 9)).astype(float), rng.random((50, 9)) < 0.3
    masks = np.full((50, 9), 1 / 9)
    here = setting(masks, np.zeros((50, 9)), np.arange(50) % 2, rationales=where)
    found = m.average_precision(here, torch.from_numpy(scores)).numpy()
    for row in range(50):
        if where[row].any():
            assert found[row] == pytest.approx(average_precision_score(where[row], scores[row]))
        else:
            assert np.isnan(found[row])


def test_what_is_missing_is_said(two: m.Setting) -> None:
    bare = setting([[0.6, 0.4]] * 2, [[1.0, 0.0]] * 2, [0, 1])
    s = bare.sample.masks.double()
    with pytest.raises(InputError, match="evaluator: expected an EVAL-X evaluator"):
        m.evalx_accuracy(bare, s)
    with pytest.raises(InputError, match="rationales: expected where the evidence lies"):
        m.token_f1(bare, s)


def test_ties_are_broken_by_place_and_padding_never_counts() -> None:
    scores = torch.tensor([[1.0, 1.0, 1.0, 5.0]])
    valid = torch.tensor([[True, True, True, False]])
    assert m.top_by(scores, valid, torch.tensor([2])).tolist() == [[True, True, False, False]]
    assert m.top_by(scores, valid, torch.tensor([9])).tolist() == [[True, True, True, False]]


def test_directions_are_data() -> None:
    lower = {name for name, metric in METRICS.items() if not metric.higher_is_better}
    assert lower == {"sufficiency", "violation"}


def test_a_choice_of_positions_is_kept_and_removed_as_a_choice() -> None:
    masks = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0]])
    evidence, y = torch.tensor([[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]]), torch.tensor([1, 0])
    data = fixed_data(masks, evidence, y)
    here = m.Setting(
        Fixed("evidence under the mask", 1.0), None, data.test, MaskSample(masks, y, kind="subset"), 2, None, {}
    )
    kept = m.kept_by(here, torch.tensor([[True, False, True, False], [True, False, False, True]]))
    assert kept.tolist() == [[1, 0, 0, 0], [1, 0, 0, 1]]  # where nothing chosen is left, all that is kept
