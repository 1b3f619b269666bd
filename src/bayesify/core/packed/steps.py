"""Recurrent networks step by step, in operators that every transform of PyTorch supports (its kernels have no vmap and no jvp).

Shapes: T steps, B batch, I in, O hidden units, G gates times O, L layers times directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["step", "steps"]


def step(mode: str, x: Tensor, y: Tensor, h: Tensor, c: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Hidden state (B, O) and, for "LSTM", cell state after one step.

    Args:
        mode: "LSTM", "GRU", "RNN_TANH" or "RNN_RELU", as in `nn.RNNBase`.
        x, y: (B, G), what the gates get of the input and of the hidden state.
        h, c: the states before; c of an LSTM.
    """
    if mode == "LSTM":
        assert c is not None
        i, f, g, o = (x + y).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
    if mode == "GRU":
        (reset_x, update_x, new_x), (reset_y, update_y, new_y) = x.chunk(3, -1), y.chunk(3, -1)
        new = (new_x + (reset_x + reset_y).sigmoid() * new_y).tanh()
        return new + (update_x + update_y).sigmoid() * (h - new), None
    return ((x + y).tanh() if mode == "RNN_TANH" else (x + y).relu()), None


def steps(net: nn.RNNBase, weights: Sequence[Tensor], x: Tensor, hx: Any) -> Any:
    """What a recurrent network returns for x, with weights in its order, as `nn.RNNBase.forward`."""
    first = 1 if net.batch_first and x.dim() == 3 else 0  # the dimension of the steps
    h = x.transpose(0, first)
    directions = 2 if net.bidirectional else 1
    count = net.num_layers * directions
    per_layer = len(weights) // count
    size, lead = net.proj_size or net.hidden_size, h.shape[1:-1]
    if hx is None:
        hx = h.new_zeros(count, *lead, size), h.new_zeros(count, *lead, net.hidden_size)
    hidden, cells = hx if isinstance(hx, tuple) else (hx, None)
    last = list[tuple[Tensor, Tensor | None]]()
    for layer in range(net.num_layers):
        outputs = list[Tensor]()
        for direction in range(directions):
            i = layer * directions + direction
            own = list(weights[i * per_layer : (i + 1) * per_layer])
            state = hidden[i], None if cells is None else cells[i]
            y, end = _direction(net, own, h, state, backward=direction == 1)
            outputs.append(y)
            last.append(end)
        h = torch.cat(outputs, -1)
        if net.training and net.dropout and layer < net.num_layers - 1:
            h = F.dropout(h, net.dropout)
    ends, cell_ends = zip(*last, strict=True)
    hidden = torch.stack(ends)
    return h.transpose(0, first), (hidden, torch.stack(cell_ends)) if net.mode == "LSTM" else hidden


def _direction(
    net: nn.RNNBase, weights: Sequence[Tensor], x: Tensor, state: tuple[Tensor, Tensor | None], backward: bool
) -> tuple[Tensor, tuple[Tensor, Tensor | None]]:
    """Hidden states (T, B, O) of one layer in one direction, and the states after the last step."""
    projection = weights[-1] if net.proj_size else None
    biases = weights[2:4] if net.bias else (None, None)
    gates = F.linear(x, weights[0], biases[0])
    (h, c), outputs = state, list[Tensor]()
    for t in reversed(range(len(x))) if backward else range(len(x)):
        h, c = step(net.mode, gates[t], F.linear(h, weights[1], biases[1]), h, c)
        h = h if projection is None else F.linear(h, projection)
        outputs.append(h)
    return torch.stack(outputs[::-1] if backward else outputs), (h, c)
