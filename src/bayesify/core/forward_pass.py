"""One pass through a network: what its root asks of the random layers, and what they tell it.

A layer finds the pass it is part of in `Passes`, which root and layers share. It may be a pass of the root, one that a backward
pass repeats (activation checkpointing), or one of a layer that is called on its own.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bayesify.core.generators import generator_states, set_generator_states

__all__ = ["ForwardPass", "Passes", "RandomLayer", "RowsError"]

T = TypeVar("T")


class RandomLayer(Protocol):
    """What a pass asks of a layer; `BayesianLayer` has it."""

    is_read: bool
    posterior: Any

    def sampled(self, x: Tensor) -> Tensor:
        """The random output for x (S*B, ...)."""
        ...

    def sampled_without_rows(self, x: Tensor) -> Tensor:
        """The output (S, ...) of every draw for one and the same x."""
        ...

    def sample(self, samples: int) -> tuple[Tensor, Tensor | None]:
        """Weight (S, *) and bias (S, *), drawn afresh."""
        ...

    def resting(self, name: str) -> Tensor | None:
        """The posterior mean of weight or bias."""
        ...


class RowsError(RuntimeError):
    """A random layer met an input that does not consist of rows of all draws."""


class ForwardPass:
    """One pass through a network, over S draws that are folded into its batch.

    A posterior reaches it as `layer.forward_pass` and calls `once`, `wants_kl`, `kl` and `choose`. Roots create it; a subclass can
    tell layers more.

    Args:
        samples: S, the number of draws that share the pass; its batch has S*B rows, all rows of draw 0 first.
        coherent: whether every layer draws weights, one per draw for the whole batch.
        pays_kl: whether layers are asked for their KL on the way.
        rows: S*B where it is known. Random layers are then given a multiple of it, or the pass ends with a `RowsError`.
        drawn: what `once` returns without drawing, by key.
        without_rows: layers whose inputs do not depend on the batch (positions); they draw weights, and return rows for all draws.
    """

    def __init__(
        self,
        samples: int = 1,
        *,
        coherent: bool = False,
        pays_kl: bool = False,
        rows: int | None = None,
        drawn: Mapping[Any, Any] | None = None,
        without_rows: Iterable[Any] = (),
    ) -> None:
        self._without_rows = dict.fromkeys(without_rows)
        self.samples, self.coherent, self.rows = samples, coherent, rows
        self.score: Tensor | None = None
        self.found_kls: dict[nn.Module, Tensor] = {}
        self.checkpointed = False
        self._pays_kl = pays_kl
        self._drawn: dict[Any, Any] = {} if drawn is None else dict(drawn)
        self._given = frozenset(self._drawn)
        self._before: dict[Any, tuple[Any, Any]] = {}  # random states before and after a draw inside a checkpoint
        self._graphless: set[Any] = set()  # keys of what was drawn without gradients, inside a reentrant checkpoint
        self._depth = 0
        self._over = False
        self._differentiates = torch.is_grad_enabled()

    # For posteriors

    def once(self, key: nn.Module, make: Callable[[int], T]) -> T:
        """What is drawn once per pass, so that a module used twice in it is one function.

        Args:
            key: the module it belongs to, `self` in a posterior.
            make: from the number of draws S to the value, tensors with a row for each draw.
        """
        if torch.compiler.is_compiling() or not (self.checkpointed and self._differentiates):
            if key not in self._drawn:
                self._drawn[key] = make(self.samples)
            return self._drawn[key]
        return self._redraw(key, make) if self._over else self._draw(key, make)

    def wants_kl(self) -> bool:
        """Whether the pass takes the KL of a posterior that finds it on its way (see `kl`)."""
        return self._pays_kl

    def kl(self, posterior: nn.Module, value: Tensor) -> None:
        """Tell the KL of a posterior, where its numbers are at hand; otherwise the root calls `Posterior.kl` after the pass."""
        # Without a gradient (inside a reentrant checkpoint) it would be a mere number.
        if not self._over and (value.requires_grad or not self._differentiates):
            self.found_kls[posterior] = value

    def choose(self, log_prob: Tensor) -> None:
        """Tell the log probability (S,) of discrete choices made in this pass: see `Draws.score`.

        Raises:
            RuntimeError: inside a reentrant checkpoint, where the probabilities would get no gradient.
        """
        if self._over:
            return
        if self._differentiates and not torch.is_grad_enabled() and self.checkpointed:
            raise RuntimeError(
                "probabilities of discrete choices get no gradient inside torch.no_grad() or a reentrant activation checkpoint; "
                "use checkpoint(..., use_reentrant=False)"
            )
        score = log_prob - log_prob.detach()
        self.score = score if self.score is None else self.score + score

    # For layers and roots

    @property
    def inside_layer(self) -> bool:
        """Whether a random layer is at work, and not the net around it."""
        return self._depth > 0

    def draw(self, layer: RandomLayer) -> tuple[Tensor, Tensor | None]:
        """Weight (S, *) and bias (S, *) of a layer in this pass."""
        self._depth += 1
        try:
            return self.once(cast(nn.Module, layer), layer.sample)
        finally:
            self._depth -= 1

    def call(self, layer: RandomLayer, x: Tensor) -> Tensor:
        """The output of a random layer for x (S*B, ...)."""
        has_rows = self.has_rows(layer)
        if not torch.compiler.is_compiling():
            if has_rows and self.rows is not None and (x.dim() == 0 or x.shape[0] % self.rows or x.shape[0] == 0):
                raise RowsError(f"a random layer was given shape {tuple(x.shape)} in a pass over {self.rows} rows")
            self._notice_checkpoint()
        self._depth += 1
        try:
            return layer.sampled(x) if has_rows else self.sampled_without_rows(layer, x)
        finally:
            self._depth -= 1

    def has_rows(self, layer: RandomLayer) -> bool:
        """Whether a layer's inputs depend on the batch."""
        return layer not in self._without_rows

    def sampled_without_rows(self, layer: RandomLayer, x: Tensor) -> Tensor:
        """The output for an input that all rows share: x (1, ...) or (...), y (S*B, ...)."""
        draws = layer.sampled_without_rows(x)
        if self.samples == 1 or self.rows is None:
            return draws[0]
        draws = draws.squeeze(1) if x.shape[0] == 1 else draws
        return draws.repeat_interleave(self.rows // self.samples, 0)

    def read(self, layer: RandomLayer, name: str) -> Tensor | None:
        """What the net gets that reads a layer's weight or bias instead of calling it.

        Raises:
            RowsError: several draws share the pass, and the net computes with the weight.
        """
        if not layer.is_read:
            self._depth += 1
            try:
                return layer.resting(name)
            finally:
                self._depth -= 1
        if self.samples > 1:
            raise RowsError(f"the net reads the {name} of a layer in a pass of {self.samples} draws")
        if not torch.compiler.is_compiling():
            self._notice_checkpoint()
        value = self.draw(layer)[name == "bias"]
        return None if value is None else value.squeeze(0)

    def end(self) -> None:
        """The net has returned; what comes now is a backward pass."""
        self._over = True
        if not self.checkpointed:
            self._drawn = {}

    # Draws inside activation checkpoints

    def _notice_checkpoint(self) -> None:
        if not self.checkpointed and self._differentiates and _in_checkpoint():
            self.checkpointed = True

    def _draw(self, key: nn.Module, make: Callable[[int], T]) -> T:
        """Draw, and remember the random state: the backward pass may need the draw once more, wherever it is then."""
        if key not in self._drawn:
            tensors = list(key.parameters())
            before = generator_states(tensors)
            # What the draw saves is kept: a checkpoint in which only its result is used could not make it again.
            with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
                self._drawn[key] = make(self.samples)
            self._before[key] = before, generator_states(tensors)
            if not torch.is_grad_enabled():
                self._graphless.add(key)
        elif key in self._graphless and torch.is_grad_enabled():  # the layer is used once more, outside
            self._graphless.remove(key)
            self._drawn[key] = self._make_again(key, make)
        return self._drawn[key]

    def _redraw(self, key: nn.Module, make: Callable[[int], T]) -> T:
        """The draw of the pass, for a backward pass that repeats a layer."""
        drawn = cast(T, self._drawn.get(key))
        reentrant = _saved_tensors_hooks() is None
        if key not in self._before:
            if drawn is not None and (not reentrant or key in self._given):
                return drawn
            raise RuntimeError(
                "a random layer is used both inside and outside a reentrant activation checkpoint; use "
                "checkpoint(..., use_reentrant=False)"
            )
        before, after = self._before[key]
        tensors = list(key.parameters())
        drew_here = _equal(generator_states(tensors), before)
        if not reentrant:  # the graph of the pass is there, only saved tensors are missing, in the same order
            if drew_here:
                set_generator_states(tensors, after)
            return drawn
        return make(self.samples) if drew_here else self._make_again(key, make)

    def _make_again(self, key: nn.Module, make: Callable[[int], T]) -> T:
        """The same draw with a graph of its own, while the random state stays as it is."""
        tensors = list(key.parameters())
        now = generator_states(tensors)
        set_generator_states(tensors, self._before[key][0])
        try:
            with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
                return make(self.samples)
        finally:
            set_generator_states(tensors, now)


@dataclasses.dataclass(eq=False)
class Passes:
    """Which pass a network is in; one object, shared by the root and all its random layers."""

    current: ForwardPass | None = None
    _backward: weakref.ref[ForwardPass] | None = None  # the pass whose backward has begun last

    def __getstate__(self) -> dict[str, Any]:
        return {"current": None, "_backward": None}  # a copy is in no pass

    def run(self, forward_pass: ForwardPass, net: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What the net returns in this pass.

        Raises:
            RuntimeError: another pass through the network is under way.
        """
        self.check_free()
        self.current = forward_pass
        try:
            outputs = net(*args, **kwargs)
        finally:
            self.current = None
            forward_pass.end()
        self.watch_backward(forward_pass, outputs)
        return outputs

    def check_free(self) -> None:
        """Raise a RuntimeError where another pass is under way."""
        if self.current is not None:
            raise RuntimeError(
                "a pass through this network is under way already: threads cannot share it, and its hooks cannot call it; "
                "give each a copy (copy.deepcopy)"
            )

    def call(self, layer: RandomLayer, x: Tensor) -> Tensor:
        """The output of a layer that is called when no pass is under way: on its own, or by a backward pass that repeats it."""
        self.current = self._repeated() or ForwardPass()
        try:
            return self.current.call(layer, x)
        finally:
            self.current = None

    def read(self, layer: RandomLayer, name: str) -> Tensor | None:
        """A layer's weight or bias when no pass is under way: the mean, or the draw that a backward pass repeats."""
        repeated = self._repeated()
        if repeated is None:
            return layer.resting(name)
        self.current = repeated
        try:
            return repeated.read(layer, name)
        finally:
            self.current = None

    def _repeated(self) -> ForwardPass | None:
        """The pass of which a backward pass repeats a part."""
        if torch.compiler.is_compiling() or torch._C._current_graph_task_id() == -1 or self._backward is None:
            return None
        return self._backward()

    def watch_backward(self, forward_pass: ForwardPass, outputs: Any) -> None:
        """Make the backward pass through these outputs know its forward pass, where it will repeat layers."""
        if not forward_pass.checkpointed or torch.compiler.is_compiling():
            return

        def begin(gradient: Tensor) -> None:
            self._backward = weakref.ref(forward_pass)

        for tensor in tree_leaves(outputs):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                tensor.register_hook(begin)


def _in_checkpoint() -> bool:
    """Whether saved tensors are dropped here, to be made again: in a reentrant checkpoint, or under hooks on saved tensors."""
    return not torch.is_grad_enabled() or _saved_tensors_hooks() is not None


def _saved_tensors_hooks() -> object:
    return cast(Any, torch._C)._autograd._top_saved_tensors_default_hooks(True)


def _equal(a: Mapping[Any, Tensor], b: Mapping[Any, Tensor]) -> bool:
    return all(torch.equal(state, b[device]) for device, state in a.items())
