"""The contract of a method: what to make random, and how."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

from torch import nn

from bayesify.core.layer import BayesianLayer, Posterior

__all__ = ["Method"]

_WRITTEN = {"method": "of"}  # a method's own field of that name, beside the name of the method


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """What to make random and how: a frozen record of hyperparameters. Its JSON is what gets saved.

    A new method is one file in `bayesify.methods`: a subclass (a frozen, keyword-only dataclass) that builds one `Posterior` per
    layer. Naming it makes it known: tests, documentation, command line and benchmarks iterate over `Method.registry`.

    Attributes:
        has_root: it brings a root module of its own; a net can have one such method.
        is_whole: it makes the root of plain networks, without patterns.
    """

    registry: ClassVar[dict[str, type[Method]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Method.registry[cls.__name__] = cls

    has_root: ClassVar[bool] = False
    is_whole: ClassVar[bool] = False

    @property
    def is_random(self) -> bool:
        """Whether it makes layers random at all; `bayesify` raises if it should and none has become so."""
        return True

    def build(self, layer: BayesianLayer) -> Posterior | None:
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

    def root(self, net: nn.Module) -> nn.Module:
        """The root module (a `Bayesian`) around the converted net, of a method that declares `has_root`: for output noise, say."""
        raise NotImplementedError(f"{type(self).__name__} declares has_root and has none")

    def whole(self, nets: Sequence[nn.Module], convert: Callable[[nn.Module, Method], nn.Module]) -> nn.Module:
        """The root module (a `Bayesian`) of a method that declares `is_whole`: nets are not converted layer by layer (ensembles).

        Args:
            nets: the plain networks given to `bayesify`; one, or one for each member.
            convert: `bayesify` of a single net, with the caller's layout of inputs.
        """
        raise NotImplementedError(f"{type(self).__name__} declares is_whole and has no root")

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
