"""Training one model: epochs of steps, validation, checkpoints, early stopping."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from bayesify.objectives import Constant, KLSchedule
from bayesify.progress import ProgressBar
from bayesify.train.batch import Batch
from bayesify.train.batches import Batches
from bayesify.train.checkpoint import Run, describe, named
from bayesify.train.device import borrowed, seed_noise
from bayesify.train.examples import check_seen
from bayesify.train.fabric import log, make_fabric, reduce, share_buffers
from bayesify.train.history import NAN_VALIDATION, History, divergence, epoch_record
from bayesify.train.objective import Objective, log_density
from bayesify.train.sources import sources_of
from bayesify.train.training import Settings, Training

if TYPE_CHECKING:
    from lightning.fabric import Fabric
    from lightning.fabric.loggers.logger import Logger
    from lightning.fabric.strategies.strategy import Strategy

__all__ = ["Options", "fit_one"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What a model that is trained by itself has besides; the arguments of `fit` of the same names."""

    checkpoint: Path | None = None
    checkpoint_every: int = 1
    resume: bool = True
    accumulate: int = 1
    precision: Literal["32-true", "16-mixed", "bf16-mixed"] = "32-true"
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    devices: int | list[int] = 1
    strategy: str | Strategy = "auto"
    loggers: tuple[Logger | Callable[[dict[str, float]], object], ...] = ()
    progress: bool | None = None


