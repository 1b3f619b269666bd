"""`Prefix`: the computation before the first random layer, done once per batch instead of once per draw (README.md).

Shapes: S draws, B batch.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from bayesify.core.forward_pass import ForwardPass
from bayesify.core.inputs import Inputs
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.passes import Passes
from bayesify.core.replay.marks import mark, mark_of
from bayesify.core.tensor_functions import tensors_in
from bayesify.errors import PassError
from bayesify.functional import local_reparameterization

__all__ = ["Prefix", "PrefixError", "ReplayPass", "has_prefix", "is_worth_replay", "leaves_stand_ins"]


class PrefixError(PassError):
    """The network called other functions than in its first pass, so the pass cannot be replayed."""


WORTH_REPLAY = 200_000_000
"""Positions of a batch times parameters times draws, below which passes take less time than the comparison before replay."""


@dataclasses.dataclass
class _Call:
    """A deterministic result: its function and its leaves; tensors are stand-ins until a random function needs them."""

    function: object
    leaves: list[Any]
    spec: TreeSpec


class Prefix(TorchFunctionMode):
    """The part of a network before its first random layer, for any number of passes over one batch.

    Tensors are marked True if they depend on the inputs only (deterministic), and False if they depend on random layers too.

    Args:
        batch: B.
        fold: whether the draws of a pass are folded into S*B rows; otherwise every draw takes a separate pass.
    """

    def __init__(self, batch: int, fold: bool) -> None:
        super().__init__()
        self.batch, self.fold = batch, fold
        self.samples = 1
        self.calls: list[_Call] = []
        self.index = self.passes = 0
        self.is_empty = True  # nothing to replay

    def begin(self, samples: int) -> None:
        """Start a pass with this number of draws."""
        self.samples, self.index, self.passes = samples if self.fold else 1, 0, self.passes + 1

    def mark_input(self, x: Any) -> Any:
        """Return a copy of an input of the network, marked as deterministic."""
        return mark(x.clone(), True) if isinstance(x, Tensor) else x

    def run(self, forward_pass: ReplayPass, passes: Passes, net: nn.Module, call: Inputs) -> Any:
        """Outputs of a pass, with a row for every draw."""
        args, kwargs = call.map(self.mark_input, [isinstance(x, Tensor) and may for x, may in call.pairs()])
        with self:
            outputs = passes.run(forward_pass, net, args, kwargs)
        return tree_map_only(Tensor, lambda y: self._repeat(y) if mark_of(y) else y, outputs)

    def call(self, layer: BayesianLayer, x: Tensor, forward_pass: ForwardPass) -> Tensor:
        """Output of a random layer for a deterministic, random or unmarked input."""
        with torch._C.DisableTorchFunction():
            posterior = layer.posterior
            if not forward_pass.has_rows(layer):
                return mark(forward_pass.sampled_without_rows(layer, x), False)
            if not mark_of(x):
                return mark(layer.sampled(x), False)
            if not posterior.is_random:
                return self._remember(layer, lambda: layer.prepared_op(x, *posterior.mean(layer)))
            if layer.draws_weights or not posterior.has_moments:
                return mark(layer.sampled(self._repeat(x)), False)
            moments = self._remember(layer, lambda: posterior.moments(layer, x), needed=True)
            return mark(local_reparameterization(*moments, draws=self.samples), False)

    def apply(self, inputs: Sequence[Tensor | None], apply: Callable[[Sequence[Tensor | None]], Any]) -> Any:
        """Result of a module that computes with weights of random layers, for inputs as in `call`."""
        with torch._C.DisableTorchFunction():
            result = apply([x if x is None else self._expanded(x) for x in inputs])
        return tree_map_only(Tensor, lambda y: mark(y, False), result)

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        marks = {mark_of(x) for x in tensors_in((args, kwargs))}
        if False in marks:
            if True in marks:
                if any(mark_of(x) for x in tensors_in(_written(func, args, kwargs))):
                    raise PrefixError("the network writes random values over values of the part that is computed once")
                args = tree_map_only(Tensor, self._expanded, args)
                kwargs = {name: tree_map_only(Tensor, self._expanded, value) for name, value in kwargs.items()}
            return tree_map_only(Tensor, lambda y: mark(y, False), func(*args, **kwargs))
        if True in marks:
            return self._remember(func, lambda: func(*args, **kwargs))
        return func(*args, **kwargs)

    def _remember(self, function: object, compute: Callable[[], Any], needed: bool = False) -> Any:
        """Compute in the first pass; return the same result in later passes."""
        index, self.index = self.index, self.index + 1
        if self.passes > 1:
            if index >= len(self.calls) or self.calls[index].function != function:
                raise PrefixError("the network calls other functions of its inputs than in the first pass")
            return tree_unflatten(self.calls[index].leaves, self.calls[index].spec)
        result = compute()
        leaves, spec = tree_flatten(result)
        for number, y in enumerate(leaves):
            if isinstance(y, Tensor):
                self.is_empty = False
                mark(y, True)
                cast(Any, y).bayesify_origin_call = (index, number)
        # Store no tensors that only the current pass needs.
        self.calls.append(_Call(function, leaves if needed else [_stand_in(y) for y in leaves], spec))
        return result

    def _expanded(self, x: Tensor) -> Tensor:
        """An argument of a function that also has random arguments."""
        return self._repeat(x) if mark_of(x) else x

    def _repeat(self, x: Tensor) -> Tensor:
        """(B, ...) to (S*B, ...), all rows of draw 0 first; tensors without rows stay as they are."""
        origin: tuple[int, int] | None = getattr(x, "bayesify_origin_call", _INPUT)
        if origin is None:
            raise PrefixError("a random layer uses a result that was not needed in the first pass")
        if origin != _INPUT:
            self.calls[origin[0]].leaves[origin[1]] = x
        if self.samples == 1 or x.dim() == 0 or x.shape[0] != self.batch:
            return x
        return x.expand(self.samples, *x.shape).flatten(0, 1)


def _written(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments that a function writes to, by PyTorch's convention for names (`add_`, `__iadd__`)."""
    name = getattr(function, "__name__", "")
    in_place = name.startswith("__i") or name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
    return [*(args[:1] if in_place else ()), kwargs.get("out")]


