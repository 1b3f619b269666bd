"""`Unpacked`, a module whose packed weights have become layers of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayesify.core.computed_weights import shown
from bayesify.core.layer import BayesianLayer
from bayesify.errors import ConfigurationError
from bayesify.formatting import listing

__all__ = ["Place", "Unpacked", "is_inner"]

Place = tuple[str, str]  # a part, and "weight" or "bias"


class Unpacked(nn.Module):
    """Mixin of a module that keeps the weights of linear layers in parameters of its own, after they became parts: `nn.Linear`s.

    The parts can be made random as any other layer. The module computes what the packed one does, with the weights of its parts.
    Reading a packed parameter joins the weights of the parts, and a checkpoint of the packed module still loads.

    Attributes:
        packed: the class of the packed module.
        calls_parts: whether `forward` calls the parts; otherwise it computes with their weights (`ForwardPass.apply`).
        places: for every packed parameter, the parts whose weights or biases it joins along the first dimension, in order.
        order: the names of all parameters of the packed module, in order.
    """

    packed: ClassVar[type[nn.Module]]
    calls_parts: ClassVar[bool] = True

    places: dict[str, list[Place]]
    order: list[str]

    def layout(self) -> dict[str, list[Place]]:
        """`places`, from the settings of the packed module."""
        raise NotImplementedError

    def initial_bound(self, part: str) -> float:
        """The bound of the uniform distribution from which the packed module draws the initial weights of a part."""
        raise NotImplementedError

    @property
    def parts(self) -> dict[str, nn.Linear]:
        """The linear layers, by name."""
        names = dict.fromkeys(part for places in self.places.values() for part, _ in places)
        return {name: self._modules[name] for name in names}  # pyright: ignore[reportReturnType]

    def unpack(self) -> None:
        """Move the parameters of the packed module into parts; the class has been exchanged already."""
        order = list(self._parameters)
        self.places = {name: places for name, places in self.layout().items() if self._parameters[name] is not None}
        self.order = order
        values = dict[str, dict[str, nn.Parameter]]()
        for name, places in self.places.items():
            packed = self._parameters.pop(name)
            assert packed is not None
            pieces = [packed]
            if len(places) > 1:
                pieces = [nn.Parameter(piece.detach().clone(), packed.requires_grad) for piece in packed.chunk(len(places))]
            for (part, kind), piece in zip(places, pieces, strict=True):
                values.setdefault(part, {})[kind] = piece
        for part, own in values.items():
            outputs, inputs = own["weight"].shape
            linear = nn.Linear(inputs, outputs, bias="bias" in own, device="meta").train(self.training)
            linear._parameters.update(own)
            vars(linear)["is_inner"] = True
            self._modules[part] = linear

    def pack(self, parameters: dict[str, nn.Parameter | None] | None = None) -> None:
        """Make it the packed module again.

        Args:
            parameters: of the packed module; by default the parts' weights, which are plain layers.
        """
        if parameters is None:
            joined = {name: self._joined_parameter(places) for name, places in self.places.items()}
            parameters = {name: joined.get(name, self._parameters.get(name)) for name in self.order}
        for part in self.parts:
            del self._modules[part]
        self._parameters.clear()
        self._parameters.update(parameters)
        del self.places, self.order
        self.__class__ = self.packed  # pyright: ignore[reportAttributeAccessIssue]

    def _joined_parameter(self, places: Sequence[Place]) -> nn.Parameter:
        values: list[Any] = [self._modules[part]._parameters[kind] for part, kind in places]  # pyright: ignore[reportOptionalMemberAccess]
        if len(values) == 1:
            return values[0]
        return nn.Parameter(torch.cat([value.detach() for value in values]), any(value.requires_grad for value in values))

    def __getattr__(self, name: str) -> Any:
        places = vars(self).get("places", {}).get(name)
        return super().__getattr__(name) if places is None else self._read(name, places)

    def __setattr__(self, name: str, value: Any) -> None:
        places = vars(self).get("places", {}).get(name)
        if places is not None:
            parts = listing(f"{part}.{kind}" for part, kind in places)
            raise ConfigurationError(
                f"{name} cannot be replaced, because it became {parts}; set it before `bayesify`, or change these"
            )
        super().__setattr__(name, value)

    def _read(self, name: str, places: Sequence[Place]) -> Tensor:
        """A packed parameter: the mean or the draw of its parts, as for `BayesianLayer.weight`."""
        parts = [self._modules[part] for part, _ in places]
        values = [getattr(part, kind) for part, (_, kind) in zip(parts, places, strict=True)]
        if len(values) == 1:
            return values[0]
        random = [part for part in parts if isinstance(part, BayesianLayer)]
        running = random[0].passes.running if random else None
        return shown(self, name, torch.cat(values)) if running is None else running.joined(random, values)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """Load a checkpoint, also of the packed module."""
        for name, places in self.places.items():
            value = state_dict.get(prefix + name)
            if isinstance(value, Tensor) and value.dim() and len(value) % len(places) == 0:
                for (part, kind), piece in zip(places, state_dict.pop(prefix + name).chunk(len(places)), strict=True):
                    state_dict[f"{prefix}{part}.{kind}"] = piece
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def is_inner(layer: nn.Module) -> bool:
    """Whether a layer is a part of an unpacked module, whose outputs are never those of the network."""
    return vars(layer).get("is_inner", False)
