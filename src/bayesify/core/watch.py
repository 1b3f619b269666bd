"""What a net does with its random layers in one pass: whether it calls them, reads them, and decides by what they return."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from bayesify.core.forward_pass import ForwardPass, RandomLayer
from bayesify.core.layer import BayesianLayer
from bayesify.core.replay.marks import tensors_in

__all__ = ["LookPass", "Watch", "origin_of", "with_rows"]

_BY_VALUE = frozenset(  # functions whose results, or their shapes, depend on values
    (
        *("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount"),
        *("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__contains__"),
    )
)


class LookPass(ForwardPass):
    """A coherent pass with given draws, in which layers are watched."""

    def __init__(
        self,
        drawn: dict[BayesianLayer, Any],
        samples: int = 1,
        *,
        rows: int | None = None,
        without_rows: Iterable[Any] = (),
        watch: Watch | None = None,
    ) -> None:
        super().__init__(samples, coherent=True, rows=rows, drawn=drawn, without_rows=without_rows)
        self.watch = watch

    def call(self, layer: RandomLayer, x: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            y = super().call(layer, x) if layer.posterior.is_random else self._certain(layer, x)
        if self.watch is None:
            return y
        self.watch.called.add(layer)
        rows = has_rows(x) or x.shape[:1] == (self.watch.rows,)
        (self.watch.with_rows if rows else self.watch.without_rows).add(layer)
        return _traced(y, origin_of(x) | {layer}, rows)

    def _certain(self, layer: RandomLayer, x: Tensor) -> Tensor:
        """As in ordinary passes: without a weight for each draw, which would keep their batches apart."""
        self._depth += 1
        try:
            return layer.posterior(layer, x)
        finally:
            self._depth -= 1

    def read(self, layer: RandomLayer, name: str) -> Tensor | None:
        with torch._C.DisableTorchFunction():
            value = super().read(layer, name)
        if self.watch is not None and value is not None:
            self.watch.values[id(value)] = layer, value
        return value


class Watch(TorchFunctionMode):
    """Notes which tensors come from which layers, where the net decides by random values, and computes with weights it has read.

    Attributes:
        called: the layers that the net calls.
        read: those whose weights it computes with itself.
        by_value: names of the functions with which it decides by random values.
        with_rows, without_rows: the layers whose inputs depend on the batch, or do not.
        values: weights that it has read, by their id.

    Args:
        rows: B.
    """

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows
        self.with_rows: set[RandomLayer] = set()
        self.without_rows: set[RandomLayer] = set()
        self.called: set[RandomLayer] = set()
        self.read: set[RandomLayer] = set()
        self.by_value: set[str] = set()
        self.values: dict[int, tuple[RandomLayer, Tensor]] = {}  # the tensors are kept, so that no other gets their id

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = list(tensors_in((args, kwargs)))
        if self.values and next(tensors_in(result), None) is not None:  # a dtype or a shape may be asked for
            self.read.update(self.values[id(x)][0] for x in given if id(x) in self.values)
        origin = frozenset[RandomLayer]().union(*map(origin_of, given))
        rows = any(has_rows(x) for x in given)
        if origin or rows:
            name = getattr(func, "__name__", "")
            decides = name in _BY_VALUE or (name == "where" and len(given) == 1) or _selects(name, args)
            if decides and any(layer.posterior.is_random for layer in origin):
                self.by_value.add(name)
            if name == "__setitem__":
                _traced(args[0], origin, rows)
            return tree_map_only(Tensor, lambda y: _traced(y, origin, rows), result)
        return result


def origin_of(x: Tensor) -> frozenset[RandomLayer]:
    """The random layers that a tensor is known to depend on."""
    return getattr(x, "bayesify_origin", frozenset())


def has_rows(x: Tensor) -> bool:
    """Whether a tensor is known to depend on the batch."""
    return getattr(x, "bayesify_rows", False)


def with_rows(x: Tensor) -> Tensor:
    """The tensor itself, as a part of the batch."""
    return _traced(x, frozenset(), True)


def _traced(x: Tensor, origin: frozenset[RandomLayer], rows: bool) -> Tensor:
    """The tensor itself, which remembers the random layers that it depends on, and whether on the batch."""
    cast(Any, x).bayesify_origin, cast(Any, x).bayesify_rows = origin, rows
    return x


def _selects(name: str, args: tuple[Any, ...]) -> bool:
    """Whether rows are chosen by a mask that is random."""
    return name in ("__getitem__", "__setitem__") and any(x.dtype == torch.bool and origin_of(x) for x in tensors_in(args[1:2]))