_INPUT = (-1, -1)  # the origin of tensors that no call returned


def _stand_in(x: Any) -> Any:
    """For a tensor, a deterministic one of the same shape with a single element in memory, which is never used."""
    if not isinstance(x, Tensor):
        return x
    empty = mark(torch.empty((), dtype=x.dtype, device=x.device).expand(x.shape), True)
    cast(Any, empty).bayesify_origin_call = None
    return empty


class ReplayPass(ForwardPass):
    """A pass whose layers are called through a `Prefix`."""

    def __init__(
        self,
        prefix: Prefix,
        samples: int,
        coherent: bool,
        without_rows: Iterable[Any] = (),
        drawn: Mapping[Any, Any] | None = None,
        separate: Callable[[str, Callable[[int], Tensor]], Tensor] | None = None,
    ) -> None:
        super().__init__(
            samples,
            coherent=coherent,
            rows=samples * prefix.batch,
            drawn=drawn,
            without_rows=without_rows,
            notes_repeats=True,
            notes_reads=True,
            separate=separate,
        )
        self.prefix = prefix
        prefix.begin(samples)

    def call(self, layer: BayesianLayer, x: Tensor) -> Tensor:
        self.check_repeats(layer)
        return self.inside(self.prefix.call, layer, x, self)

    def apply(self, layers: Sequence[BayesianLayer], inputs: Sequence[Tensor | None], function: Callable[..., Any]) -> Any:
        return self.prefix.apply(inputs, lambda repeated: super(ReplayPass, self).apply(layers, repeated, function))


def is_worth_replay(net: nn.Module, inputs: Iterable[Any], samples: int) -> bool:
    """Whether S draws for this batch may take longer than the comparison before replay."""
    positions = max((_positions(x) for x in inputs if isinstance(x, Tensor)), default=0)
    return positions * samples * sum(parameter.numel() for parameter in net.parameters()) > WORTH_REPLAY


def _positions(x: Tensor) -> int:
    """About how often the weights are used: the number of rows (B, I), tokens (B, T) or (B, T, I), or lines of images."""
    return x.numel() // max(1, x.shape[-1]) if x.is_floating_point() and x.dim() > 1 else x.numel()


def has_prefix(net: nn.Module) -> bool:
    """Whether a network may compute anything before its random layers, and no hook would get stand-ins."""
    modules = [part for part in net.modules() if not isinstance(part, Posterior)]
    if any(isinstance(part, BayesianLayer) and part.is_read for part in modules):
        return False
    hooked = any(part._forward_hooks or _has_foreign_hooks(part) for part in modules)
    return not hooked and any(_shares_work(part) for part in modules)


def _shares_work(part: nn.Module) -> bool:
    """Whether a module, if it comes first, computes something that all draws share."""
    if not isinstance(part, BayesianLayer):
        return bool(part._parameters)
    return not part.posterior.is_random or part.posterior.has_moments


def _has_foreign_hooks(part: nn.Module) -> bool:
    """Whether a module has forward pre-hooks other than those of this library."""
    return any(not getattr(hook, "of_bayesify", False) for hook in part._forward_pre_hooks.values())


_CONTAINERS = frozenset((dict, OrderedDict, list, tuple, set))
_WITHOUT_TENSORS = frozenset((bool, int, float, str, type(None)))  # of which most attributes are, and pytrees are slow


def leaves_stand_ins(net: nn.Module) -> bool:
    """Whether an attribute of the network is a tensor of a replayed pass."""
    reserved = ("_parameters", "_buffers", "_modules", "passes")
    return any(
        isinstance(leaf, Tensor) and mark_of(leaf) is not None
        for module in net.modules()
        for name, value in vars(module).items()
        if name not in reserved and not (value.__class__ in _WITHOUT_TENSORS or (value.__class__ in _CONTAINERS and not value))
        for leaf in tree_leaves(value)
    )
