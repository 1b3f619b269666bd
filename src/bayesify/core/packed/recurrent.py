"""Recurrent networks (`nn.LSTM`, `nn.GRU`, `nn.RNN`) and cells, whose weights become layers.

A recurrent network draws its weights once per pass, for all steps and all rows of a draw, and runs PyTorch's kernel with them.

Shapes: S draws, B batch, T steps, I in, O hidden units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from bayesify.core.layer import BayesianLayer
from bayesify.core.packed.steps import step, steps
from bayesify.core.packed.unpacked import Place, Unpacked
from bayesify.core.pass_values import RowsError

__all__ = ["UnpackedGRU", "UnpackedGRUCell", "UnpackedLSTM", "UnpackedLSTMCell", "UnpackedRNN", "UnpackedRNNCell"]

Draw = Mapping[Any, tuple[Tensor, Tensor | None]]


class _Recurrent(Unpacked, nn.RNNBase):
    """A recurrent network with the weights of its parts: `ih_l0`, `hh_l0`, and so on, as `weight_ih_l0` is named."""

    calls_parts = False

    def layout(self) -> dict[str, list[Place]]:
        names = [name for of_layer in self._all_weights for name in of_layer]
        return {name: [(part, kind)] for name in names for kind, _, part in [name.partition("_")]}

    def initial_bound(self, part: str) -> float:
        return 1 / math.sqrt(self.hidden_size)

    def unpack(self) -> None:
        super().unpack()
        self._flat_weights, self._flat_weight_refs = [], []

    def pack(self, parameters: dict[str, nn.Parameter | None] | None = None) -> None:
        super().pack(parameters)
        self._init_flat_weights()

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        nn.Module._apply(self, fn, recurse)  # that of recurrent networks takes parameters of its own for granted
        return self

    def _update_flat_weights(self) -> None:
        """Leave `_flat_weights` to `_run`; there are no parameters from which PyTorch could update them."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        random = [part for part in self.parts.values() if isinstance(part, BayesianLayer)]
        if not random:
            return self._run(input, hx, {})
        packed: Any = input if isinstance(input, PackedSequence) else None
        data = cast(Tensor, input if packed is None else packed.data)
        rows = 1 if packed is None and data.dim() == 3 and not self.batch_first else 0  # the dimension of the batch
        states, spec = tree_flatten(hx)

        def run(tensors: Sequence[Any], draws: Sequence[Draw]) -> Any:
            sequences = tensors[0].transpose(0, rows)
            start = tree_unflatten([_moved(h, 0, -2) for h in tensors[1:]], spec)
            if packed is None:
                return self._run_draws(sequences, rows, start, draws)
            if len(draws) > 1:
                raise RowsError("a recurrent network gets a packed sequence, in which the rows of all draws are mixed")
            return self._run(packed._replace(data=sequences), start, draws[0])

        return random[0].passes.apply(random, [data.transpose(0, rows), *(_moved(h, -2, 0) for h in states)], run)

    def _run_draws(self, x: Tensor, rows: int, hx: Any, draws: Sequence[Draw]) -> Any:
        """Run every draw on its rows, which lie in this dimension of x and in the last but one of the states."""
        if len(draws) == 1:
            return self._run(x, hx, draws[0])
        starts = [
            tree_map(lambda h, s=s: h if h is None else h.chunk(len(draws), -2)[s].contiguous(), hx) for s in range(len(draws))
        ]
        runs = [self._run(*of_draw) for of_draw in zip(x.chunk(len(draws), rows), starts, draws, strict=True)]
        outputs, ends = zip(*runs, strict=True)
        return torch.cat(outputs, rows), tree_map(lambda *h: torch.cat(h, -2), *ends)

    def _run(self, input: Any, hx: Any, draw: Draw) -> Any:
        """Run PyTorch's network with a draw of the weights of random parts, and those of the other parts."""
        parts = self.parts.items()
        values: dict[str, tuple[Any, Any]] = {name: draw[part] for name, part in parts if part in draw}
        values |= {name: (part.weight, part.bias) for name, part in parts if part not in draw}
        places = [place for places in self.places.values() for place in places]
        weights = [values[part][kind == "bias"] for part, kind in places]
        if _in_transform() and not isinstance(input, PackedSequence):
            return steps(self, weights, input, hx)
        self._flat_weights = weights
        try:
            return cast(Any, self.packed).forward(self, input, hx)
        finally:
            self._flat_weights = []


def _moved(h: Tensor | None, source: int, destination: int) -> Tensor | None:
    """A state with a dimension moved."""
    return None if h is None else h.movedim(source, destination)


class UnpackedLSTM(_Recurrent, nn.LSTM):
    """`nn.LSTM`."""

    packed = nn.LSTM


class UnpackedGRU(_Recurrent, nn.GRU):
    """`nn.GRU`."""

    packed = nn.GRU


class UnpackedRNN(_Recurrent, nn.RNN):
    """`nn.RNN`."""

    packed = nn.RNN


class _Cell(Unpacked, nn.RNNCellBase):
    """A step of a recurrent network, which calls `ih` on the input and `hh` on the hidden state."""

    def layout(self) -> dict[str, list[Place]]:
        return {f"{kind}_{part}": [(part, kind)] for kind in ("weight", "bias") for part in ("ih", "hh")}

    def initial_bound(self, part: str) -> float:
        return 1 / math.sqrt(self.hidden_size)

    def start(self, input: Tensor) -> Tensor:
        """The initial state, zeros (B, O)."""
        return input.new_zeros(*input.shape[:-1], self.hidden_size)

    def next(self, mode: str, input: Tensor, h: Tensor, c: Tensor | None = None) -> tuple[Tensor, Any]:
        """Hidden and cell state after a step."""
        if input.dim() > 1:
            return step(mode, self.ih(input), self.hh(h), h, c)
        h, c = self.next(mode, input.unsqueeze(0), h.unsqueeze(0), None if c is None else c.unsqueeze(0))
        return h.squeeze(0), None if c is None else c.squeeze(0)


class UnpackedLSTMCell(_Cell, nn.LSTMCell):
    """`nn.LSTMCell`."""

    packed = nn.LSTMCell

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        h, c = (self.start(input), self.start(input)) if hx is None else hx
        return self.next("LSTM", input, h, c)


class UnpackedGRUCell(_Cell, nn.GRUCell):
    """`nn.GRUCell`."""

    packed = nn.GRUCell

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self.next("GRU", input, self.start(input) if hx is None else hx)[0]


class UnpackedRNNCell(_Cell, nn.RNNCell):
    """`nn.RNNCell`."""

    packed = nn.RNNCell

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self.next(f"RNN_{self.nonlinearity.upper()}", input, self.start(input) if hx is None else hx)[0]


def _in_transform() -> bool:
    """Whether a transform of `torch.func` or a forward-mode derivative is running."""
    if torch.compiler.is_compiling():
        return False
    return cast(Any, torch._C)._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0
