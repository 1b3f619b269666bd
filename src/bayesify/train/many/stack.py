"""K models of one architecture as one: parameters stacked, training steps and log likelihoods computed for all at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_unflatten

from bayesify.train.batch import Batch
from bayesify.train.many.alike import alike
from bayesify.train.many.graph import Function
from bayesify.train.many.streams import Streams
from bayesify.train.many.trace import Together, UntraceableError
from bayesify.train.objective import Objective

if TYPE_CHECKING:
    from torch.utils._pytree import TreeSpec

    from bayesify.train.batches import Batches, InMemory

__all__ = ["Stack", "StackedData"]


class StackedData:
    """The rows of K data sets of one size; data that all models share are kept once."""

    def __init__(self, sources: Sequence[Batches]) -> None:
        in_memory = [cast("InMemory", source) for source in sources]
        self.orders = [source.order for source in in_memory]
        flat = [tree_flatten((source.tensors.inputs, source.tensors.y)) for source in in_memory if source.tensors is not None]
        self.rows, self.sizes, self.structure = self.orders[0].n, self.orders[0].sizes(), flat[0][1]
        self.leaves: list[Tensor] = []
        self.own: list[bool] = []
        for tensors in zip(*(leaves for leaves, _ in flat), strict=True):
            self.own.append(any(x.data_ptr() != tensors[0].data_ptr() for x in tensors))
            self.leaves.append(torch.cat(tensors) if self.own[-1] else tensors[0])

    def epoch(self, epoch: int) -> Iterator[list[Tensor]]:
        """For each batch its tensors (K, B, ...), rows in every model's own order."""
        rows = []
        for order in self.orders:
            order.epoch = epoch
            rows.append(torch.cat(list(order.indices())))
        shuffled = torch.stack(rows).to(self.leaves[0].device)
        offset = torch.arange(len(self.orders), device=shuffled.device).unsqueeze(1) * self.rows
        for row, own_row in zip(shuffled.split(self.sizes, 1), (shuffled + offset).split(self.sizes, 1), strict=True):
            where = {True: own_row.flatten(), False: row.flatten()}
            yield [
                leaf.index_select(0, where[own]).unflatten(0, row.shape) for leaf, own in zip(self.leaves, self.own, strict=True)
            ]


@dataclasses.dataclass
class _Names:
    """What the flat tensors of a traced function are: parameters to learn, then everything else of the state."""

    learned: list[str]
    fixed: list[str]


class Stack:
    """K objectives with their parameters (K, ...) and random streams.

    Args:
        objectives: alike in the names, shapes and types of their parameters and buffers.
        n: the number of training examples, by which the KL is divided.
        device: where they are.
        samples: S, draws per example and training step.
        compile: whether training steps become machine code.

    Attributes:
        parameters: what is learned, by name.
        state: buffers and parameters that are not learned, by name.
        streams: where each model's random numbers come from.
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
        # models that are alike but for tensors share one function and its trace
        self.kinds = [next(i for i, other in enumerate(objectives) if alike(other, o)) for o in objectives]
        self._steps: dict[Any, tuple[Together, _Step]] = {}
        self._log_probs: dict[Any, Together] = {}

    def step(self, batch: list[Tensor], data: StackedData, betas: list[list[float]]) -> tuple[dict[str, Tensor], Tensor]:
        """Gradients by parameter, and loss, NLL and KL (K, 3), of one batch; buffers are brought up to date.

        Args:
            batch: its tensors (K, B, ...).
            data: where it comes from.
            betas: (K, 2), the weights of the KL and of the per-example KL.
        """
        weights = torch.tensor(betas, dtype=self.loss_dtype, device=self.streams.device)
        arguments = [*self.parameters.values(), *self.state.values(), weights, *batch]
        key = tuple(x.shape for x in batch)
        if key not in self._steps:
            steps = [_Step(o, self.names, self.samples, data.structure, self.n) for o in self.objectives]
            self._steps[key] = self._together([steps[kind] for kind in self.kinds], arguments, train=True), steps[0]
        together, step = self._steps[key]
        *outputs, terms = together(arguments, self.streams)
        gradients = dict(
            zip([name for name, used in zip(self.names.learned, step.used, strict=True) if used], outputs, strict=False)
        )
        for name, value in zip(self.names.fixed, outputs[len(gradients) :], strict=True):
            if value is not self.state[name]:
                self.state[name].copy_(value)
        return gradients, terms

    def log_prob(self, batch: list[Tensor], data: StackedData, draws: int) -> Tensor:
        """The log likelihood (K, S, B) of one batch under S draws, in eval mode."""
        arguments = [*self.parameters.values(), *self.state.values(), *batch]
        key = (draws, *(x.shape for x in batch))
        if key not in self._log_probs:
            functions = [_LogProb(o, self.names, draws, data.structure) for o in self.objectives]
            self._log_probs[key] = self._together([functions[kind] for kind in self.kinds], arguments, train=False)
        (log_prob,) = self._log_probs[key](arguments, self.streams)
        return log_prob

    def of(self, model: int) -> dict[str, Tensor]:
        """A copy of the state of one model."""
        return {name: x[model].clone() for name, x in (self.parameters | self.state).items()}

    def give_back(self, model: int, state: dict[str, Tensor]) -> None:
        """Write a state into the model's own modules."""
        own = {**dict(self.objectives[model].named_parameters()), **dict(self.objectives[model].named_buffers())}
        with torch.no_grad():
            for name, value in state.items():
                own[name].copy_(value)

    def _together(self, functions: Sequence[Function], arguments: Sequence[Tensor], train: bool) -> Together:
        """The functions as one, which is tried on the arguments before it is believed."""
        for objective in self.objectives:
            objective.train(train)
        each = [[x[model] for x in arguments] for model in range(len(functions))]
        before = self.streams.states()
        together = Together(functions, each, self.compile and train)
        self.streams.go_back(before)
        outputs = together(arguments, self.streams)
        self.streams.go_back(before)
        for model in {0, len(functions) - 1}:
            self.streams.take_up(model)
            alone = functions[model](*each[model])
            if not all(_close(x[model], y) for x, y in zip(outputs, alone, strict=True)):
                raise UntraceableError("the models' values together differ from those of a model alone")
        self.streams.go_back(before)
        return together


