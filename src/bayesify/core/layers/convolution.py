"""Convolutions and their transposes."""

from __future__ import annotations

import math
from typing import Any, ClassVar, cast

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from bayesify.core.layer import BayesianLayer
from bayesify.native.channels import scale_channels, scales_in_one_pass

__all__ = ["LAYERS"]


_LARGE_KERNEL, _FEW_CHANNELS = 64, 4


class _Convolution(BayesianLayer, _ConvNd):
    """Base of Conv1d/2d/3d and their transposes."""

    contracts = True

    @property
    def input_channels(self) -> int:
        return self.in_channels

    @property
    def output_channels(self) -> int:
        return self.out_channels

    def over_channels(self, v: Tensor, x: Tensor) -> Tensor:
        return v.reshape(*v.shape, *[1] * (x.dim() - 2))

    def scaled(self, x: Tensor, v: Tensor, shift: Tensor | None = None) -> Tensor:
        return scale_channels(x, v, shift) if scales_in_one_pass(x, v, shift) else super().scaled(x, v, shift)

    def over_outputs(self, v: Tensor, y: Tensor) -> Tensor:
        return v.reshape(-1, *[1] * (y.dim() - 2))


class _ForwardConvolution(_Convolution):
    def apply_weight(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # Padding of every mode commutes with squaring and with channel noise.
        return cast(Any, self._conv_forward)(x, weight, bias)

    def op_of_scaled(self, x: Tensor, v: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # For images and a large kernel, an output of every channel takes less time than the gradient of the input.
        large = math.prod(self.kernel_size) >= _LARGE_KERNEL and 1 < self.in_channels <= _FEW_CHANNELS and self.groups == 1
        if not large or x.requires_grad or not v.requires_grad or weight.dim() != len(self.weight_shape):
            return super().op_of_scaled(x, v, weight, bias)
        pairs = zip(x.split(1, 1), weight.split(1, 1), strict=True)
        y = sum(self.scaled(self.op(part, w, None), v[:, c : c + 1]) for c, (part, w) in enumerate(pairs))
        y = cast(Tensor, y)
        return y if bias is None else y.add_(self.over_outputs(bias, y))

    @property
    def fan_in(self) -> int:
        return math.prod(self.weight_shape[1:])

    def over_weight(self, v: Tensor) -> Tensor:
        # weight[o, i] of an output in group g sees input channel g * C/G + i
        lead, (out, per_group, *kernel) = v.shape[:-1], self.weight_shape
        v = v.reshape(*lead, self.groups, 1, per_group).expand(*lead, self.groups, out // self.groups, per_group)
        return v.reshape(*lead, out, per_group, *[1] * len(kernel))

    def over_weight_outputs(self, v: Tensor) -> Tensor:
        return v.reshape(*v.shape, *[1] * (len(self.weight_shape) - 1))


class BayesConv1d(_ForwardConvolution, nn.Conv1d):
    original = nn.Conv1d


class BayesConv2d(_ForwardConvolution, nn.Conv2d):
    original = nn.Conv2d


class BayesConv3d(_ForwardConvolution, nn.Conv3d):
    original = nn.Conv3d


class _TransposedConvolution(_Convolution, _ConvTransposeNd):
    conv: ClassVar[staticmethod]

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        if output_size is None:
            return super().forward(input)
        original, output_padding = self.output_padding, cast(Any, self._output_padding)
        dims = len(self.kernel_size)
        self.output_padding = tuple(
            output_padding(input, output_size, self.stride, self.padding, self.kernel_size, dims, self.dilation)
        )
        try:
            return super().forward(input)
        finally:
            self.output_padding = original

    def apply_weight(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self.conv(x, weight, bias, self.stride, self.padding, self.output_padding, self.groups, self.dilation)

    @property
    def fan_in(self) -> int:
        # at most C/G channels times the kernel, divided by the stride, reach an output position
        per_group = self.in_channels // self.groups
        return max(1, per_group * math.prod(self.kernel_size) // math.prod(self.stride))

    def over_weight(self, v: Tensor) -> Tensor:
        return v.reshape(*v.shape, *[1] * (len(self.weight_shape) - 1))

    def over_weight_outputs(self, v: Tensor) -> Tensor:
        # weight[i, o] of an input in group g belongs to output channel g * O/G + o
        lead, (inputs, per_group, *kernel) = v.shape[:-1], self.weight_shape
        v = v.reshape(*lead, self.groups, 1, per_group).expand(*lead, self.groups, inputs // self.groups, per_group)
        return v.reshape(*lead, inputs, per_group, *[1] * len(kernel))


class BayesConvTranspose1d(_TransposedConvolution, nn.ConvTranspose1d):
    original = nn.ConvTranspose1d
    conv = staticmethod(F.conv_transpose1d)


class BayesConvTranspose2d(_TransposedConvolution, nn.ConvTranspose2d):
    original = nn.ConvTranspose2d
    conv = staticmethod(F.conv_transpose2d)


class BayesConvTranspose3d(_TransposedConvolution, nn.ConvTranspose3d):
    original = nn.ConvTranspose3d
    conv = staticmethod(F.conv_transpose3d)


LAYERS = (BayesConv1d, BayesConv2d, BayesConv3d, BayesConvTranspose1d, BayesConvTranspose2d, BayesConvTranspose3d)
