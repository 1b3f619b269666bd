"""Normalization layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from bayesify.core.layer import BayesianLayer
from bayesify.errors import PassError
from bayesify.functional import at_least_float32

__all__ = ["EPSILONS", "LAYERS", "ChannelsFirstLayerNormalization", "LayerNormalization", "RMSNormalization", "epsilon"]

EPSILONS = ("eps", "variance_epsilon", "epsilon")  # the names that libraries give it


class _Normalization(BayesianLayer):
    """A normalized input, then a scale and a shift per channel."""

    normalizes = True

    def prepared_op(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if weight.dim() > len(self.weight_shape):
            if weight.shape[0] > 1:
                return self.op(self.prepare(x), weight, bias)
            weight, bias = weight[0], None if bias is None else bias[0]
        return self.normalize(x, weight, bias)

    def prepare(self, x: Tensor) -> Tensor:
        return self.normalize(x, None, None)

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """Call the function of the plain layer with this scale and shift."""
        raise NotImplementedError

    def apply_weight(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = x * self.per_channel(weight, x)
        return y if bias is None else y + self.per_channel(bias, x)

    def apply_weights(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows = x.unflatten(0, (weight.shape[0], -1))
        weight = self.per_channel(weight.unsqueeze(1), x)
        y = rows * weight if bias is None else torch.addcmul(self.per_channel(bias.unsqueeze(1), x), rows, weight)
        return y.flatten(0, 1)

    def per_channel(self, v: Tensor, x: Tensor) -> Tensor:
        """Reshape v (..., C) to act on the channels of x (..., C, *positions)."""
        return v.reshape(*v.shape, *[1] * (x.dim() - 2))


class _WithStatistics(_Normalization):
    """Draws are normalized one after the other where they have, or update, statistics of their own."""

    @property
    def _draw_by_draw(self) -> bool:
        raise NotImplementedError

    def prepared_op(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if weight.dim() == 1 or weight.shape[0] == 1 or not self._draw_by_draw:
            return super().prepared_op(x, weight, bias)
        biases = [None] * weight.shape[0] if bias is None else bias
        rows = x.unflatten(0, (weight.shape[0], -1))
        return torch.cat([self.normalize(rows[s], weight[s], biases[s]) for s in range(weight.shape[0])])

    def prepare(self, x: Tensor) -> Tensor:
        samples = self.forward_pass.samples
        if samples == 1 or not self._draw_by_draw:
            return self.normalize(x, None, None)
        return torch.cat([self.normalize(rows, None, None) for rows in x.unflatten(0, (samples, -1))])


class _BatchNormalization(_WithStatistics, _BatchNorm):
    """Every draw is normalized by its own batch, and updates the running statistics as in a separate pass."""

    @property
    def _draw_by_draw(self) -> bool:
        """Whether it normalizes by the statistics of the batch instead of running ones."""
        return self.training or self.running_mean is None

    def prepared_op(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if weight.dim() == 1 or weight.shape[0] == 1 or self.training or self.running_mean is None or self.running_var is None:
            return super().prepared_op(x, weight, bias)
        scale = at_least_float32(weight) * torch.rsqrt(at_least_float32(self.running_var) + self.eps)
        shift = -self.running_mean * scale
        return self.op(x, scale, shift if bias is None else bias + shift).to(x.dtype)

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        self._check_input_dim(x)
        update = self.training and self.track_running_stats
        momentum = 0.0 if self.momentum is None else self.momentum
        if update and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        mean, var = (self.running_mean, self.running_var) if update or not self._draw_by_draw else (None, None)
        return F.batch_norm(x, mean, var, weight, bias, self._draw_by_draw, momentum, self.eps)


class BayesBatchNorm1d(_BatchNormalization, nn.BatchNorm1d):
    original = nn.BatchNorm1d


class BayesBatchNorm2d(_BatchNormalization, nn.BatchNorm2d):
    original = nn.BatchNorm2d


class BayesBatchNorm3d(_BatchNormalization, nn.BatchNorm3d):
    original = nn.BatchNorm3d


class _InstanceNormalization(_WithStatistics, _InstanceNorm):
    """Every row is normalized by itself; every draw updates the running statistics, if there are any, as in a separate pass."""

    @property
    def _draw_by_draw(self) -> bool:
        return self.training and self.track_running_stats

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        if x.dim() == self._get_no_batch_dim():
            raise PassError(
                f"a random {self.original.__name__} needs inputs with a batch dimension, (N, C, ...), got shape {tuple(x.shape)}; "
                "use x.unsqueeze(0)"
            )
        self._check_input_dim(x)
        own = self.training or not self.track_running_stats
        return F.instance_norm(x, self.running_mean, self.running_var, weight, bias, own, self.momentum or 0.0, self.eps)


class BayesInstanceNorm1d(_InstanceNormalization, nn.InstanceNorm1d):
    original = nn.InstanceNorm1d


class BayesInstanceNorm2d(_InstanceNormalization, nn.InstanceNorm2d):
    original = nn.InstanceNorm2d


class BayesInstanceNorm3d(_InstanceNormalization, nn.InstanceNorm3d):
    original = nn.InstanceNorm3d


class BayesGroupNorm(_Normalization, nn.GroupNorm):
    original = nn.GroupNorm

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return F.group_norm(x, self.num_groups, weight, bias, self.eps)


class _LastDimensions(_Normalization):
    """Normalization over the last dimensions, whose shape is that of the weight."""

    def per_channel(self, v: Tensor, x: Tensor) -> Tensor:
        # the last dimensions of x have the weight's shape; those between batch and weight are broadcast
        lead = v.dim() - len(self.weight_shape)
        return v.reshape(*v.shape[:lead], *[1] * (x.dim() - 1 - len(self.weight_shape)), *self.weight_shape) if lead else v


class BayesLayerNorm(_LastDimensions, nn.LayerNorm):
    original = nn.LayerNorm

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class LayerNormalization(_LastDimensions):
    """Layer normalization of a class of another library."""

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return F.layer_norm(x, self.weight_shape, weight, bias, epsilon(self) or 0.0)


class ChannelsFirstLayerNormalization(_Normalization):
    """Layer normalization over the channels (B, C, ...), at every position."""

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return F.layer_norm(x.movedim(1, -1), self.weight_shape, weight, bias, epsilon(self) or 0.0).movedim(-1, 1)


class RMSNormalization(_LastDimensions):
    """Root mean square normalization: x / sqrt(mean(x^2) + eps) * weight."""

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return F.rms_norm(x, self.weight_shape, weight, epsilon(self))


class BayesRMSNorm(RMSNormalization, nn.RMSNorm):  # pyright: ignore[reportIncompatibleMethodOverride]
    original = nn.RMSNorm


def epsilon(layer: nn.Module) -> float | None:
    """The eps of a normalization layer; None if there is none."""
    values = (getattr(layer, name, None) for name in EPSILONS)
    return next((value for value in values if isinstance(value, float)), None)


LAYERS = (
    *(BayesBatchNorm1d, BayesBatchNorm2d, BayesBatchNorm3d),
    *(BayesInstanceNorm1d, BayesInstanceNorm2d, BayesInstanceNorm3d),
    *(BayesGroupNorm, BayesLayerNorm, BayesRMSNorm),
)
