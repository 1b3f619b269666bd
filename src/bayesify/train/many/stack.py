"""K models of one architecture with stacked parameters; training steps and log likelihoods of all at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_unflatten

from bayesify.core.module_comparison import same_function
from bayesify.core.packed.unpacked import Unpacked
from bayesify.train.batch import Batch
from bayesify.train.many.graph import Function
from bayesify.train.many.random_streams import Streams
from bayesify.train.many.stacked_data import StackedData
from bayesify.train.many.vectorization import UNTRACEABLE, UntraceableError, VectorizedFunction
from bayesify.train.objective import Objective

if TYPE_CHECKING:
    from torch.utils._pytree import TreeSpec

__all__ = ["Stack"]

_FEW_WEIGHTS = 2**16  # of a model, whose parameters are joined


@dataclasses.dataclass
class _Names:
    """Names of the first tensors of a traced function: learned parameters, then the rest of the state.

    Attributes:
        joined: whether the gradients of all learned parameters are returned as one tensor.
    """

    learned: list[str]
    fixed: list[str]
    joined: bool


class Stack:
    """K objectives with their parameters (K, ...) and random streams.

    Args:
        objectives: with parameters and buffers of equal names, shapes and types.
        n: the number of training examples, by which the KL is divided.
        device: of the objectives.
        samples: S, draws per example and training step.
        compile: whether to compile training steps.
        join: whether the optimizer treats all weights alike, so that those of a small network can be one tensor.

    Attributes:
        parameters: learned parameters, by name.
        trained: what the optimizer updates, by name: the parameters, or one tensor of which they are views.
        state: buffers and frozen parameters, by name.
        streams: the random streams of the models.
    """

    def __init__(
        self, objectives: Sequence[Objective], n: int, device: torch.device, samples: int, compile: bool, join: bool = False
    ) -> None:
        if any(isinstance(x, nn.RNNBase) and not isinstance(x, Unpacked) for x in objectives[0].modules()):
            raise UntraceableError("PyTorch's vmap has no rule for its recurrent kernels, and warns where it falls back")
        self.objectives, self.n, self.samples, self.compile = objectives, n, samples, compile
        states = [{**dict(o.named_parameters()), **dict(o.named_buffers())} for o in objectives]
        if any(is_traceable_wrapper_subclass(x) for x in states[0].values()):
            raise UntraceableError("some weights are quantized, or otherwise not ordinary tensors, and cannot be stacked")
        learned = [name for name, p in objectives[0].named_parameters() if p.requires_grad]
        self.parameters = {name: torch.stack([s[name].detach() for s in states]) for name in learned}
        self.trained = self.parameters
        if joins := join and _can_be_joined(self.parameters.values()):
            self.trained, self.parameters = _joined(self.parameters)
        self.names = _Names(learned, [name for name in states[0] if name not in set(learned)], joins)
        self.state = {name: torch.stack([s[name].detach() for s in states]) for name in self.names.fixed}
        self.loss_dtype = torch.promote_types(next(iter(self.parameters.values())).dtype, torch.float32)
        self.streams = Streams(len(objectives), device)
        self._collecting = {model for model, objective in enumerate(objectives) if objective.bnn.collects}
        # models that differ in tensors alone share a function and its graph
        self.representatives = [next(i for i, other in enumerate(objectives) if same_function(other, o)) for o in objectives]
        # by shapes of batches: two per data set, because all batches but the last have one size
        self._steps: dict[Any, tuple[VectorizedFunction, _Step]] = {}
        self._log_probs: dict[Any, VectorizedFunction] = {}

    def step(self, batch: list[Tensor], data: StackedData, weights: list[list[float]]) -> tuple[dict[str, Tensor], Tensor]:
        """Return gradients of what is `trained`, by name, and loss, NLL and KL (K, 3), of one batch; update buffers.

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
        gradients = dict(zip([name for name, used in zip(self.trained, step.used, strict=True) if used], outputs, strict=False))
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
            if model in self._collecting and objective.bnn.is_due(before, after):
                state = {f"objective.{name}": x[model] for name, x in (self.parameters | self.state).items()}
                collect = _Module(objective, lambda o: o.bnn.collect_due(before, after))
                functional_call(collect, state, ())  # writes into the stacked buffers

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

    def _separate(self, outputs: Sequence[Tensor], train: bool) -> list[Tensor]:
        """Outputs of a function, with gradients by parameter."""
        if not (train and self.names.joined):
            return list(outputs)
        return [*outputs[0].split([x[0].numel() for x in self.parameters.values()], -1), *outputs[1:]]

    def _vectorize(self, functions: Sequence[Function], arguments: Sequence[Tensor], train: bool) -> VectorizedFunction:
        """Vectorize the functions; the result is checked on the arguments against functions of one model."""
        for objective in self.objectives:
            objective.train(train)
        unstacked = [[x[model] for x in arguments] for model in range(len(functions))]
        before = self.streams.states()
        vectorized = VectorizedFunction(functions, unstacked, arguments, self.compile and train)
        self.streams.restore(before)
        try:
            outputs = vectorized(arguments, self.streams)
        except UNTRACEABLE as error:  # a graph that PyTorch's vmap made of an operator without a rule
            raise UntraceableError(str(error)) from error
        self.streams.restore(before)
        for model in {0, len(functions) - 1}:
            with self.streams.active(model):
                expected = functions[model](*unstacked[model])
            pairs = zip(self._separate(outputs, train), self._separate(expected, train), strict=True)
            if not all(_close(x[model], y) for x, y in pairs):
                raise UntraceableError("the values of stacked models differ from those of a single model")
        self.streams.restore(before)
        return vectorized


