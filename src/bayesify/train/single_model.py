"""Training of one model: epochs of steps, validation, checkpoints, early stopping."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bayesify.core.shards import local_part
from bayesify.core.values import finite_models
from bayesify.errors import CheckpointError, ConfigurationError, DivergenceError
from bayesify.jobs.worker import versions
from bayesify.objectives import KLSchedule
from bayesify.progress import ProgressBar
from bayesify.train.after_training import check_completable, complete_posterior, rehearse_completion
from bayesify.train.agreement import check_agreement, raised_everywhere
from bayesify.train.arguments import Settings, SingleModelOptions, Training
from bayesify.train.batch import Batch
from bayesify.train.checkpoint import TrainingState, checksum, run_identity
from bayesify.train.compilation import check_compilable, compile_steps, compiler_errors_explained
from bayesify.train.data_loading import Batches
from bayesify.train.dataset_size import warn_if_more_examples
from bayesify.train.fabric import broadcast_buffers, make_fabric, reduce
from bayesify.train.history import NAN_VALIDATION, History, culprits, divergence, epoch_record
from bayesify.train.loggers import Loggers, configuration
from bayesify.train.model_data import load_model_data
from bayesify.train.objective import Objective
from bayesify.train.optimizers import make_optimizer, step_scheduler
from bayesify.train.process_state import preserved_state, seed_noise
from bayesify.train.running_statistics import tell_of_misfits
from bayesify.train.sharding import copy_gathered
from bayesify.train.threads import one_thread, step_work
from bayesify.train.validation import validation_nll

if TYPE_CHECKING:
    from lightning.fabric import Fabric

__all__ = ["fit_single_model"]


def fit_single_model(training: Training, settings: Settings, options: SingleModelOptions) -> History:
    """Train one model, in place, with checked arguments of `fit`; returns and raises as `fit`."""
    model = nn.ModuleList([training.bnn, training.likelihood])
    if not any(p.requires_grad for p in model.parameters()):
        raise ConfigurationError("bnn has no parameter with requires_grad=True, there is nothing to train")
    if options.compile:
        check_compilable(training.bnn, is_sharded=options.is_sharded)
    fabric = make_fabric(training.bnn, options)
    show = options.progress if fabric.is_global_zero else False
    original, sharded = training, options.is_sharded
    if sharded:  # a copy: shards cannot be undone
        bnn, likelihood = copy.deepcopy((training.bnn, training.likelihood))
        training = dataclasses.replace(training, bnn=bnn, likelihood=likelihood)
    with preserved_state(model, fabric.device, move=not sharded):
        check_completable(training, fabric.world_size)
        training.bnn.forget()
        with raised_everywhere(fabric):
            opened = Loggers(options.loggers if fabric.is_global_zero else (), options.checkpoint, options.resume)
        with opened as loggers, ProgressBar("training", show) as bar:
            loop = _Loop(training, settings, options, fabric, bar, loggers)
            loop.resume_or_start()
            loop.state.history.n = loop.data.n
            loggers.start(configuration(training, settings, options), loop.state.history)
            with one_thread(fabric.device, step_work([loop.objective], loop.data.train, settings)):
                loop.run_epochs()
        training.bnn.tell_of_optimizer()
        training.bnn.passes.optimizer = None  # its state is that of this run
        if loop.state.best is not None:
            loop.state.module.load_state_dict(loop.state.best)
            loop.state.history.keep_best()
        if sharded:
            copy_gathered(loop.objective, bnn=original.bnn, likelihood=original.likelihood)
        complete_posterior(training, loop.data, show)
        if loop.last is not None and (text := original.likelihood.misfit(loop.state.history.nll, loop.last.y)):
            original.bnn.tell(text)
        if loop.last is not None and fabric.world_size == 1:
            tell_of_misfits(original.bnn, [loop.last])
    return loop.state.history


class _Loop:
    """Training loop of one model."""

    def __init__(
        self,
        training: Training,
        settings: Settings,
        options: SingleModelOptions,
        fabric: Fabric,
        bar: ProgressBar,
        loggers: Loggers,
    ) -> None:
        self.training, self.settings, self.options = training, settings, options
        self.fabric, self.bar, self.loggers = fabric, bar, loggers
        with raised_everywhere(fabric):
            self.data = load_model_data(training, settings.batch_size, fabric.device, fabric.global_rank, fabric.world_size)
            self.objective = Objective(training.bnn, training.likelihood, self.data.auxiliary)
            if options.compile:
                compile_steps(self.objective, fabric.device, sizes_vary=self.data.train.sizes_vary)
            self.state = self._state()
        several = fabric.world_size > 1
        self.identity = self._identity() if several or options.checkpoint is not None else {}
        if several:
            check_agreement(fabric, self._facts())
        if options.is_sharded:
            self.model = fabric.setup_module(self.objective)
            self.state = self._state()  # with the optimizer of shards
            self.optimizer: Any = fabric.setup_optimizers(self.state.optimizer)
        else:
            self.model, self.optimizer = fabric.setup(self.objective, self.state.optimizer)
        self.done = 0.0  # fraction of training up to which snapshots were taken
        self.starts_step = True  # whether the next batch is the first of its group
        self.last: Batch | None = None

    def _state(self) -> TrainingState:
        self.parameters = [p for p in self.objective.parameters() if p.requires_grad]
        optimizer = self._optimizer()
        scheduler = None if self.settings.scheduler is None else self.settings.scheduler(optimizer)
        if not self.options.is_sharded:
            return TrainingState(self.objective, optimizer, scheduler, self.fabric)
        from bayesify.train.sharded_checkpoint import ShardedState  # imports much of torch.distributed

        return ShardedState(self.objective, optimizer, scheduler, self.fabric)

    def _optimizer(self) -> Optimizer:
        training = self.training
        if training.bnn.has_optimizer:
            return training.bnn.optimizer(training.likelihood, learning_rate=training.learning_rate)
        fused = self.options.precision != "16-mixed"  # fused Adam unscales gradients itself, before they could be clipped
        exempt = set(self.objective.without_decay().values())
        return make_optimizer(self.settings.optimizer, self.parameters, training.learning_rate, exempt, fused)

    def _identity(self) -> dict[str, Any]:
        """Return what a resumed run must have in common with the interrupted one."""
        state, own = self.state, {"accumulate": self.options.accumulate, "precision": self.options.precision}
        # with another number of processes, a run may go on if together they have as large a batch
        settings = dataclasses.replace(self.settings, batch_size=self.settings.batch_size * self.fabric.world_size)
        common = run_identity(self.training, settings, self.data, state.optimizer, state.scheduler, self.objective.state_dict())
        return common | own

    def _facts(self) -> dict[str, object]:
        """Return what all processes must have in common."""
        options, weights = self.options, self.objective.state_dict()
        return {
            **versions(), **self.identity, "epochs": self.settings.epochs,
            "checkpoint": options.checkpoint is not None, "checkpoint_every": options.checkpoint_every, "resume": options.resume,
            **{f"the checksum of the initial {name.partition('.')[2]}": checksum(x) for name, x in weights.items()},
        }  # fmt: skip

    def resume_or_start(self) -> None:
        """Resume from the checkpoint, or write the first one; the first process reads and writes for all."""
        path, epochs = self.options.checkpoint, self.settings.epochs
        if path is None:
            return
        if not (self.options.resume and self.state.exists(path)):
            self.state.start(path, self.identity)
            return
        self.state.resume(path, self.identity)
        done = len(self.state.history)
        if done > epochs:
            raise CheckpointError(path, f"it has {done} epochs, more than epochs={epochs}", "raise epochs, or pass resume=False")
        self.done = done / epochs

    def run_epochs(self) -> None:
        """Train the remaining epochs."""
        state, epochs, steps = self.state, self.settings.epochs, self.data.train.steps
        if steps is not None:
            self.bar.total, self.bar.done = epochs * steps, len(state.history) * steps
        for epoch in range(len(state.history) + 1, epochs + 1):
            if state.history.stopped_early:
                break
            record = self._run_epoch(epoch)
            state.history.append(record, self.settings.patience)
            if state.history.improved and not self.training.bnn.collects:
                state.best = {name: x.clone() for name, x in self.objective.state_dict().items()}
            self._report(epoch, record)

    def _run_epoch(self, epoch: int) -> dict[str, float]:
        """Train one epoch, validate, and return the record."""
        start = time.perf_counter()
        seed_noise(self.fabric.device, self.training.seed, "noise", epoch, self.fabric.global_rank)
        self.model.train()
        with compiler_errors_explained() if self.options.compile else nullcontext():
            record = self._train(epoch)
        self._collect(epoch / self.settings.epochs)
        if self.data.validation is not None:
            seed_noise(self.fabric.device, self.training.seed, "validation", self.fabric.global_rank)
            record["validation_nll"] = self._validate(self.data.validation)
        step_scheduler(self.state.scheduler, record.get("validation_nll", record["loss"]))
        record["seconds"] = time.perf_counter() - start
        return record

    def _train(self, epoch: int) -> dict[str, float]:
        """Take one step per `accumulate` batches."""
        terms: list[Tensor] = []
        sizes: list[int] = []
        betas: list[float] = []
        for number, (batch, group, is_last) in enumerate(self.data.train.grouped(epoch, self.options.accumulate)):
            if epoch == 1 and number == 0:
                rehearse_completion(self.training, batch)
            betas.append(self.training.beta_at(self._progress(epoch, number)))
            try:
                terms.append(self._step(batch, betas[-1], group, is_last))
            except (torch.linalg.LinAlgError, DivergenceError) as error:  # pyright: ignore[reportPrivateImportUsage]
                reason = f"in batch {number + 1} of epoch {epoch}, {str(error).rstrip('.')}."
                raise self._divergence_error(reason + culprits(self.training.bnn)) from error
            sizes.append(batch.size)
            self.last = batch
            if is_last:
                self._collect(self._progress(epoch, number + 1))
            self.bar.advance()
        if epoch == 1 and self.data.train.examples is None:
            warn_if_more_examples(self.data.n, sum(sizes))
        broadcast_buffers(self.objective, self.fabric)
        table = reduce(self.fabric, torch.stack(terms), "mean").double().cpu()
        # Batches of row groups differ by one row between processes, whose records must be equal.
        weights = reduce(self.fabric, torch.tensor(sizes, device=self.fabric.device).float(), "mean").tolist()
        learning_rate = float(self.state.optimizer.param_groups[0]["lr"])
        finite = finite_models([local_part(p).unsqueeze(0) for p in self.parameters])
        finite = bool(reduce(self.fabric, finite.float(), "mean") == 1)
        if failure := divergence(table[:, 0], finite, epoch, learning_rate):
            raise self._divergence_error(failure + culprits(self.training.bnn))
        return epoch_record(table, weights, betas, learning_rate)

    def _collect(self, done: float) -> None:
        """Take the snapshots of a posterior collected along training that are due after this fraction."""
        if done > self.done:
            self.training.bnn.collect_due(self.done, done)
            self.done = done

    def _divergence_error(self, failure: str) -> DivergenceError:
        path = self.options.checkpoint
        return DivergenceError(failure if path is None else f"{failure} The checkpoint {path} was written before.")

    def _progress(self, epoch: int, number: int) -> float:
        """Return the fraction of all steps done before batch `number` of an epoch; 0 if unknown."""
        steps = self.data.train.steps
        return 0.0 if steps is None else min(1.0, ((epoch - 1) * steps + number) / (self.settings.epochs * steps))

    def _step(self, batch: Batch, beta: float, group: int, is_last: bool) -> Tensor:
        """Accumulate the gradients of a batch, one of `group`, update the weights after the last; return loss, NLL and KL."""
        if self.options.compile and self.fabric.device.type == "cuda" and self.starts_step:
            torch.compiler.cudagraph_mark_step_begin()  # the memory of the last step can be used again
        self.starts_step = is_last
        with self.fabric.no_backward_sync(self.model, enabled=not is_last):
            weight = self._kl_weight(beta)
            loss, nll, kl = self.model(batch, self.settings.samples, self.data.n, weight, self.training.local_beta)
            self.fabric.backward(loss if group == 1 else loss / group)
        if is_last:
            if self.settings.clip_norm is not None:
                self.fabric.clip_gradients(self.model, self.optimizer, max_norm=self.settings.clip_norm, error_if_nonfinite=False)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return torch.stack((loss.detach(), nll, kl))  # on the device: reading it would wait for the GPU

    def _kl_weight(self, beta: float) -> float | Tensor:
        """Return the weight of the KL; as a tensor where it changes, because compiled code has numbers as constants."""
        if not self.options.compile or not isinstance(self.training.beta, KLSchedule):
            return beta
        dtype = torch.promote_types(self.parameters[0].dtype, torch.float32)
        return torch.full((), beta, dtype=dtype, device=self.fabric.device)

    def _validate(self, batches: Batches) -> float:
        nll = validation_nll(self.fabric, self.objective, batches, self.settings, is_sharded=self.options.is_sharded)
        if math.isnan(nll):
            raise self._divergence_error(NAN_VALIDATION)
        return nll

    def _report(self, epoch: int, record: dict[str, float]) -> None:
        """Write a checkpoint if one is due, then update the progress bar and call the loggers."""
        options = self.options
        is_last = epoch == self.settings.epochs or self.state.history.stopped_early
        if options.checkpoint is not None and (is_last or epoch % options.checkpoint_every == 0):
            self.state.save(options.checkpoint, self.identity)
        labels = {"loss": "loss", "kl": "KL", "validation_nll": "validation"}
        values = (f"{labels[name]} {value:.4g}" for name, value in record.items() if name in labels)
        self.bar.text = " · ".join([f"epoch {epoch}", *values])
        self.loggers.log(epoch, record)
