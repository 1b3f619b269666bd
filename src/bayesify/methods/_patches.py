"""The posterior of a layer patched with several components."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.functional import at_least_float32, standard_normal

if TYPE_CHECKING:
    from bayesify.methods.emp import EMP

__all__ = ["PatchPosterior"]


class PatchPosterior(Posterior):
    """K components of weight and bias, (K, *weight_shape) and (K, *bias_shape); with K = 1 those of the layer."""

    means = ("weight", "bias")

    weight: Tensor | None
    bias: Tensor | None
    logits: Tensor | None

    def __init__(self, method: EMP, layer: BayesianLayer) -> None:
        super().__init__()
        self.method = method
        patched = method.components > 1
        self.is_random = method.is_random
        for name in ("weight", "bias"):
            center: Tensor | None = getattr(layer, name)
            components = _spread(center, layer, method) if patched and center is not None else None
            self.register_parameter(name, components)
            if components is not None:
                setattr(layer, name, None)
        learned = patched and method.learn_probabilities
        self.register_parameter("logits", nn.Parameter(torch.tensor(_probabilities(method)).log()) if learned else None)

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        weight, bias = self._chosen(layer, samples)
        std = self.method.component_std
        if not std:
            return weight, bias
        weight = weight + std * standard_normal(*weight.shape, like=weight)
        return weight, None if bias is None else bias + std * standard_normal(*bias.shape, like=bias)

    def _chosen(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        """Centers of the components that are drawn, (S, *)."""
        weight, bias = self._components(layer)
        if self.weight is None:
            return weight.expand(samples, *weight.shape[1:]), None if bias is None else bias.expand(samples, *bias.shape[1:])
        if not self.method.per_element:
            z = self._choose(layer, (samples,))
            return weight.index_select(0, z), None if bias is None else bias.index_select(0, z)
        weight = weight.gather(0, self._choose(layer, (samples, *weight.shape[1:])))
        return weight, None if bias is None else bias.gather(0, self._choose(layer, (samples, *bias.shape[1:])))

    def forward(self, layer: BayesianLayer, x: Tensor) -> Tensor:
        return super().forward(layer, x) if self.is_random else layer.prepared_op(x, layer.weight, layer.bias)

    def mean(self, layer: BayesianLayer) -> tuple[Tensor, Tensor | None]:
        if self.weight is None:
            return layer.weight, layer.bias
        weight, bias = self._components(layer)
        p = self._probabilities(weight).to(weight)
        return torch.tensordot(p, weight, 1), None if bias is None else torch.tensordot(p, bias, 1)

    def adopt(self, layer: BayesianLayer, weight: Tensor, bias: Tensor | None) -> None:
        for components, mean in ((self.weight, weight), (self.bias, bias)):
            if components is not None and mean is not None:
                components.copy_(_spread(mean, layer, self.method))

    def kl(self, layer: BayesianLayer) -> Tensor:
        method = self.method
        weight, bias = self._components(layer)
        total, p = at_least_float32(weight.new_zeros(())), None
        if self.logits is not None or method.probabilities is not None:
            p = self._probabilities(weight)
            choices = _elements(layer) if method.per_element else 1
            total = choices * (p * (p * len(p)).log()).sum()
        for components, precision in zip((weight, bias), method.precisions(), strict=True):
            if components is None or not precision:
                continue
            if ratio := precision * method.component_std**2:
                total = total + components[0].numel() * 0.5 * (ratio - 1 - math.log(ratio))
            squares = at_least_float32(components).square()
            if p is None or method.decay == "plain":
                share = 1 if method.decay == "plain" else len(weight)
                total = total + precision / (2 * share) * squares.sum()
            else:
                total = total + precision / 2 * (squares.flatten(1).sum(1) @ p)
        return total

    def log_ensemble_size(self, layer: BayesianLayer) -> float:
        if self.method.component_std:
            return math.inf
        return math.log(self.method.components) * (_elements(layer) if self.method.per_element else 1)

    def _components(self, layer: BayesianLayer) -> tuple[Tensor, Tensor | None]:
        """(K, *weight_shape) and (K, *bias_shape)."""
        if self.weight is not None:
            return self.weight, self.bias
        return layer.weight.unsqueeze(0), None if layer.bias is None else layer.bias.unsqueeze(0)

    def _probabilities(self, like: Tensor) -> Tensor:
        """p (K,), at least float32."""
        if self.logits is not None:
            return at_least_float32(self.logits).softmax(0)
        return torch.tensor(_probabilities(self.method), dtype=torch.promote_types(like.dtype, torch.float32), device=like.device)

    def _choose(self, layer: BayesianLayer, shape: tuple[int, ...]) -> Tensor:
        """Independent component indices of a shape (S, ...)."""
        method, device = self.method, next(self.parameters()).device
        if self.logits is None:
            if method.probabilities is None:
                return torch.randint(method.components, shape, device=device)
            return _categorical(shape, itertools.accumulate(method.probabilities[:-1]), device)
        log_p = at_least_float32(self.logits).log_softmax(0)
        z = _categorical(shape, log_p.detach().exp().cumsum(0)[:-1].unbind(), device)
        layer.forward_pass.choose(log_p.index_select(0, z.flatten()).reshape(shape[0], -1).sum(1))
        return z


def _spread(center: Tensor, layer: BayesianLayer, method: EMP) -> nn.Parameter:
    """K components around a weight or bias; the padding vector of an embedding stays zero."""
    noise = standard_normal(method.components, *center.shape, like=center)
    noise = noise * (method.spread / math.sqrt(layer.fan_in))
    if isinstance(layer, nn.Embedding) and layer.padding_idx is not None:
        noise[:, layer.padding_idx] = 0
    return nn.Parameter(center.detach() + noise)  # trained even where the layer is frozen: else the draws would stay noise


def _categorical(shape: tuple[int, ...], bounds: Iterable[float | Tensor], device: torch.device) -> Tensor:
    """Categories 0, 1, ...: the number of bounds (cumulative probabilities, without the last) that uniform noise exceeds."""
    u, z = torch.rand(shape, device=device), torch.zeros(shape, dtype=torch.long, device=device)
    for bound in bounds:
        z = z + (u >= bound)
    return z


def _probabilities(method: EMP) -> tuple[float, ...]:
    return method.probabilities or (1 / method.components,) * method.components


def _elements(layer: BayesianLayer) -> int:
    return math.prod(layer.weight_shape) + (0 if layer.bias_shape is None else math.prod(layer.bias_shape))
