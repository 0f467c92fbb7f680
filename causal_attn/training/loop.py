"""The one training loop. Schemes differ in what learns, which masks are shown, and how rows are weighted."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Iterator
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
from causal_attn.errors import InputError, NotEstimableError
from causal_attn.masks import first_row
from causal_attn.training.collect import (
    batches,
    collect_logits,
    collect_masks,
    device_of,
    pick_device,
    to_device,
    width_of,
)  # fmt: skip
from causal_attn.training.result import TrainResult
from causal_attn.training.schemes import ERM, Phase, Scheme
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

    Raises:
        InputError: a model that breaks the protocol, or an argument out of range; before any work.
    """
    settings = Settings(epochs, batch_size, learning_rate, weight_decay, patience=patience)
    if not isinstance(model, nn.Module):
        raise InputError(f"model: expected an nn.Module with masks and predict, got {type(model).__name__}")
    if not isinstance(data, Data):
        raise InputError(f"data: expected splits as load or from_datasets give them, got {type(data).__name__}")
    scheme = ERM() if scheme is None else scheme
    if isinstance(scheme, type) or not callable(getattr(scheme, "phases", None)):
        raise InputError(f"scheme: expected a scheme such as ERM(), got {scheme!r}")
    seed = seed_of(seed)
    started = time.perf_counter()
    where = pick_device(device)
    trained: Any = copy.deepcopy(model).to(where)
    probe = to_device(data.train.batch(torch.arange(min(8, len(data.train))))[0], where)
    check_model(trained, probe, data.n_classes)
    with torch.inference_mode(False), torch.enable_grad(), forked_rng(seed, trained.parameters()):
        run = _Run(trained, data, settings, np.random.default_rng(seed), seed, progress)
        phases = [(phase, run.learning(phase, probe)) for phase in scheme.phases()]  # all are checked before the first
        for phase, learning in phases:
            run.phase(phase, learning)
    trained.eval()
    history = pd.DataFrame(run.history)
    return TrainResult(trained, data, scheme, history, seed, time.perf_counter() - started, settings)


