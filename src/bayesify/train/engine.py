"""The training loop: `fit`, on Lightning Fabric, which brings devices, precision and data parallelism."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from bayesify.core.model import Bayesian
from bayesify.objectives import Constant, KLSchedule
from bayesify.progress import ProgressBar
from bayesify.train.arguments import check_model, check_numbers
from bayesify.train.auxiliary import AuxiliaryInputs, auxiliary_inputs
from bayesify.train.batch import Place
from bayesify.train.batches import Batches, Data, batches_of, seed_for
from bayesify.train.checkpoint import Run
from bayesify.train.history import NAN_VALIDATION, History, divergence, epoch_record
from bayesify.train.objective import Objective, log_density
from bayesify.train.setup import begin, borrowed, describe, log, make_fabric, named, reduce, seed_noise, share_buffers

if TYPE_CHECKING:
    from lightning.fabric import Fabric
    from lightning.fabric.loggers.logger import Logger
    from lightning.fabric.strategies.strategy import Strategy

    from bayesify.likelihoods import Likelihood

__all__ = ["fit"]


def fit(
    bnn: Bayesian,
    data: Data,
    likelihood: Likelihood,
    *,
    epochs: int = 100,
    batch_size: int = 128,
    samples: int = 1,
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

    Every step descends $-\mathrm{ELBO} / n$ of one batch (see `elbo`), n being the number of training examples. With `validation`
    the weights of the epoch with the lowest validation NLL are kept, otherwise those of the last epoch. Data and net are checked
    first. Afterwards the net is back on its device, its modules in the train or eval mode they were in.

    Equal seeds give equal results on the same machine with the same number of threads, with or without validation and however
    often a run is interrupted and resumed: noise and order of epoch e depend on `seed` and e alone. Other random number generators
    than PyTorch's (NumPy's in a data set, those in workers that persist) are the caller's business.

    Args:
        bnn: what `bayesify` returned.
        data: `(inputs, y)` tensors, a `Dataset` or a `DataLoader` of the same. Inputs are one tensor, a tuple (positional) or a
            dict (keyword arguments of the net). Tensors are the fastest: rows are cut out of them. A loader keeps its own order
            and batch size.
        likelihood: of the targets; what it learns (noise) is trained along.
        epochs: passes over the data, all in all (a resumed run makes the missing ones).
        batch_size: examples per step and device; a single one left over joins the last batch.
        samples: S, posterior draws per example and step.
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
    check_model(bnn, beta, local_beta, patience, validation)
    if isinstance(bnn, Bayesian) and bnn.members:
        from bayesify.train.many import Training, fit_many  # built on this very function

        others = {
            "checkpoint": checkpoint is not None, "accumulate": accumulate != 1, "precision": precision != "32-true",
            "devices": devices != 1, "strategy": strategy != "auto", "loggers": bool(tuple(loggers)),
        }  # fmt: skip
        if unknown := [name for name, given in others.items() if given]:
            raise ValueError(f"the members of an ensemble are trained by fit_many, which has no {', '.join(unknown)}; leave it out")
        training = Training(
            bnn=bnn, data=data, likelihood=likelihood, auxiliary=auxiliary, validation=validation, seed=seed, beta=beta,
            local_beta=local_beta, learning_rate=learning_rate,
        )  # fmt: skip
        (history,) = fit_many(
            [training], epochs=epochs, batch_size=batch_size, samples=samples, optimizer=optimizer, scheduler=scheduler,
            clip_norm=clip_norm, validation_samples=validation_samples, patience=patience, accelerator=accelerator,
            progress=progress,
        )  # fmt: skip
        if history.failure is not None:
            raise FloatingPointError(history.failure)
        return history
    local_weight = bnn.local_beta if local_beta is None else local_beta
    counts = {"epochs": epochs, "batch_size": batch_size, "samples": samples, "accumulate": accumulate}
    more_counts = {"validation_samples": validation_samples, "checkpoint_every": checkpoint_every}
    check_numbers({**counts, **more_counts}, seed, learning_rate, clip_norm)
    parameters = [p for p in nn.ModuleList([bnn, likelihood]).parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("bnn has no parameter with requires_grad=True, there is nothing to train")
    fabric = make_fabric(bnn, accelerator, devices, strategy, precision)
    first, rank, device = fabric.is_global_zero, fabric.global_rank, fabric.device
    path = None if checkpoint is None else Path(checkpoint).absolute()

    with borrowed(nn.ModuleList([bnn, likelihood]), device), ProgressBar("training", progress if first else False) as bar:
        seed_noise(device, seed, "checks")
        common: Any = {"batch_size": batch_size, "seed": seed, "place": Place(device, next(bnn.parameters()).dtype)}
        train = batches_of("data", data, bnn, likelihood, rank=rank, world=fabric.world_size, **common)
        train, sampler = auxiliary_inputs(
            auxiliary, train, bnn, seed=seed_for(seed, "auxiliary", rank), place=common["place"], batch_size=batch_size
        )
        objective = Objective(bnn, likelihood, sampler)
        held_out = None if validation is None else batches_of("validation", validation, bnn, likelihood, shuffle=False, **common)

        # Fused Adam unscales gradients itself, which does not go with clipping under a gradient scaler.
        adam = partial(torch.optim.Adam, lr=learning_rate, fused=precision != "16-mixed")
        plain = (optimizer or adam)(parameters)
        decay = None if scheduler is None else scheduler(plain)
        model, stepper = fabric.setup(objective, plain)
        run = Run(objective, plain, decay, fabric.strategy.precision)
        settings: dict[str, Any] = {}
        if path is not None:
            grows = scheduler is None and (isinstance(beta, Constant) or not isinstance(beta, KLSchedule))
            settings = {
                **counts, "epochs": "any" if grows else epochs, "validation_samples": validation_samples, "seed": seed,
                "beta": repr(beta), "local_beta": local_weight, "learning_rate": learning_rate, "clip_norm": clip_norm,
                "optimizer": named(plain, plain.defaults), "scheduler": named(decay, decay.state_dict() if decay else {}),
                "patience": patience,
                "precision": precision, "processes": fabric.world_size,
                **describe("data", train), **describe("validation", held_out),
                **{name: f"{tuple(x.shape)} {x.dtype}" for name, x in objective.state_dict().items()},
            }  # fmt: skip
            begin(run, path, settings, epochs, resume and path.exists(), fabric)

        history, steps = run.history, len(train)
        bar.total, bar.done = epochs * steps, len(history) * steps
        for epoch in range(len(history) + 1, epochs + 1):
            if history.stopped_early:
                break
            started = time.perf_counter()
            seed_noise(device, seed, "noise", epoch, rank)
            model.train()
            terms: list[Tensor] = []
            sizes: list[int] = []
            betas: list[float] = []
            for step, batch in enumerate(train.epoch(epoch)):
                weight = beta(((epoch - 1) * steps + step) / (epochs * steps)) if isinstance(beta, KLSchedule) else beta
                group = min(accumulate, steps - step // accumulate * accumulate)  # the last one of an epoch may be smaller
                full = step % accumulate == group - 1
                with fabric.no_backward_sync(model, enabled=not full):
                    loss, nll, kl = model(batch, samples, train.n, weight, local_weight)
                    fabric.backward(loss if group == 1 else loss / group)
                if full:
                    if clip_norm is not None:
                        fabric.clip_gradients(model, stepper, max_norm=clip_norm, error_if_nonfinite=False)
                    stepper.step()
                    stepper.zero_grad()
                terms.append(torch.stack((loss.detach(), nll, kl)))  # left on the device: reading it would wait for the GPU
                sizes.append(batch.size)
                betas.append(weight)
                bar.advance()

            share_buffers(objective, fabric)
            table = reduce(fabric, torch.stack(terms), "mean").double().cpu()
            learning_rate = float(plain.param_groups[0]["lr"])
            finite = bool(torch.stack([p.detach().isfinite().all() for p in parameters]).all())
            if broken := divergence(table[:, 0], finite, epoch, learning_rate):
                raise FloatingPointError(broken + (f" The checkpoint {path} is from before it." if path is not None else ""))
            record = epoch_record(table, sizes, betas, learning_rate)
            if held_out is not None:
                seed_noise(device, seed, "validation", rank)
                record["validation_nll"] = _validate(fabric, objective, held_out, samples, validation_samples)
            if isinstance(decay, ReduceLROnPlateau):
                decay.step(record.get("validation_nll", record["loss"]))
            elif decay is not None:
                decay.step()
            record["seconds"] = time.perf_counter() - started
            history.append(record, patience)
            if history.improved:
                run.best = {name: x.clone() for name, x in objective.state_dict().items()}
            if path is not None and first and (epoch % checkpoint_every == 0 or epoch == epochs or history.stopped_early):
                run.save(path, settings)
            bar.text = _describe(epoch, record)
            for logger in loggers if first else ():
                log(logger, epoch, record)

        if run.best is not None:
            objective.load_state_dict(run.best)
    return history


def _describe(epoch: int, record: dict[str, float]) -> str:
    """The results of an epoch, for the progress bar."""
    names = {"loss": "loss", "kl": "KL", "validation_nll": "validation"}
    return " · ".join([f"epoch {epoch}", *(f"{names[n]} {v:.4g}" for n, v in record.items() if n in names)])


@torch.no_grad()
def _validate(fabric: Fabric, objective: Objective, batches: Batches, samples: int, draws: int) -> float:
    """The mean negative log predictive density, in nats per example."""
    objective.eval()
    total = torch.zeros(2, dtype=torch.float64, device=fabric.device)
    for number, batch in enumerate(batches.epoch(0)):
        if number % fabric.world_size != fabric.global_rank:
            continue
        with fabric.autocast():
            density = log_density(partial(objective.log_prob, batch), batch.size, samples, draws)
        total += torch.stack((density.double().sum(), total.new_tensor(batch.size)))
    log_prob, examples = reduce(fabric, total, "sum").tolist()
    if math.isnan(log_prob):
        raise FloatingPointError(NAN_VALIDATION)
    return -log_prob / examples
