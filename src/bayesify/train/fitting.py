"""`fit`: training on Lightning Fabric, which provides devices, precision and data parallelism."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from bayesify.core.model import Bayesian
from bayesify.errors import ConfigurationError, DivergenceError
from bayesify.jobs import RayCluster
from bayesify.jobs.where import LOCAL, cluster_of
from bayesify.objectives import KLSchedule
from bayesify.train.arguments import Settings, SingleModelOptions, Training, check_arguments
from bayesify.train.auxiliary_inputs import AuxiliaryInputs
from bayesify.train.data_loading import Data
from bayesify.train.history import History
from bayesify.train.launch import check_one_process, processes_of
from bayesify.train.loggers import Loggers, configuration
from bayesify.train.many.dispatch import fit_many
from bayesify.train.single_model import fit_single_model

if TYPE_CHECKING:
    from lightning.fabric.loggers.logger import Logger
    from lightning.fabric.strategies.strategy import Strategy

    from bayesify.likelihoods import Likelihood
    from bayesify.tracking import Run

__all__ = ["fit"]

_SINGLE_ONLY = ("checkpoint_every", "accumulate", "precision", "devices", "num_nodes", "strategy")


def fit(
    bnn: Bayesian,
    data: Data,
    likelihood: Likelihood,
    *,
    epochs: int = 100,
    batch_size: int = 128,
    samples: int = 1,
    n: int | None = None,
    beta: float | KLSchedule = 1.0,
    local_beta: float | None = None,
    learning_rate: float = 1e-3,
    optimizer: Callable[[list[nn.Parameter]], Optimizer] | None = None,
    scheduler: Callable[[Optimizer], LRScheduler] | None = None,
    clip_norm: float | None = None,
    accumulate: int = 1,
    auxiliary: AuxiliaryInputs | None = None,
    validation: Data | Literal["folds"] | None = None,
    groups: Tensor | None = None,
    validation_samples: int = 16,
    patience: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 1,
    resume: bool = True,
    seed: int = 0,
    precision: Literal["32-true", "16-mixed", "bf16-mixed"] = "32-true",
    compile: bool = False,
    accelerator: Literal["auto", "cpu", "cuda"] = "auto",
    devices: int | list[int] | None = None,
    num_nodes: int | None = None,
    strategy: str | Strategy = "auto",
    loggers: Iterable[str | Run | Logger | Callable[[dict[str, float]], object]] = (),
    on: str | RayCluster = LOCAL,
    progress: bool | None = None,
) -> History:
    r"""Train a Bayesian network and its likelihood, in place, by maximizing the evidence lower bound.

    Every step descends $-\mathrm{ELBO} / n$ of one batch (see `elbo`), where `n` is the number of training examples. With
    `validation` the result is the weights of the epoch with the lowest validation NLL, otherwise those of the last epoch; with
    posteriors collected along training (SWA, SWAG) it is always those of the last epoch.
    Afterwards the network is back on its device, and its modules in their train or eval modes.

    Equal seeds give equal results on the same machine with the same number of threads, with or without validation, and however
    often a run is interrupted and resumed: noise and order of epoch e depend on `seed`, e and the processes alone. Random number
    generators other than PyTorch's (NumPy's in a data set, those of persistent workers) are not seeded.

    Args:
        bnn: a network that `bayesify` returned.
        data: `(inputs, y)` tensors, also `Weighted`, or a `Dataset` or `DataLoader` of the same. Inputs are one tensor, a tuple
            (positional) or a dict (keyword arguments of the network). Tensors are fastest. A loader keeps its order and batch size;
            its batches may also be objects that hold tensors, such as graphs, with the targets in an attribute `y` or beside them.
            An `IterableDataset` keeps its order, has to start again at every iteration, and needs `n`; a schedule of `beta` also
            needs its `__len__`. `RowGroups` are for data larger than memory: they are shuffled, and divided among processes.
        likelihood: of the targets; its parameters (noise) are trained too.
        epochs: passes over the data in total, of `RowGroups` their parts; a resumed run trains those that are missing.
        batch_size: examples per step and device; a single example left over joins the last batch.
        samples: S, posterior draws per example and step.
        n: the number of examples in the whole training set, by which the KL is divided. None for the length of the data set, or of
            the part that a sampler can visit, whatever the number of examples per epoch. Needed where the length is unknown, where
            `data` are a part of the training set (n is larger), or where they contain copies (n is smaller, with a warning).
        beta: weight of the KL, or its schedule, evaluated at every step.
        local_beta: weight of the per-example KL of methods that have one; None for that of the method.
        learning_rate: of Adam, and of natural-gradient steps (IVON); ignored with `optimizer`.
        optimizer: function from a list of parameters to an optimizer, such as `partial(torch.optim.SGD, lr=0.1)`; its weight decay
            applies to weights and their means alone. None for Adam, or the optimizer of a method that has one (IVON), which cannot
            be replaced.
        scheduler: function from the optimizer to a learning rate scheduler, stepped once per epoch; a `ReduceLROnPlateau` monitors
            the validation NLL (without validation, the loss).
        clip_norm: the maximum norm of the gradient of all parameters.
        accumulate: batches per optimizer step.
        auxiliary: inputs away from the data, at which a network with `eta_aux` (VIFO) is also regularized: tensors, a `Dataset` or
            a `DataLoader`, with or without targets, restarted when exhausted. None draws them around the training data.
        validation: data of the same types, evaluated after every epoch in eval mode. "folds", for an ensemble of M members: each
            holds out another M-th of the rows of `data` (tensors), so that all rows serve both purposes.
        groups: (N,) integer codes for "folds", such as of patients: rows of a group are held out together. Of fewer groups than
            members, several members hold out the same one. Folds are as equal as groups allow; members whose numbers of training
            rows differ by at most 5 % leave out rows at random to be equal, as training them together needs.
        validation_samples: draws of the predictive distribution in validation, with the same noise every epoch.
        patience: stop after this number of epochs without a lower validation NLL; needs `validation`, and a posterior that is not
            collected along training.
        checkpoint: file for the state of the run, or folder with "fsdp", which is not deleted at the end. Of several processes the
            first one reads and writes the file. Of an ensemble as for `fit_many`.
        checkpoint_every: epochs between two checkpoints (one is always written after the last epoch).
        resume: continue from `checkpoint` if the file exists; False starts afresh and overwrites it. A finished run returns
            immediately; more `epochs` continue it, if `beta` is constant, there is no `scheduler`, and nothing is collected.
        seed: of the noise and the order of examples; PyTorch's random state is left unchanged.
        precision: "32-true" computes in the network's dtype; "bf16-mixed" and "16-mixed" run the network under autocast.
            Likelihood and KL are at least float32.
        compile: whether to compile the loss of a step, forward and backward, by `torch.compile`: seconds to minutes at the start,
            twice if the last batch is smaller, for steps of fully connected networks that take half to nine tenths of the time;
            on a GPU, a CUDA graph launches the kernels of a step at once, which small networks gain most from.
            Random numbers are those without it (on the CPU), results equal up to rounding. Validation, and what methods do after
            training, is not compiled. It needs a C++ compiler, and a network and likelihood without Python code that depends on
            values; methods with an optimizer (IVON, VOGN, ...) cannot be compiled. Of an ensemble as for `fit_many`.
        accelerator: "auto" uses CUDA where available.
        devices: number of processes on this host, or the GPUs; more than one trains data-parallel (DDP), with one process each
            that runs the script. None for the processes that torchrun or SLURM started, otherwise one.
        num_nodes: number of hosts; None for that of torchrun or SLURM, otherwise one. `batch_size` is that of one process.
        strategy: "auto", "ddp", a Fabric strategy object of these kinds, or "fsdp", which shards parameters, gradients and the
            optimizer's state among processes.
        loggers: "mlflow:URI" or "tensorboard:FOLDER" (`bayesify.tracking`), which with `checkpoint` continue the run of an
            interrupted training; Fabric loggers; or functions of the epoch's record (a dict of numbers). All are called after the
            checkpoint; for ensembles and on a cluster, when training ends.
        on: "local", or "ray" or "ray://HOST:PORT" to train on a Ray cluster as `fit_many` does, the members of an ensemble in
            several jobs.
        progress: whether to show a progress bar; None shows it on a terminal.

    Returns:
        The history, one entry per epoch.

    Raises:
        MissingDependencyError: Lightning is not installed.
        TypeError, ConfigurationError, DataError: invalid arguments or data, or processes that differ in them, before training.
        ClusterError: another process failed before training.
        CheckpointError: `checkpoint` is damaged or belongs to another run.
        DivergenceError: NaN or infinity in training; the message has epoch and batch, and the last checkpoint is intact.
        TrackingError: a server of `loggers` does not answer, before training; later, that is a warning.
        OSError: the checkpoint cannot be written, before training or (the disk is full) later.

    Example:
        >>> from bayesify import bayesify, MeanField
        >>> from bayesify.likelihoods import Gaussian
        >>> x = torch.linspace(-1, 1, 64).unsqueeze(1)
        >>> bnn = bayesify(nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)), MeanField())
        >>> history = fit(bnn, (x, 2 * x), Gaussian(std=0.1), epochs=20, batch_size=16, accelerator="cpu")
        >>> history.loss[-1] < history.loss[0]
        True
    """
    training = Training(
        bnn=bnn, data=data, likelihood=likelihood, auxiliary=auxiliary, validation=validation, groups=groups, seed=seed,
        beta=beta, local_beta=local_beta, learning_rate=learning_rate, n=n,
    )  # fmt: skip
    settings = Settings(
        epochs=epochs, batch_size=batch_size, samples=samples, optimizer=optimizer, scheduler=scheduler, clip_norm=clip_norm,
        validation_samples=validation_samples, patience=patience,
    )  # fmt: skip
    check_arguments(training, settings, accumulate=accumulate, checkpoint_every=checkpoint_every)
    devices, num_nodes = processes_of(devices, num_nodes)
    options = SingleModelOptions(
        checkpoint=None if checkpoint is None else Path(checkpoint).absolute(), checkpoint_every=checkpoint_every, resume=resume,
        accumulate=accumulate, precision=precision, compile=compile, accelerator=accelerator, devices=devices,
        num_nodes=num_nodes, strategy=strategy, loggers=tuple(loggers), progress=progress,
    )  # fmt: skip
    is_local = cluster_of(on) is None
    if not is_local or (isinstance(bnn, Bayesian) and bnn.separate_members):
        return _fit_many(training, settings, options, on)
    return fit_single_model(training, settings, options)


def _fit_many(training: Training, settings: Settings, options: SingleModelOptions, on: str | RayCluster) -> History:
    """Train the members of an ensemble, or a model on a cluster, by `fit_many`."""
    check_one_process("members of an ensemble train" if on == LOCAL else f"with on={str(on)!r}, models train")
    if unsupported := [name for name in _SINGLE_ONLY if getattr(options, name) != getattr(SingleModelOptions, name)]:
        what = "the members of an ensemble are" if on == LOCAL else f"with on={str(on)!r}, models are"
        raise ConfigurationError(f"{what} trained by fit_many, which has no {', '.join(unsupported)}; leave it out")
    shared = {name: getattr(options, name) for name in ("accelerator", "compile", "checkpoint", "resume", "progress")}
    with Loggers(options.loggers, options.checkpoint, options.resume) as loggers:
        loggers.start(configuration(training, settings, options))
        (history,) = fit_many([training], **vars(settings), **shared, on=on)
        loggers.log_all(history)
        if history.failure is not None:
            raise DivergenceError(history.failure)
    return history
