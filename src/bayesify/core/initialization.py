"""Whether weights are what PyTorch's own initialisation draws, so that nothing is lost with them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.normalization import GroupNorm, LayerNorm

__all__ = ["looks_initialized"]

_ENOUGH = 50  # elements for a test of their spread


@torch.no_grad()
def looks_initialized(kind: type[nn.Module], weight: Tensor) -> bool:
    r"""Whether a weight may come from `reset_parameters` of its layer: from a uniform with bound $1/\sqrt{\text{fan-in}}$ in linear
    layers and convolutions, a standard normal in embeddings, ones in normalisation layers. Layers of other types are taken to.

    Args:
        kind: the layer's type.
        weight: of the layer.
    """
    if weight.is_meta or not weight.numel():
        return True
    if issubclass(kind, nn.Linear | _ConvNd):
        bound = 1 / math.sqrt(math.prod(weight.shape[1:]))
        within = float(weight.abs().max()) <= bound * 1.01
        return within and _spread_is(weight, bound / math.sqrt(3))
    if issubclass(kind, nn.Embedding):
        return _spread_is(weight, 1.0)
    if issubclass(kind, nn.modules.batchnorm._NormBase | GroupNorm | LayerNorm):
        return bool((weight == 1).all())
    return True


def _spread_is(weight: Tensor, std: float) -> bool:
    """Within 25 %, or too few elements to tell."""
    return weight.numel() < _ENOUGH or abs(float(weight.float().std()) / std - 1) < 0.25
