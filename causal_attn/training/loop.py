"""The one training loop. Schemes differ in what learns, which masks are shown, and how rows are weighted."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from tqdm.auto import tqdm

from causal_attn.attention import check_model, parameter_roles
from causal_attn.attention.protocol import in_mode
from causal_attn.attention.seeding import forked_rng
from causal_attn.data.checks import seed_of
from causal_attn.data.splits import Data, Split
from causal_attn.errors import InputError, NotEstimableError, SupportWarning
from causal_attn.training.adversary import Adversary
from causal_attn.training.checkpoint import (
    Checkpoint,
    State,
    fingerprint,
    json_rows,
    pack_optimiser,
    require_storable,
    rows_of,
    unpack_optimiser,
)
from causal_attn.training.collect import (
    batches,
    collect_logits,
    collect_masks,
    device_of,
    pick_device,
    to_device,
    width_of,
)  # fmt: skip
from causal_attn.training.laws import Law, checked_random, choices_law, matched_to
from causal_attn.training.result import TrainResult
from causal_attn.training.schemes import ERM, InstanceWeighting, Phase, Scheme
from causal_attn.training.settings import BATCH_SIZE, EPOCHS, Settings
from causal_attn.training.weighting import Plan, refresh

UNTIL_ROWS = 512
"""Validation rows on which the accuracy is measured that can end a phase early."""
MAX_DECAY = 0.99
TINY = 1e-6
"""A mass nearer to 0 or 1 counts as this near: its logarithm would be infinite."""


def train(
    model: Any, data: Data, scheme: Scheme | None = None, *, epochs: int = EPOCHS, batch_size: int = BATCH_SIZE,
    learning_rate: float = Settings.learning_rate, weight_decay: float = Settings.weight_decay,
    patience: int | None = Settings.patience, seed: int = 0, progress: bool = True, device: str | torch.device = "auto",
    checkpoint: str | Path | None = None, resume: bool = False,
) -> TrainResult:  # fmt: skip
    """Train a copy of `model` on `data.train`; `data.valid` is watched, and chooses the epoch where asked to.

    Args:
        model: an `AttentionClassifier` that is an nn.Module; it is not changed.
        data: the splits.
        scheme: `ERM()`, `InstanceWeighting(...)`, `RandomAttentionPretraining(...)`, or one that makes a shortcut on
            purpose, `SkewedGenerator(...)`, `SkewedPredictor(...)`; None: ERM.
        epochs: epochs of a joint phase; pretraining takes 1.2 times as many, an attention through a frozen part 0.6.
        batch_size: rows per step; rows of like length go together.
        learning_rate, weight_decay: of AdamW.
        patience: stop a phase after so many epochs without a better validation accuracy, and keep its best epoch;
            None: train all epochs (a small validation split chooses epochs by chance).
        seed: of the order of rows, dropout, random masks and selection models.
        progress: show bars.
        device: "auto", or a torch device.
        checkpoint: a directory in which the run is kept after every epoch, and whole at any moment; None: nowhere.
        resume: go on with the run kept in `checkpoint`, from its last whole epoch; it starts where there is none. On
            the CPU the results are bit for bit those of a run that was never stopped, times apart.

    Raises:
        InputError: a model that breaks the protocol, an argument out of range, a class without training rows, a
            checkpoint of another run; before any work.
        NotEstimableError: the loss is no longer a number; says at which step, and which checkpoint is the last one.
        OutputError: a checkpoint cannot be written.

    Warns:
        SupportWarning: once, where weights leave a large part of Q without support.
        UserWarning: once, where weights cannot be estimated and are not used.
    """
    settings = Settings(epochs, batch_size, learning_rate, weight_decay, patience=patience)
    if not isinstance(model, nn.Module):
        raise InputError(f"model: expected an nn.Module with masks and predict, got {type(model).__name__}")
    if not isinstance(data, Data):
        raise InputError(f"data: expected splits as load or from_datasets give them, got {type(data).__name__}")
    scheme = ERM() if scheme is None else scheme
    if isinstance(scheme, type) or not callable(getattr(scheme, "phases", None)):
        raise InputError(f"scheme: expected a scheme such as ERM(), got {scheme!r}")
    if not scheme.phases():
        raise InputError(f"scheme: expected at least one phase, {type(scheme).__name__} has none")
    _require_classes(data)
    if not isinstance(resume, bool):
        raise InputError(f"resume: expected True or False, got {resume!r}")
    if resume and checkpoint is None:
        raise InputError("resume: has an effect with a checkpoint only")
    seed = seed_of(seed)
    started = time.perf_counter()
    where = pick_device(device)
    trained: Any = copy.deepcopy(model).to(where)
    probe = to_device(data.train.batch(torch.arange(min(8, len(data.train))))[0], where)
    check_model(trained, probe, data.n_classes)
    keeper, saved = None, None
    if checkpoint is not None:
        require_storable(scheme)
        keeper = Checkpoint(checkpoint, fingerprint(trained, data, scheme, settings, seed))
        if resume:
            saved = keeper.load()
        else:
            keeper.refuse_existing()
    with torch.inference_mode(False), torch.enable_grad(), forked_rng(seed, trained.parameters()):
        run = _Run(trained, data, settings, np.random.default_rng(seed), seed, progress, keeper, started, probe)
        phases = [(phase, *run.learning(phase, probe)) for phase in scheme.phases()]  # all are checked before the first
        for phase, _, _ in phases:
            if run.choices and phase.law is not None and not isinstance(phase.law, str):
                choices_law(phase.law)
        if saved is not None:
            run.restore(saved)
        for number, (phase, learning, mask_only) in enumerate(phases):
            if saved is None or number >= saved.phase:
                running = saved if saved is not None and number == saved.phase and saved.epoch else None
                run.phase(number, phase, learning, mask_only, running)
    trained.eval()
    return TrainResult(trained, data, scheme, pd.DataFrame(run.history), seed, run.seconds, settings)


def _require_classes(data: Data) -> None:
    """InputError for a class without training rows: nothing could be learnt of it, and P(y) would be 0."""
    counts = torch.bincount(data.train.y, minlength=data.n_classes)
    if (counts == 0).any():
        k = int((counts == 0).nonzero()[0])
        name = data.class_names[k] if data.class_names else k
        raise InputError(
            f"data: expected training rows of every class, class {k} ({name}) of {data.n_classes} has none"
        )


class _Run:
    """The state of one training run: model, random numbers, history."""

    def __init__(
        self, model: Any, data: Data, settings: Settings, rng: np.random.Generator, seed: int, progress: bool,
        keeper: Checkpoint | None, started: float, probe: Any,
    ) -> None:  # fmt: skip
        self.model, self.data, self.settings, self.rng, self.seed = model, data, settings, rng, seed
        self.progress, self.keeper, self.started, self.before = progress, keeper, started, 0.0
        with torch.no_grad(), in_mode(model, training=False):
            m = model.masks(probe)
        self.choices = bool(((m == 0) | (m == 1)).all())  # the downstream part is then shown choices, not shares
        self.plan: Plan | None = None
        self.adversary: Adversary | None = None
        self.step = 0
        self.warned: set[str] = set()
        self.masks_rng = torch.Generator().manual_seed(seed)
        self.validity: dict[str, Tensor] = {}
        self.tables: dict[tuple[Any, str], Tensor] = {}
        self.history: list[dict[str, Any]] = []

    @property
    def seconds(self) -> float:
        """Wall time, that of the runs before a resumption included."""
        return self.before + time.perf_counter() - self.started

    def phase(
        self, number: int, phase: Phase, learning: list[nn.Parameter], mask_only: list[nn.Parameter],
        running: State | None,
    ) -> None:  # fmt: skip
        """Train the parameters `learning` in one phase; leave the model at the average of the epoch that is kept."""
        optimiser = torch.optim.AdamW(learning, self.settings.learning_rate, weight_decay=self.settings.weight_decay)
        average = moving_average(self.model)
        patience = self.settings.patience
        best: tuple[float, int] = (-1.0, 0)
        kept: dict[str, Tensor] = {}
        self.plan, self.step, first = None, 0, 0
        self.adversary = self._adversary(number) if phase.penalty else None
        if running is not None:
            best, kept, first = self._go_on(running, optimiser, average)
        epochs = max(1, round(phase.share * self.settings.epochs))
        self._check_refresh(phase, epochs)
        bar = tqdm(total=epochs, initial=first, desc=phase.name, disable=not self.progress, leave=False)
        for epoch in range(first, epochs):
            began = time.perf_counter()
            law = self._law(phase)
            if phase.weighting is not None and phase.weighting.unit == "epochs":
                self._refresh(phase.weighting, epoch)
            loss, accuracy, reached = self._epoch(phase, optimiser, learning, mask_only, average, law)
            valid = self._validate(phase, average.module, law)
            row = self._record(phase, epoch, loss, accuracy, valid, time.perf_counter() - began)
            bar.set_postfix_str(_postfix(row))
            bar.update()
            stop = reached
            if patience is None or valid > best[0]:
                best = (valid, epoch)
                kept = {name: value.detach().clone() for name, value in average.module.state_dict().items()}
            elif epoch - best[1] >= patience:
                stop = True
            if stop:
                break
            if epoch + 1 < epochs:
                self._keep(number, epoch + 1, optimiser, average, best, kept)
        else:
            if phase.until is not None:
                warnings.warn(
                    f"{phase.name}: accuracy {phase.until} was not reached in {epochs} epochs; joint training starts "
                    "without the shortcut that was asked for",
                    UserWarning,
                    stacklevel=3,
                )
        bar.close()
        self.model.load_state_dict(kept)
        self._keep(number + 1, 0)

    def _check_refresh(self, phase: Phase, epochs: int) -> None:
        if phase.weighting is None:
            return
        steps = -(-len(self.data.train) // self.settings.batch_size) * epochs
        available = epochs if phase.weighting.unit == "epochs" else steps
        if available <= phase.weighting.refresh:
            unit = "epoch" if phase.weighting.unit == "epochs" else "step"
            self._warn_once(
                "refresh",
                f"{phase.name}: weights are first estimated after {phase.weighting.refresh} {unit}(s), the phase has "
                f"{available}: every row keeps weight 1; train longer, or refresh more often",
                UserWarning,
            )

    def _warn_once(self, what: str, words: str, kind: type[Warning]) -> None:
        if what not in self.warned:
            self.warned.add(what)
            warnings.warn(words, kind, stacklevel=5)

    def _adversary(self, number: int) -> Adversary:
        y = self.data.train.y
        prior = torch.bincount(y, minlength=self.data.n_classes).double() / len(y)
        width = max(self._valid("train").shape[1], 1)
        return Adversary(prior, width, (self.seed + number) % 2**32).to(device_of(self.model))

    # -------------------------------------------------------------------------------------------- kept and restored

    def _keep(
        self, phase: int, epoch: int, optimiser: torch.optim.Optimizer | None = None,
        average: AveragedModel | None = None, best: tuple[float, int] = (-1.0, 0),
        kept: dict[str, Tensor] | None = None,
    ) -> None:  # fmt: skip
        """Write the state from which phase and epoch go on; `epoch` 0 needs the model and random states alone."""
        if self.keeper is None:
            return
        parts: dict[str, dict[str, Tensor]] = {"model": self.model.state_dict(), "random": self._random_states()}
        numbers: dict[str, Any] = {
            "history": json_rows(self.history), "seconds": self.seconds, "best": list(best), "step": self.step,
            "warned": sorted(self.warned), "rng": self.rng.bit_generator.state, "plan": None,
        }  # fmt: skip
        fit = None
        if epoch:
            assert optimiser is not None
            assert average is not None
            assert kept is not None
            parts |= {"optimiser": pack_optimiser(optimiser), "average": average.state_dict(), "kept": kept}
            if self.adversary is not None:
                parts |= {"adversary": self.adversary.state_dict(),
                          "adversary optimiser": pack_optimiser(self.adversary.optimiser)}  # fmt: skip
            if self.plan is not None:
                plan, fit = self.plan, self.plan.fit
                known = {"weight": plan.weight, "explored": plan.explored, "shown": plan.shown}
                parts["plan"] = {name: value for name, value in known.items() if value is not None}
                numbers["plan"] = {name: None if np.isnan(value) else value for name, value in
                                   (("support_deficit", plan.support_deficit), ("ess", plan.ess))}  # fmt: skip
                numbers["unusable"] = plan.unusable
        tensors = {f"{part}/{name}": value for part, own in parts.items() for name, value in own.items()}
        self.keeper.save(State(phase, epoch, numbers, tensors, fit))

    def _random_states(self) -> dict[str, Tensor]:
        states = {"cpu": torch.get_rng_state(), "masks": self.masks_rng.get_state()}
        device = device_of(self.model)
        return states if device.type != "cuda" else states | {"cuda": torch.cuda.get_rng_state(device)}

    def restore(self, saved: State) -> None:
        """The model, the history and the random states as they were kept."""
        self.model.load_state_dict(saved.part("model"))
        self.history = rows_of(saved.numbers["history"])
        self.before = saved.numbers["seconds"]
        self.warned = set(saved.numbers["warned"])
        self.rng.bit_generator.state = saved.numbers["rng"]
        states = saved.part("random")
        torch.set_rng_state(states["cpu"])
        self.masks_rng.set_state(states["masks"])
        if "cuda" in states and device_of(self.model).type == "cuda":
            torch.cuda.set_rng_state(states["cuda"], device_of(self.model))

    def _go_on(
        self, saved: State, optimiser: torch.optim.Optimizer, average: AveragedModel
    ) -> tuple[tuple[float, int], dict[str, Tensor], int]:
        """Optimiser, average, adversary and plan as they were kept; the best epoch so far, and the next epoch."""
        unpack_optimiser(optimiser, saved.part("optimiser"))
        average.load_state_dict(saved.part("average"))
        if self.adversary is not None:
            self.adversary.load_state_dict(saved.part("adversary"))
            unpack_optimiser(self.adversary.optimiser, saved.part("adversary optimiser"))
        self.step = saved.numbers["step"]
        if saved.numbers["plan"] is not None:
            own = saved.part("plan")
            figures = {k: float("nan") if v is None else v for k, v in saved.numbers["plan"].items()}
            self.plan = Plan(own["weight"], own["explored"], own.get("shown"), saved.fit, **figures,
                             unusable=saved.numbers["unusable"])  # fmt: skip
        kept = {name: value.to(device_of(self.model)) for name, value in saved.part("kept").items()}
        return tuple(saved.numbers["best"]), kept, saved.epoch

    # -------------------------------------------------------------------------------------------- one epoch

    def learning(self, phase: Phase, probe: Any) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """The parameters that learn in a phase, and those of the masks alone; InputError where there are none."""
        named = dict(self.model.named_parameters())
        mask_names, predict_names = parameter_roles(self.model, probe)
        names = {"all": frozenset(named), "masks": mask_names, "predict": predict_names}[phase.learns]
        own = mask_names - predict_names
        if phase.learns == "masks":
            names = own  # a shared parameter stays frozen: the downstream part may not move
        if phase.alternate:
            names = own | predict_names
        chosen = [p for name, p in named.items() if name in names and p.requires_grad]
        mask_only = [p for name, p in named.items() if name in own and p.requires_grad]
        if not chosen or (phase.alternate and (not mask_only or len(mask_only) == len(chosen))):
            raise InputError(f"model: no parameter of its own to train in phase {phase.name!r} ({phase.learns})")
        return chosen, mask_only

    def _law(self, phase: Phase) -> Law | None:
        """The law of this epoch's random masks; a matched one is found from the masks as they are now."""
        if phase.law is None:
            return None
        if isinstance(phase.law, str):
            masks, valid = collect_masks(self.model, self.data.train)
            law = matched_to(masks, valid, self.choices)
        else:
            law = phase.law
        return choices_law(law) if self.choices else law

    def _refresh(self, weighting: InstanceWeighting, at: int) -> None:
        """A new plan at every `refresh`-th epoch or step; what is wrong with it is said once."""
        if self.plan is not None and at % weighting.refresh:
            return
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.plan = refresh(self.model, self.data.train, weighting, self.plan, self.seed + at)
        for warning in caught:
            key = "support" if issubclass(warning.category, SupportWarning) else str(warning.message)
            self._warn_once(key, str(warning.message), warning.category)
        if self.plan.unusable:
            self._warn_once(
                "unusable",
                f"weights are not used until they can be estimated: {self.plan.unusable}. Use exploration, or random "
                "attention pretraining",
                UserWarning,
            )

    def _epoch(
        self, phase: Phase, optimiser: torch.optim.Optimizer, learning: list[nn.Parameter],
        mask_only: list[nn.Parameter], average: AveragedModel, law: Law | None,
    ) -> tuple[float, float, bool]:  # fmt: skip
        """One pass over the training rows: mean weighted loss, nats, accuracy, and whether the phase is done early."""
        total, right, seen = 0.0, 0, 0
        with in_mode(self.model, training=True):
            _hold_statistics(self.model, learning)
            for index, x, y in self._rows():
                if phase.weighting is not None and phase.weighting.unit == "steps":
                    self._refresh(phase.weighting, self.step)
                loss, hits, gradients = self._gradients(phase, x, y, index, learning, mask_only, law)
                for parameter, gradient in zip(learning, gradients):
                    parameter.grad = gradient
                nn.utils.clip_grad_norm_(learning, self.settings.clip)
                optimiser.step()
                average.update_parameters(self.model)
                self.step += 1
                total += loss * len(y)
                right += int(hits.sum())
                seen += len(y)
                if phase.until is not None and self._first_accuracy(phase, average.module) >= phase.until:
                    optimiser.zero_grad(set_to_none=True)
                    return total / seen, right / seen, True
        optimiser.zero_grad(set_to_none=True)
        return total / seen, right / seen, False

    def _gradients(
        self, phase: Phase, x: Any, y: Tensor, index: Tensor, learning: list[nn.Parameter],
        mask_only: list[nn.Parameter], law: Law | None,
    ) -> tuple[float, Tensor, list[Tensor | None]]:  # fmt: skip
        """The loss of a batch, which rows are right, and the gradient of every parameter that learns."""
        if phase.alternate:
            assert law is not None
            losses, _ = self._class_losses(x, y, self._random(law, x, index))
            downstream = [p for p in learning if not any(p is q for q in mask_only)]
            found = _by_id(downstream, torch.autograd.grad(self._finite(losses.mean(), phase), downstream,
                                                           allow_unused=True))  # fmt: skip
            losses, hits = self._class_losses(x, y, self.model.masks(x))
            loss = self._finite(losses.mean(), phase)
            found |= _by_id(mask_only, torch.autograd.grad(loss, mask_only, allow_unused=True))
            return loss.item(), hits, [found[id(p)] for p in learning]
        losses, hits = self._losses(phase, x, y, index, law)
        plan = self.plan
        loss = self._finite((losses if plan is None else losses * plan.weight[index].to(losses)).mean(), phase)
        return loss.item(), hits, list(torch.autograd.grad(loss, learning, allow_unused=True))

    def _finite(self, loss: Tensor, phase: Phase) -> Tensor:
        if not torch.isfinite(loss):
            last = "" if self.keeper is None else f"; the last whole epoch is in {str(self.keeper.path)!r}"
            raise NotEstimableError(
                f"training: the loss became {loss.item()} at step {self.step} of phase {phase.name!r}{last}; try a "
                "lower learning_rate"
            )
        return loss

    def _losses(
        self, phase: Phase, x: Any, y: Tensor, index: Tensor, law: Law | None
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Loss of each row, nats, and whether it is right: of the class, or of choosing the first position."""
        if phase.first is not None:
            wanted = self._table(phase.first, "train")[index].to(y.device)
            mass = TINY + (1 - 2 * TINY) * self.model.masks(x)[:, 0]  # not clamped: a choice of 0 has a gradient, too
            return nn.functional.binary_cross_entropy(mass, wanted.to(mass), reduction="none"), (mass > 0.5) == wanted
        shown = self._shown(phase, x, index, law)
        losses, hits = self._class_losses(x, y, shown)
        if self.adversary is not None:
            valid = self._valid("train")[index, : shown.shape[1]].to(shown.device)
            self.adversary.learn(shown, valid, y)
            losses = losses + phase.penalty * self.adversary.gain(shown, valid, y)
        return losses, hits

    def _class_losses(self, x: Any, y: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.model.predict(x, masks)
        return nn.functional.cross_entropy(logits, y, reduction="none"), logits.argmax(-1) == y

    def _first_accuracy(self, phase: Phase, model: Any) -> float:
        """How often m_0 > ½ where it shall be, on the first UNTIL_ROWS validation rows, in eval mode."""
        assert phase.first is not None
        index = torch.arange(min(UNTIL_ROWS, len(self.data.valid)))
        with in_mode(model, training=False), torch.no_grad():
            mass = model.masks(to_device(self.data.valid.batch(index)[0], device_of(model)))[:, 0].cpu()
        return float(((mass > 0.5) == self._table(phase.first, "valid")[index]).double().mean())

    def _table(self, of: Any, split: str) -> Tensor:
        """What a phase says of a split's rows, found once."""
        if (of, split) not in self.tables:
            self.tables[of, split] = of(self.data, split)
        return self.tables[of, split]

    def _rows(self) -> Iterator[tuple[Tensor, Any, Tensor]]:
        train, device = self.data.train, device_of(self.model)
        for index in batches(train.lengths, len(train), self.settings.batch_size, self.rng):
            x, y = train.batch(index)
            yield index, to_device(x, device), y.to(device)

    def _random(self, law: Law, x: Any, index: Tensor) -> Tensor:
        """Masks of a law for this batch."""
        valid = self._valid("train")[index, : width_of(self.model, x)]
        return checked_random(law(valid, self.masks_rng), valid).to(device_of(self.model))

    def _shown(self, phase: Phase, x: Any, index: Tensor, law: Law | None) -> Tensor:
        """The masks this batch's downstream part sees: random, the model's own, or another row's where explored."""
        if law is not None:
            return self._random(law, x, index)
        if phase.given is not None:
            width = width_of(self.model, x)
            return self._table(phase.given, "train")[index, :width].float().to(device_of(self.model))
        own: Tensor = self.model.masks(x)
        plan = self.plan
        if plan is None or plan.shown is None:
            return own
        given = plan.shown[index][:, : own.shape[1]].to(own)
        return torch.where(plan.explored[index].to(own.device)[:, None], given, own)

    def _valid(self, split: str) -> Tensor:
        """Which positions exist, (n, T_max), found once: random masks need no attention layer."""
        if split not in self.validity:
            self.validity[split] = collect_masks(self.model, self.data.split(split))[1]
        return self.validity[split]

    def _validate(self, phase: Phase, model: Any, law: Law | None) -> float:
        """Accuracy on the validation split, under the model's own masks or under the same random ones each time."""
        split = self.data.valid
        if phase.first is not None:
            chosen = collect_masks(model, split)[0][:, 0] > 0.5
            return float((chosen == self._table(phase.first, "valid")).double().mean())
        masks = None if phase.given is None else self._table(phase.given, "valid").float()
        if law is not None and not phase.alternate:
            valid = self._valid("valid")
            masks = checked_random(law(valid, torch.Generator().manual_seed(self.seed)), valid)
        return _accuracy(collect_logits(model, split, masks), split)

    def _record(
        self, phase: Phase, epoch: int, loss: float, accuracy: float, valid: float, seconds: float
    ) -> dict[str, Any]:
        row = {"phase": phase.name, "epoch": epoch, "loss_nats": loss, "train_accuracy": accuracy,
               "valid_accuracy": valid, "support_deficit": float("nan"), "ess": float("nan"),
               "seconds": seconds}  # fmt: skip
        plan = self.plan
        if plan is not None:
            row |= {"support_deficit": plan.support_deficit, "ess": plan.ess}
        self.history.append(row)
        return row


def _by_id(parameters: list[nn.Parameter], gradients: Sequence[Tensor | None]) -> dict[int, Tensor | None]:
    return {id(parameter): gradient for parameter, gradient in zip(parameters, gradients)}


def _hold_statistics(model: nn.Module, learning: list[nn.Parameter]) -> None:
    """Batch normalisation that does not learn keeps its running statistics too: frozen means all of it."""
    learns = {id(parameter) for parameter in learning}
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not learns & {id(p) for p in module.parameters()}:
            module.eval()


def moving_average(model: nn.Module) -> AveragedModel:
    """An exponential moving average of the parameters, of decay min(0.99, (1 + s)/(10 + s)) at step s; buffers copied.

    The average of the last steps is what is evaluated and kept: it needs no learning-rate schedule.
    """

    def blend(averaged: Tensor, current: Tensor, step: Tensor | int) -> Tensor:
        decay = min(MAX_DECAY, (1 + float(step)) / (10 + float(step)))
        return current + (averaged - current) * decay

    return AveragedModel(model, avg_fn=blend)


def _accuracy(logits: Tensor, split: Split) -> float:
    return float((logits.argmax(-1) == split.y).double().mean())


def _postfix(row: dict[str, Any]) -> str:
    text = f"loss {row['loss_nats']:.3f}, train {row['train_accuracy']:.3f}, valid {row['valid_accuracy']:.3f}"
    return text if np.isnan(row["support_deficit"]) else f"{text}, support deficit {row['support_deficit']:.2f}"
