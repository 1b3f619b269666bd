"""Many models trained at once: `fit_many`, for the splits of a cross-validation, the members of an ensemble, settings, seeds."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._pytree import tree_leaves

from bayesify.progress import ProgressBar
from bayesify.train.arguments import check_model, check_numbers
from bayesify.train.batches import Batches, InMemory
from bayesify.train.history import History
from bayesify.train.many.alike import alike
from bayesify.train.many.loop import Plan, Sources, Training, sources_of, train_alone, train_together
from bayesify.train.many.members import average, merged, with_members
from bayesify.train.many.trace import UntraceableError
from bayesify.train.objective import Objective
from bayesify.train.setup import make_fabric

__all__ = ["fit_many"]

_SMALL = 2e7  # parameters times rows of a step, up to which training together should pay on a CPU: an estimate


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
    progress: bool | Callable[[float], object] | None = None,
) -> list[History]:
    """Train many models, in place, each exactly as `fit` would train it alone at its seed, but for rounding.

    Models of one architecture whose data are tensors of one size are trained together: their parameters are stacked and every
    operator serves all of them, which for the small networks of tables costs little more than training one. They may differ in
    data, seed, learning rate, KL weight, initial values, and the numbers in method and likelihood (`prior_std`, `p`, `std`). What
    cannot be trained together (data in loaders, networks that branch on values) is trained one after another.

    A network's forward has to be a function of its inputs, its tensors and PyTorch's random numbers alone, as for `torch.compile`:
    what else it counts or remembers in Python stands still.

    The members of an ensemble are models of their own, each with a seed and a likelihood (what that learns is averaged afterwards).

    A model that stops early, or fails, does not disturb the others.

    Args:
        trainings: the models, each with its data and settings.
        epochs, batch_size, samples, clip_norm, validation_samples, patience, accelerator: as for `fit`, for every model.
        optimizer: as for `fit`; instead of the models' `learning_rate`. Optimisers of PyTorch that treat every weight by itself
            serve many models at once, others get one instance per model.
        scheduler: as for `fit`.
        together: False trains one after another, True raises where models cannot be trained together; None decides by the models'
            size: large networks and convolutions fill a processor on their own.
        compile: turn the training steps of models that are trained together into machine code: 10 to 60 seconds at the start for
            steps three times as fast, worth it from about 30,000 steps. A C++ compiler is needed.
        progress: a bar on the terminal, or a function that is given the share of the work that is done, in [0, 1].

    Returns:
        One history per model; the `seconds` of models that were trained together are their share. What went wrong with a model is
        in its `failure`, and in a warning.

    Raises:
        TypeError, ValueError: bad arguments or data, before any work.

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
    parts = with_members(trainings)
    trainings, whole = [part for own in parts for part in own], trainings
    plan = Plan(
        epochs, batch_size, samples, optimizer, scheduler, clip_norm, validation_samples, patience, compile,
        device=_check(trainings, epochs, batch_size, samples, validation_samples, clip_norm, patience, accelerator),
    )  # fmt: skip
    with torch.random.fork_rng(devices=[plan.device] if plan.device.type == "cuda" else []):
        sources = [sources_of(training, plan) for training in trainings]
    histories: dict[int, History] = {}
    report = progress if callable(progress) else None
    total = len(trainings) * epochs
    with ProgressBar("training", False if callable(progress) else progress, total=total) as bar:

        def advance(epochs: int) -> None:
            bar.advance(epochs)
            if report is not None:
                report(min(1.0, bar.done / total))

        queue = _groups(trainings, sources)
        while queue:
            group = queue.pop(0)
            chosen = [trainings[i] for i in group]
            begun, results = bar.done, None
            if together or (together is None and len(group) > 1 and _small(chosen[0].bnn, batch_size * samples)):
                try:
                    results = train_together(chosen, [sources[i] for i in group], plan, advance)
                except UntraceableError as error:  # nothing has changed yet but the bar
                    bar.done = begun
                    kinds = _kinds(group, trainings)
                    if len(kinds) > 1:
                        queue = kinds + queue
                        continue
                    if together:
                        raise ValueError(f"these models cannot be trained together: {error}; pass together=None") from error
            if results is None:
                results = [train_alone(training, plan, advance) for training in chosen]
            histories |= dict(zip(group, results, strict=True))
    results = []
    trained = iter(range(len(trainings)))
    for i, (training, own) in enumerate(zip(whole, parts, strict=True)):
        mine = [histories[next(trained)] for _ in own]
        results.append(mine[0] if own[0] is training else merged(mine))
        if own[0] is not training and results[i].failure is None:
            average(training.likelihood, [part.likelihood for part in own])
        if results[i].failure is not None:
            warnings.warn(f"training {i} failed: {results[i].failure}", RuntimeWarning, stacklevel=2)
    return results


