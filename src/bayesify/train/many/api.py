"""Many models trained at once: `fit_many`, for the splits of a cross-validation, the members of an ensemble, settings, seeds."""

from __future__ import annotations

import dataclasses
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
from bayesify.train.arguments import check
from bayesify.train.batches import Batches, InMemory
from bayesify.train.fabric import make_fabric
from bayesify.train.history import History
from bayesify.train.many.alike import alike
from bayesify.train.many.loop import train_alone, train_together
from bayesify.train.many.members import average, merged, with_members
from bayesify.train.many.trace import UntraceableError
from bayesify.train.objective import Objective
from bayesify.train.sources import Sources, sources_of
from bayesify.train.training import Settings, Training

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
    singles = [part for own in parts for part in own]
    settings = Settings(
        epochs=epochs, batch_size=batch_size, samples=samples, optimizer=optimizer, scheduler=scheduler, clip_norm=clip_norm,
        validation_samples=validation_samples, patience=patience,
    )  # fmt: skip
    _check(singles, settings)
    device = make_fabric(singles[0].bnn, accelerator, 1, "auto", "32-true").device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        sources = [sources_of(training, batch_size, device) for training in singles]
    with _Progress(progress, total=len(singles) * epochs) as bar:
        trained = iter(_Work(singles, sources, settings, device, together, compile, bar).histories())
    results = [_put_together(training, own, [next(trained) for _ in own]) for training, own in zip(trainings, parts, strict=True)]
    for i, result in enumerate(results):
        if result.failure is not None:
            warnings.warn(f"training {i} failed: {result.failure}", RuntimeWarning, stacklevel=2)
    return results


def _put_together(training: Training, parts: Sequence[Training], histories: Sequence[History]) -> History:
    """The history of a training and, of an ensemble whose members were trained, the likelihood."""
    if parts[0] is training:
        return histories[0]
    result = merged(histories)
    if result.failure is None:
        average(training.likelihood, [part.likelihood for part in parts])
    return result


class _Progress(ProgressBar):
    """A bar, or a function that is told the share of the work that is done."""

    def __init__(self, progress: bool | Callable[[float], object] | None, total: int) -> None:
        self.report = progress if callable(progress) else None
        self.whole = total
        super().__init__("training", False if callable(progress) else progress, total=total)

    def advance(self, by: float = 1) -> None:
        super().advance(by)
        if self.report is not None:
            self.report(min(1.0, self.done / self.whole))


@dataclasses.dataclass(frozen=True)
class _Work:
    """Models to train, and what `fit_many` was told about how."""

    trainings: Sequence[Training]
    sources: Sequence[Sources]
    settings: Settings
    device: torch.device
    together: bool | None
    compile: bool
    bar: _Progress

    def histories(self) -> list[History]:
        """Train all models, group by group; their histories in order."""
        found: dict[int, History] = {}
        for group in _groups(self.trainings, self.sources):
            found |= self._train(group)
        return [found[i] for i in range(len(self.trainings))]

    def _train(self, group: list[int]) -> dict[int, History]:
        """Train a group together if that is wanted and possible, otherwise in smaller groups or one after another."""
        chosen, begun = [self.trainings[i] for i in group], self.bar.done
        small = len(group) > 1 and _small(chosen[0].bnn, self.settings.batch_size * self.settings.samples)
        if self.together or (self.together is None and small):
            sources = [self.sources[i] for i in group]
            try:
                results = train_together(chosen, sources, self.settings, self.device, self.compile, self.bar.advance)
                return dict(zip(group, results, strict=True))
            except UntraceableError as error:  # nothing has changed yet but the bar
                self.bar.done, reason = begun, str(error)
            kinds = _kinds(group, self.trainings)
            if len(kinds) > 1:
                return {i: history for kind in kinds for i, history in self._train(kind).items()}
            if self.together:
                raise ValueError(f"these models cannot be trained together: {reason}; pass together=None")
        return {i: train_alone(self.trainings[i], self.sources[i].n, self.settings, self.device, self.bar.advance) for i in group}


def _check(trainings: Sequence[Training], settings: Settings) -> None:
    """Raise TypeError or ValueError unless everything but the data is as it should be."""
    if not trainings:
        raise ValueError("trainings is empty; give one Training per model")
    for training in trainings:
        if not isinstance(training, Training):
            raise TypeError(f"trainings must hold Training(...), got {type(training).__name__}")
        check(training, settings)
    owners: dict[int, int] = {}
    for i, training in enumerate(trainings):
        for module in (*training.bnn.modules(), *training.likelihood.modules()):
            if owners.setdefault(id(module), i) != i:
                raise ValueError(
                    f"trainings {owners[id(module)]} and {i} share a {type(module).__name__}; each needs a network and a "
                    "likelihood of its own (copy.deepcopy makes one)"
                )


def _groups(trainings: Sequence[Training], sources: Sequence[Sources]) -> list[list[int]]:
    """Which models may be stacked: same architecture and shapes; sorted by learning rate: equal ones share an optimiser."""
    groups: dict[object, list[int]] = {}
    for i, (training, (n, train, held_out, sampler)) in enumerate(zip(trainings, sources, strict=True)):
        objective = Objective(training.bnn, training.likelihood, sampler)
        key: Any = (
            n,
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
    return None if whole is None else [(x.shape, x.dtype) for x in tree_leaves((whole.inputs, whole.y))]


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
