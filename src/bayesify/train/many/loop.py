"""The training loops of `fit_many`: stacked models together, or one after another."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from bayesify.objectives import KLSchedule
from bayesify.train.auxiliary import AuxiliaryInputs, auxiliary_inputs
from bayesify.train.batch import Place
from bayesify.train.batches import Batches, Data, batches_of, seed_for
from bayesify.train.engine import fit
from bayesify.train.history import NAN_VALIDATION, History, divergence, epoch_record
from bayesify.train.many.optimizers import Optimizers
from bayesify.train.many.stack import Stack, StackedData
from bayesify.train.objective import Objective, log_density
from bayesify.train.setup import borrowed, seed_noise

if TYPE_CHECKING:
    from bayesify.core.model import Bayesian
    from bayesify.likelihoods import Likelihood

__all__ = ["Plan", "Sources", "Training", "sources_of", "train_alone", "train_together"]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What all models have in common."""

    epochs: int
    batch_size: int
    samples: int
    optimizer: Callable[[list[nn.Parameter]], Optimizer] | None
    scheduler: Callable[[Optimizer], LRScheduler] | None
    clip_norm: float | None
    validation_samples: int
    patience: int | None
    compile: bool
    device: torch.device


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """One model of `fit_many`, with everything that is its own; the arguments of `fit` of the same names."""

    bnn: Bayesian
    data: Data
    likelihood: Likelihood
    validation: Data | None = None
    auxiliary: AuxiliaryInputs | None = None
    seed: int = 0
    beta: float | KLSchedule = 1.0
    local_beta: float | None = None
    learning_rate: float = 1e-3

    @property
    def local_weight(self) -> float:
        """`local_beta`, or what the method asks for."""
        return self.bnn.local_beta if self.local_beta is None else self.local_beta


Sources = tuple[Batches, Batches | None, "nn.Module | None"]


def sources_of(training: Training, plan: Plan) -> Sources:
    """Training and validation data and what makes auxiliary inputs, as in `fit`."""
    bnn, likelihood = training.bnn, training.likelihood
    seed_noise(plan.device, training.seed, "checks")
    common: Any = {"batch_size": plan.batch_size, "seed": training.seed}
    common["place"] = Place(plan.device, next(bnn.parameters()).dtype)
    train = batches_of("data", training.data, bnn, likelihood, **common)
    paired = {**common, "seed": seed_for(training.seed, "auxiliary", 0)}
    train, auxiliary = auxiliary_inputs(training.auxiliary, train, bnn, **paired)
    if training.validation is None:
        return train, None, auxiliary
    return train, batches_of("validation", training.validation, bnn, likelihood, shuffle=False, **common), auxiliary


def train_alone(training: Training, plan: Plan, advance: Callable[[int], object]) -> History:
    """`fit`; a failure is noted in the history."""
    history = History()

    def log(record: dict[str, float]) -> None:
        history.append({name: value for name, value in record.items() if name != "epoch"})
        advance(1)

    try:
        return fit(
            training.bnn, training.data, training.likelihood, validation=training.validation, auxiliary=training.auxiliary,
            seed=training.seed, beta=training.beta, local_beta=training.local_beta, learning_rate=training.learning_rate,
            epochs=plan.epochs, batch_size=plan.batch_size, samples=plan.samples, optimizer=plan.optimizer,
            scheduler=plan.scheduler, clip_norm=plan.clip_norm, validation_samples=plan.validation_samples,
            patience=plan.patience, accelerator="cuda" if plan.device.type == "cuda" else "cpu", loggers=[log], progress=False,
        )  # fmt: skip
    except FloatingPointError as error:
        history.failure = str(error)
        return history
    finally:
        advance(plan.epochs - len(history))


def train_together(
    trainings: Sequence[Training], sources: Sequence[Sources], plan: Plan, advance: Callable[[int], object]
) -> list[History]:
    """The loop of `fit`, for stacked models."""
    objectives = [Objective(t.bnn, t.likelihood, auxiliary) for t, (_, _, auxiliary) in zip(trainings, sources, strict=True)]
    with ExitStack() as exits:
        for objective in objectives:
            exits.enter_context(borrowed(objective, plan.device))
        stack = Stack(objectives, plan.device, plan.samples, plan.compile)
        train = StackedData([train for train, _, _ in sources])
        held_out = StackedData([held_out for _, held_out, _ in sources if held_out is not None]) if sources[0][1] else None
        rates = [training.learning_rate for training in trainings]
        optimizers = Optimizers(stack.parameters, rates, plan.optimizer, plan.scheduler, plan.clip_norm)
        histories = [History() for _ in trainings]
        best: list[dict[str, Tensor] | None] = [None] * len(trainings)
        running, steps = set(range(len(trainings))), len(train.sizes)
        for epoch in range(1, plan.epochs + 1):
            started = time.perf_counter()
            stack.streams.seed([(training.seed, "noise", epoch, 0) for training in trainings])
            weights, terms = [], []
            for step, batch in enumerate(train.epoch(epoch)):
                progress = ((epoch - 1) * steps + step) / (plan.epochs * steps)
                weights.append([t.beta(progress) if isinstance(t.beta, KLSchedule) else t.beta for t in trainings])
                betas = [[beta, t.local_weight] for beta, t in zip(weights[-1], trainings, strict=True)]
                gradients, values = stack.step(batch, train, betas)
                optimizers.step(gradients)
                terms.append(values)
            table = torch.stack(terms).double().cpu()
            finite = torch.stack([p.isfinite().reshape(len(p), -1).all(1) for p in stack.parameters.values()]).all(0).tolist()
            validation_nll = None if held_out is None else _validate(stack, held_out, trainings, plan)
            seconds = (time.perf_counter() - started) / len(running)
            rates = [optimizers.learning_rate(model) for model in range(len(trainings))]
            for model in sorted(running):
                history = histories[model]
                history.failure = divergence(table[:, model, 0], finite[model], epoch, rates[model])
                record = epoch_record(table[:, model], train.sizes, [row[model] for row in weights], rates[model])
                if validation_nll is not None:
                    record["validation_nll"] = validation_nll[model]
                    if math.isnan(validation_nll[model]) and history.failure is None:
                        history.failure = NAN_VALIDATION
                if history.failure is None:
                    history.append(record | {"seconds": seconds}, plan.patience)
                    if history.improved:
                        best[model] = stack.of(model)
                if history.failure is not None or history.stopped_early or epoch == plan.epochs:
                    keep = None if history.failure is not None else best[model]
                    stack.give_back(model, stack.of(model) if keep is None else keep)
                    running.discard(model)
            advance(len(trainings))
            if not running:
                advance((plan.epochs - epoch) * len(trainings))
                break
            optimizers.end_epoch([(h.validation_nll or h.loss or [math.nan])[-1] for h in histories])
        return histories


@torch.no_grad()
def _validate(stack: Stack, held_out: StackedData, trainings: Sequence[Training], plan: Plan) -> list[float]:
    """The mean negative log predictive density of every model, in nats per example."""
    stack.streams.seed([(training.seed, "validation", 0) for training in trainings])
    total = torch.zeros(len(trainings), dtype=torch.float64)
    for batch, size in zip(held_out.epoch(0), held_out.sizes, strict=True):
        density = log_density(partial(stack.log_prob, batch, held_out), size, plan.samples, plan.validation_samples)
        total += density.double().sum(1).cpu()
    return (-total / held_out.n).tolist()