def _check(
    trainings: Sequence[Training],
    epochs: int,
    batch_size: int,
    samples: int,
    validation_samples: int,
    clip_norm: float | None,
    patience: int | None,
    accelerator: str,
) -> torch.device:
    """Raise TypeError or ValueError unless everything but the data is as it should be; the device to train on."""
    counts = {"epochs": epochs, "batch_size": batch_size, "samples": samples, "validation_samples": validation_samples}
    if not trainings:
        raise ValueError("trainings is empty; give one Training per model")
    for training in trainings:
        if not isinstance(training, Training):
            raise TypeError(f"trainings must hold Training(...), got {type(training).__name__}")
        check_numbers(counts, training.seed, training.learning_rate, clip_norm)
        check_model(training.bnn, training.beta, training.local_beta, patience, training.validation)
    owners: dict[int, int] = {}
    for i, training in enumerate(trainings):
        for module in (*training.bnn.modules(), *training.likelihood.modules()):
            if owners.setdefault(id(module), i) != i:
                raise ValueError(
                    f"trainings {owners[id(module)]} and {i} share a {type(module).__name__}; each needs a network and a "
                    "likelihood of its own (copy.deepcopy makes one)"
                )
    return make_fabric(trainings[0].bnn, accelerator, 1, "auto", "32-true").device


def _groups(trainings: Sequence[Training], sources: Sequence[Sources]) -> list[list[int]]:
    """Which models may be stacked: same architecture and shapes; sorted by learning rate: equal ones share an optimiser."""
    groups: dict[object, list[int]] = {}
    for i, (training, (train, held_out, auxiliary)) in enumerate(zip(trainings, sources, strict=True)):
        objective = Objective(training.bnn, training.likelihood, auxiliary)
        key: Any = (
            [(name, type(module)) for name, module in objective.named_modules()],
            [(name, x.shape, x.dtype, x.requires_grad) for name, x in objective.state_dict(keep_vars=True).items()],
            *(None if source is None else _shapes(source) for source in (train, held_out)),
        )
        bnn = training.bnn
        stackable = isinstance(train, InMemory) and isinstance(held_out, InMemory | None)
        stackable = stackable and bnn.batch_dim == 0 and not bnn.shared
        groups.setdefault(repr(key) if stackable else i, []).append(i)
    return [sorted(group, key=lambda i: trainings[i].learning_rate) for group in groups.values()]


def _shapes(source: Batches) -> object:
    whole = source.tensors
    return None if whole is None else (source.n, [(x.shape, x.dtype) for x in tree_leaves((whole.inputs, whole.y))])


def _kinds(group: list[int], trainings: Sequence[Training]) -> list[list[int]]:
    """The models of a group, by the function they compute but for numbers."""
    kinds: list[list[int]] = []
    for i in group:
        own = trainings[i].bnn, trainings[i].likelihood
        same = (k for k in kinds if alike((trainings[k[0]].bnn, trainings[k[0]].likelihood), own, numbers=False))
        kind = next(same, None)
        kinds.append([i]) if kind is None else kind.append(i)
    return kinds


def _small(bnn: nn.Module, rows: int) -> bool:
    """Whether a training step is so short that what surrounds the arithmetic is most of it."""
    convolution = any(isinstance(module, _ConvNd) for module in bnn.modules())
    return not convolution and rows * sum(p.numel() for p in bnn.parameters()) <= _SMALL
