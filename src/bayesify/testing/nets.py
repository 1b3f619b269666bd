"""Small networks that are easy to get wrong when draws are folded into the batch.

Shapes: B batch (nodes of a graph), T positions, D features.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

__all__ = [
    "Attention",
    "Checkpointed",
    "Experts",
    "Graph",
    "LateDropout",
    "Mixer",
    "MultiheadAttention",
    "Named",
    "Nested",
    "Normalized",
    "OwnSamples",
    "Positions",
    "Reader",
    "Recurrent",
    "RowCoupling",
    "Scaled",
    "SequenceFirst",
    "Storing",
    "TiedReader",
    "TwoLayers",
]


class TwoLayers(nn.Module):
    """`layer` and `head`; `spare` has parameters and is never used."""

    def __init__(self, layer: nn.Module | None = None, spare: nn.Module | None = None) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3) if layer is None else layer
        self.head = nn.Linear(3, 2)
        self.spare = spare

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.layer(x)))


class _LayerAndHead(nn.Module):
    """Linear `layer` and `head`."""

    sizes: ClassVar[tuple[int, int, int]] = (4, 3, 2)

    def __init__(self) -> None:
        super().__init__()
        inputs, hidden, outputs = self.sizes
        self.layer, self.head = nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)


class Graph(_LayerAndHead):
    """A graph network: x (B, 4) and edges (2, E) from row to row."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        source, target = edge_index
        h = self.layer(x)
        messages = torch.zeros_like(h).index_add(0, target, h[source])
        return self.head(torch.tanh(h + messages))


class Mixer(_LayerAndHead):
    """x (B, T, D), transposed to (T, B, D) for a layer."""

    sizes = (3, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.layer(x.transpose(0, 1))).transpose(0, 1)
        return self.head(h.sum(1))


class RowCoupling(_LayerAndHead):
    """Features centered over the batch."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        return self.head(torch.tanh(h - h.mean(0)))


class Experts(nn.Module):
    """A mixture of experts with one weight; random features route the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.expert = nn.Linear(4, 3), nn.Linear(3, 2)
        self.scales = (0.5, 1.0, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.layer(x))
        choice, y = h.argmax(1), h.new_zeros(h.shape[0], 2)
        for expert, scale in enumerate(self.scales):
            rows = (choice == expert).nonzero().squeeze(1)
            y = y.index_copy(0, rows, self.expert(scale * h[rows]))
        return y


class Normalized(nn.Module):
    """Plain batch normalization and dropout around random layers."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dropout(torch.tanh(self.norm(self.layer(x)))))


class Positions(nn.Module):
    """x (B, T) plus learned positions, from a layer whose input has no batch: an embedding, or a linear layer of features."""

    features: Tensor

    def __init__(self, positions: int, embedding: bool) -> None:
        super().__init__()
        self.layer = nn.Embedding(positions, 2) if embedding else nn.Linear(3, 2)
        self.register_buffer("features", torch.randn(positions, 3))

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device) if isinstance(self.layer, nn.Embedding) else self.features
        return torch.tanh(x.unsqueeze(-1) + self.layer(positions))


class Attention(nn.Module):
    """Self-attention over x (B, T, D) with one mask (T, T) for the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(3, 9), nn.Linear(3, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = self.layer(x).chunk(3, -1)
        weights = torch.softmax(query @ key.mT + mask, -1)
        return self.head(weights @ value)


class MultiheadAttention(nn.Module):
    """PyTorch's attention between the positions of x (B, T, D)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.MultiheadAttention(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = x.transpose(0, 1)
        y, _ = self.layer(h[:1], h, torch.tanh(h))
        return self.head(torch.tanh(y.squeeze(0)))


class Recurrent(nn.Module):
    """PyTorch's LSTM over x (B, T, D), in both directions, from a state that depends on x."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(3, 2, bidirectional=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        start = x[:, :2, :2].transpose(0, 1).contiguous()
        y, (_, cells) = self.layer(x.transpose(0, 1), (start, torch.tanh(start)))
        return self.head(torch.cat([y[-1, :, :2], cells[1]], -1))


class Reader(nn.Module):
    """Reads weight and bias of its layer instead of calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(x), self.layer.weight, self.layer.bias)


class TiedReader(nn.Module):
    """Calls an embedding and projects with its weight: (B, T) tokens to (B, T, 5) logits."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Embedding(5, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.layer(tokens)), self.layer.weight)


class Named(nn.Linear):
    """A subclass of nn.Linear that does not override `forward`."""


class Scaled(nn.Linear):
    """A linear layer with scaled outputs."""

    factor = 3.0

    def forward(self, input: Tensor) -> Tensor:
        return self.after(super().forward(input))

    def after(self, output: Tensor) -> Tensor:
        """Scale the output of the linear layer."""
        return self.factor * output


class SequenceFirst(_LayerAndHead):
    """(T, B, D) to (T, B, 2), with coupled positions."""

    sizes = (3, 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.layer(x))
        return self.head(h - h.mean(0))


class Nested(_LayerAndHead):
    """A nested dict and list as input."""

    def forward(self, inputs: dict[str, Any]) -> Tensor:
        return self.head(torch.tanh(self.layer(inputs["table"]["numbers"])) + inputs["more"][0])


class OwnSamples(nn.Module):
    """Inputs with the names of the root's keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor, samples: int = 1, coherent: bool = False) -> Tensor:
        return self.head(x)


class LateDropout(nn.Module):
    """Dropout before the random layer, with a switch other than `training`."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 2)
        self.noisy = False

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(torch.tanh(self.body(x)), 0.5, training=self.noisy))


class Storing(nn.Module):
    """Stores its features as an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 3), nn.Linear(3, 2)
        self.features = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        self.features = torch.tanh(self.body(x))
        return self.head(self.features)


class Checkpointed(nn.Module):
    """A layer used twice and one used once, under reentrant or other activation checkpointing, or without (None)."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.layer, self.filters = nn.Linear(4, 3), nn.Linear(3, 3), nn.Conv1d(1, 2, 2)
        self.reentrant: bool | None = None

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self._call(self.layer, torch.tanh(self.body(x))))
        return self._call(self.filters, self._call(self.layer, h).unsqueeze(1)).flatten(1)

    def _call(self, layer: nn.Module, h: Tensor) -> Tensor:
        return layer(h) if self.reentrant is None else checkpoint(layer, h, use_reentrant=self.reentrant)