class _Run:
    """The state of one training run: model, random numbers, history."""

    def __init__(self, model: Any, data: Data, settings: Settings, rng: np.random.Generator, seed: int, progress: bool):
        self.model, self.data, self.settings, self.rng, self.seed = model, data, settings, rng, seed
        self.progress = progress
        self.masks_rng = torch.Generator().manual_seed(seed)
        self.validity: dict[str, Tensor] = {}
        self.tables: dict[tuple[Any, str], Tensor] = {}
        self.history: list[dict[str, Any]] = []

    def phase(self, phase: Phase, learning: list[nn.Parameter]) -> None:
        """Train the parameters `learning` in one phase; leave the model at the average of the epoch that is kept."""
        optimiser = torch.optim.AdamW(learning, self.settings.learning_rate, weight_decay=self.settings.weight_decay)
        average = moving_average(self.model)
        patience = self.settings.patience
        best: tuple[float, int] = (-1.0, 0)
        kept: dict[str, Tensor] = {}
        plan: Plan | None = None
        epochs = max(1, round(phase.share * self.settings.epochs))
        if phase.weighting is not None and epochs <= phase.weighting.refresh:
            warnings.warn(
                f"{phase.name}: weights are first estimated after {phase.weighting.refresh} epoch(s), the phase has "
                f"{epochs}: every row keeps weight 1; train longer, or refresh more often",
                UserWarning,
                stacklevel=3,
            )
        bar = tqdm(total=epochs, desc=phase.name, disable=not self.progress, leave=False)
        for epoch in range(epochs):
            began = time.perf_counter()
            plan = self._plan(phase, plan, epoch)
            loss, accuracy, reached = self._epoch(phase, optimiser, learning, plan, average)
            valid = self._validate(phase, average.module)
            row = self._record(phase, epoch, loss, accuracy, valid, plan, time.perf_counter() - began)
            bar.set_postfix_str(_postfix(row))
            bar.update()
            if patience is None or valid > best[0]:
                best = (valid, epoch)
                kept = {name: value.detach().clone() for name, value in average.module.state_dict().items()}
            elif epoch - best[1] >= patience:
                break
            if reached:
                break
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

    def learning(self, phase: Phase, probe: Any) -> list[nn.Parameter]:
        """The parameters that learn in a phase; InputError where there are none."""
        named = dict(self.model.named_parameters())
        mask_names, predict_names = parameter_roles(self.model, probe)
        names = {"all": frozenset(named), "masks": mask_names, "predict": predict_names}[phase.learns]
        if phase.learns == "masks":
            names = names - predict_names  # a shared parameter stays frozen: the downstream part may not move
        chosen = [p for name, p in named.items() if name in names and p.requires_grad]
        if not chosen:
            raise InputError(f"model: no parameter of its own to train in phase {phase.name!r} ({phase.learns})")
        return chosen

    def _plan(self, phase: Phase, plan: Plan | None, epoch: int) -> Plan | None:
        if phase.weighting is None or (plan is not None and epoch % phase.weighting.refresh):
            return plan
        return refresh(self.model, self.data.train, phase.weighting, plan, self.seed + epoch)

    def _epoch(
        self,
        phase: Phase,
        optimiser: torch.optim.Optimizer,
        learning: list[nn.Parameter],
        plan: Plan | None,
        average: AveragedModel,
    ) -> tuple[float, float, bool]:
        """One pass over the training rows: mean weighted loss, nats, accuracy, and whether the phase is done early."""
        total, right, seen = 0.0, 0, 0
        with in_mode(self.model, training=True):
            _hold_statistics(self.model, learning)
            for index, x, y in self._rows():
                losses, hits = self._losses(phase, x, y, index, plan)
                loss = (losses if plan is None else losses * plan.weight[index].to(losses)).mean()
                if not torch.isfinite(loss):
                    raise NotEstimableError(f"training: the loss became {loss.item()} in phase {phase.name!r}")
                gradients = torch.autograd.grad(loss, learning, allow_unused=True)
                for parameter, gradient in zip(learning, gradients):
                    parameter.grad = gradient
                nn.utils.clip_grad_norm_(learning, self.settings.clip)
                optimiser.step()
                average.update_parameters(self.model)
                total += loss.item() * len(y)
                right += int(hits.sum())
                seen += len(y)
                if phase.until is not None and self._first_accuracy(phase, average.module) >= phase.until:
                    optimiser.zero_grad(set_to_none=True)
                    return total / seen, right / seen, True
        optimiser.zero_grad(set_to_none=True)
        return total / seen, right / seen, False

    def _losses(
        self, phase: Phase, x: Any, y: Tensor, index: Tensor, plan: Plan | None
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Loss of each row, nats, and whether it is right: of the class, or of choosing the first position."""
        if phase.first is not None:
            wanted = self._table(phase.first, "train")[index].to(y.device)
            mass = TINY + (1 - 2 * TINY) * self.model.masks(x)[:, 0]  # not clamped: a choice of 0 has a gradient, too
            return nn.functional.binary_cross_entropy(mass, wanted.to(mass), reduction="none"), (mass > 0.5) == wanted
        logits = self.model.predict(x, self._shown(phase, x, index, plan))
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

    def _shown(self, phase: Phase, x: Any, index: Tensor, plan: Plan | None) -> Tensor:
        """The masks this batch's downstream part sees: random, the model's own, or another row's where explored."""
        if phase.law is not None:
            valid = self._valid("train")[index, : width_of(self.model, x)]
            return _checked_random(phase.law(valid, self.masks_rng), valid).to(device_of(self.model))
        if phase.given is not None:
            width = width_of(self.model, x)
            return self._table(phase.given, "train")[index, :width].float().to(device_of(self.model))
        own: Tensor = self.model.masks(x)
        if plan is None or plan.shown is None:
            return own
        given = plan.shown[index][:, : own.shape[1]].to(own)
        return torch.where(plan.explored[index].to(own.device)[:, None], given, own)

    def _valid(self, split: str) -> Tensor:
        """Which positions exist, (n, T_max), found once: random masks need no attention layer."""
        if split not in self.validity:
            self.validity[split] = collect_masks(self.model, self.data.split(split))[1]
        return self.validity[split]

    def _validate(self, phase: Phase, model: Any) -> float:
        """Accuracy on the validation split, under the model's own masks or under the same random ones each time."""
        split = self.data.valid
        if phase.first is not None:
            chosen = collect_masks(model, split)[0][:, 0] > 0.5
            return float((chosen == self._table(phase.first, "valid")).double().mean())
        masks = None if phase.given is None else self._table(phase.given, "valid").float()
        if phase.law is not None:
            valid = self._valid("valid")
            masks = _checked_random(phase.law(valid, torch.Generator().manual_seed(self.seed)), valid)
        return _accuracy(collect_logits(model, split, masks), split)

    def _record(
        self, phase: Phase, epoch: int, loss: float, accuracy: float, valid: float, plan: Plan | None, seconds: float
    ) -> dict[str, Any]:
        row = {"phase": phase.name, "epoch": epoch, "loss_nats": loss, "train_accuracy": accuracy,
               "valid_accuracy": valid, "support_deficit": float("nan"), "ess": float("nan"),
               "seconds": seconds}  # fmt: skip
        if plan is not None:
            row |= {"support_deficit": plan.support_deficit, "ess": plan.ess}
        self.history.append(row)
        return row


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


def _checked_random(masks: Tensor, valid: Tensor) -> Tensor:
    """What a law of random masks gave, as float32; InputError where it is no mask over the valid positions."""
    if not isinstance(masks, Tensor) or masks.shape != valid.shape:
        came = tuple(masks.shape) if isinstance(masks, Tensor) else type(masks).__name__
        raise InputError(f"law: expected masks of shape {tuple(valid.shape)}, got {came}")
    masks = masks.double()
    odd = (masks < 0).any(-1) | ((masks * ~valid) != 0).any(-1) | ~(masks.sum(-1) > 0)
    if odd.any():
        raise InputError(f"law: expected mass on valid positions only and none below 0, row {first_row(odd)} breaks it")
    odd = ((masks.sum(-1) - 1).abs() > 1e-4) & ~((masks == 0) | (masks == 1)).all(-1)
    if odd.any():
        row = first_row(odd)
        raise InputError(f"law: expected rows that sum to 1, or 0/1, row {row} sums to {float(masks[row].sum()):.6g}")
    return masks.float()


def _accuracy(logits: Tensor, split: Split) -> float:
    return float((logits.argmax(-1) == split.y).double().mean())


def _postfix(row: dict[str, Any]) -> str:
    text = f"loss {row['loss_nats']:.3f}, train {row['train_accuracy']:.3f}, valid {row['valid_accuracy']:.3f}"
    return text if np.isnan(row["support_deficit"]) else f"{text}, support deficit {row['support_deficit']:.2f}"
