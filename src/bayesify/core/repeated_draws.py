"""Draws inside activation checkpoints and other functions that run layers again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from bayesify.core.generators import generator_states, noise_from, set_generator_states
from bayesify.core.modes import current_saved_tensors_hooks, in_custom_function, keeping_saved_tensors
from bayesify.errors import PassError

if TYPE_CHECKING:
    from bayesify.core.layer import BayesianLayer

__all__ = ["RepeatedDraws"]

T = TypeVar("T")


class RepeatedDraws:
    """The draws of one pass, whose backward pass gets the same values.

    Args:
        drawn: the values of the pass by key, among them those that were drawn before it was known to be inside a checkpoint.
        predrawn: keys of values that were given to the pass.
        samples: S, the number of draws in the pass.
    """

    def __init__(self, drawn: dict[Any, Any], predrawn: frozenset[Any], samples: int) -> None:
        self._drawn, self._predrawn, self._samples = drawn, predrawn, samples
        self._states: dict[Any, tuple[Any, Any]] = {}  # random states before and after a draw, by key
        self._noise: dict[BayesianLayer, Any] = {}  # random states before layers in a custom function
        self._without_graph: set[Any] = set()  # keys drawn without gradients, inside a reentrant checkpoint

    def noise_of_first_run(self, layer: BayesianLayer, again: bool) -> AbstractContextManager[None]:
        """Repeat the noise of a layer in a backward pass that recomputes it: not all such code restores random states."""
        tensors = list(layer.parameters())
        if not again and in_custom_function():
            self._noise[layer] = generator_states(tensors)
        return noise_from(self._noise[layer], tensors) if again and layer in self._noise else nullcontext()

    def draw(self, key: Hashable, make: Callable[[int], T], tensors: Sequence[Tensor]) -> T:
        """Draw, and store the random state, because the backward pass may have to repeat the draw."""
        if key not in self._drawn:
            before = generator_states(tensors)
            with keeping_saved_tensors():
                self._drawn[key] = make(self._samples)
            self._states[key] = before, generator_states(tensors)
            if not torch.is_grad_enabled():
                self._without_graph.add(key)
        elif key in self._without_graph and torch.is_grad_enabled():  # the layer is used again, outside the checkpoint
            self._without_graph.remove(key)
            self._drawn[key] = self._again(key, make, tensors)
        return self._drawn[key]

    def lost_state(self, key: Hashable) -> bool:
        """Whether a value was drawn with gradients before random states were stored, so that it cannot get a new graph."""
        known = key in self._states or key in self._predrawn or key not in self._drawn
        return not known and _has_graph(self._drawn[key])

    def redraw(self, key: Hashable, make: Callable[[int], T], tensors: Sequence[Tensor]) -> T:
        """The draw of the pass, for a backward pass that recomputes a layer."""
        drawn = cast(T, self._drawn.get(key))
        reentrant = current_saved_tensors_hooks() is None
        if key not in self._states:
            if drawn is None or (reentrant and self.lost_state(key)):
                raise PassError(
                    "a random layer is used both inside and outside a reentrant activation checkpoint; use "
                    "checkpoint(..., use_reentrant=False)"
                )
            return drawn
        before, after = self._states[key]
        states = generator_states(tensors)
        drawn_here = all(torch.equal(state, before[device]) for device, state in states.items())
        if not reentrant:  # the graph of the pass exists; only saved tensors are recomputed, in the same order
            if drawn_here:
                set_generator_states(tensors, after)
            return drawn
        return make(self._samples) if drawn_here else self._again(key, make, tensors)

    def _again(self, key: Hashable, make: Callable[[int], T], tensors: Sequence[Tensor]) -> T:
        """The same draw with a new graph; the random state does not change."""
        states = generator_states(tensors)
        set_generator_states(tensors, self._states[key][0])
        try:
            with keeping_saved_tensors():
                return make(self._samples)
        finally:
            set_generator_states(tensors, states)


def _has_graph(drawn: object) -> bool:
    """Whether gradients flow through a draw; those of a component that layers share do not."""
    return any(isinstance(x, Tensor) and x.requires_grad for x in tree_leaves(drawn))
