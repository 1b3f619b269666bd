"""Linear layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.core.layer import BayesianLayer

__all__ = ["LAYERS", "InputMajorLinear", "OutputMajorLinear"]


class _Linear(BayesianLayer):
    """Linear layers with a weight of either orientation."""

    contracts = True

    @property
    def fan_in(self) -> int:
        return self.input_channels

    def over_channels(self, v: Tensor, x: Tensor) -> Tensor:
        return v.reshape(v.shape[0], *[1] * (x.dim() - 2), v.shape[-1])

    def over_outputs(self, v: Tensor, y: Tensor) -> Tensor:
        return v


class OutputMajorLinear(_Linear):
    """Linear layers whose weight is (O, I), as in PyTorch."""

    def apply_weight(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)

    def apply_weights(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _batched(x, weight.mT, bias)

    @property
    def input_channels(self) -> int:
        return self.weight_shape[1]

    @property
    def output_channels(self) -> int:
        return self.weight_shape[0]

    def over_weight(self, v: Tensor) -> Tensor:
        return v.unsqueeze(-2)

    def over_weight_outputs(self, v: Tensor) -> Tensor:
        return v.unsqueeze(-1)


class BayesLinear(OutputMajorLinear, nn.Linear):
    original = nn.Linear


class InputMajorLinear(_Linear):
    """Linear layers whose weight is (I, O), as in GPT-2."""

    def apply_weight(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight.mT, bias)

    def apply_weights(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _batched(x, weight, bias)

    @property
    def input_channels(self) -> int:
        return self.weight_shape[0]

    @property
    def output_channels(self) -> int:
        return self.weight_shape[1]

    def over_weight(self, v: Tensor) -> Tensor:
        return v.unsqueeze(-1)

    def over_weight_outputs(self, v: Tensor) -> Tensor:
        return v.unsqueeze(-2)


def _batched(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply x (S*B, ..., I) by one weight (S, I, O) per draw, and add a bias (S, O)."""
    rows = x.reshape(weight.shape[0], -1, weight.shape[1])
    y = torch.bmm(rows, weight) if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, weight)
    return y.reshape(*x.shape[:-1], weight.shape[2])


LAYERS = (BayesLinear,)
