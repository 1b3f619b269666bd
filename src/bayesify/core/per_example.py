"""Gradients of single examples with respect to a layer's weight, from its inputs and the gradients of its outputs."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bayesify.errors import ConfigurationError
from bayesify.functional import at_least_float32

if TYPE_CHECKING:
    from bayesify.core.folding import Verdict
    from bayesify.core.layer import BayesianLayer

__all__ = ["Record", "per_example_gradients", "squared_gradients", "unlike_examples"]

_ELEMENTS = 1e8  # of per-example gradients in memory at a time


@dataclasses.dataclass(frozen=True)
class Record:
    """One call of a layer in a pass.

    Attributes:
        x, y: input and output (R, ...) of the layer, before `then`.
        rows: S*B, the draws and examples of the pass; R is a multiple of it.
        gradient: of the sum of all log likelihoods with respect to y, shaped like y.
    """

    x: Tensor
    y: Tensor
    rows: int
    gradient: Tensor

    @classmethod
    def of_call(cls, x: Tensor, y: Tensor, rows: int, gradient: Tensor) -> Record:
        """The record with tensors of one type; autocast has outputs in lower precision, and often not the inputs."""
        gradient = at_least_float32(gradient)
        return cls(x.detach().to(gradient.dtype) if x.is_floating_point() else x.detach(), y.detach(), rows, gradient)

    def by_example(self, value: Tensor) -> Tensor:
        """A value (R, ...) with its rows grouped by example, (S*B, R / (S*B), ...)."""
        return value.detach().unflatten(0, (self.rows, -1))

    def check(self, layer: BayesianLayer) -> None:
        """Raise a `ConfigurationError` unless the rows of the call are those of the examples."""
        if self.x.dim() == 0 or self.x.shape[0] % self.rows or self.y.shape[0] % self.rows:
            raise ConfigurationError(
                f"a {layer.original.__name__} has an input of shape {tuple(self.x.shape)} for {self.rows} draws and examples, so "
                "its gradients are not those of single examples; use IVON for this network"
            )

    def weighted(self, weights: Tensor) -> Record:
        """Undo half of the weights (B,) of the log likelihoods: an example of weight 2 counts as two squares, not as four."""
        scale = torch.where(weights > 0, weights, 1).rsqrt().repeat(self.rows // len(weights))
        scale = scale.repeat_interleave(len(self.y) // self.rows).reshape(-1, *[1] * (self.y.dim() - 1))
        return dataclasses.replace(self, gradient=self.gradient * scale.to(self.gradient.dtype))


def per_example_gradients(layer: BayesianLayer, record: Record) -> tuple[Tensor, Tensor | None]:
    """Gradients (S*B, *) of every example's log likelihood with respect to weight and bias."""
    chunk = max(1, int(_ELEMENTS // math.prod(layer.weight_shape)))
    gradient = torch.vmap(lambda x, g: _gradient(layer, x, g), chunk_size=chunk)
    with torch.no_grad():
        weight, *biases = gradient(record.by_example(record.x), record.by_example(record.gradient))
    return weight, biases[0] if biases else None


def squared_gradients(layer: BayesianLayer, record: Record) -> tuple[Tensor, Tensor | None]:
    """`per_example_gradients` squared and averaged over draws and examples, shaped like weight and bias."""
    if record.y.dim() == 2 and len(record.y) == record.rows and layer.contracts:
        # every weight acts once on an example, so the sum of squares is the gradient for squared inputs and gradients
        with torch.no_grad():
            weight, *biases = _gradient(layer, layer.square(record.x), record.gradient.square())
        return weight / record.rows, biases[0] / record.rows if biases else None
    weight, bias = per_example_gradients(layer, record)
    return weight.square().mean(0), None if bias is None else bias.square().mean(0)


def _gradient(layer: BayesianLayer, x: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
    """The gradient of the layer's weight and, if there is one, bias, from its input and the gradient of its output.

    The layer is linear in both, so that it does not matter where it is differentiated.
    """
    shapes = [layer.weight_shape] if layer.bias_shape is None else [layer.weight_shape, layer.bias_shape]
    values: Any = torch.func.vjp(
        lambda weight, bias=None: layer.apply_weight(x, weight, bias), *(gradient.new_zeros(shape) for shape in shapes)
    )
    return values[1](gradient)


def unlike_examples(verdict: Verdict | None, pools: bool) -> str:
    """Why gradients of rows are only approximately those of single examples; empty if they are, or if it is not known.

    Args:
        verdict: on the network, if there is one.
        pools: whether normalization computes statistics of the batch.

    Raises:
        ConfigurationError: the rows of a batch affect each other.
    """
    if verdict is not None and not verdict.independent_rows:
        raise ConfigurationError(
            f"there are no gradients of single examples, which the method needs, because {verdict.reason}; use IVON, or fold=True "
            "if every row of the output depends on its row of the input alone"
        )
    if pools:
        return (
            "batch normalization in training mode lets the rows of a batch affect each other, so that the gradients of single "
            "examples are approximate; in eval mode, layer.eval(), they are exact"
        )
    return ""
