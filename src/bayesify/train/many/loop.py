"""Training loops of `fit_many`: a stack of models together, or one model alone."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from bayesify.core.values import finite_models
from bayesify.errors import DivergenceError
from bayesify.train.arguments import Settings, SingleModelOptions, Training
from bayesify.train.history import NAN_VALIDATION, History, divergence, epoch_record
from bayesify.train.many.optimizers import Optimizers
from bayesify.train.many.stack import Stack
from bayesify.train.many.stack_checkpoint import StackCheckpoint
from bayesify.train.many.stacked_data import StackedData, stack_data
from bayesify.train.many.vectorization import UntraceableError
from bayesify.train.model_data import ModelData
from bayesify.train.objective import Objective, log_density
from bayesify.train.process_state import preserved_state
from bayesify.train.single_model import fit_single_model
from bayesify.train.threads import one_thread, step_work

__all__ = ["Loop", "train_alone", "train_together"]


def train_alone(
    training: Training,
    n: int,
    settings: Settings,
    device: torch.device,
    advance: Callable[[int], object],
    checkpoint: Path | None = None,
    resume: bool = True,
) -> History:
    """Train one model as `fit` does; a divergence is recorded in the history, whose number of examples is `n`."""
    history = History(n=n)

    def log(record: dict[str, float]) -> None:
        history.append({name: value for name, value in record.items() if name != "epoch"})
        advance(1)

    options = SingleModelOptions(
        accelerator="cuda" if device.type == "cuda" else "cpu", loggers=(log,), progress=False, checkpoint=checkpoint, resume=resume
    )
    try:
        return fit_single_model(training, settings, options)
    except DivergenceError as error:
        history.failure = str(error)
        return history
    finally:
        advance(settings.epochs - len(history))


def train_together(
    trainings: Sequence[Training],
    data: Sequence[ModelData],
    settings: Settings,
    device: torch.device,
    compile: bool,
    advance: Callable[[int], object],
    checkpoint: Path | None = None,
    resume: bool = True,
) -> list[History]:
    """Train stacked models, each as `fit` would.

    Args:
        trainings: models that can be stacked.
        data: their data.
        settings: the settings they share.
        device: where to train.
        compile: whether to compile training steps.
        advance: called with the number of epochs done, summed over models.
        checkpoint: file for the state of training.
        resume: whether to continue from it.

    Returns:
        The history of each model.

    Raises:
        UntraceableError: the models cannot be trained together; they are unchanged.
    """
    if any(training.bnn.has_optimizer for training in trainings):
        raise UntraceableError("their optimizer, that of the method, updates the posterior of one network")
    objectives = [Objective(t.bnn, t.likelihood, d.auxiliary) for t, d in zip(trainings, data, strict=True)]
    with ExitStack() as exits:
        for objective in objectives:
            exits.enter_context(preserved_state(objective, device))
        exits.enter_context(one_thread(device, step_work(objectives, data[0].train, settings)))
        stack = Stack(objectives, data[0].n, device, settings.samples, compile, join=settings.optimizer is None)
        loop = Loop(trainings, data, settings, stack)
        file = None if checkpoint is None else StackCheckpoint(checkpoint, loop, trainings, data, settings)
        done = 0 if file is None else file.resume_or_start(resume)
        advance(done * len(trainings))
        while loop.running:
            done += 1
            loop.run_epoch(done)
            advance(len(trainings))
            if loop.running:
                loop.end_epoch()
            if file is not None:
                file.write_if_due()
        advance((settings.epochs - done) * len(trainings))
    return loop.histories


class Loop:
    """Training loop of a stack of models.

    Attributes:
        stack, optimizers: of all models.
        histories: one per model.
        best: the state of each model after the epoch with the lowest validation NLL.
        running: the models that have not failed, stopped or finished.
    """

    def __init__(self, trainings: Sequence[Training], data: Sequence[ModelData], settings: Settings, stack: Stack) -> None:
        self.trainings, self.settings, self.stack = trainings, settings, stack
        self.train = stack_data([d.train for d in data])
        validation = [d.validation for d in data if d.validation is not None]
        self.validation = stack_data(validation) if validation else None
        rates = [training.learning_rate for training in trainings]
        exempt = stack.objectives[0].without_decay()
        self.optimizers = Optimizers(stack.trained, rates, settings.optimizer, settings.scheduler, settings.clip_norm, exempt)
        self.histories = [History(n=d.n) for d in data]
        self.best: list[dict[str, Tensor] | None] = [None] * len(trainings)
        self.running = set(range(len(trainings)))

    def run_epoch(self, epoch: int) -> None:
        """Train all models for an epoch, validate, and write back those that are done."""
        start = time.perf_counter()
        betas, table = self._train(epoch)
        finite = finite_models(list(self.stack.parameters.values())).tolist()
        validation_nll = None if self.validation is None else self._validate(self.validation)
        seconds = (time.perf_counter() - start) / len(self.running)
        for model in sorted(self.running):
            rate = self.optimizers.learning_rate(model)
            record = epoch_record(table[:, model], self.train.sizes, [row[model] for row in betas], rate)
            failure = divergence(table[:, model, 0], finite[model], epoch, rate)
            if validation_nll is not None:
                record["validation_nll"] = validation_nll[model]
                if math.isnan(validation_nll[model]) and failure is None:
                    failure = NAN_VALIDATION
            self._record(model, record | {"seconds": seconds}, failure)

    def end_epoch(self) -> None:
        """Step the learning rate schedulers."""
        self.optimizers.end_epoch([(h.validation_nll or h.loss or [math.nan])[-1] for h in self.histories])

    def _train(self, epoch: int) -> tuple[list[list[float]], Tensor]:
        """Take one step per batch; return the KL weights (steps, K), and loss, NLL and KL (steps, K, 3)."""
        steps = len(self.train.sizes)
        self.stack.streams.seed([(training.seed, "noise", epoch, 0) for training in self.trainings])
        betas: list[list[float]] = []
        terms: list[Tensor] = []
        for step, batch in enumerate(self.train.epoch(epoch)):
            done = (epoch - 1) * steps + step
            progress = done / (self.settings.epochs * steps)
            betas.append([training.beta_at(progress) for training in self.trainings])
            weights = [[beta, training.local_weight] for beta, training in zip(betas[-1], self.trainings, strict=True)]
            gradients, values = self.stack.step(batch, self.train, weights)
            self.optimizers.step(gradients)
            self.stack.collect_due(sorted(self.running), progress, (done + 1) / (self.settings.epochs * steps))
            terms.append(values)
        return betas, torch.stack(terms).double().cpu()

    def _record(self, model: int, record: dict[str, float], failure: str | None) -> None:
        """Record an epoch of a model; write a model that has failed, stopped or finished back into its modules."""
        history = self.histories[model]
        history.failure = failure
        if failure is None:
            history.append(record, self.settings.patience)
            if history.improved and not self.trainings[model].bnn.collects:
                self.best[model] = self.stack.state_of(model)
        if failure is not None or history.stopped_early or len(history) == self.settings.epochs:
            best = None if failure is not None else self.best[model]
            self.stack.write_back(model, self.stack.state_of(model) if best is None else best)
            if best is not None:
                history.keep_best()
            self.running.discard(model)

    @torch.no_grad()
    def _validate(self, validation: StackedData) -> list[float]:
        """Return the mean negative log predictive density of every model, in nats per example."""
        self.stack.streams.seed([(training.seed, "validation", 0) for training in self.trainings])
        total = torch.zeros(2, len(self.trainings), dtype=torch.float64)
        for batch, size in zip(validation.epoch(0), validation.sizes, strict=True):
            log_prob = partial(self.stack.log_prob, batch, validation)
            density = log_density(log_prob, size, self.settings.samples, self.settings.validation_samples)
            weights = batch[-1] if validation.is_weighted else torch.ones_like(density)
            total += torch.stack(((weights * density).double().sum(1), weights.double().sum(1))).cpu()
        return (-total[0] / total[1]).tolist()
