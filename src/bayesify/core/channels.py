"""Factors of the channels of a layer that sums over its inputs, by which noise of inputs is noise of weights.

Shapes: K input channels, O output channels, R rows.
"""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["Channels"]


class Channels(nn.Module):
    """Mixin of random layers: how factors of their channels multiply inputs, outputs and weights."""

    def op(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Apply a weight to a prepared x; see `BayesianLayer.op`."""
        raise NotImplementedError

    @property
    def input_channels(self) -> int:
        """K, the number of input channels that input noise multiplies."""
        raise NotImplementedError(f"{type(self).__name__} does not contract over input channels")

    @property
    def output_channels(self) -> int:
        """O, the number of outputs at every position."""
        raise NotImplementedError(f"{type(self).__name__} does not contract over input channels")

    def over_channels(self, v: Tensor, x: Tensor) -> Tensor:
        """Reshape v (R, K) or (1, K), per row and input channel, to multiply x (R, ...)."""
        raise NotImplementedError(f"{type(self).__name__} does not contract over input channels")

    def scaled(self, x: Tensor, v: Tensor, shift: Tensor | None = None) -> Tensor:
        """x (R, ...) times v (R, K) or (1, K) per row and channel, plus a shift (K,) per channel, in the dtype of x."""
        y = x * self.over_channels(v, x).to(x.dtype)
        return y if shift is None else y.add_(self.over_outputs(shift, y))

    def op_of_scaled(self, x: Tensor, v: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """`op` of x with factors v (R, K) of its channels.

        A factor of the only channel commutes with the weight; on the output it needs no gradient of the layer's input.
        """
        if self.input_channels == 1:
            return self.scaled(self.op(x, weight, None), v.expand(-1, self.output_channels), bias)
        return self.op(self.scaled(x, v), weight, bias)

    def over_outputs(self, v: Tensor, y: Tensor) -> Tensor:
        """Reshape v (O,), per output channel, to broadcast with the output y (R, ...)."""
        raise NotImplementedError(f"{type(self).__name__} does not contract over input channels")

    def over_weight(self, v: Tensor) -> Tensor:
        """Reshape v (..., K), per input channel, to multiply the weight: equivalent to `over_channels(v)` times the input."""
        raise NotImplementedError(f"{type(self).__name__} does not contract over input channels")

    def over_weight_outputs(self, v: Tensor) -> Tensor:
        """Reshape v (..., O), per output channel, to multiply the weight: equivalent to v times the output before the bias."""
        raise NotImplementedError(f"{type(self).__name__} does not contract over input channels")
