"""`fit_many`: groups models that can be stacked, and trains each group together or its models one after another."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._pytree import tree_leaves

from bayesify.core.generators import generators_kept
from bayesify.core.module_comparison import same_function
from bayesify.errors import ConfigurationError
from bayesify.jobs import RayCluster
from bayesify.jobs.where import LOCAL, cluster_of
from bayesify.progress import ProgressBar
from bayesify.train.after_training import check_completable, complete_posterior, rehearse_completion
from bayesify.train.arguments import Settings, Training, check_arguments
from bayesify.train.data_loading import Batches, InMemoryBatches, RowGroupBatches
from bayesify.train.fabric import choose_device
from bayesify.train.history import History
from bayesify.train.many.ensemble import merge_members, split_members
from bayesify.train.many.loop import train_alone, train_together
from bayesify.train.many.on_cluster import train_on_cluster
from bayesify.train.many.stack_checkpoint import part_of
from bayesify.train.many.vectorization import UntraceableError
from bayesify.train.model_data import ModelData, load_model_data
from bayesify.train.objective import Objective
from bayesify.train.process_state import preserved_state
from bayesify.train.running_statistics import tell_of_misfits

__all__ = ["fit_many"]

_SMALL = 2e7  # parameters times rows per step, up to which training together is faster on a CPU; an estimate


def fit_many(
    trainings: Sequence[Training],
    *,
    epochs: int = 100,
    batch_size: int = 128,
    samples: int = 1,
    optimizer: Callable[[list[nn.Parameter]], Optimizer] | None = None,
    scheduler: Callable[[Optimizer], LRScheduler] | None = None,
    clip_norm: float | None = None,
    validation_samples: int = 16,
    patience: int | None = None,
    accelerator: Literal["auto", "cpu", "cuda"] = "auto",
    together: bool | None = None,
    compile: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = True,
    on: str | RayCluster = LOCAL,
    progress: bool | Callable[[float], object] | None = None,
) -> list[History]:
    """Train many models, in place, each as `fit` would at its seed, up to rounding.

    Models of one architecture whose data are tensors of one size are trained together: their parameters are stacked, and every
    operator runs once for all of them, which for the small networks of tables costs little more than training one. They may differ
    in data, seed, learning rate, KL weight, initial values, and the numbers in method and likelihood (`prior_std`, `p`, `std`).
    Other models (data in loaders, networks that branch on values) are trained one after another.

    As for `torch.compile`, a network's forward has to be a function of its inputs, its tensors and PyTorch's random numbers alone:
    Python state that it updates is not updated.

    The members of an ensemble are separate models, each with a seed and a likelihood; the parameters of the latter are averaged
    afterwards. A model that stops early or fails does not affect the others.

    Args:
        trainings: the models, each with its data and settings.
        epochs, batch_size, samples, clip_norm, validation_samples, patience, accelerator: as for `fit`, for every model.
        optimizer: as for `fit`; it overrides the models' `learning_rate`. PyTorch's elementwise optimizers serve many models with
            one instance, others get one instance per model.
        scheduler: as for `fit`.
        together: False trains one after another, True raises where models cannot be trained together. None decides by the size of
            the models, because large networks and convolutions use a processor fully on their own.
        compile: whether to compile the steps of models that are trained together: 10 to 60 seconds at the start for steps three
            times as fast, worthwhile from about 30,000 steps. It needs a C++ compiler.
        checkpoint: file for the state of training, from which the same call continues. Further groups of models, and models trained
            one after another, have files of their own, with numbers after the name; that of a group is written every ten seconds.
        resume: False starts afresh and overwrites the files.
        on: "local", "ray" or "ray://HOST:PORT": train on a Ray cluster, which needs `bayesify[ray]`. Its jobs train consecutive
            models together, as many as its machines can run at a time or as `RayCluster(jobs=...)` says, and start again, from
            `checkpoint` in a folder that the machines share, where a process or machine dies. Results are those of "local" up to
            rounding, and equal to the last bit for one job.
        progress: whether to show a progress bar (None shows it on a terminal), or a function of the completed fraction in [0, 1].

    Returns:
        One history per model; the `seconds` of models that were trained together are their share. A model that failed has its
        error in `failure`, and issues a warning.

    Raises:
        TypeError, ConfigurationError, DataError: invalid arguments or data, before training.
        CheckpointError: a checkpoint is damaged or belongs to another run.
        OSError: a checkpoint cannot be written.
        ClusterError: a cluster cannot be reached, or is lost; the models of finished jobs are trained.

    Example:
        >>> from bayesify import bayesify, MeanField
        >>> from bayesify.likelihoods import Gaussian
        >>> from bayesify.train import Training, fit_many
        >>> x = torch.linspace(-1, 1, 64).unsqueeze(1)
        >>> nets = [bayesify(nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)), MeanField()) for _ in range(3)]
        >>> trainings = [Training(bnn=b, data=(x, 2 * x), likelihood=Gaussian(std=0.1), seed=k) for k, b in enumerate(nets)]
        >>> [len(history) for history in fit_many(trainings, epochs=5, accelerator="cpu")]
        [5, 5, 5]
    """
    parts = [split_members(training) for training in trainings]
    models = [model for part in parts for model in part]
    settings = Settings(
        epochs=epochs, batch_size=batch_size, samples=samples, optimizer=optimizer, scheduler=scheduler, clip_norm=clip_norm,
        validation_samples=validation_samples, patience=patience,
    )  # fmt: skip
    _check(models, settings)
    for model in models:
        model.bnn.forget()
    cluster = cluster_of(on)
    path = None if checkpoint is None else Path(checkpoint).absolute()
    if cluster is not None:
        shared = {**vars(settings), "accelerator": accelerator, "together": together, "compile": compile, "resume": resume}
        with _ProgressBar(progress, total=len(models) * epochs) as bar:
            histories = train_on_cluster(fit_many, models, shared, cluster, path, bar.advance)
        return _merged(trainings, parts, histories)
    device = choose_device(models[0].bnn, accelerator)
    with generators_kept(device):
        data = [load_model_data(model, batch_size, device) for model in models]
    with _ProgressBar(progress, total=len(models) * epochs) as bar:
        histories = _Trainer(models, data, settings, device, together, compile, bar, path, resume).train()
    return _merged(trainings, parts, histories)


def _merged(trainings: Sequence[Training], parts: Sequence[list[Training]], models: Sequence[History]) -> list[History]:
    """Return one history per training from those of all models; warn of failures."""
    histories = iter(models)
    results = [
        merge_members(training, part, list(islice(histories, len(part)))) for training, part in zip(trainings, parts, strict=True)
    ]
    for i, result in enumerate(results):
        if result.failure is not None:
            warnings.warn(f"training {i} failed: {result.failure}", RuntimeWarning, stacklevel=3)
    return results


class _ProgressBar(ProgressBar):
    """A progress bar, or a function of the completed fraction."""

    def __init__(self, progress: bool | Callable[[float], object] | None, total: int) -> None:
        self.callback = progress if callable(progress) else None
        self.work = total
        super().__init__("training", False if callable(progress) else progress, total=total)

    def advance(self, by: float = 1) -> None:
        super().advance(by)
        if self.callback is not None:
            self.callback(min(1.0, self.done / self.work))


@dataclasses.dataclass(frozen=True)
class _Trainer:
    """Models to train, and the settings of `fit_many`."""

    trainings: Sequence[Training]
    data: Sequence[ModelData]
    settings: Settings
    device: torch.device
    together: bool | None
    compile: bool
    bar: _ProgressBar
    checkpoint: Path | None
    resume: bool

    def train(self) -> list[History]:
        """Train group by group, and return histories in order; what keeps any model from a posterior is an error before."""
        for model, part in zip(self.trainings, self.data, strict=True):
            if model.bnn.completes:
                with self._on_device(model, part):
                    rehearse_completion(model, next(part.train.epoch(1)))
        histories: dict[int, History] = {}
        for group in _stackable_groups(self.trainings, self.data):
            histories |= self._train_group(group)
        return [histories[i] for i in range(len(self.trainings))]

    def _train_group(self, group: list[int]) -> dict[int, History]:
        """Train a group together if requested and possible, otherwise in smaller groups or one after another."""
        models, done = [self.trainings[i] for i in group], self.bar.done
        worthwhile = len(group) > 1 and (
            isinstance(self.data[group[0]].train, RowGroupBatches)  # which would be read once per model
            or _is_small(models[0].bnn, self.settings.batch_size * self.settings.samples)
        )
        if self.together or (self.together is None and worthwhile):
            data, checkpoint = [self.data[i] for i in group], part_of(self.checkpoint, group)
            common = self.settings, self.device, self.compile, self.bar.advance
            try:
                histories = train_together(models, data, *common, checkpoint, self.resume)
                for model, part, history in zip(models, data, histories, strict=True):
                    if history.failure is None:
                        with self._on_device(model, part):
                            complete_posterior(model, part)
                            tell_of_misfits(model.bnn, part.train.epoch(0))
                return dict(zip(group, histories, strict=True))
            except UntraceableError as error:  # only the progress bar has changed, and the first checkpoint
                self.bar.done, reason = done, str(error)
                if checkpoint is not None:
                    checkpoint.unlink(missing_ok=True)
            subgroups = _same_function_groups(group, self.trainings)
            if len(subgroups) > 1:
                return {i: history for subgroup in subgroups for i, history in self._train_group(subgroup).items()}
            if self.together:
                raise ConfigurationError(f"these models cannot be trained together: {reason}; pass together=None")
        return {i: self._train_alone(i) for i in group}

    def _on_device(self, model: Training, data: ModelData) -> AbstractContextManager[None]:
        return preserved_state(Objective(model.bnn, model.likelihood, data.auxiliary), self.device)

    def _train_alone(self, i: int) -> History:
        checkpoint = part_of(self.checkpoint, [i])
        return train_alone(self.trainings[i], self.data[i].n, self.settings, self.device, self.bar.advance, checkpoint, self.resume)


def _check(trainings: Sequence[Training], settings: Settings) -> None:
    """Check everything except the data."""
    if not trainings:
        raise ConfigurationError("trainings is empty; give one Training per model")
    for training in trainings:
        check_arguments(training, settings)
        check_completable(training)
    owners: dict[int, int] = {}
    for i, training in enumerate(trainings):
        for module in (*training.bnn.modules(), *training.likelihood.modules()):
            if owners.setdefault(id(module), i) != i:
                raise ConfigurationError(
                    f"trainings {owners[id(module)]} and {i} share a {type(module).__name__}; each needs a separate network and "
                    "likelihood (use copy.deepcopy)"
                )


def _stackable_groups(trainings: Sequence[Training], data: Sequence[ModelData]) -> list[list[int]]:
    """Group models of equal architecture and shapes, sorted by learning rate, because equal ones share an optimizer."""
    groups: dict[object, list[int]] = {}
    for i, (training, (n, train, validation, auxiliary)) in enumerate(zip(trainings, data, strict=True)):
        objective = Objective(training.bnn, training.likelihood, auxiliary)
        key: Any = (
            n,
            [(name, type(module)) for name, module in objective.named_modules()],
            [(name, x.shape, x.dtype, x.requires_grad) for name, x in objective.state_dict(keep_vars=True).items()],
            *(None if batches is None else _shapes(batches) for batches in (train, validation)),
        )
        bnn = training.bnn
        stackable = isinstance(train, InMemoryBatches | RowGroupBatches) and isinstance(validation, InMemoryBatches | None)
        stackable = stackable and bnn.batch_dim == 0 and not bnn.unbatched
        groups.setdefault(repr(key) if stackable else i, []).append(i)
    return [sorted(group, key=lambda i: trainings[i].learning_rate) for group in groups.values()]


def _shapes(batches: Batches) -> object:
    if isinstance(batches, RowGroupBatches):
        return id(batches.data)  # the models read it together
    data = batches.tensors
    return None if data is None else (len(data.tensors), [(x.shape, x.dtype) for x in tree_leaves(data.tensors)])


def _same_function_groups(group: list[int], trainings: Sequence[Training]) -> list[list[int]]:
    """Split a group by the function that models compute, up to numbers."""
    subgroups: list[list[int]] = []
    for i in group:
        model = trainings[i].bnn, trainings[i].likelihood
        for subgroup in subgroups:
            first = trainings[subgroup[0]]
            if same_function((first.bnn, first.likelihood), model, compare_floats=False):
                subgroup.append(i)
                break
        else:
            subgroups.append([i])
    return subgroups


def _is_small(bnn: nn.Module, rows: int) -> bool:
    """Return whether overhead dominates the arithmetic of a training step."""
    convolution = any(isinstance(module, _ConvNd) for module in bnn.modules())
    return not convolution and rows * sum(p.numel() for p in bnn.parameters()) <= _SMALL
