"""`spectrum`: spectral norm and stable rank of weights, on which generalization bounds depend."""

from __future__ import annotations

import dataclasses
import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd

from bayesify.core.layer import BayesianLayer
from bayesify.core.layers import layer_type
from bayesify.core.layers.own_forward import OwnForward
from bayesify.core.model import Bayesian
from bayesify.errors import ConfigurationError, DataError

__all__ = ["LayerSpectrum", "spectrum"]


@dataclasses.dataclass(frozen=True)
class LayerSpectrum:
    """One layer's weight matrix.

    Attributes:
        name: the name of the layer in the network.
        layer: its type.
        spectral_norm: the largest singular value.
        stable_rank: squared Frobenius norm over squared spectral norm, between 1 and the rank; NaN if all weights are zero.
    """

    name: str
    layer: str
    spectral_norm: float
    stable_rank: float


def spectrum(net: nn.Module) -> tuple[LayerSpectrum, ...]:
    r"""Spectral norm and stable rank of every linear layer and convolution, of the posterior mean for random layers.

    $$\lVert W \rVert_2 = \max_i \sigma_i(W), \qquad \mathrm{srank}(W) = \lVert W \rVert_F^2 / \lVert W \rVert_2^2$$

    Bounds on the generalization error grow with the product of the squared norms and with the sum of the stable ranks. The matrix
    of a convolution is that of its kernels, one row per output channel (of all groups), not that of the linear map.

    Args:
        net: a Bayesian or a plain network.

    Returns:
        One entry per layer, in the network's order.

    Raises:
        TypeError: `net` is not a module.
        ConfigurationError: `net` has no such layer.
        DataError: weights are NaN or infinite.

    Source: Nguyen et al. (2021), table 9 and appendix E; Neyshabur, Bhojanapalli & Srebro, *A PAC-Bayesian approach to
    spectrally-normalized margin bounds for neural networks* (2018).

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> with torch.no_grad():
        ...     _ = layer.weight.copy_(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
        >>> spectrum(bayesify(nn.Sequential(layer), MeanField()))
        (LayerSpectrum(name='0', layer='Linear', spectral_norm=4.0, stable_rank=1.5625),)
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"net must be a torch.nn.Module, got {type(net).__name__}")
    net = net.net if isinstance(net, Bayesian) else net
    # a posterior may contain layers
    inner = {module for layer in net.modules() if isinstance(layer, BayesianLayer) for module in layer.posterior.modules()}
    rows = []
    for name, module in net.named_modules():
        kind = module.original if isinstance(module, BayesianLayer) else type(module)
        bayesian = layer_type(kind)
        if module not in inner and bayesian is not None and bayesian.contracts and not issubclass(bayesian, OwnForward):
            weight = module.posterior.mean(module)[0] if isinstance(module, BayesianLayer) else cast(Tensor, module.weight)
            if not weight.isfinite().all():
                raise DataError(
                    f"the weights of {name or 'the network'!r} have NaN or infinite values; load or train the network again"
                )
            rows.append(LayerSpectrum(name, kind.__name__, *_norm_and_rank(_matrix(weight.detach(), kind))))
    if not rows:
        raise ConfigurationError("net has no linear layer or convolution with a weight")
    return tuple(rows)


def _matrix(weight: Tensor, kind: type[nn.Module]) -> Tensor:
    """Flatten a weight to one row per output channel."""
    return (weight.transpose(0, 1) if issubclass(kind, _ConvTransposeNd) else weight).flatten(1)


def _norm_and_rank(matrix: Tensor) -> tuple[float, float]:
    # Eigenvalues of the smaller of W W' and W' W: much faster than singular values, and as exact for the largest one.
    matrix = matrix.cpu().double()
    unit = float(matrix.abs().max()) or 1.0  # squares of elements are representable
    matrix = matrix / unit
    gram = matrix @ matrix.mT if matrix.shape[0] <= matrix.shape[1] else matrix.mT @ matrix
    largest = float(torch.linalg.eigvalsh(gram)[-1])
    return unit * math.sqrt(max(largest, 0.0)), float(gram.trace()) / largest if largest > 0 else math.nan
