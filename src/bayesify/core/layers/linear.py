"""Linear layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.core.layer import BayesianLayer

__all__ = ["BayesLinear"]


class BayesLinear(BayesianLayer, nn.Linear):
    original = nn.Linear
    contracts = True

    def apply_weight(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)

    def apply_weights(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows = x.reshape(weight.shape[0], -1, self.in_features)
        y = torch.bmm(rows, weight.mT) if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, weight.mT)
        return y.reshape(*x.shape[:-1], self.out_features)

    @property
    def fan_in(self) -> int:
        return self.in_features

    @property
    def input_channels(self) -> int:
        return self.in_features

    def over_channels(self, v: Tensor, x: Tensor) -> Tensor:
        return v.reshape(v.shape[0], *[1] * (x.dim() - 2), v.shape[-1])

    def over_outputs(self, v: Tensor, y: Tensor) -> Tensor:
        return v

    def over_weight(self, v: Tensor) -> Tensor:
        return v.unsqueeze(-2)
