"""Posteriors whose distribution is stored in buffers, and weight and bias of a layer as one vector.

Shapes: S draws, P elements of weight and bias.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.functional import at_least_float32, dropout_kl

__all__ = ["StoredPosterior", "add_where_trained", "gradients_of", "layer_parts", "layer_vector"]


class StoredPosterior(Posterior):
    """A posterior in buffers of at least float32; the layer's own weight and bias are trained as a point estimate.

    Attributes:
        prior_std: standard deviation of a normal prior on weight and bias; None for none.
    """

    prior_std: float | None

    def kl(self, layer: BayesianLayer) -> Tensor:
        """The negative log prior density of the layer's own weight and bias, up to a constant; 0 without a prior."""
        return dropout_kl(layer.weight, layer.bias, 0.0, self.prior_std)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:

        def at_least_single(x: Tensor) -> Tensor:
            """Not half precision, in which small differences of weights would be lost."""
            y = fn(x)
            return x.to(y.device) if y.is_floating_point() and y.element_size() < 4 else y

        return super()._apply(at_least_single, recurse)


def layer_vector(layer: BayesianLayer) -> Tensor:
    """The layer's own weight and bias as one vector (P,), at least float32."""
    parts = [layer.weight] if layer.bias is None else [layer.weight, layer.bias]
    return at_least_float32(torch.cat([part.flatten() for part in parts]))


def layer_parts(layer: BayesianLayer, vectors: Tensor) -> tuple[Tensor, Tensor | None]:
    """Weight (S, *) and bias (S, *) of vectors (S, P), in the layer's dtype."""
    vectors = vectors.to(layer.weight.dtype)
    size = math.prod(layer.weight_shape)
    weight = vectors[:, :size].unflatten(1, layer.weight_shape)
    return weight, None if layer.bias_shape is None else vectors[:, size:].unflatten(1, layer.bias_shape)


def gradients_of(layer: BayesianLayer) -> tuple[Tensor, Tensor | None] | None:
    """Gradients of the layer's own weight and bias, zeros of one that is frozen; None if neither has one."""
    if all(part is None or part.grad is None for part in (layer.weight, layer.bias)):
        return None
    return _gradient(layer.weight), None if layer.bias is None else _gradient(layer.bias)


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def add_where_trained(layer: BayesianLayer, weight: Tensor, bias: Tensor | None) -> None:
    """Add changes (1, *) to the layer's own weight and bias, in place, unless they are frozen."""
    for parameter, change in ((layer.weight, weight), (layer.bias, bias)):
        if parameter is not None and change is not None and parameter.grad is not None:
            parameter.add_(change.squeeze(0))
