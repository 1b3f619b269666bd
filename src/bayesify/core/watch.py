"""What a network does with its random layers in one pass: which it calls or reads, and whether values decide what it computes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from bayesify.core.forward_pass import ForwardPass
from bayesify.core.layer import BayesianLayer
from bayesify.core.tensor_functions import NUMBERS, takes_values, tensors_in, values_taken

__all__ = ["Decisions", "Watch", "WatchedPass", "is_kept", "keep_results", "mark_rows", "origin_of"]

_BY_VALUE = frozenset(  # functions whose results, or their shapes, depend on values
    (
        *("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount"),
        *("equal", "allclose", "is_nonzero"),
        *("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__contains__"),
        "while_loop",
    )
)

_RESERVED = ("_parameters", "_buffers", "_modules", "passes")


class WatchedPass(ForwardPass):
    """A coherent pass with predrawn weights that reports its layers to a `Watch`; `unread` layers give their means when read."""

    def __init__(
        self,
        drawn: dict[BayesianLayer, Any],
        samples: int = 1,
        *,
        rows: int | None = None,
        without_rows: Iterable[Any] = (),
        watch: Watch | None = None,
        unread: Collection[BayesianLayer] = (),
    ) -> None:
        super().__init__(samples, coherent=True, rows=rows, drawn=drawn, without_rows=without_rows)
        self.watch, self.unread = watch, unread

    def call(self, layer: BayesianLayer, x: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            # A weight per draw would separate the batches of the draws, which deterministic layers do not in ordinary passes.
            y = super().call(layer, x) if layer.posterior.is_random else self.inside(layer.posterior, layer, x)
        if self.watch is None:
            return y
        self.watch.note_use((x,))
        self.watch.repeated |= {layer} & self.watch.called
        self.watch.called.add(layer)
        rows = has_rows(x) or x.shape[:1] == (self.watch.rows,)
        (self.watch.with_rows if rows else self.watch.without_rows).add(layer)
        return _traced(y, origin_of(x) | {layer}, rows)

    def apply(self, layers: Sequence[BayesianLayer], inputs: Sequence[Tensor | None], function: Callable[..., Any]) -> Any:
        with torch._C.DisableTorchFunction():
            result = super().apply(layers, inputs, function)
        if self.watch is None:
            return result
        given = [x for x in inputs if x is not None]
        self.watch.note_use(given)
        self.watch.called.update(layers)
        self.watch.with_rows.update(layers)
        origin = frozenset(layers).union(*map(origin_of, given))
        return tree_map_only(Tensor, lambda y: _traced(y, origin, True), result)

    def joined(self, layers: Sequence[BayesianLayer], values: Sequence[Tensor]) -> Tensor:
        with torch._C.DisableTorchFunction():
            value = super().joined(layers, values)
        if self.watch is not None:
            self.watch.values[id(value)] = layers, value
        return value

    def read(self, layer: BayesianLayer, name: str) -> Tensor | None:
        with torch._C.DisableTorchFunction():
            value = self.inside(layer.posterior_mean, name) if layer in self.unread else super().read(layer, name)
        if self.watch is not None and value is not None:
            self.watch.note_use(())
            self.watch.values[id(value)] = [layer], value
            if value is not layer._parameters.get(name):  # drawn
                return _traced(value, frozenset([layer]), False)
        return value


class Decisions(TorchFunctionMode):
    """Records the truth values that a network takes of tensors, by which it may choose what it computes.

    Attributes:
        taken: the truth values, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[bool] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if type(result) is bool and name in _BY_VALUE:
            self.taken.append(result)
        elif name == "cond" and isinstance(func, HigherOrderOperator):
            self.taken.append(bool(args[0]))
        return result


