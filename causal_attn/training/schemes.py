"""Training schemes: small objects that say what changes in the one loop of `causal_attn.training.loop`.

A scheme is a sequence of phases. A phase says which parameters learn, which masks the downstream part is shown, and
whether rows are weighted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from torch import Tensor

from causal_attn.data.checks import whole
from causal_attn.data.splits import Data
from causal_attn.errors import InputError
from causal_attn.selection import SelectionModel
from causal_attn.training.laws import Law, law_named


@dataclass(frozen=True)
class Phase:
    """One stage of training.

    Args:
        name: for the history and the progress bar.
        learns: "all", "masks" (the attention alone) or "predict" (the downstream part alone).
        law: the law of random masks shown; None: the model's own.
        weighting: how rows are weighted; None: equally.
        share: of the number of epochs asked for, rounded; at least one epoch.
        given: masks shown instead of the model's own, (n, T), from the data and the split's name; None: not so.
        first: whether a row's mask shall choose the first position, (n,) of 0 and 1, likewise; the masks then learn
            that alone, by cross-entropy of the mass there. None: the class is learnt.
        until: accuracy on up to UNTIL_ROWS validation rows at which the phase ends at once; None: it runs its epochs.
    """

    name: str
    learns: Literal["all", "masks", "predict"] = "all"
    law: Law | None = None
    weighting: InstanceWeighting | None = None
    share: float = 1.0
    given: Callable[[Data, str], Tensor] | None = None
    first: Callable[[Data, str], Tensor] | None = None
    until: float | None = None


PRETRAINING_SHARE, FROZEN_SHARE = 1.2, 0.6
"""Epochs relative to a joint phase: a downstream part alone learns later, an attention through a trained one sooner."""


class Scheme(Protocol):
    """What `train` asks of a scheme."""

    def phases(self) -> tuple[Phase, ...]:
        """The phases, in order."""
        ...


@dataclass(frozen=True)
class ERM:
    """Empirical risk minimisation: attention and downstream part trained jointly. The baseline."""

    def phases(self) -> tuple[Phase, ...]:
        """One joint phase."""
        return (Phase("joint"),)


@dataclass(frozen=True)
class InstanceWeighting:
    """Joint training on Σ w L / Σ w, w = P(y)/P(y|m) re-estimated as the masks move (Bai et al. 2021).

    The mean of w is taken over the whole training split, not per batch. With exploration ε, a share ε of rows is shown
    another row's mask instead of its own, P(M) stays as it is, and w = P(y) / ((1−ε) r₀(y|m) + ε P(y)) ≤ 1/ε, r₀
    fitted on unexplored masks (theory section 8). Masks are swapped between rows of like length; where the length alone
    tells the class, that much of the dependence stays.

    Args:
        selection: how P(y|m) is estimated.
        refresh: epochs between re-estimates.
        explore: ε in [0, 1).
        law: of explored masks; "swap": another row's.
        truncate: largest weight; None: no truncation.
    """

    selection: SelectionModel = field(default_factory=SelectionModel)
    refresh: int = 1
    explore: float = 0.0
    law: str = "swap"
    truncate: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.selection, SelectionModel):
            raise InputError(f"selection: expected a SelectionModel, got {self.selection!r}")
        whole(self.refresh, "refresh", 1)
        if not isinstance(self.explore, (int, float)) or not 0 <= self.explore < 1:
            raise InputError(f"explore: expected a probability in [0, 1), got {self.explore!r}")
        if self.law != "swap":
            raise InputError(f"law: expected 'swap', got {self.law!r}")
        if self.truncate is not None and not (isinstance(self.truncate, (int, float)) and self.truncate > 1):
            raise InputError(f"truncate: expected a weight above 1, got {self.truncate!r}")

    def phases(self) -> tuple[Phase, ...]:
        """One joint phase with weights."""
        return (Phase("weighted", weighting=self),)


@dataclass(frozen=True)
class RandomAttentionPretraining:
    """The downstream part learns from random masks first, so that it cannot learn to read the mask (Bai et al. 2021).

    Args:
        law: of the random masks, "mixture", "dirichlet", "subset" or a callable (valid, generator) -> masks.
        then: "frozen": the downstream part stays as it is and the attention learns through it; "joint": both go on
            together (the random warm start).
        weighting: weights for the second phase, with then="joint".
    """

    law: str | Law = "mixture"
    then: Literal["frozen", "joint"] = "frozen"
    weighting: InstanceWeighting | None = None

    def __post_init__(self) -> None:
        law_named(self.law)
        if self.then not in ("frozen", "joint"):
            raise InputError(f"then: expected 'frozen' or 'joint', got {self.then!r}")
        if self.weighting is not None and self.then == "frozen":
            raise InputError("weighting: has an effect with then='joint' only")

    def phases(self) -> tuple[Phase, ...]:
        """Downstream part on random masks, then the attention (frozen) or everything (joint)."""
        first = Phase("random masks", "predict", law_named(self.law), share=PRETRAINING_SHARE)
        if self.then == "frozen":
            return first, Phase("attention", "masks", share=FROZEN_SHARE)
        return first, Phase("joint", weighting=self.weighting)


@dataclass(frozen=True)
class RandomMasksOnly:
    """The downstream part alone, on random masks: how an EVAL-X evaluator is made (Jethani et al. 2021)."""

    law: str | Law = "mixture"

    def phases(self) -> tuple[Phase, ...]:
        """The first phase of random attention pretraining."""
        return (Phase("evaluator", "predict", law_named(self.law), share=PRETRAINING_SHARE),)


@dataclass(frozen=True)
class ReaderOnly:
    """The downstream part alone, on the model's own masks: what can be read under them, their habits included."""

    def phases(self) -> tuple[Phase, ...]:
        """As long as an evaluator's."""
        return (Phase("reader", "predict", share=PRETRAINING_SHARE),)
