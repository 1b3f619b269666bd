"""`Passes`: the pass a network is in.

A layer is called in a pass of its root, in a backward pass that recomputes it (activation checkpointing), or on its own.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from bayesify.core.computed_weights import shown
from bayesify.core.forward_pass import ForwardPass
from bayesify.core.objects import check_unchanged, states
from bayesify.core.shards import with_whole_parameters
from bayesify.core.turns import has_turn, turn
from bayesify.core.unfolding import copied
from bayesify.errors import PassError, warn

if TYPE_CHECKING:
    from bayesify.core.layer import BayesianLayer
    from bayesify.core.natural_gradient import NaturalGradient

__all__ = ["Passes"]

T = TypeVar("T")


@dataclasses.dataclass(eq=False)
class Passes:
    """The current pass of a network; one object, shared by the root and all its random layers."""

    current: ForwardPass | None = None
    held: ForwardPass | None = None  # the pass that calls of layers outside a pass belong to (`Bayesian.drawn`)
    select: Callable[[Any], Any] | None = None  # from the output of the network to that of a pass
    optimizer: NaturalGradient | None = None  # the last of `Bayesian.optimizer`
    has_told: bool = False  # of a layer that was called on its own
    _backward: weakref.ref[ForwardPass] | None = None  # the pass whose backward pass began last

    def __getstate__(self) -> dict[str, Any]:
        # a copy is in no pass, and another optimizer trains it
        return {**vars(self), "current": None, "held": None, "optimizer": None, "_backward": None}

    def run(self, forward_pass: ForwardPass, net: Callable[..., Any], args: Any, kwargs: Any, *, alone: bool = False) -> Any:
        """Call the network in this pass and return its outputs; without gradients copies, which later passes cannot overwrite.

        Args:
            alone: whether no other pass gets the same inputs; then the outputs are the network's own.

        Raises:
            PassError: another pass through the network is running, the network changed an object that other passes get too, or
                functions of `torch.cond` and the like call random layers.
        """
        with turn():
            self.check_free()
            before = [] if alone else states(args, kwargs)
            self.current = forward_pass
            try:
                forward_pass.begin()
                outputs = net(*args, **kwargs)
                if self.select is not None:
                    outputs = self.select(outputs)
            except RuntimeError as error:
                if type(error).__name__ == "UncapturedHigherOrderOpError":
                    raise PassError(
                        "PyTorch compiles the functions that the network gives to torch.cond, while_loop, map or scan, and cannot "
                        "compile random layers there. Call the network, and train it, inside "
                        '`with torch.compiler.set_stance("force_eager")`'
                    ) from error
                raise
            finally:
                self.current = None
                forward_pass.end()
                if before:
                    check_unchanged(before, states(args, kwargs))
            self.watch_backward(forward_pass, outputs)
            return outputs if alone or torch.is_grad_enabled() else copied(outputs)

    def draw(self, layers: Iterable[BayesianLayer], samples: int = 1) -> dict[BayesianLayer, tuple[Tensor, Tensor | None]]:
        """Weight (S, *) and bias (S, *) of every layer without a call of the network, drawn jointly: in one pass."""
        return self.draw_in(ForwardPass(samples, coherent=True), layers)

    def draw_in(
        self, forward_pass: ForwardPass, layers: Iterable[BayesianLayer]
    ) -> dict[BayesianLayer, tuple[Tensor, Tensor | None]]:
        """`draw` for a pass that will use these values."""
        with turn():
            before, self.current = self.current, forward_pass
            try:
                return {layer: with_whole_parameters(layer, layer.draw) for layer in layers}
            finally:
                self.current = before

    @contextmanager
    def hold(self, forward_pass: ForwardPass) -> Iterator[None]:
        """Make calls of the network itself, without its root, belong to this pass, in any thread.

        Raises:
            PassError: another pass is running or held.
        """
        with turn():
            self.check_free()
            forward_pass.thread = None
            self.held = forward_pass
        try:
            yield
        finally:
            self.held = None

    def check_free(self) -> None:
        """Raise a `PassError` if another pass is running."""
        if self.held is not None:
            raise PassError("a draw of this network is held: leave `with bnn.drawn(...)` before other passes, or use a copy")
        if self.current is not None:
            raise PassError(
                "another pass through this network is running: its layers and hooks cannot call it; use a copy (copy.deepcopy)"
            )

    @property
    def running(self) -> ForwardPass | None:
        """The pass that a layer called now belongs to; None if it has to begin one, or join a held draw, when it is its turn."""
        current = self.current
        if current is None or current.thread is not None or torch.compiler.is_compiling() or has_turn():
            return current
        return None

    def call(self, layer: BayesianLayer, x: Tensor) -> Tensor:
        """Output of a layer that is called outside a pass of the root: with a held draw, alone, or in a backward pass."""
        with self._outside(layer, x) as forward_pass:
            return forward_pass.call(layer, x)

    def apply(self, layers: Sequence[BayesianLayer], inputs: Sequence[Tensor | None], function: Callable[..., T]) -> T:
        """`ForwardPass.apply`, also outside a pass of the root."""
        if (running := self.running) is not None:
            return running.apply(layers, inputs, function)
        with self._outside(layers[0], next(x for x in inputs if x is not None)) as forward_pass:
            return forward_pass.apply(layers, inputs, function)

    @contextmanager
    def _outside(self, layer: BayesianLayer, x: Tensor) -> Iterator[ForwardPass]:
        """The pass of a layer that is called with this input while its root is in none."""
        with self._turn(x):
            before, self.current = self.current, self._recomputed() or self.held or self._alone(layer)
            try:
                yield self.current
            finally:
                self.current = before

    def read(self, layer: BayesianLayer, name: str) -> Tensor | None:
        """A layer's weight or bias outside a pass: the mean, the held draw, or the draw that a backward pass recomputes."""
        forward_pass = self._recomputed() or self.held
        if forward_pass is None:
            value = layer.posterior_mean(name)
            return shown(layer, name, value) if name in layer.replaced else value
        with self._turn(next(layer.parameters())):
            before, self.current = self.current, forward_pass
            try:
                return forward_pass.read(layer, name)
            finally:
                self.current = before

    def _turn(self, x: Tensor) -> AbstractContextManager[None]:
        """`turn`, except in a backward pass on an accelerator, whose thread is not the caller's, which may have the turn."""
        return nullcontext() if not x.is_cpu and _in_backward() else turn()

    def _recomputed(self) -> ForwardPass | None:
        """The pass of which a backward pass recomputes a part."""
        return self._backward() if self._backward is not None and _in_backward() else None

    def _alone(self, layer: BayesianLayer) -> ForwardPass:
        """The pass of a layer that is called on its own; others wait until it is over.

        Raises:
            PassError: a backward pass calls it, and would get gradients of another draw.
        """
        if layer.posterior.is_random and _in_backward():
            raise PassError(
                "a backward pass calls a random layer, and it is not known of which pass: it would get gradients of another draw. "
                "Compute gradients of what the Bayesian network returns, not of values inside it"
            )
        if layer.posterior.is_random and not self.has_told and not torch.compiler.is_compiling():
            self.has_told = True
            warn(
                "a random layer was called outside a pass of its Bayesian network, as by `net(x)` in place of `bnn(x)`: it drew "
                "noise of its own, without the KL, and the outputs are no draw of the network. Call what bayesify returned, or "
                "predict"
            )
        forward_pass = ForwardPass()
        forward_pass.thread = None
        return forward_pass

    def watch_backward(self, forward_pass: ForwardPass, outputs: Any) -> None:
        """Let the backward pass through these outputs find its forward pass, if it will recompute layers."""
        if not forward_pass.checkpointed or torch.compiler.is_compiling():
            return

        def begin(gradient: Tensor) -> None:
            self._backward = weakref.ref(forward_pass)

        for tensor in tree_leaves(outputs):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                tensor.register_hook(begin)


def _in_backward() -> bool:
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