class Watch(TorchFunctionMode):
    """Traces which tensors depend on which random layers.

    Attributes:
        called: the layers that the network calls.
        repeated: those that it calls several times.
        read: the layers whose weights it computes with.
        by_value: names of the functions that decide by random values.
        numbers: names of the functions by which it takes numbers from the batch, which may decide what it computes.
        with_rows, without_rows: the layers whose inputs depend on the batch, or do not.
        values: the weights that it read, by id.
        reuses: whether it used what `keep_results` found.
        differentiates: whether it differentiates its layers itself, or applies another transform of `torch.func` to them.
        orders_rows: whether it sorts along the first dimension, with a result that has all rows of draw 0 first.
        generators: the states of PyTorch's generator from which layers would draw, in order.

    Args:
        rows: B.
    """

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows
        self.with_rows: set[BayesianLayer] = set()
        self.without_rows: set[BayesianLayer] = set()
        self.called: set[BayesianLayer] = set()
        self.repeated: set[BayesianLayer] = set()
        self.read: set[BayesianLayer] = set()
        self.by_value: set[str] = set()
        self.numbers: set[str] = set()
        self.reuses = self.differentiates = self.orders_rows = False
        self.values: dict[
            int, tuple[Sequence[BayesianLayer], Tensor]
        ] = {}  # with the tensors, so that no other tensor gets their id
        self.generators: list[Tensor] = []

    @property
    def got(self) -> set[BayesianLayer]:
        """The random layers whose weights it looked at, or computed with."""
        return {layer for layers, _ in self.values.values() for layer in layers if layer.posterior.is_random}

    def note_generator(self) -> None:
        """Keep the state of PyTorch's generator, if it has changed."""
        with torch._C.DisableTorchFunction():  # this comparison is no decision of the network
            state = torch.get_rng_state()
            if not self.generators or not torch.equal(state, self.generators[-1]):
                self.generators.append(state)

    def note_use(self, inputs: Sequence[Tensor]) -> None:
        """Note that the network uses a layer, which it calls with these inputs or whose weight it reads."""
        self.note_generator()
        self.note_read(inputs)
        self.reuses |= any(map(is_kept, inputs))
        self.differentiates |= torch.is_grad_enabled() or cast(Any, torch._C)._functorch.peek_interpreter_stack() is not None

    def note_read(self, tensors: Iterable[Tensor]) -> None:
        """Note the layers whose weights are among these tensors, with which something is computed."""
        if self.values:
            self.read.update(layer for x in tensors if id(x) in self.values for layer in self.values[id(x)][0])

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        tensors = list(tensors_in(values_taken(name, args, kwargs or {})))
        self.reuses = self.reuses or any(map(is_kept, tensors))
        if takes_values(name, result):
            self.note_read(tensors)
        origin = frozenset[BayesianLayer]().union(*map(origin_of, tensors))
        if isinstance(func, HigherOrderOperator):  # whose functions may call layers
            origin |= self.called
        rows = any(has_rows(x) for x in tensors_in((args, kwargs)))
        if origin or rows:
            decides = name in _BY_VALUE or (name == "where" and len(tensors) == 1) or _selects(name, args)
            if decides and any(layer.posterior.is_random for layer in origin):
                self.by_value.add(name)
            if rows and name in NUMBERS:
                self.numbers.add(name)
            if name in ("sort", "argsort"):
                self.orders_rows |= _keeps_draws_apart(tensors[0], result, args, kwargs or {})
            if name == "__setitem__":
                _traced(args[0], origin, rows)
            return tree_map_only(Tensor, lambda y: _traced(y, origin, rows), result)
        return result


def origin_of(x: Tensor) -> frozenset[BayesianLayer]:
    """The random layers that a tensor is known to depend on."""
    return getattr(x, "bayesify_origin", frozenset())


def keep_results(net: nn.Module) -> list[str]:
    """Mark tensors in attributes of modules that depend on random layers; return the names of these modules."""
    names = list[str]()
    for name, module in net.named_modules():
        values = [value for key, value in vars(module).items() if key not in _RESERVED]
        if kept := [x for x in tensors_in(values) if origin_of(x)]:
            names.append(name or "the network itself")
            for x in kept:
                cast(Any, x).bayesify_kept = True
    return names


def is_kept(x: Tensor) -> bool:
    """Whether `keep_results` found a tensor."""
    return getattr(x, "bayesify_kept", False)


def has_rows(x: Tensor) -> bool:
    """Whether a tensor is known to depend on the batch."""
    return getattr(x, "bayesify_rows", False)


def mark_rows(x: Tensor) -> Tensor:
    """Mark a tensor as part of the batch, and return it."""
    return _traced(x, frozenset(), True)


def _traced(x: Tensor, origin: frozenset[BayesianLayer], rows: bool) -> Tensor:
    """Mark a tensor with the random layers it depends on, and whether it depends on the batch; return it."""
    cast(Any, x).bayesify_origin, cast(Any, x).bayesify_rows = origin, rows
    return x


def _keeps_draws_apart(x: Tensor, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a sort of (2*B, ...) along dimension 0 leaves all rows of draw 0 first: other values would not."""
    given = [value for value in (*args[1:], *kwargs.values()) if isinstance(value, int) and not isinstance(value, bool)]
    order = result if isinstance(result, Tensor) else result[1]
    if x.dim() == 0 or len(x) % 2 or (given[0] if given else -1) not in (0, -x.dim()):
        return False
    return bool((order[: len(order) // 2] < len(order) // 2).all())


def _selects(name: str, args: tuple[Any, ...]) -> bool:
    """Whether a random mask selects rows, or a random value one of two functions."""
    if name == "cond":
        return bool(origin_of(args[0]))
    return name in ("__getitem__", "__setitem__") and any(x.dtype == torch.bool and origin_of(x) for x in tensors_in(args[1:2]))
