"""Linear layers and convolutions with a `forward` of their own: a standardized or masked weight, padding of another kind."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bayesify.core.layer import BayesianLayer

__all__ = ["OwnForward"]


class OwnForward(BayesianLayer):
    """Mixin of a layer that runs the `forward` of its plain class with the weight and bias of every draw.

    Nothing is known of this function, so the layer always draws weights, one per draw for the whole batch: noise of inputs or
    outputs need not be noise of its weight.
    """

    given: dict[str, Tensor | None] | None  # the weight and bias with which `forward` of the plain class is running

    @property
    def draws_weights(self) -> bool:
        return self.posterior.is_random

    def prepared_op(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self.op(x, weight, bias)

    def apply_weight(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        self.given = {"weight": weight, "bias": bias}
        try:
            return self.original.forward(self, x)
        finally:
            self.given = None

    def apply_weights(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return BayesianLayer.apply_weights(self, x, weight, bias)

    def _value(self, name: str) -> Any:
        return super()._value(name) if self.given is None else self.given[name]
