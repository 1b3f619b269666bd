"""Sites: ordinary layers made random. Each is the layer itself with its class swapped, so names, hooks, tying and types survive.

A site knows one thing: how its layer acts on an input, given a weight and a bias. For most layers that action is bilinear, so the
same `op` gives the mean of the output (with the mean weight) and its variance (squared input, weight variances).

Shapes: S draws, B batch, I in, O out, C channels, G groups. A folded input has S*B rows, all rows of draw 0 first.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from bayesify.core.posterior import Posterior

__all__ = ["SITES", "Drawing", "Site"]


@dataclasses.dataclass(eq=False)
class Drawing:
    """What the forward pass under way asks of the sites; one object, shared by the root and all its sites."""

    samples: int = 1
    coherent: bool = False
    # The weights drawn so far in this pass, so that a module used twice in it is one function; None outside a pass.
    drawn: dict[nn.Module, tuple[Tensor, Tensor | None]] | None = None


class Site(nn.Module):
    """Mixin of a layer made random: `class BayesLinear(Site, nn.Linear)`.

    Attributes:
        original: the class of the layer before and after.
        contracts: whether the layer sums over input channels (linear, convolution), so that input noise is weight noise.
        posterior: the distribution of its weight and bias.
        drawing: what the current forward pass asks for.
        weight_shape: the shape of one weight.
        bias_shape: the shape of one bias, None without one.
    """

    original: ClassVar[type[nn.Module]]
    contracts: ClassVar[bool] = False

    posterior: Posterior
    drawing: Drawing
    weight: Tensor  # None once a posterior has taken its place
    bias: Tensor | None
    weight_shape: tuple[int, ...]
    bias_shape: tuple[int, ...] | None

    def forward(self, input: Tensor) -> Tensor:
        if self.drawing.coherent:
            return self.op(self.prepare(input), *self.draw())
        return self.posterior(self, input)

    def draw(self) -> tuple[Tensor, Tensor | None]:
        """Weight (S, *) and bias (S, *) of this pass: drawn once, however often the module is used in it."""
        drawn = self.drawing.drawn
        if drawn is None:
            return self.posterior.sample(self, self.drawing.samples)
        if self not in drawn:
            drawn[self] = self.posterior.sample(self, self.drawing.samples)
        return drawn[self]

    def op(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Apply weight (*weight_shape), shared by all draws, or (S, *weight_shape), one per draw, to a prepared x (S*B, ...)."""
        if weight.dim() == len(self.weight_shape):
            return self.apply_weight(x, weight, bias)
        if weight.shape[0] == 1:
            return self.apply_weight(x, weight[0], None if bias is None else bias[0])
        return self.apply_weights(x, weight, bias)

    def apply_weights(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """`op` for S > 1 draws: one ordinary call per draw, which is as fast as one grouped convolution, unless overridden."""
        rows = x.unflatten(0, (weight.shape[0], -1))
        biases = [None] * weight.shape[0] if bias is None else bias
        return torch.cat([self.apply_weight(rows[s], weight[s], biases[s]) for s in range(weight.shape[0])])

    def apply_weight(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """`op` for one weight: what the original layer computes, after `prepare`."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it acts on its input")

    def prepare(self, x: Tensor) -> Tensor:
        """The part of the layer before its weight acts (normalisation)."""
        return x

    def square(self, x: Tensor) -> Tensor:
        """The input whose `op` with weight variances is the variance of the output: x * x, for prepared x."""
        return x * x

    @property
    def fan_in(self) -> int:
        """How many weights are summed in one output."""
        return 1

    @property
    def input_channels(self) -> int:
        """K, the number of input channels that input noise multiplies."""
        raise NotImplementedError(f"{type(self).__name__} does not contract over input channels")

    def over_channels(self, v: Tensor, x: Tensor) -> Tensor:
        """Shape v (R, K) or (1, K), per row and input channel, to multiply x (R, ...)."""
        raise NotImplementedError(f"{type(self).__name__} does not contract over input channels")

    def over_weight(self, v: Tensor) -> Tensor:
        """Shape v (..., K), per input channel, to multiply the weight: the same as `over_channels(v)` times the input."""
        raise NotImplementedError(f"{type(self).__name__} does not contract over input channels")


class BayesLinear(Site, nn.Linear):
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

    def over_weight(self, v: Tensor) -> Tensor:
        return v.unsqueeze(-2)


class _Convolution(Site, _ConvNd):
    """What Conv1d/2d/3d and their transposes share."""

    contracts = True

    @property
    def input_channels(self) -> int:
        return self.in_channels

    def over_channels(self, v: Tensor, x: Tensor) -> Tensor:
        return v.reshape(*v.shape, *[1] * (x.dim() - 2))


class _ForwardConvolution(_Convolution):
    def apply_weight(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # Padding of every mode commutes with squaring and with channel noise, so it belongs to the convolution itself.
        return cast(Any, self._conv_forward)(x, weight, bias)

    @property
    def fan_in(self) -> int:
        return math.prod(self.weight_shape[1:])

    def over_weight(self, v: Tensor) -> Tensor:
        # weight[o, i] of an output in group g sees input channel g * C/G + i
        lead, (out, per_group, *kernel) = v.shape[:-1], self.weight_shape
        v = v.reshape(*lead, self.groups, 1, per_group).expand(*lead, self.groups, out // self.groups, per_group)
        return v.reshape(*lead, out, per_group, *[1] * len(kernel))


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
        given, output_padding = self.output_padding, cast(Any, self._output_padding)
        dims = len(self.kernel_size)
        self.output_padding = tuple(
            output_padding(input, output_size, self.stride, self.padding, self.kernel_size, dims, self.dilation)
        )
        try:
            return super().forward(input)
        finally:
            self.output_padding = given

    def apply_weight(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self.conv(x, weight, bias, self.stride, self.padding, self.output_padding, self.groups, self.dilation)

    @property
    def fan_in(self) -> int:
        # every output position sees at most C/G channels times the kernel, thinned by the stride
        per_group = self.in_channels // self.groups
        return max(1, per_group * math.prod(self.kernel_size) // math.prod(self.stride))

    def over_weight(self, v: Tensor) -> Tensor:
        return v.reshape(*v.shape, *[1] * (len(self.weight_shape) - 1))


class BayesConvTranspose1d(_TransposedConvolution, nn.ConvTranspose1d):
    original = nn.ConvTranspose1d
    conv = staticmethod(F.conv_transpose1d)


class BayesConvTranspose2d(_TransposedConvolution, nn.ConvTranspose2d):
    original = nn.ConvTranspose2d
    conv = staticmethod(F.conv_transpose2d)


class BayesConvTranspose3d(_TransposedConvolution, nn.ConvTranspose3d):
    original = nn.ConvTranspose3d
    conv = staticmethod(F.conv_transpose3d)


class _Normalization(Site):
    """What the normalisation layers share: a normalised input, then a scale and a shift per channel."""

    def apply_weight(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = x * self.per_channel(weight, x)
        return y if bias is None else y + self.per_channel(bias, x)

    def apply_weights(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows = x.unflatten(0, (weight.shape[0], -1))
        y = rows * self.per_channel(weight.unsqueeze(1), x)
        return (y if bias is None else y + self.per_channel(bias.unsqueeze(1), x)).flatten(0, 1)

    def per_channel(self, v: Tensor, x: Tensor) -> Tensor:
        """Shape v (..., C) to act on the channels of x (..., C, *positions)."""
        return v.reshape(*v.shape, *[1] * (x.dim() - 2))


class _BatchNormalization(_Normalization, _BatchNorm):
    def prepare(self, x: Tensor) -> Tensor:
        self._check_input_dim(x)
        update = self.training and self.track_running_stats
        momentum = 0.0 if self.momentum is None else self.momentum
        if update and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        use_batch = self.training or self.running_mean is None
        mean, var = (self.running_mean, self.running_var) if update or not use_batch else (None, None)
        return F.batch_norm(x, mean, var, None, None, use_batch, momentum, self.eps)


class BayesBatchNorm1d(_BatchNormalization, nn.BatchNorm1d):
    original = nn.BatchNorm1d


class BayesBatchNorm2d(_BatchNormalization, nn.BatchNorm2d):
    original = nn.BatchNorm2d


class BayesBatchNorm3d(_BatchNormalization, nn.BatchNorm3d):
    original = nn.BatchNorm3d


class BayesGroupNorm(_Normalization, nn.GroupNorm):
    original = nn.GroupNorm

    def prepare(self, x: Tensor) -> Tensor:
        return F.group_norm(x, self.num_groups, eps=self.eps)


class BayesLayerNorm(_Normalization, nn.LayerNorm):
    original = nn.LayerNorm

    def prepare(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, eps=self.eps)

    def per_channel(self, v: Tensor, x: Tensor) -> Tensor:
        # the last dimensions of x carry the weight's shape, those between batch and weight are broadcast
        lead = v.dim() - len(self.weight_shape)
        return v.reshape(*v.shape[:lead], *[1] * (x.dim() - 1 - len(self.weight_shape)), *self.weight_shape) if lead else v


class BayesEmbedding(Site, nn.Embedding):
    original = nn.Embedding

    def apply_weight(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = F.embedding(x, weight)
        # the padding token stays the zero vector, without noise and without gradient
        return y if self.padding_idx is None else y.masked_fill((x == self.padding_idx).unsqueeze(-1), 0)

    def square(self, x: Tensor) -> Tensor:
        return x  # an index stands for a one-hot row, which is its own square


SITES: dict[type[nn.Module], type[Site]] = {
    site.original: site
    for site in (
        BayesLinear,
        BayesConv1d,
        BayesConv2d,
        BayesConv3d,
        BayesConvTranspose1d,
        BayesConvTranspose2d,
        BayesConvTranspose3d,
        BayesBatchNorm1d,
        BayesBatchNorm2d,
        BayesBatchNorm3d,
        BayesGroupNorm,
        BayesLayerNorm,
        BayesEmbedding,
    )
}
