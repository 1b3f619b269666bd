"""`ForwardPass`: one pass through a network, shared by its root and its random layers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from bayesify.core.pass_values import NewLayerError, PassValues, RowsError
from bayesify.core.shards import shards_of
from bayesify.core.unread import as_unread, joined
from bayesify.errors import PassError

if TYPE_CHECKING:
    from bayesify.core.layer import BayesianLayer

__all__ = ["ForwardPass"]

T = TypeVar("T")


class ForwardPass(PassValues):
    """One pass through a network, over S draws that are folded into its batch.

    Roots create it. A posterior gets it as `layer.forward_pass` and calls `once`, `jointly`, `wants_kl`, `kl`,
    `choose` and `trains`.

    Args:
        samples: S, the number of draws in the pass; its batch has S*B rows, all rows of draw 0 first.
        coherent: every layer draws weights, one per draw for the whole batch.
        pays_kl: posteriors report their KL to the pass.
        rows: S*B if known. A random layer whose input does not have a multiple of it raises a `RowsError`.
        drawn: values that `once` returns instead of drawing, by key.
        without_rows: layers whose inputs do not depend on the batch (positions); they draw weights, and return rows for all draws.
        unused: layers that the network did not call when it was examined; calling one raises a `NewLayerError`.
        notes_repeats: whether a second call of a layer raises a `NewLayerError`, unless it draws weights.
        notes_reads: whether it raises a `NewReadError` to compute with the weight of a layer that the network is not known to read.
        training: whether the root is in training mode.
        is_checkpointed: whether a backward pass runs layers of this pass again. If it does and this is False, a `DrawnBeforeError`
            asks for another pass where draws of this one cannot be repeated; None if there cannot be another pass.
        ahead: layers that may draw their weights before the network calls them (`Posterior.draws_ahead`).
        records: whether to keep inputs and outputs of the layers whose posteriors observe single examples.
        separate: from a name and a function of the number of draws to the row of this pass, if the draws take a pass each.

    Attributes:
        calls: layer, input and output of every such call.
        thread: the only one that may call layers outside of a backward pass; None for any.
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
        unused: Iterable[Any] = (),
        notes_repeats: bool = False,
        notes_reads: bool = False,
        training: bool = False,
        is_checkpointed: bool | None = None,
        ahead: Sequence[BayesianLayer] = (),
        records: bool = False,
        separate: Callable[[str, Callable[[int], Tensor]], Tensor] | None = None,
    ) -> None:
        super().__init__(
            samples, pays_kl=pays_kl, drawn=drawn, training=training, is_checkpointed=is_checkpointed, separate=separate
        )
        self.coherent, self.rows = coherent, rows
        self.calls: list[tuple[BayesianLayer, Tensor, Tensor]] = []
        self.used: set[BayesianLayer] = set()  # outside compiled code
        self.thread = None if self._is_compiled else threading.get_ident()
        self._without_rows, self._unused = dict.fromkeys(without_rows), dict.fromkeys(unused)
        self._records = records
        self._may_draw_ahead = ahead
        self._called: set[BayesianLayer] | None = set() if notes_repeats and not coherent else None
        self._notes_reads = notes_reads
        self._depth = 0

    def begin(self) -> None:
        """Draw weights before the network runs, in one call for the layers that can share it."""
        self._notice_checkpoint()
        if self._may_draw_ahead and self._repeats is None:
            self.inside(self._draw_ahead)
        self._had_draws = bool(self._drawn)

    def _draw_ahead(self) -> None:
        groups: dict[object, list[BayesianLayer]] = {}
        for layer in self._may_draw_ahead:
            if (key := layer.posterior.draws_ahead(layer)) is not None:
                groups.setdefault(key, []).append(layer)
        for group in groups.values():
            together = group[0].posterior.sample_together(group)
            if together is None:
                for layer in group:
                    self.draw(layer)
            else:
                drawn, kl = together
                for layer, (weight, bias) in zip(group, drawn, strict=True):
                    self._drawn[layer] = layer.constrained(weight), bias
                self.found_kls |= {layer.posterior: None for layer in group} | {group[0].posterior: kl}

    @property
    def inside_layer(self) -> bool:
        """Whether a random layer is running, and not the network around it."""
        return self._depth > 0

    def inside(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function as part of a random layer: it gets the layer's own parameters."""
        self._depth += 1
        try:
            return function(*args)
        finally:
            self._depth -= 1

    def draw(self, layer: BayesianLayer) -> tuple[Tensor, Tensor | None]:
        """Weight (S, *) and bias (S, *) of a layer in this pass."""
        return self.inside(self.once, layer, layer.sample)

    def call(self, layer: BayesianLayer, x: Tensor) -> Tensor:
        """Output of a random layer for x (S*B, ...); if the root must plan the pass differently, raise a `PassError`."""
        has_rows = self.has_rows(layer)
        repeats = None
        if torch.compiler.is_compiling():
            self._check_used(layer)
            self._running = layer
        else:
            self._begin_call(layer, x, has_rows)
            self.check_repeats(layer)
            repeats = self._repeats
        sampled, arguments = (layer.sampled, (x,)) if has_rows else (self.sampled_without_rows, (layer, x))
        if repeats is None:
            y = self.inside(sampled, *arguments)
        else:
            with repeats.noise_of_first_run(layer, self._ended):
                y = self.inside(sampled, *arguments)
        if self._records and layer.posterior.observes and not self._ended:
            self.calls.append((layer, x, y))
        return y

    def apply(
        self,
        layers: Sequence[BayesianLayer],
        inputs: Sequence[Tensor | None],
        function: Callable[[Sequence[Tensor | None], Sequence[Mapping[Any, tuple[Tensor, Tensor | None]]]], T],
    ) -> T:
        """Result of a module that computes with the weights of its layers instead of calling them: a recurrent network.

        Args:
            layers: its random layers, which draw weights.
            inputs: tensors (S*B, ...), or None.
            function: from the inputs, and for each draw the weight and bias of every layer, to the result.
        """
        for layer in layers:
            for x in inputs:
                if x is not None:
                    self._begin_call(layer, x, True)
        drawn = [(layer, self.weights(layer)) for layer in layers]

        def of(s: int, values: Tensor | None) -> Any:
            return None if values is None else values[min(s, len(values) - 1)]  # one value if it is not random

        draws = [{layer: (of(s, weight), of(s, bias)) for layer, (weight, bias) in drawn} for s in range(self.samples)]
        return function(inputs, draws)

    def weights(self, layer: BayesianLayer) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of a layer that the network uses without calling it: (S, *), or (1, *) if they are not random.

        Raises:
            PassError: the posterior has no weights of a plain layer, or they are sharded.
        """
        if not layer.posterior.is_plain:
            raise PassError(f"a recurrent network needs a weight, which {type(layer.posterior).__name__} has not; use MeanField()")
        if shards_of(layer):
            raise PassError(
                "a recurrent network gets shards of its weights: shard it as a whole, fully_shard(net.rnn), not its layers"
            )
        if layer.posterior.is_random:
            return self.draw(layer)
        weight, bias = self.inside(layer.posterior.mean, layer)
        return weight.unsqueeze(0), None if bias is None else bias.unsqueeze(0)

    def joined(self, layers: Sequence[BayesianLayer], values: Sequence[Tensor]) -> Tensor:
        """A weight or bias that consists of those which were read of several layers."""
        return joined(values)

    def _begin_call(self, layer: BayesianLayer, x: Tensor, has_rows: bool) -> None:
        """Check a use of a layer; if the root must plan the pass differently, raise a `PassError`."""
        self._check_used(layer)
        self._check_thread()
        self.used.add(layer)
        if (
            has_rows
            and self.rows is not None
            and layer.posterior.is_random
            and (x.dim() == 0 or x.shape[0] % self.rows or x.shape[0] == 0)
        ):
            raise RowsError(f"a random layer got an input of shape {tuple(x.shape)} in a pass over {self.rows} rows")
        self._notice_checkpoint()

    def _check_used(self, layer: BayesianLayer) -> None:
        if self._unused and layer in self._unused:
            raise NewLayerError("the network calls a random layer that it did not call before")

    def _check_thread(self) -> None:
        """Raise a `PassError` for a layer that another thread calls while this pass is running."""
        if self.thread not in (None, threading.get_ident()) and torch._C._current_graph_task_id() == -1:
            raise PassError(
                "a random layer was called in one thread while its network is in a pass of another; call the Bayesian network "
                "instead, whose passes take turns, or a copy of the layer"
            )

    def check_repeats(self, layer: BayesianLayer) -> None:
        """Raise a `NewLayerError` if noise per row would make a layer another function in each of its calls."""
        if self._called is None or self._ended or layer.is_repeated or not layer.posterior.is_random:
            return
        if layer in self._called:
            layer.is_repeated = True
            raise NewLayerError("the network calls a random layer several times")
        self._called.add(layer)

    def has_rows(self, layer: BayesianLayer) -> bool:
        """Whether a layer's inputs depend on the batch."""
        return layer not in self._without_rows

    def sampled_without_rows(self, layer: BayesianLayer, x: Tensor) -> Tensor:
        """Output (S*B, ...) for an input x (1, ...) or (...) that all rows share."""
        if not layer.posterior.is_random:  # equal for all draws: as in the plain network
            return layer.posterior(layer, x)
        draws = layer.sampled_without_rows(x)
        if len(draws) == 1 or self.rows is None:
            return draws[0]
        draws = draws.squeeze(1) if x.shape[0] == 1 else draws
        return draws.repeat_interleave(self.rows // self.samples, 0)

    def read(self, layer: BayesianLayer, name: str) -> Tensor | None:
        """Value of a layer's weight or bias for a network that reads it instead of calling the layer.

        That of a layer which the network is not known to read is the posterior mean, to look at its dtype; computing with it raises
        a `NewReadError`.

        Raises:
            RowsError: several draws share the pass, and the network computes with the weight.
        """
        if not torch.compiler.is_compiling():
            self.used.add(layer)
        if not layer.posterior.is_random:
            return self.inside(layer.posterior.mean, layer)[name == "bias"]
        unexamined = torch.compiler.is_compiling() and layer.is_used is None and self.samples == 1
        if not (layer.is_read or unexamined or (self.samples == 1 and layer in self._predrawn)):
            mean = self.inside(layer.posterior_mean, name)
            if mean is None or not self._notes_reads or self._ended or torch.compiler.is_compiling():
                return mean
            return as_unread(mean, layer)
        if self.samples > 1:
            raise RowsError(f"the network reads the {name} of a layer in a pass of {self.samples} draws")
        self._notice_checkpoint()
        value = self.draw(layer)[name == "bias"]
        return None if value is None else value.squeeze(0)
