"""Training on Lightning Fabric, which brings devices, precision and data parallelism: `fit`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from bayesify.core.model import Bayesian
from bayesify.objectives import KLSchedule
from bayesify.train.arguments import check
from bayesify.train.auxiliary import AuxiliaryInputs
from bayesify.train.batches import Data
from bayesify.train.history import History
from bayesify.train.many.api import fit_many
from bayesify.train.one import Options, fit_one
from bayesify.train.training import Settings, Training

if TYPE_CHECKING:
    from lightning.fabric.loggers.logger import Logger
    from lightning.fabric.strategies.strategy import Strategy

    from bayesify.likelihoods import Likelihood

__all__ = ["fit"]

# What only a model that is trained by itself can have.
_ALONE = ("checkpoint", "accumulate", "precision", "devices", "strategy", "loggers")


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
    validation: Data | None = None,
    validation_samples: int = 16,
    patience: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 1,
    resume: bool = True,
    seed: int = 0,
    precision: Literal["32-true", "16-mixed", "bf16-mixed"] = "32-true",
    accelerator: Literal["auto", "cpu", "cuda"] = "auto",
    devices: int | list[int] = 1,
    strategy: str | Strategy = "auto",
    loggers: Iterable[Logger | Callable[[dict[str, float]], object]] = (),
    progress: bool | None = None,
) -> History:
    r"""Train a Bayesian network and its likelihood, in place, by maximising the evidence lower bound.

    Every step descends $-\mathrm{ELBO} / n$ of one batch (see `elbo`), `n` being the number of training examples. With `validation`
    the weights of the epoch with the lowest validation NLL are kept, otherwise those of the last epoch. Data and net are checked
    first. Afterwards the net is back on its device, its modules in the train or eval mode they were in.

    Equal seeds give equal results on the same machine with the same number of threads, with or without validation and however
    often a run is interrupted and resumed: noise and order of epoch e depend on `seed` and e alone. Other random number generators
    than PyTorch's (NumPy's in a data set, those in workers that persist) are the caller's business.

    Args:
        bnn: what `bayesify` returned.
        data: `(inputs, y)` tensors, a `Dataset` or a `DataLoader` of the same. Inputs are one tensor, a tuple (positional) or a
            dict (keyword arguments of the net). Tensors are the fastest: rows are cut out of them. A loader keeps its own order
            and batch size. An `IterableDataset` needs `n`, keeps its own order, and has to start again whenever it is iterated
            over; a schedule of `beta` also needs its `__len__`.
        likelihood: of the targets; what it learns (noise) is trained along.
        epochs: passes over the data, all in all (a resumed run makes the missing ones).
        batch_size: examples per step and device; a single one left over joins the last batch.
        samples: S, posterior draws per example and step.
        n: the number of examples in the whole training set, by which the KL is divided. None for the length of the data set,
            however many examples a sampler draws per epoch; samplers that can only visit a part of it count that part. Give it
            where the length is unknown, where `data` is a part of the training set (n is larger), or where it holds copies (n is
            smaller, with a warning).
        beta: weight of the KL, or its schedule, evaluated at every step.
        local_beta: weight of the per-example KL of methods that have one; None for the one the method asks for.
        learning_rate: of Adam; not used by a given `optimizer`.
        optimizer: from a list of parameters to an optimiser, such as `partial(torch.optim.SGD, lr=0.1)`; Adam if None.
        scheduler: from the optimiser to a learning rate scheduler, stepped once per epoch; a `ReduceLROnPlateau` sees the
            validation NLL (the loss without validation).
        clip_norm: the largest norm of the gradient of all parameters together.
        accumulate: batches per optimiser step.
        auxiliary: inputs away from the data, at which a network with `eta_aux` (VIFO) is regularised too: tensors, a `Dataset` or a
            `DataLoader`, with or without targets, begun anew when they are through. None draws them around the training data.
        validation: data of the same kinds, evaluated after every epoch with the net in eval mode.
        validation_samples: draws of the validation's predictive distribution, the same noise every epoch.
        patience: stop after so many epochs without a lower validation NLL; needs `validation`.
        checkpoint: a file for the state of the whole run; it stays when training is done.
        checkpoint_every: epochs between two writings (the last epoch is always written).
        resume: go on from `checkpoint` if the file exists; False starts afresh and overwrites it. A finished run returns at once;
            more `epochs` continue it, if `beta` is constant (a schedule would have run differently).
        seed: of the noise and the order of examples; PyTorch's own random state is left as it was.
        precision: "32-true" computes in the net's own dtype; "bf16-mixed" and "16-mixed" run the net under autocast. Likelihood and
            KL are at least float32.
        accelerator: "auto" takes CUDA where there is a GPU.
        devices: how many processes, or which GPUs; more than one trains data-parallel (DDP), one process each running the script.
        strategy: "auto", "ddp" or a Fabric strategy object of these kinds.
        loggers: Fabric loggers, or functions that take the epoch's record (a dict of numbers), called after the checkpoint.
        progress: a bar on the terminal; None shows it where it makes sense.

    Returns:
        The history, one entry per epoch.

    Raises:
        ImportError: without Lightning.
        TypeError, ValueError: bad arguments or data, before any work; a checkpoint that is damaged or of another run.
        FloatingPointError: NaN or infinity in training, with epoch and batch; the last checkpoint is from before it.
        OSError: the checkpoint cannot be written, before any work or (the disk is full) later.

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
        bnn=bnn, data=data, likelihood=likelihood, auxiliary=auxiliary, validation=validation, seed=seed, beta=beta,
        local_beta=local_beta, learning_rate=learning_rate, n=n,
    )  # fmt: skip
    settings = Settings(
        epochs=epochs, batch_size=batch_size, samples=samples, optimizer=optimizer, scheduler=scheduler, clip_norm=clip_norm,
        validation_samples=validation_samples, patience=patience,
    )  # fmt: skip
    options = Options(
        checkpoint=None if checkpoint is None else Path(checkpoint).absolute(), checkpoint_every=checkpoint_every, resume=resume,
        accumulate=accumulate, precision=precision, accelerator=accelerator, devices=devices, strategy=strategy,
        loggers=tuple(loggers), progress=progress,
    )  # fmt: skip
    check(training, settings, accumulate=accumulate, checkpoint_every=checkpoint_every)
    if isinstance(bnn, Bayesian) and bnn.members:
        return _fit_members(training, settings, options)
    return fit_one(training, settings, options)


def _fit_members(training: Training, settings: Settings, options: Options) -> History:
    """Train the members of an ensemble."""
    if given := [name for name in _ALONE if getattr(options, name) != getattr(Options, name)]:
        raise ValueError(f"the members of an ensemble are trained by fit_many, which has no {', '.join(given)}; leave it out")
    (history,) = fit_many([training], **vars(settings), accelerator=options.accelerator, progress=options.progress)
    if history.failure is not None:
        raise FloatingPointError(history.failure)
    return history
