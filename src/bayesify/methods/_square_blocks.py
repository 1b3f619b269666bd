"""How a weight of any shape is cut into square blocks whose size is a power of two."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

__all__ = ["SquareBlocks"]


class SquareBlocks:
    """A weight as K square blocks of size D: a stack that is cut to its shape, or one block with its entries in order.

    Args:
        rows: number of outputs.
        columns: number of inputs of an output.
        reshaped: whether the weight is one block with its entries in order, as small as they allow.

    Attributes:
        size: D.
        count: K.
        used: numbers of rows and columns of a block that hold entries of the weight.
    """

    def __init__(self, rows: int, columns: int, *, reshaped: bool) -> None:
        self.rows, self.columns, self.reshaped = rows, columns, reshaped
        if reshaped:
            self.size, self.count = _power_of_two(math.isqrt(rows * columns - 1) + 1), 1
            self.used = -(-rows * columns // self.size), self.size
        else:
            self.size = _power_of_two(columns)
            self.count = -(-rows // self.size)
            self.used = min(self.size, rows), columns

    def split(self, weight: Tensor) -> Tensor:
        """A weight as blocks (K, D, D), padded with zeros."""
        if self.reshaped:
            return F.pad(weight.flatten(), (0, self.size**2 - weight.numel())).reshape(1, self.size, self.size)
        padding = (0, self.size - self.columns, 0, self.count * self.size - self.rows)
        return F.pad(weight.reshape(self.rows, self.columns), padding).reshape(self.count, self.size, self.size)

    def join(self, blocks: Tensor) -> Tensor:
        """Weights (S, rows, columns) of the used parts of blocks, (S, K or 1, *used)."""
        samples = blocks.shape[0]
        entries = blocks.expand(samples, self.count, *self.used).reshape(samples, -1)
        return entries[:, : self.rows * self.columns].reshape(samples, self.rows, self.columns)

    def pad_inputs(self, x: Tensor) -> Tensor:
        """Inputs (..., columns) of the weight as those of its blocks, (..., D)."""
        return F.pad(x, (0, self.size - self.columns)) if self.size > self.columns else x

    def join_outputs(self, y: Tensor) -> Tensor:
        """Outputs (..., K or 1, D) of the blocks as those of the weight, (..., rows)."""
        return y.expand(*y.shape[:-2], self.count, self.size).flatten(-2)[..., : self.rows]


def _power_of_two(n: int) -> int:
    """The smallest power of two of at least n."""
    return 1 << (n - 1).bit_length()