def _can_be_joined(parameters: Iterable[Tensor]) -> bool:
    """Whether parameters can be one tensor, and an optimizer's step on it is faster: for small networks, which consist of calls."""
    parameters = list(parameters)
    return len({x.dtype for x in parameters}) == 1 and sum(x[0].numel() for x in parameters) <= _FEW_WEIGHTS


def _joined(parameters: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """One tensor (K, P) of all parameters, by name, and these as views of it."""
    joined = torch.cat([x.flatten(1) if x.dim() > 1 else x.unsqueeze(1) for x in parameters.values()], 1)
    parts = joined.split([x[0].numel() for x in parameters.values()], 1)
    return {"all": joined}, {name: part.view(x.shape) for (name, x), part in zip(parameters.items(), parts, strict=True)}


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
        if self.names.joined:
            gradients = [
                torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(learned, gradients, strict=True)])
            ]
        self.used = [g is not None for g in gradients]
        return *(g for g in gradients if g is not None), *fixed, torch.stack((loss.detach(), nll, kl))


class _LogProb:
    """Log likelihood of a batch of one model as a function of tensors."""

    def __init__(self, objective: Objective, names: _Names, draws: int, structure: TreeSpec) -> None:
        self.log_prob, self.names, self.draws, self.structure = _Module(objective, Objective.log_prob), names, draws, structure

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        learned, fixed, leaves = _split(tensors, self.names)
        names = [f"objective.{name}" for name in self.names.learned + self.names.fixed]
        state = dict(zip(names, [*learned, *(x.clone() for x in fixed)], strict=True))
        return (functional_call(self.log_prob, state, (Batch(*tree_unflatten(leaves, self.structure)), self.draws)),)


class _Module(nn.Module):
    """A function whose first argument is an objective as a module, for `functional_call`."""

    def __init__(self, objective: Objective, function: Callable[..., Any]) -> None:
        super().__init__()
        self.objective, self.function = objective, function

    def forward(self, *arguments: Any) -> Any:
        return self.function(self.objective, *arguments)


def _split(tensors: Sequence[Tensor], names: _Names) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    first, second = len(names.learned), len(names.learned) + len(names.fixed)
    return list(tensors[:first]), list(tensors[first:second]), list(tensors[second:])
