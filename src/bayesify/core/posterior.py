"""The two contracts a method fulfils: `Posterior`, the distribution of one layer, and `Method`, what to make random."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch import Tensor, nn

from bayesify.functional import local_reparameterization

if TYPE_CHECKING:
    from bayesify.core.model import Bayesian
    from bayesify.core.sites import Site

__all__ = ["Method", "Posterior"]


class Posterior(nn.Module, ABC):
    """The distribution of one layer's weight and bias.

    It holds the variational parameters the layer does not already have; the layer's own `weight` and `bias` usually stay where
    they are, as means. A posterior that replaces them sets `layer.weight = None`, so that no parameter is left without a gradient,
    and overrides `mean`.
    """

    @abstractmethod
    def sample(self, layer: Site, samples: int) -> tuple[Tensor, Tensor | None]:
        """Draw weights: the definition every other route is tested against.

        Args:
            layer: the site this posterior belongs to.
            samples: S, the number of draws.

        Returns:
            Weight of shape (S, *weight_shape) and bias of shape (S, *bias_shape), or None for a layer without bias.
        """

    @abstractmethod
    def kl(self, layer: Site) -> Tensor:
        """KL(q || prior): nats, summed over the layer's parameters, a scalar of at least float32."""

    def forward(self, layer: Site, x: Tensor) -> Tensor:
        """Apply the layer to x (S*B, ...), one weight draw per sample.

        Override, or override `moments`, for a cheaper or less noisy route with the same mean and variance of every output element
        (input noise, local reparameterisation); `coherent=True` bypasses both.
        """
        rows = x.shape[0] // layer.drawing.samples
        moments = None if layer.prefers_weights(x, rows) else self.moments(layer, x)
        return layer.act(x, *layer.draw()) if moments is None else local_reparameterization(*moments)

    def moments(self, layer: Site, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Mean and variance of the outputs where `forward` draws these, independently, and not weights.

        It is not asked where the layer prefers weights: convolutions do, while no gradient is wanted.
        """
        return None

    def mean(self, layer: Site) -> tuple[Tensor, Tensor | None]:
        """The posterior mean of weight and bias: what `unbayesify` leaves behind."""
        return layer.weight, layer.bias

    def remark(self) -> str:
        """What `summary` should say about this layer beside its numbers, such as what its conversion lost; usually nothing."""
        return ""

    def log_ensemble_size(self, layer: Site) -> float:
        """Natural log of how many different weights the layer can draw; infinite for continuous noise."""
        return math.inf


_WRITTEN = {"method": "of"}  # a method's own field of that name, beside the name of the method


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """What to make random and how: a frozen record of hyperparameters. Its JSON is what gets saved.

    A new method is one file in `bayesify.methods`: a subclass (a frozen, keyword-only dataclass) that builds one `Posterior` per
    layer. Naming it makes it known: tests, documentation, command line and benchmarks iterate over `Method.registry`.
    """

    registry: ClassVar[dict[str, type[Method]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Method.registry[cls.__name__] = cls

    def build(self, layer: Site) -> Posterior | None:
        """The posterior of one layer, or None to leave the layer as it is."""
        return None

    def assign(self, layers: Mapping[str, nn.Module]) -> Mapping[str, Method]:
        """Which method each layer gets where this one stands for all of them: `bayesify(net, method)`, or the pattern "*".

        Override to choose among the layers by default; one that a pattern names gets the method in any case.

        Args:
            layers: names and modules of all layers of the net that have parameters, in its order.

        Returns:
            Names and methods; a layer that is missing stays as it is.
        """
        return dict.fromkeys(layers, self)

    def root(self, net: nn.Module) -> Bayesian:
        """The root module around the converted net. Override for matters of the whole network (output noise)."""
        from bayesify.core.folded import Folded  # the default root is built on this very file

        return Folded(net)

    def whole(self, net: nn.Module, convert: Callable[[nn.Module, Method], Bayesian]) -> Bayesian | None:
        """The root module around a net that is not converted layer by layer (ensembles), or None, which all others leave it at.

        Args:
            net: the plain network.
            convert: `bayesify` with the caller's layout of inputs.
        """
        return None

    def to_dict(self) -> dict[str, Any]:
        """Name and fields, ready for JSON; `Method.from_dict` reads it back."""
        fields = {_WRITTEN.get(field.name, field.name): getattr(self, field.name) for field in dataclasses.fields(self)}
        plain = {name: value.to_dict() if isinstance(value, Method) else value for name, value in fields.items()}
        return {"method": type(self).__name__, **plain}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Method:
        """Build a method from what `to_dict` wrote.

        Raises:
            ValueError: an unknown method or field, with the known ones.
        """
        values = dict(fields)
        kind = cls.named(values.pop("method", None))
        for name, written in _WRITTEN.items():
            if written in values:
                inner = values.pop(written)
                values[name] = cls.from_dict(inner) if isinstance(inner, dict) else inner
        kind.check_fields(values)
        return kind(**values)

    @classmethod
    def named(cls, name: object) -> type[Method]:
        """The method class of that name, in any case.

        Raises:
            ValueError: no such method, with the known ones.
        """
        by_name = {known.lower(): kind for known, kind in cls.registry.items()}
        if str(name).lower() not in by_name:
            raise ValueError(f"unknown method {name!r}; known methods: {', '.join(sorted(cls.registry))}")
        return by_name[str(name).lower()]

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    @classmethod
    def check_fields(cls, names: Iterable[str]) -> None:
        """Raise a ValueError that lists the known fields unless all of these are among them."""
        known = [field.name for field in dataclasses.fields(cls)]
        if unknown := sorted(set(names) - set(known)):
            fields_text = ", ".join(known) or "none"
            raise ValueError(f"{cls.__name__} has no field {', '.join(map(repr, unknown))}; its fields are {fields_text}")
