"""`Prefix`: what lies before the first random layer is computed once per batch, not once per draw (README.md).

Shapes: S draws, B batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from bayesify.core.forward_pass import ForwardPass, RandomLayer
from bayesify.core.layer import BayesianLayer
from bayesify.core.replay.marks import mark, mark_of, tensors_in
from bayesify.functional import local_reparameterization

__all__ = ["MISFITS", "Prefix", "PrefixError", "ReplayPass", "leaves_stand_ins"]


class PrefixError(RuntimeError):
    """The net did not do the same again, so what it did before cannot be replayed."""


MISFITS = (RuntimeError, ValueError, IndexError)
"""What a net that replay cannot follow raises: a `PrefixError`, or what PyTorch raises for tensors of the wrong shape."""


@dataclasses.dataclass
class _Call:
    """A certain result: the function it came from and its leaves, of which tensors are stand-ins until a random one needs them."""

    function: object
    leaves: list[Any]
    spec: TreeSpec


class Prefix(TorchFunctionMode):
    """What a net computes of one batch before its first random layer, for any number of passes.

    Tensors that depend on the inputs alone are marked True (certain), those that depend on random layers, too, False.

    Args:
        batch: B.
        fold: whether the draws of a pass share it as S*B rows; otherwise every draw has a pass of its own.
    """

    def __init__(self, batch: int, fold: bool) -> None:
        super().__init__()
        self.batch, self.fold = batch, fold
        self.samples = 1
        self.calls: list[_Call] = []
        self.place = self.passes = 0
        self.idle = True  # nothing that could be handed out again

    def begin(self, samples: int) -> None:
        """A pass with so many draws starts."""
        self.samples, self.place, self.passes = samples if self.fold else 1, 0, self.passes + 1

    def certain(self, x: Any) -> Any:
        """An input of the net, as the net is to be given it."""
        return mark(x.view_as(x), True) if isinstance(x, Tensor) else x

    def end(self, outputs: Any) -> Any:
        """The net's outputs with a row for every draw."""
        return tree_map_only(Tensor, lambda y: self._repeat(y) if mark_of(y) else y, outputs)

    def call(self, layer: BayesianLayer, x: Tensor, forward_pass: ForwardPass) -> Tensor:
        """The output of a random layer for an input that is certain, random or neither."""
        with torch._C.DisableTorchFunction():
            posterior = layer.posterior
            if not forward_pass.has_rows(layer):
                return mark(forward_pass.sampled_without_rows(layer, x), False)
            if not mark_of(x):
                return mark(layer.sampled(x), False)
            if not posterior.is_random:
                return self._remember(layer, lambda: layer.prepared_op(x, *posterior.mean(layer)))
            local = posterior.has_moments and not forward_pass.coherent and not layer.prefers_weights(x, x.shape[0])
            if not local:
                return mark(layer.sampled(self._repeat(x)), False)
            moments = self._remember(layer, lambda: posterior.moments(layer, x), needed=True)
            return mark(local_reparameterization(*moments, draws=self.samples), False)

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        marks = {mark_of(x) for x in tensors_in((args, kwargs))}
        if False in marks:
            if True in marks:
                changes = _changes_its_argument(func)
                args = tree_map_only(Tensor, lambda x: self._met(x, changes), args)
                kwargs = {name: tree_map_only(Tensor, lambda x: self._met(x, changes), value) for name, value in kwargs.items()}
            return tree_map_only(Tensor, lambda y: mark(y, False), func(*args, **kwargs))
        if True in marks:
            return self._remember(func, lambda: func(*args, **kwargs))
        return func(*args, **kwargs)

    def _remember(self, function: object, compute: Callable[[], Any], needed: bool = False) -> Any:
        """What is computed in the first pass, and handed out again in later ones."""
        place, self.place = self.place, self.place + 1
        if self.passes > 1:
            if place >= len(self.calls) or self.calls[place].function != function:
                raise PrefixError("the net calls other functions of its inputs than before")
            return tree_unflatten(self.calls[place].leaves, self.calls[place].spec)
        result = compute()
        leaves, spec = tree_flatten(result)
        for number, y in enumerate(leaves):
            if isinstance(y, Tensor):
                self.idle = False
                mark(y, True)
                cast(Any, y).bayesify_place = (place, number)
        # Nothing holds on to what only the pass under way needs, and no tensor to what holds it.
        self.calls.append(_Call(function, leaves if needed else [_stand_in(y) for y in leaves], spec))
        return result

    def _met(self, x: Tensor, changes: bool) -> Tensor:
        """A tensor that meets random ones."""
        if not mark_of(x):
            return x
        repeated = self._repeat(x)
        return repeated.clone() if changes and repeated is x else repeated

    def _repeat(self, x: Tensor) -> Tensor:
        """(B, ...) to (S*B, ...), all rows of draw 0 first; tensors without rows stay as they are."""
        place: tuple[int, int] | None = getattr(x, "bayesify_place", _INPUT)
        if place is None:
            raise PrefixError("a random layer uses a part of the net that it did not use before")
        if place != _INPUT:
            self.calls[place[0]].leaves[place[1]] = x
        if self.samples == 1 or x.dim() == 0 or x.shape[0] != self.batch:
            return x
        return x.expand(self.samples, *x.shape).flatten(0, 1)


def _changes_its_argument(function: Callable[..., Any]) -> bool:
    """Whether it works in place, by PyTorch's convention for names (`add_`, `__iadd__`)."""
    name = getattr(function, "__name__", "")
    return name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))


_INPUT = (-1, -1)  # the place of what no call has returned


def _stand_in(x: Any) -> Any:
    """For a tensor, a certain one of the same shape that holds a single number and is never computed with."""
    if not isinstance(x, Tensor):
        return x
    empty = mark(torch.empty((), dtype=x.dtype, device=x.device).expand(x.shape), True)
    cast(Any, empty).bayesify_place = None
    return empty


class ReplayPass(ForwardPass):
    """A pass whose layers are called by a `Prefix`."""

    def __init__(self, prefix: Prefix, samples: int, coherent: bool, without_rows: Iterable[Any] = ()) -> None:
        super().__init__(samples, coherent=coherent, rows=samples * prefix.batch, without_rows=without_rows)
        self.prefix = prefix
        prefix.begin(samples)

    def call(self, layer: RandomLayer, x: Tensor) -> Tensor:
        self._depth += 1
        try:
            return self.prefix.call(cast(BayesianLayer, layer), x, self)
        finally:
            self._depth -= 1


def leaves_stand_ins(net: nn.Module) -> bool:
    """Whether an attribute of the net holds a tensor of a replayed pass."""
    reserved = ("_parameters", "_buffers", "_modules", "passes")
    return any(
        isinstance(leaf, Tensor) and mark_of(leaf) is not None
        for module in net.modules()
        for name, value in vars(module).items()
        if name not in reserved
        for leaf in tree_leaves(value)
    )
