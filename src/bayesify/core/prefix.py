"""Prediction computes what lies before the first random layer once per batch, not once per draw.

The net runs as it is, on the B rows it was given, under a mode that sees every PyTorch function. A result that depends on the
inputs alone is certain; what a random layer returns, and all that is made of it, is random and has S*B rows. Where the two meet (a
skip connection), the certain one is repeated for every draw. Further passes over the same batch replay the certain part: functions
whose results a random one needed hand out these, all others an empty stand-in of the right shape, and none is computed again. So
branches and skip connections are served, and Python's control flow, too.

A net may defeat this: one that reshapes by the number of rows of its input, or draws noise of its own. Therefore the root believes
it only after a comparison with the ordinary pass on a few rows, at equal noise (`Folded.predicting`).

Shapes: S draws, B batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map_only, tree_unflatten

from bayesify.core.tracking import mark, mark_of, tensors_in
from bayesify.functional import local_reparameterization

if TYPE_CHECKING:
    from bayesify.core.sites import Site

__all__ = ["Prefix", "PrefixError"]


class PrefixError(RuntimeError):
    """The net did not do the same again, so what it did before cannot be replayed."""


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

    def layer(self, site: Site, x: Tensor) -> Tensor:
        """The output of a layer with a posterior for an input that is certain, random or neither."""
        with torch._C.DisableTorchFunction():
            if not mark_of(x):
                return mark(site.sampled(x), False)
            if site.posterior.log_ensemble_size(site) == 0:
                return self._remember(site, lambda: site.act(x, *site.posterior.mean(site)))
            if not (site.drawing.coherent or site.prefers_weights(x, x.shape[0])):
                moments = self._remember(site, lambda: site.posterior.moments(site, x), needed=True)
                if moments is not None:
                    return mark(local_reparameterization(*moments, draws=self.samples), False)
            return mark(site.sampled(self._repeat(x)), False)

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
