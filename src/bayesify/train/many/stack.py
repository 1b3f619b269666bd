"""K models of one architecture with stacked parameters; training steps and log likelihoods of all at once."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from bayesify.core.module_comparison import same_function
from bayesify.train.batch import Batch
from bayesify.train.many.graph import Function
from bayesify.train.many.random_streams import Streams
from bayesify.train.many.vectorization import UntraceableError, VectorizedFunction
from bayesify.train.objective import Objective

if TYPE_CHECKING:
    from torch.utils._pytree import TreeSpec

    from bayesify.train.data_loading import Batches, InMemoryBatches, RowGroupBatches

__all__ = ["Stack", "StackedData", "stack_data"]


class StackedData(ABC):
    """Batches of K models, which all have the same sizes.

    Attributes:
        sizes: rows of each batch of an epoch.
        structure: of inputs, targets and weights.
        is_weighted: whether the rows have weights.
    """

    sizes: list[int]
    structure: TreeSpec
    is_weighted: bool

    @abstractmethod
    def epoch(self, epoch: int) -> Iterator[list[Tensor]]:
        """Yield the tensors (K, B, ...) of each batch, with rows in the order of each model."""


def stack_data(data: Sequence[Batches]) -> StackedData:
    """Return the batches of K models together."""
    return _StackedTensors(data) if data[0].tensors is not None else _StackedRowGroups(data)


class _StackedRowGroups(StackedData):
    """Windows of row groups that all models share; each has another order of the rows of a window."""

    def __init__(self, data: Sequence[Batches]) -> None:
        self.data = [cast("RowGroupBatches", batches) for batches in data]
        first, example = self.data[0], self.data[0].data.example
        self.sizes = [size for window in range(first.windows.count) for size in first.windows.sizes(window, 1)]
        self.structure, self.is_weighted = tree_flatten(example.tensors)[1], example.weights is not None

    def epoch(self, epoch: int) -> Iterator[list[Tensor]]:
        first = self.data[0]
        for window, rows in enumerate(first.read(epoch)):
            leaves = tree_leaves(first.to_device(rows).tensors)
            for indices in zip(*(batches.indices(epoch, window) for batches in self.data), strict=True):
                index = torch.stack(indices).to(leaves[0].device)
                yield [leaf.index_select(0, index.flatten()).unflatten(0, index.shape) for leaf in leaves]


class _StackedTensors(StackedData):
    """Rows of K data sets of one size in memory; tensors that all models share are stored once."""

    def __init__(self, data: Sequence[Batches]) -> None:
        in_memory = [cast("InMemoryBatches", batches) for batches in data]
        self.orders = [batches.order for batches in in_memory]
        flat = [tree_flatten(batches.tensors.tensors) for batches in in_memory if batches.tensors is not None]
        self.rows, self.sizes, self.structure = self.orders[0].n, self.orders[0].sizes(), flat[0][1]
        self.is_weighted = any(batches.tensors.weights is not None for batches in in_memory if batches.tensors is not None)
        self.leaves: list[Tensor] = []
        self.separate: list[bool] = []
        for tensors in zip(*(leaves for leaves, _ in flat), strict=True):
            self.separate.append(any(x.data_ptr() != tensors[0].data_ptr() for x in tensors))
            self.leaves.append(torch.cat(tensors) if self.separate[-1] else tensors[0])

    def epoch(self, epoch: int) -> Iterator[list[Tensor]]:
        rows = []
        for order in self.orders:
            order.epoch = epoch
            rows.append(torch.cat(list(order.indices())))
        shuffled = torch.stack(rows).to(self.leaves[0].device)
        offset = torch.arange(len(self.orders), device=shuffled.device).unsqueeze(1) * self.rows
        for row, offset_row in zip(shuffled.split(self.sizes, 1), (shuffled + offset).split(self.sizes, 1), strict=True):
            index = {True: offset_row.flatten(), False: row.flatten()}
            yield [
                leaf.index_select(0, index[separate]).unflatten(0, row.shape)
                for leaf, separate in zip(self.leaves, self.separate, strict=True)
            ]


@dataclasses.dataclass
class _Names:
    """Names of the first tensors of a traced function: learned parameters, then the rest of the state."""

    learned: list[str]
    fixed: list[str]


class Stack:
    """K objectives with their parameters (K, ...) and random streams.

    Args:
        objectives: with parameters and buffers of equal names, shapes and types.
        n: the number of training examples, by which the KL is divided.
        device: of the objectives.
        samples: S, draws per example and training step.
        compile: whether to compile training steps.

    Attributes:
        parameters: learned parameters, by name.
        state: buffers and frozen parameters, by name.
        streams: the random streams of the models.
    """

    def __init__(self, objectives: Sequence[Objective], n: int, device: torch.device, samples: int, compile: bool) -> None:
        self.objectives, self.n, self.samples, self.compile = objectives, n, samples, compile
        states = [{**dict(o.named_parameters()), **dict(o.named_buffers())} for o in objectives]
        learned = [name for name, p in objectives[0].named_parameters() if p.requires_grad]
        self.names = _Names(learned, [name for name in states[0] if name not in set(learned)])
        self.parameters = {name: torch.stack([s[name].detach() for s in states]) for name in self.names.learned}
        self.state = {name: torch.stack([s[name].detach() for s in states]) for name in self.names.fixed}
        self.loss_dtype = torch.promote_types(next(iter(self.parameters.values())).dtype, torch.float32)
        self.streams = Streams(len(objectives), device)
        # models that differ in tensors alone share a function and its graph
        self.representatives = [next(i for i, other in enumerate(objectives) if same_function(other, o)) for o in objectives]
        # by shapes of batches: two per data set, because all batches but the last have one size
        self._steps: dict[Any, tuple[VectorizedFunction, _Step]] = {}
        self._log_probs: dict[Any, VectorizedFunction] = {}

    def step(self, batch: list[Tensor], data: StackedData, weights: list[list[float]]) -> tuple[dict[str, Tensor], Tensor]:
        """Return gradients by parameter, and loss, NLL and KL (K, 3), of one batch; update buffers.

        Args:
            batch: its tensors (K, B, ...).
            data: the data of the batch.
            weights: (K, 2), of the KL and of the per-example KL.
        """
        betas = torch.tensor(weights, dtype=self.loss_dtype, device=self.streams.device)
        arguments = [*self.parameters.values(), *self.state.values(), betas, *batch]
        key = tuple(x.shape for x in batch)
        if key not in self._steps:
            steps = [_Step(o, self.names, self.samples, data.structure, self.n) for o in self.objectives]
            self._steps[key] = self._vectorize([steps[i] for i in self.representatives], arguments, train=True), steps[0]
        function, step = self._steps[key]
        *outputs, terms = function(arguments, self.streams)
        gradients = dict(
            zip([name for name, used in zip(self.names.learned, step.used, strict=True) if used], outputs, strict=False)
        )
        for name, value in zip(self.names.fixed, outputs[len(gradients) :], strict=True):
            if value is not self.state[name]:
                self.state[name].copy_(value)
        return gradients, terms

    def log_prob(self, batch: list[Tensor], data: StackedData, draws: int) -> Tensor:
        """Return the log likelihood (K, S, B) of one batch under S draws, in eval mode."""
        arguments = [*self.parameters.values(), *self.state.values(), *batch]
        key = (draws, *(x.shape for x in batch))
        if key not in self._log_probs:
            functions = [_LogProb(o, self.names, draws, data.structure) for o in self.objectives]
            self._log_probs[key] = self._vectorize([functions[i] for i in self.representatives], arguments, train=False)
        (log_prob,) = self._log_probs[key](arguments, self.streams)
        return log_prob

    def collect_due(self, models: Iterable[int], before: float, after: float) -> None:
        """Take the snapshots that are due between two fractions of training, for posteriors collected along it."""
        for model in models:
            objective = self.objectives[model]
            if objective.bnn.is_due(before, after):
                state = {f"objective.{name}": x[model] for name, x in (self.parameters | self.state).items()}
                functional_call(_Collection(objective, before, after), state, ())  # writes into the stacked buffers

    def state_of(self, model: int) -> dict[str, Tensor]:
        """Return a copy of the state of one model."""
        return {name: x[model].clone() for name, x in (self.parameters | self.state).items()}

    def write_back(self, model: int, state: dict[str, Tensor]) -> None:
        """Copy a state into the modules of a model."""
        tensors = self.modules_of(model)
        with torch.no_grad():
            for name, value in state.items():
                tensors[name].copy_(value)

    def modules_of(self, model: int) -> dict[str, Tensor]:
        """Return the parameters and buffers of the modules of a model, by name, which training does not change."""
        objective = self.objectives[model]
        return {name: x.detach() for name, x in (*objective.named_parameters(), *objective.named_buffers())}

    def _vectorize(self, functions: Sequence[Function], arguments: Sequence[Tensor], train: bool) -> VectorizedFunction:
        """Vectorize the functions; the result is checked on the arguments against functions of one model."""
        for objective in self.objectives:
            objective.train(train)
        unstacked = [[x[model] for x in arguments] for model in range(len(functions))]
        before = self.streams.states()
        vectorized = VectorizedFunction(functions, unstacked, self.compile and train)
        self.streams.restore(before)
        outputs = vectorized(arguments, self.streams)
        self.streams.restore(before)
        for model in {0, len(functions) - 1}:
            self.streams.activate(model)
            expected = functions[model](*unstacked[model])
            if not all(_close(x[model], y) for x, y in zip(outputs, expected, strict=True)):
                raise UntraceableError("the values of stacked models differ from those of a single model")
        self.streams.restore(before)
        return vectorized


def _close(x: Tensor, y: Tensor) -> bool:
    """Return whether x and y are equal up to rounding; True if either has diverged."""
    if not bool(x.isfinite().all() & y.isfinite().all()):
        return True
    tolerance = 1e-6 if x.dtype == torch.float64 else 1e-2
    return bool((x - y).abs().max() <= tolerance * y.abs().max().clamp_min(1e-3)) if x.numel() else True


class _Step:
    """Training step of one model as a function of tensors: gradients, buffers, and the terms of the loss."""

    def __init__(self, objective: Objective, names: _Names, samples: int, structure: TreeSpec, n: int) -> None:
        self.objective, self.names, self.samples, self.structure, self.n = objective, names, samples, structure, n
        self.used: list[bool] = []

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        learned, fixed, (betas, *leaves) = _split(tensors, self.names)
        learned = [p.detach().requires_grad_() for p in learned]
        fixed = [x.clone() for x in fixed]  # batch normalization updates its running statistics in place
        state = dict(zip(self.names.learned + self.names.fixed, [*learned, *fixed], strict=True))
        batch = Batch(*tree_unflatten(leaves, self.structure))
        with torch.enable_grad():
            loss, nll, kl = functional_call(self.objective, state, (batch, self.samples, self.n, betas[0], betas[1]))
            gradients = torch.autograd.grad(loss, learned, allow_unused=True)
        self.used = [g is not None for g in gradients]
        return *(g for g in gradients if g is not None), *fixed, torch.stack((loss.detach(), nll, kl))


class _LogProb:
    """Log likelihood of a batch of one model as a function of tensors."""

    def __init__(self, objective: Objective, names: _Names, draws: int, structure: TreeSpec) -> None:
        self.density, self.names, self.structure = _Density(objective, draws), names, structure

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        learned, fixed, leaves = _split(tensors, self.names)
        names = [f"objective.{name}" for name in self.names.learned + self.names.fixed]
        state = dict(zip(names, [*learned, *(x.clone() for x in fixed)], strict=True))
        return (functional_call(self.density, state, (Batch(*tree_unflatten(leaves, self.structure)),)),)


class _Collection(nn.Module):
    """`Bayesian.collect_due` as a module, for `functional_call`."""

    def __init__(self, objective: Objective, before: float, after: float) -> None:
        super().__init__()
        self.objective, self.before, self.after = objective, before, after

    def forward(self) -> None:
        self.objective.bnn.collect_due(self.before, self.after)


class _Density(nn.Module):
    """`Objective.log_prob` as a module, for `functional_call`."""

    def __init__(self, objective: Objective, draws: int) -> None:
        super().__init__()
        self.objective, self.draws = objective, draws

    def forward(self, batch: Batch) -> Tensor:
        return self.objective.log_prob(batch, self.draws)


def _split(tensors: Sequence[Tensor], names: _Names) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    first, second = len(names.learned), len(names.learned) + len(names.fixed)
    return list(tensors[:first]), list(tensors[first:second]), list(tensors[second:])