def fit_one(training: Training, settings: Settings, options: Options) -> History:
    """Train one model, in place.

    Args:
        training, settings, options: checked arguments of `fit`.

    Returns:
        The history, one entry per epoch.

    Raises:
        As `fit`.
    """
    both = nn.ModuleList([training.bnn, training.likelihood])
    parameters = [p for p in both.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("bnn has no parameter with requires_grad=True, there is nothing to train")
    fabric = make_fabric(training.bnn, options.accelerator, options.devices, options.strategy, options.precision)
    shown = options.progress if fabric.is_global_zero else False
    with borrowed(both, fabric.device), ProgressBar("training", shown) as bar:
        loop = _Loop(training, settings, options, fabric, parameters, bar)
        loop.begin()
        loop.run.history.n = loop.sources.n
        loop.run_epochs()
        if loop.run.best is not None:
            loop.run.module.load_state_dict(loop.run.best)
    return loop.run.history


class _Loop:
    """The loop of one model, with everything it needs."""

    def __init__(
        self,
        training: Training,
        settings: Settings,
        options: Options,
        fabric: Fabric,
        parameters: list[nn.Parameter],
        bar: ProgressBar,
    ) -> None:
        self.training, self.settings, self.options = training, settings, options
        self.fabric, self.parameters, self.bar = fabric, parameters, bar
        self.sources = sources_of(training, settings.batch_size, fabric.device, fabric.global_rank, fabric.world_size)
        self.objective = Objective(training.bnn, training.likelihood, self.sources.sampler)
        # Fused Adam unscales gradients itself, which does not go with clipping under a gradient scaler.
        adam = partial(torch.optim.Adam, lr=training.learning_rate, fused=options.precision != "16-mixed")
        optimizer = (settings.optimizer or adam)(parameters)
        scheduler = None if settings.scheduler is None else settings.scheduler(optimizer)
        self.model, self.stepper = fabric.setup(self.objective, optimizer)
        self.run = Run(self.objective, optimizer, scheduler, fabric.strategy.precision)
        self.identity = self._identity() if options.checkpoint is not None else {}

    def _identity(self) -> dict[str, Any]:
        """What has to be the same for a run to go on."""
        training, settings, run = self.training, self.settings, self.run
        constant = isinstance(training.beta, Constant) or not isinstance(training.beta, KLSchedule)
        return {
            "epochs": "any" if settings.scheduler is None and constant else settings.epochs,
            "batch_size": settings.batch_size, "samples": settings.samples, "accumulate": self.options.accumulate,
            "validation_samples": settings.validation_samples, "seed": training.seed, "beta": repr(training.beta),
            "local_beta": training.local_weight, "learning_rate": training.learning_rate, "clip_norm": settings.clip_norm,
            "optimizer": named(run.optimizer, run.optimizer.defaults),
            "scheduler": named(run.scheduler, run.scheduler.state_dict() if run.scheduler else {}),
            "patience": settings.patience, "precision": self.options.precision, "processes": self.fabric.world_size,
            **describe("data", self.sources.train), "examples of data": self.sources.n,
            **describe("validation", self.sources.held_out),
            **{name: f"{tuple(x.shape)} {x.dtype}" for name, x in self.objective.state_dict().items()},
        }  # fmt: skip

    def begin(self) -> None:
        """Go on from the checkpoint if there is one."""
        path, epochs = self.options.checkpoint, self.settings.epochs
        if path is None:
            return
        self.run.begin(path, self.identity, self.options.resume and path.exists(), self.fabric.is_global_zero)
        done = len(self.run.history)
        if done > epochs:
            raise ValueError(f"epochs={epochs}, but the checkpoint {path} has {done}; ask for more, or resume=False")
        self.fabric.barrier()

    def run_epochs(self) -> None:
        """Train the epochs that are missing."""
        run, epochs, steps = self.run, self.settings.epochs, self.sources.train.steps
        if steps is not None:
            self.bar.total, self.bar.done = epochs * steps, len(run.history) * steps
        for epoch in range(len(run.history) + 1, epochs + 1):
            if run.history.stopped_early:
                break
            record = self._epoch(epoch)
            run.history.append(record, self.settings.patience)
            if run.history.improved:
                run.best = {name: x.clone() for name, x in self.objective.state_dict().items()}
            self._report(epoch, record)

    def _epoch(self, epoch: int) -> dict[str, float]:
        """Train one epoch and validate; its record."""
        started = time.perf_counter()
        seed_noise(self.fabric.device, self.training.seed, "noise", epoch, self.fabric.global_rank)
        self.model.train()
        record = self._train(epoch)
        if self.sources.held_out is not None:
            seed_noise(self.fabric.device, self.training.seed, "validation", self.fabric.global_rank)
            record["validation_nll"] = self._validate(self.sources.held_out)
        scheduler = self.run.scheduler
        if isinstance(scheduler, ReduceLROnPlateau):
            scheduler.step(record.get("validation_nll", record["loss"]))
        elif scheduler is not None:
            scheduler.step()
        record["seconds"] = time.perf_counter() - started
        return record

    def _train(self, epoch: int) -> dict[str, float]:
        """One step per batch, or per `accumulate` batches."""
        terms: list[Tensor] = []
        sizes: list[int] = []
        betas: list[float] = []
        for step, (batch, group, last) in enumerate(_grouped(self.sources.train, epoch, self.options.accumulate)):
            betas.append(self.training.beta_at(self._progress(epoch, step)))
            terms.append(self._step(batch, betas[-1], group, last))
            sizes.append(batch.size)
            self.bar.advance()
        if epoch == 1 and self.sources.train.examples is None:
            check_seen(self.sources.n, sum(sizes))
        share_buffers(self.objective, self.fabric)
        table = reduce(self.fabric, torch.stack(terms), "mean").double().cpu()
        learning_rate = float(self.run.optimizer.param_groups[0]["lr"])
        finite = bool(torch.stack([p.detach().isfinite().all() for p in self.parameters]).all())
        if broken := divergence(table[:, 0], finite, epoch, learning_rate):
            path = self.options.checkpoint
            raise FloatingPointError(broken + (f" The checkpoint {path} is from before it." if path is not None else ""))
        return epoch_record(table, sizes, betas, learning_rate)

    def _progress(self, epoch: int, step: int) -> float:
        """The share of all steps that is done, by which a schedule goes; data whose number of steps is unknown have none."""
        steps = self.sources.train.steps
        return 0.0 if steps is None else min(1.0, ((epoch - 1) * steps + step) / (self.settings.epochs * steps))

    def _step(self, batch: Batch, beta: float, group: int, last: bool) -> Tensor:
        """Descend one batch of a group, the last of which moves the weights; its loss, NLL and KL."""
        with self.fabric.no_backward_sync(self.model, enabled=not last):
            loss, nll, kl = self.model(batch, self.settings.samples, self.sources.n, beta, self.training.local_beta)
            self.fabric.backward(loss if group == 1 else loss / group)
        if last:
            if self.settings.clip_norm is not None:
                self.fabric.clip_gradients(self.model, self.stepper, max_norm=self.settings.clip_norm, error_if_nonfinite=False)
            self.stepper.step()
            self.stepper.zero_grad()
        return torch.stack((loss.detach(), nll, kl))  # left on the device: reading it would wait for the GPU

    @torch.no_grad()
    def _validate(self, batches: Batches) -> float:
        """The mean negative log predictive density, in nats per example."""
        fabric, objective = self.fabric, self.objective
        objective.eval()
        total = torch.zeros(2, dtype=torch.float64, device=fabric.device)
        for number, batch in enumerate(batches.epoch(0)):
            if number % fabric.world_size != fabric.global_rank:
                continue
            with fabric.autocast():
                log_prob = partial(objective.log_prob, batch)
                density = log_density(log_prob, batch.size, self.settings.samples, self.settings.validation_samples)
            total += torch.stack((density.double().sum(), total.new_tensor(batch.size)))
        log_prob, examples = reduce(fabric, total, "sum").tolist()
        if math.isnan(log_prob):
            raise FloatingPointError(NAN_VALIDATION)
        return -log_prob / examples

    def _report(self, epoch: int, record: dict[str, float]) -> None:
        """Write the checkpoint where one is due, then tell the bar and the loggers."""
        options, first = self.options, self.fabric.is_global_zero
        due = epoch % options.checkpoint_every == 0 or epoch == self.settings.epochs or self.run.history.stopped_early
        if options.checkpoint is not None and first and due:
            self.run.save(options.checkpoint, self.identity)
        names = {"loss": "loss", "kl": "KL", "validation_nll": "validation"}
        self.bar.text = " · ".join([f"epoch {epoch}", *(f"{names[n]} {v:.4g}" for n, v in record.items() if n in names)])
        for logger in options.loggers if first else ():
            log(logger, epoch, record)


def _grouped(batches: Batches, epoch: int, accumulate: int) -> Iterator[tuple[Batch, int, bool]]:
    """The batches of one epoch, each with the size of the group that makes a step and whether it is the last of it.

    The last group of an epoch may be smaller.
    """
    if batches.exact and batches.steps is not None:
        for number, batch in enumerate(batches.epoch(epoch)):
            group = min(accumulate, batches.steps - number // accumulate * accumulate)
            yield batch, group, number % accumulate == group - 1
        return
    source = batches.epoch(epoch)
    while group := list(islice(source, accumulate)):
        yield from ((batch, len(group), number == len(group)) for number, batch in enumerate(group, start=1))
