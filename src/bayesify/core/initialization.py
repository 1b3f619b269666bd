"""Whether weights look like PyTorch's default initialization, so that dropping them loses nothing."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

__all__ = ["looks_initialized"]

_MIN_ELEMENTS = 50  # for a test of the standard deviation


@torch.no_grad()
def looks_initialized(kind: type[nn.Module], weight: Tensor, bound: float | None = None) -> bool | None:
    r"""Whether a weight may come from `reset_parameters` of its layer; None for layers of unknown types.

    That is a uniform with bound $1/\sqrt{\text{fan-in}}$ in linear layers and convolutions, a standard normal in embeddings, and
    ones in normalization layers.

    Args:
        kind: the type of the layer.
        weight: its weight.
        bound: of the uniform distribution of a linear layer or convolution, if it is another one.
    """
    if weight.is_meta or not weight.numel():
        return True
    if issubclass(kind, nn.Linear | _ConvNd):
        bound = bound or 1 / math.sqrt(math.prod(weight.shape[1:]))
        weight = torch.view_as_real(weight) if weight.is_complex() else weight
        within = float(weight.abs().max()) <= bound * 1.01
        return within and _spread_is(weight, bound / math.sqrt(3))
    if issubclass(kind, nn.Embedding):
        return _spread_is(weight, 1.0)
    if issubclass(kind, nn.modules.batchnorm._NormBase | nn.GroupNorm | nn.LayerNorm | nn.RMSNorm):
        return bool((weight == 1).all())
    return None


def _spread_is(weight: Tensor, std: float) -> bool:
    """Whether the standard deviation is within 25 % of `std`; True for too few elements."""
    if weight.numel() < _MIN_ELEMENTS:
        return True
    spread = weight.std() if weight.is_complex() else weight.float().std()
    return abs(float(spread) / std - 1) < 0.25
