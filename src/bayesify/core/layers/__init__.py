"""Which layers can be made random, and how: one file per kind of layer, and the table that `register_layer` adds to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from bayesify.core.layer import BayesianLayer
from bayesify.core.layers.convolution import (
    BayesConv1d,
    BayesConv2d,
    BayesConv3d,
    BayesConvTranspose1d,
    BayesConvTranspose2d,
    BayesConvTranspose3d,
)
from bayesify.core.layers.embedding import BayesEmbedding
from bayesify.core.layers.linear import BayesLinear
from bayesify.core.layers.normalization import (
    BayesBatchNorm1d,
    BayesBatchNorm2d,
    BayesBatchNorm3d,
    BayesGroupNorm,
    BayesLayerNorm,
)

__all__ = ["kind_of", "layer_type", "register_layer", "unsupported"]

_TYPES: dict[type[nn.Module], type[BayesianLayer]] = {
    bayesian.original: bayesian
    for bayesian in (
        BayesLinear,
        BayesConv1d,
        BayesConv2d,
        BayesConv3d,
        BayesConvTranspose1d,
        BayesConvTranspose2d,
        BayesConvTranspose3d,
        BayesBatchNorm1d,
        BayesBatchNorm2d,
        BayesBatchNorm3d,
        BayesGroupNorm,
        BayesLayerNorm,
        BayesEmbedding,
    )
}
_BEHAVIOR = ("forward", "_conv_forward")  # what a subclass must leave alone to count as its base


def register_layer(
    cls: type[nn.Module], like: type[nn.Module], then: Callable[[Any, Tensor], Tensor] | None = None
) -> type[BayesianLayer]:
    """Teach `bayesify` a layer type of your own.

    Subclasses of supported layers that do not override `forward` need no registration. Pickled networks need the same registration
    before they are loaded.

    Args:
        cls: the layer type.
        like: the supported layer that acts on its input with `weight` and `bias` as `cls` does (`nn.BatchNorm2d`), or a
            `BayesianLayer` that says how.
        then: from the layer and what `like` returns to what `cls` returns (an activation of its own); None where they are equal.

    Returns:
        The type that layers of this kind get when they become random.

    Raises:
        TypeError: `cls` is no module type, `like` is not supported, or `then` is no function.

    Example:
        >>> class LinearGELU(nn.Linear):
        ...     def forward(self, x):
        ...         return nn.functional.gelu(super().forward(x))
        >>> _ = register_layer(LinearGELU, like=nn.Linear, then=lambda layer, y: nn.functional.gelu(y))
        >>> bayesify(LinearGELU(3, 2), MeanField())(torch.zeros(4, 3), samples=2).outputs.shape
        torch.Size([2, 4, 2])
    """
    if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
        raise TypeError(f"cls must be a subclass of torch.nn.Module, got {cls!r}")
    if then is not None and not callable(then):
        raise TypeError(f"then must be a function of the layer and its output, got {then!r}")
    if isinstance(like, type) and issubclass(like, BayesianLayer):
        base = like
    elif like in _TYPES:
        base = _TYPES[like]
    else:
        raise TypeError(f"like must be a BayesianLayer or one of {', '.join(kind.__name__ for kind in _TYPES)}, got {like!r}")
    _TYPES[cls] = _derived(cls, base, then)
    return _TYPES[cls]


def layer_type(kind: type[nn.Module]) -> type[BayesianLayer] | None:
    """What a layer of this type becomes, or None if it cannot be made random."""
    if kind in _TYPES:
        return _TYPES[kind]
    base = next((known for known in kind.__mro__ if known in _TYPES), None)
    if base is None or unsupported(kind) or any(getattr(kind, name, None) is not getattr(base, name, None) for name in _BEHAVIOR):
        return None
    _TYPES[kind] = _derived(kind, _TYPES[base], None)
    return _TYPES[kind]


def unsupported(kind: type[nn.Module]) -> str:
    """Why a layer of this type cannot be made random, or nothing."""
    if issubclass(kind, NonDynamicallyQuantizableLinear):
        return "nn.MultiheadAttention multiplies with its weight itself"
    base = next((known for known in kind.__mro__ if known in _TYPES), None)
    if base is None:
        return "this type is not supported; register_layer teaches new ones"
    if base is not kind and any(getattr(kind, name, None) is not getattr(base, name, None) for name in _BEHAVIOR):
        return f"a subclass of {base.__name__} with a forward of its own; register_layer(..., like=..., then=...) teaches it"
    return ""


def kind_of(layer: nn.Module) -> type[BayesianLayer]:
    """What a layer, or the layer it is a subclass of, would be made; `BayesianLayer` itself for types that are not supported."""
    return next((_TYPES[known] for known in type(layer).__mro__ if known in _TYPES), BayesianLayer)


def _derived(kind: type[nn.Module], base: type[BayesianLayer], then: Callable[[Any, Tensor], Tensor] | None) -> type[BayesianLayer]:
    """`base` for layers of type `kind`."""
    bases = (base,) if issubclass(base, kind) else (base, kind)
    fields = {
        "original": kind,
        "then": base.then if then is None else then,
        "__reduce_ex__": _reduce,
        "__module__": kind.__module__,
    }
    return type(f"Bayes{kind.__name__}", bases, fields)


def _reduce(layer: BayesianLayer, protocol: Any) -> tuple[Any, ...]:
    """Pickle by the original type: the derived one has no name that could be imported."""
    _, _, state, *rest = object.__reduce_ex__(layer, max(2, protocol))
    return (_new, (layer.original,), state, *rest)


def _new(original: type[nn.Module]) -> nn.Module:
    derived = layer_type(original)
    if derived is None:
        raise TypeError(f"{original.__name__} is not registered here; call register_layer as before the network was pickled")
    return derived.__new__(derived)
