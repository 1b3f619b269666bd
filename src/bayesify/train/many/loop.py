"""The training loops of `fit_many`: stacked models together, or one after another."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

import torch
from torch import Tensor

from bayesify.train.device import borrowed
from bayesify.train.history import NAN_VALIDATION, History, divergence, epoch_record
from bayesify.train.many.optimizers import Optimizers
from bayesify.train.many.stack import Stack, StackedData
from bayesify.train.objective import Objective, log_density
from bayesify.train.one import Options, fit_one
from bayesify.train.sources import Sources
from bayesify.train.training import Settings, Training

__all__ = ["train_alone", "train_together"]


def train_alone(training: Training, n: int, settings: Settings, device: torch.device, advance: Callable[[int], object]) -> History:
    """Train one model as `fit` does; a failure is noted in the history, which has `n` examples."""
    history = History(n=n)

    def log(record: dict[str, float]) -> None:
        history.append({name: value for name, value in record.items() if name != "epoch"})
        advance(1)

    options = Options(accelerator="cuda" if device.type == "cuda" else "cpu", loggers=(log,), progress=False)
    try:
        return fit_one(training, settings, options)
    except FloatingPointError as error:
        history.failure = str(error)
        return history
    finally:
        advance(settings.epochs - len(history))


def train_together(
    trainings: Sequence[Training],
    sources: Sequence[Sources],
    settings: Settings,
    device: torch.device,
    compile: bool,
    advance: Callable[[int], object],
) -> list[History]:
    """Train stacked models, each as `fit` would.

    Args:
        trainings: models that can be stacked.
        sources: their data.
        settings: what they have in common.
        device: where to train.
        compile: whether training steps become machine code.
        advance: is told how many epochs of one model are done.

    Returns:
        The history of each model.

    Raises:
        UntraceableError: the models cannot be trained together; nothing has changed.
    """
    objectives = [Objective(t.bnn, t.likelihood, own.sampler) for t, own in zip(trainings, sources, strict=True)]
    with ExitStack() as exits:
        for objective in objectives:
            exits.enter_context(borrowed(objective, device))
        stack = Stack(objectives, sources[0].n, device, settings.samples, compile)
        loop = _Loop(trainings, sources, settings, stack)
        for epoch in range(1, settings.epochs + 1):
            loop.run_epoch(epoch)
            advance(len(trainings))
            if not loop.running:
                advance((settings.epochs - epoch) * len(trainings))
                break
            loop.end_epoch()
    return loop.histories


class _Loop:
    """The loop of a stack of models.

    Attributes:
        histories: one per model.
        running: the models that have not failed or stopped.
    """

    def __init__(self, trainings: Sequence[Training], sources: Sequence[Sources], settings: Settings, stack: Stack) -> None:
        self.trainings, self.settings, self.stack = trainings, settings, stack
        self.train = StackedData([own.train for own in sources])
        held_out = [own.held_out for own in sources if own.held_out is not None]
        self.held_out = StackedData(held_out) if held_out else None
        rates = [training.learning_rate for training in trainings]
        self.optimizers = Optimizers(stack.parameters, rates, settings.optimizer, settings.scheduler, settings.clip_norm)
        self.histories = [History(n=own.n) for own in sources]
        self.best: list[dict[str, Tensor] | None] = [None] * len(trainings)
        self.running = set(range(len(trainings)))

    def run_epoch(self, epoch: int) -> None:
        """Train all models for an epoch, validate, and give back those that are done."""
        started = time.perf_counter()
        weights, table = self._train(epoch)
        finite = torch.stack([p.isfinite().reshape(len(p), -1).all(1) for p in self.stack.parameters.values()]).all(0).tolist()
        validation_nll = None if self.held_out is None else self._validate(self.held_out)
        seconds = (time.perf_counter() - started) / len(self.running)
        for model in sorted(self.running):
            rate = self.optimizers.learning_rate(model)
            record = epoch_record(table[:, model], self.train.sizes, [row[model] for row in weights], rate)
            failure = divergence(table[:, model, 0], finite[model], epoch, rate)
            if validation_nll is not None:
                record["validation_nll"] = validation_nll[model]
                if math.isnan(validation_nll[model]) and failure is None:
                    failure = NAN_VALIDATION
            self._note(model, record | {"seconds": seconds}, failure)

    def end_epoch(self) -> None:
        """Step the schedulers."""
        self.optimizers.end_epoch([(h.validation_nll or h.loss or [math.nan])[-1] for h in self.histories])

    def _train(self, epoch: int) -> tuple[list[list[float]], Tensor]:
        """One step per batch; the KL weights (steps, K) and loss, NLL and KL (steps, K, 3)."""
        steps = len(self.train.sizes)
        self.stack.streams.seed([(training.seed, "noise", epoch, 0) for training in self.trainings])
        weights: list[list[float]] = []
        terms: list[Tensor] = []
        for step, batch in enumerate(self.train.epoch(epoch)):
            progress = ((epoch - 1) * steps + step) / (self.settings.epochs * steps)
            weights.append([training.beta_at(progress) for training in self.trainings])
            betas = [[beta, training.local_weight] for beta, training in zip(weights[-1], self.trainings, strict=True)]
            gradients, values = self.stack.step(batch, self.train, betas)
            self.optimizers.step(gradients)
            terms.append(values)
        return weights, torch.stack(terms).double().cpu()

    def _note(self, model: int, record: dict[str, float], failure: str | None) -> None:
        """An epoch of a model; what has failed, stopped or come to its end is written into the model's own modules."""
        history = self.histories[model]
        history.failure = failure
        if failure is None:
            history.append(record, self.settings.patience)
            if history.improved:
                self.best[model] = self.stack.of(model)
        if failure is not None or history.stopped_early or len(history) == self.settings.epochs:
            keep = None if failure is not None else self.best[model]
            self.stack.give_back(model, self.stack.of(model) if keep is None else keep)
            self.running.discard(model)

    @torch.no_grad()
    def _validate(self, held_out: StackedData) -> list[float]:
        """The mean negative log predictive density of every model, in nats per example."""
        self.stack.streams.seed([(training.seed, "validation", 0) for training in self.trainings])
        total = torch.zeros(len(self.trainings), dtype=torch.float64)
        for batch, size in zip(held_out.epoch(0), held_out.sizes, strict=True):
            log_prob = partial(self.stack.log_prob, batch, held_out)
            density = log_density(log_prob, size, self.settings.samples, self.settings.validation_samples)
            total += density.double().sum(1).cpu()
        return (-total / held_out.rows).tolist()
