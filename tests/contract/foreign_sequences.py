"""Small networks of PyTorch's own attention and recurrent modules, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from foreign import Arguments, Foreign
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

__all__ = ["SEQUENCES"]

F64 = torch.float64


class _Translator(nn.Module):
    """`nn.Transformer`, from tokens (B, T) and (B, U) to logits (B, U, 11)."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.embedding, self.head, self.batch_first = nn.Embedding(11, 8), nn.Linear(8, 11), batch_first
        self.body = nn.Transformer(8, 2, 1, 1, 12, batch_first=batch_first)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=F64)
        inputs = [self.embedding(tokens) for tokens in (source, target)]
        if not self.batch_first:
            inputs = [x.transpose(0, 1) for x in inputs]
        padding = source == 0  # without gradients, PyTorch's encoder returns zeros there
        y = self.body(*inputs, tgt_mask=mask, tgt_is_causal=True, src_key_padding_mask=padding, memory_key_padding_mask=padding)
        return self.head(y if self.batch_first else y.transpose(0, 1))


class _Encoder(nn.Module):
    """`nn.TransformerEncoder` with a mask of padding, whose fused kernel skips layers in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, 8), nn.Linear(8, 2)
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=False), 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.body(self.embedding(tokens), src_key_padding_mask=tokens == 0)[:, 0])


class _Tagger(nn.Module):
    """A recurrent network over tokens (B, T), and logits (B, T, 3)."""

    def __init__(self, kind: Callable[..., nn.RNNBase], packs: bool = False, **options: Any) -> None:
        super().__init__()
        self.rnn, self.packs = kind(6, 5, batch_first=True, **options), packs
        self.embedding, self.head = nn.Embedding(11, 6), nn.LazyLinear(3)
        self(torch.ones(2, 3, dtype=torch.long))

    def forward(self, tokens: Tensor) -> Tensor:
        x: Any = self.embedding(tokens)
        if self.packs:
            x = pack_padded_sequence(x, (tokens != 0).sum(1), batch_first=True, enforce_sorted=False)
        y: Any = self.rnn(x)[0]
        return self.head(pad_packed_sequence(y, batch_first=True, total_length=tokens.shape[1])[0] if self.packs else y)


class _Decoder(nn.Module):
    """An encoder (`nn.GRU`), and a decoder (`nn.GRUCell`) that attends to its steps: x (B, T, 4) to (B, 3, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.cell = nn.GRU(4, 6, batch_first=True), nn.GRUCell(8, 6)
        self.attention, self.head = nn.MultiheadAttention(6, 2, batch_first=True), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        steps, h = self.encoder(x)
        h, y, outputs = h[0], x.new_zeros(len(x), 2), list[Tensor]()
        for _ in range(3):
            context, _ = self.attention(h.unsqueeze(1), steps, steps, need_weights=False)
            h = self.cell(torch.cat([context.squeeze(1), y], -1), h)
            y = self.head(h)
            outputs.append(y)
        return torch.stack(outputs, 1)


class _Stepper(nn.Module):
    """`nn.LSTMCell` and `nn.RNNCell` along x (B, T, 4)."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.second, self.head = nn.LSTMCell(4, 5), nn.RNNCell(5, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        state, h = None, None
        for step in x.unbind(1):
            state = self.cell(step, state)
            h = self.second(state[0], h)
        return self.head(h)


def _tokens(*shapes: tuple[int, int]) -> Callable[[], Arguments]:
    """Tokens whose last ones are padding in some rows."""

    def make() -> Arguments:
        tokens = [torch.randint(1, 11, shape) for shape in shapes]
        tokens[0][1, 3:] = 0
        return tuple(tokens), {}

    return make


def _pytorch(make: Callable[[], nn.Module], inputs: Callable[[], Arguments]) -> Foreign:
    return Foreign("torch", lambda: make().double(), inputs)


def _numbers() -> Arguments:
    return (torch.randn(3, 4, 4, dtype=F64),), {}


SEQUENCES: dict[str, Foreign] = {
    "Transformer": _pytorch(lambda: _Translator(True), _tokens((3, 5), (3, 4))),
    "Transformer, sequence first": _pytorch(lambda: _Translator(False), _tokens((3, 5), (3, 4))),
    "TransformerEncoder": _pytorch(_Encoder, _tokens((3, 5))),
    "LSTM": _pytorch(lambda: _Tagger(nn.LSTM, num_layers=2, bidirectional=True), _tokens((3, 5))),
    "LSTM, projected": _pytorch(lambda: _Tagger(nn.LSTM, proj_size=3), _tokens((3, 5))),
    "LSTM, packed sequences": _pytorch(lambda: _Tagger(nn.LSTM, packs=True), _tokens((3, 5))),
    "GRU": _pytorch(lambda: _Tagger(nn.GRU, num_layers=2), _tokens((3, 5))),
    "RNN": _pytorch(lambda: _Tagger(nn.RNN, nonlinearity="relu"), _tokens((3, 5))),
    "GRU, attention and GRUCell": _pytorch(_Decoder, _numbers),
    "LSTMCell and RNNCell": _pytorch(_Stepper, _numbers),
}
