"""The summary says what the figures say."""

from __future__ import annotations

from typing import Any

import pytest

from causal_attn.study.words import summary_in_words


def runs(*verdicts: str, **figures: Any) -> dict[str, Any]:
    base = {"leakage_auc": 0.91, "p_value": 0.005, "reliance": 0.5, "excess_reliance": 0.25, "accuracy": 0.75}
    return {"runs": [{"verdict": f"{verdict}: because", **base, **figures} for verdict in verdicts]}


def test_a_shortcut_and_what_became_of_it() -> None:
    text = summary_in_words(
        {
            "erm": runs("shortcut"),
            "random": runs("no shortcut", accuracy=0.735, excess_reliance=-0.01),
            "warm": runs("undecided", accuracy=0.78),
            "weighted": runs("shortcut"),
        }
    )
    assert text == (
        "Under erm the attention carries a combinatorial shortcut: the mask tells the class (AUC 0.91), and another "
        "class's mask moves the prediction by 0.50 (excess 0.25). "
        "random shows no shortcut (AUC 0.91, excess reliance -0.01) at -1.5 points of accuracy. "
        "warm is undecided (AUC 0.91, excess reliance 0.25) at +3.0 points of accuracy. "
        "weighted still shows a shortcut (AUC 0.91, excess reliance 0.25) at +0.0 points of accuracy."
    )


@pytest.mark.parametrize(
    ("verdicts", "start"),
    [
        (("no shortcut", "no shortcut"), "Under erm no combinatorial shortcut was found"),
        (("no shortcut", "undecided"), "Whether erm carries a combinatorial shortcut is undecided"),
        (("shortcut", "undecided", "shortcut"), "Under erm 2 of 3 seeds carry a combinatorial shortcut: on average"),
        (("shortcut", "shortcut"), "Under erm the attention carries a combinatorial shortcut"),
    ],
)
def test_seeds_are_counted(verdicts: tuple[str, ...], start: str) -> None:
    assert summary_in_words({"erm": runs(*verdicts)}).startswith(start)


def test_means_are_over_seeds_that_have_the_figure() -> None:
    first = runs("shortcut")
    other = {"runs": [*runs("no shortcut", accuracy=0.8)["runs"], *runs("shortcut", accuracy=0.9)["runs"]]}
    other["runs"][0]["leakage_auc"] = None
    other["runs"][1]["leakage_auc"] = 0.6
    text = summary_in_words({"erm": first, "warm": other})
    assert "warm shows one on 1 of 2 seeds (AUC 0.60, excess reliance 0.25) at +10.0 points" in text


def test_a_mask_that_tells_nothing_is_not_said_to_tell() -> None:
    text = summary_in_words({"erm": runs("undecided", leakage_auc=0.4, p_value=0.65, reliance=-0.001)})
    assert "the mask does not tell the class (AUC 0.40)" in text
    assert "by 0.00" in text  # and no minus before a zero