def _close(x: Tensor, y: Tensor) -> bool:
    """Equal but for rounding; a model that has diverged proves nothing."""
    if not bool(x.isfinite().all() & y.isfinite().all()):
        return True
    tolerance = 1e-6 if x.dtype == torch.float64 else 1e-2
    return bool((x - y).abs().max() <= tolerance * y.abs().max().clamp_min(1e-3)) if x.numel() else True


class _Step:
    """The training step of one model as a function of tensors: gradients, buffers, and the terms of the loss."""

    def __init__(self, objective: Objective, names: _Names, samples: int, structure: TreeSpec, n: int) -> None:
        self.objective, self.names, self.samples, self.structure, self.n = objective, names, samples, structure, n
        self.used: list[bool] = []

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        learned, fixed, (betas, *leaves) = _split(tensors, self.names)
        learned = [p.detach().requires_grad_() for p in learned]
        fixed = [x.clone() for x in fixed]  # batch normalisation writes into its running statistics
        state = dict(zip(self.names.learned + self.names.fixed, [*learned, *fixed], strict=True))
        batch = Batch(*tree_unflatten(leaves, self.structure))
        with torch.enable_grad():
            loss, nll, kl = functional_call(self.objective, state, (batch, self.samples, self.n, betas[0], betas[1]))
            gradients = torch.autograd.grad(loss, learned, allow_unused=True)
        self.used = [g is not None for g in gradients]
        return *(g for g in gradients if g is not None), *fixed, torch.stack((loss.detach(), nll, kl))


class _LogProb:
    """The log likelihood of one model's batch as a function of tensors."""

    def __init__(self, objective: Objective, names: _Names, draws: int, structure: TreeSpec) -> None:
        self.density, self.names, self.structure = _Density(objective, draws), names, structure

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        learned, fixed, leaves = _split(tensors, self.names)
        names = [f"objective.{name}" for name in self.names.learned + self.names.fixed]
        state = dict(zip(names, [*learned, *(x.clone() for x in fixed)], strict=True))
        return (functional_call(self.density, state, (Batch(*tree_unflatten(leaves, self.structure)),)),)


class _Density(nn.Module):
    """`Objective.log_prob` as a module, to which `functional_call` can lend parameters."""

    def __init__(self, objective: Objective, draws: int) -> None:
        super().__init__()
        self.objective, self.draws = objective, draws

    def forward(self, batch: Batch) -> Tensor:
        return self.objective.log_prob(batch, self.draws)


def _split(tensors: Sequence[Tensor], names: _Names) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    first, second = len(names.learned), len(names.learned) + len(names.fixed)
    return list(tensors[:first]), list(tensors[first:second]), list(tensors[second:])
