"""Training schemes: small objects that say what changes in the one loop of `causal_attn.training.loop`.

A scheme is a sequence of phases. A phase says which parameters learn, which masks the downstream part is shown, and
whether rows are weighted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from torch import Tensor

from causal_attn.data.checks import fraction, whole
from causal_attn.data.splits import Data
from causal_attn.errors import InputError
from causal_attn.selection import SelectionModel
from causal_attn.training.laws import MATCHED, Law, law_named


@dataclass(frozen=True)
class Phase:
    """One stage of training.

    Args:
        name: for the history and the progress bar.
        learns: "all", "masks" (the attention alone) or "predict" (the downstream part alone).
        law: the law of random masks shown, or "matched"; None: the model's own.
        alternate: the downstream part learns from the law's masks alone, and in the same step the attention through
            it from its own, the downstream part held fixed.
        penalty: λ of the leakage penalty; 0: none.
        weighting: how rows are weighted; None: equally.
        share: of the number of epochs asked for, rounded; at least one epoch.
        given: masks shown instead of the model's own, (n, T), from the data and the split's name; None: not so.
        first: whether a row's mask shall choose the first position, (n,) of 0 and 1, likewise; the masks then learn
            that alone, by cross-entropy of the mass there. None: the class is learnt.
        until: accuracy on up to UNTIL_ROWS validation rows at which the phase ends at once; None: it runs its epochs.
    """

    name: str
    learns: Literal["all", "masks", "predict"] = "all"
    law: Law | str | None = None
    alternate: bool = False
    penalty: float = 0.0
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

    With a law u(m) instead of swaps, P(M) becomes (1−ε) P₀(m) + ε u(m) and P(y|m) is fitted on the masks as shown; then
    w ≤ 1 + ((1−ε)/ε) P₀(m)/u(m), which is bounded only where P₀/u is.

    Weights are not used, with a warning, while they cannot be estimated: where held-out masks are predicted worse than
    by the class shares (an over-confident cross-fit), or the effective sample size is under `FLOOR` of the rows.

    Args:
        selection: how P(y|m) is estimated.
        refresh: epochs, or steps, between re-estimates.
        explore: ε in [0, 1).
        law: of explored masks; "swap": another row's; else a law of `causal_attn.training.laws`, by name or itself.
        truncate: largest weight; None: no truncation.
        unit: "epochs" or "steps", of `refresh`.
        use: "point": weights by the posterior predictive mean; "draw": by one posterior draw, another at every refresh.
    """

    selection: SelectionModel = field(default_factory=SelectionModel)
    refresh: int = 1
    explore: float = 0.0
    law: str | Law = "swap"
    truncate: float | None = None
    unit: Literal["epochs", "steps"] = "epochs"
    use: Literal["point", "draw"] = "point"

    def __post_init__(self) -> None:
        if not isinstance(self.selection, SelectionModel):
            raise InputError(f"selection: expected a SelectionModel, got {self.selection!r}")
        whole(self.refresh, "refresh", 1)
        if fraction(self.explore, "explore", 0, 1) == 1:
            raise InputError("explore: expected a probability below 1, got 1: no row would keep its mask")
        if self.law != "swap":
            if law_named(self.law) == MATCHED:
                raise InputError("law: expected 'swap' or a law of explored masks; 'swap' is the matched one")
            if self.explore == 0:
                raise InputError("law: has an effect with explore above 0 only")
        if self.truncate is not None:
            number = isinstance(self.truncate, (int, float)) and not isinstance(self.truncate, bool)
            if not number or not 1 < self.truncate < float("inf"):
                raise InputError(f"truncate: expected a weight above 1, got {self.truncate!r}")
            if self.law == "swap" and self.explore and self.truncate >= 1 / self.explore:
                raise InputError(
                    f"truncate: has no effect, weights are at most 1/explore = {1 / self.explore:.4g} here"
                )
        if self.unit not in ("epochs", "steps"):
            raise InputError(f"unit: expected 'epochs' or 'steps', got {self.unit!r}")
        if self.use not in ("point", "draw"):
            raise InputError(f"use: expected 'point' or 'draw', got {self.use!r}")
        if self.use == "draw" and not isinstance(self.selection.estimator, str):
            raise InputError("use: 'draw' needs a posterior, a plug-in classifier has none")

    def phases(self) -> tuple[Phase, ...]:
        """One joint phase with weights."""
        return (Phase("weighted", weighting=self),)


@dataclass(frozen=True)
class RandomAttentionPretraining:
    """The downstream part learns from random masks first, so that it cannot learn to read the mask (Bai et al. 2021).

    Args:
        law: of the random masks: "mixture", "dirichlet", "softmax-normal", "subset", "bernoulli", a callable
            (valid, generator) -> masks, or "matched": after an attention was trained through a downstream part of the
            mixture law, that part learns on under a law with that attention's concentration.
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
        if self.weighting is not None and not isinstance(self.weighting, InstanceWeighting):
            raise InputError(f"weighting: expected an InstanceWeighting(...), got {self.weighting!r}")
        if self.weighting is not None and self.then == "frozen":
            raise InputError("weighting: has an effect with then='joint' only")

    def phases(self) -> tuple[Phase, ...]:
        """Downstream part on random masks, then the attention (frozen) or everything (joint)."""
        law = law_named(self.law)
        first = Phase(
            "random masks", "predict", law_named("mixture") if law == MATCHED else law, share=PRETRAINING_SHARE
        )
        start: tuple[Phase, ...] = (first,)
        if law == MATCHED:
            pilot = Phase("pilot attention", "masks", share=FROZEN_SHARE)
            start = first, pilot, Phase("matched masks", "predict", law, share=FROZEN_SHARE)
        if self.then == "frozen":
            return *start, Phase("attention", "masks", share=FROZEN_SHARE)
        return *start, Phase("joint", weighting=self.weighting)


@dataclass(frozen=True)
class AlternatingRandomAttention:
    """In every step the downstream part learns from random masks alone, and the attention through it from its own.

    The downstream part never trains on the attention's masks, so that it cannot learn to read them, and one phase is
    enough (theory section 8). Parameters of both parts learn with the downstream part.

    Args:
        law: as for `RandomAttentionPretraining`; "matched": found anew at the start of every epoch.
    """

    law: str | Law = "mixture"

    def __post_init__(self) -> None:
        law_named(self.law)

    def phases(self) -> tuple[Phase, ...]:
        """One phase."""
        return (Phase("alternating", law=law_named(self.law), alternate=True),)


@dataclass(frozen=True)
class LeakagePenalty:
    """Joint training on L + λ (log r(y|m) − log P(y)): the mask pays for what an adversary r reads off it.

    r is a small network on the mask, trained alongside on the masks of each batch before the batch is used.

    Args:
        strength: λ, above 0; the mean of the bracket estimates I(M;Y) from below, nats.
    """

    strength: float = 3.0

    def __post_init__(self) -> None:
        if fraction(self.strength, "strength", 0, 1e6) == 0:
            raise InputError("strength: expected a number above 0; ERM() is training without a penalty")

    def phases(self) -> tuple[Phase, ...]:
        """One joint phase with the penalty."""
        return (Phase("penalised", penalty=float(self.strength)),)


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
