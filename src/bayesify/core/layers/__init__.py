"""Supported layers: one file per kind of layer, and the registry that `register_layer` extends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from bayesify.core.layer import BayesianLayer
from bayesify.core.layers import convolution, embedding, linear, normalization
from bayesify.core.layers.network_trials import NetworkTrials
from bayesify.core.layers.own_forward import OwnForward
from bayesify.core.layers.recognition import MAY_OVERRIDE, Recognized
from bayesify.errors import PassError

__all__ = [
    "NetworkTrials",
    "OfAnotherLibrary",
    "kind_of",
    "layer_type",
    "recognize",
    "register_layer",
    "type_of",
    "unrecognized",
    "unsupported",
]

_TYPES: dict[type[nn.Module], type[BayesianLayer]] = {
    layer.original: layer for module in (linear, convolution, normalization, embedding) for layer in module.LAYERS
}
# Classes of other libraries, what their layers are, and the types of these after conversion: settings of a layer may choose.
_RECOGNIZED: dict[type[nn.Module], dict[Recognized, type[BayesianLayer]]] = {}
_BEHAVIOR = ("forward", "_conv_forward")  # a subclass that overrides none of these acts like its base


def register_layer(
    cls: type[nn.Module], like: type[nn.Module], then: Callable[[Any, Tensor], Tensor] | None = None
) -> type[BayesianLayer]:
    """Register a layer type for `bayesify`.

    Subclasses of supported layers that do not override `forward` need no registration, nor do linear layers and convolutions that
    do, if their `forward` takes one input and uses `self.weight` and `self.bias`: it is called with every draw of them. Registered,
    they need not draw weights for the whole batch. To load a pickled network, register its layer types first.

    Args:
        cls: the layer type.
        like: a supported layer type that uses `weight` and `bias` as `cls` does (`nn.BatchNorm2d`), or a `BayesianLayer`.
        then: a function from the layer and the output of `like` to the output of `cls` (an activation); None if they are equal.

    Returns:
        The type of such layers after conversion.

    Raises:
        TypeError: `cls` is not a module type, `like` is not supported, or `then` is not callable.

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
    _RECOGNIZED.pop(cls, None)
    return _TYPES[cls]


def type_of(layer: nn.Module, trials: NetworkTrials) -> type[BayesianLayer] | None:
    """The type of a layer after conversion; None if it cannot be made random."""
    variants = _RECOGNIZED.get(type(layer), {})
    if len(variants) > 1 and (found := trials.recognized(layer)) is not None:
        return variants[found]
    return layer_type(type(layer))


def layer_type(kind: type[nn.Module]) -> type[BayesianLayer] | None:
    """The type of such layers after conversion; None if they cannot be made random."""
    if kind in _TYPES:
        return _TYPES[kind]
    base = _supported_base(kind)
    if base is None or unsupported(kind):
        return None
    _TYPES[kind] = _derived(kind, _TYPES[base], None)
    return _TYPES[kind]


def unsupported(kind: type[nn.Module]) -> str:
    """Why layers of this type cannot be made random; empty if they can."""
    if issubclass(kind, NonDynamicallyQuantizableLinear):
        return "its nn.MultiheadAttention cannot be made random, and reads its weight instead of calling it"
    base = _supported_base(kind)
    if base is None:
        return "this type is not supported; see register_layer"
    if _overrides(kind, base):
        return f"a subclass of {base.__name__} that overrides forward; see register_layer(..., like=..., then=...)"
    return ""


def recognize(layer: nn.Module, trials: NetworkTrials) -> None:
    """Support the class of a layer that computes what a supported one does, or whose own `forward` can run with drawn weights."""
    base = _supported_base(type(layer))
    may_be = base is None or base in _RECOGNIZED or (base in MAY_OVERRIDE and _overrides(type(layer), base))
    if type(layer) not in _TYPES and may_be and (found := trials.recognized(layer)) is not None:
        _support(type(layer), found)


class OfAnotherLibrary(BayesianLayer):
    """A layer of a recognized class.

    The class may save and load in a way of its own, which would not know of a replaced weight.
    """

    found: ClassVar[Recognized]
    settings_read: dict[str, Any]  # at the conversion

    def note_settings(self) -> None:
        """Remember the attributes on which it depends what the layer is."""
        self.settings_read = {name: getattr(self, name, None) for name in self.found.settings}

    def forward(self, input: Tensor) -> Tensor:
        for name, value in self.settings_read.items():
            if (now := getattr(self, name, None)) != value:
                raise PassError(
                    f"the {name} of a random {self.original.__name__} was {value!r} at the conversion and is {now!r}, so the layer "
                    "may compute something else than it was taken for. Set it before `bayesify`, or see register_layer"
                )
        return super().forward(input)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        self._stored_as._save_to_state_dict(self, destination, prefix, keep_vars)

    def _load_plain(self, *args: Any) -> None:
        self._stored_as._load_from_state_dict(self, *args)

    @property
    def _stored_as(self) -> type[nn.Module]:
        return vars(self.found.kind).get("original", nn.Module)


def _support(original: type[nn.Module], found: Recognized) -> type[BayesianLayer]:
    """Support a class of another library: the type of its layers after conversion."""
    variants = _RECOGNIZED.setdefault(original, {})
    if found not in variants:
        derived = _derived(original, found.kind, found.then)
        fields = {"found": found, "__module__": original.__module__}
        mixins = (OfAnotherLibrary, OwnForward) if found.has_own_forward else (OfAnotherLibrary,)
        variants[found] = type(derived.__name__, (*mixins, derived), fields)
        _TYPES.setdefault(original, variants[found])
    return variants[found]


def unrecognized(layer: nn.Module, trials: NetworkTrials) -> str:
    """Why a layer of a recognized class cannot be made random: its own settings may differ; empty if it can."""
    if type(layer) not in _RECOGNIZED:
        return ""
    if (found := trials.recognized(layer)) is None:
        return "it does not compute what other layers of its class do; see register_layer"
    _support(type(layer), found)
    return ""


def _supported_base(kind: type[nn.Module]) -> type[nn.Module] | None:
    return next((base for base in kind.__mro__ if base in _TYPES), None)


def _overrides(kind: type[nn.Module], base: type[nn.Module]) -> bool:
    return any(getattr(kind, name, None) is not getattr(base, name, None) for name in _BEHAVIOR)


def kind_of(layer: nn.Module) -> type[BayesianLayer]:
    """The type after conversion of a layer, or of its nearest supported base class; `BayesianLayer` if there is none."""
    base = _supported_base(type(layer))
    return BayesianLayer if base is None else _TYPES[base]


def _derived(kind: type[nn.Module], base: type[BayesianLayer], then: Callable[[Any, Tensor], Tensor] | None) -> type[BayesianLayer]:
    """Derive `base` for layers of type `kind`."""
    bases = (base,) if issubclass(base, kind) else (base, kind)
    fields = {
        "original": kind,
        "then": base.then if then is None else then,
        "__reduce_ex__": _reduce,
        "__module__": kind.__module__,
    }
    return type(f"Bayes{kind.__name__}", bases, fields)


def _reduce(layer: BayesianLayer, protocol: Any) -> tuple[Any, ...]:
    """Pickle by the original type, because the derived type cannot be imported."""
    _, _, state, *rest = object.__reduce_ex__(layer, max(2, protocol))
    return (_new, (layer.original, getattr(layer, "found", None)), state, *rest)


def _new(original: type[nn.Module], found: Recognized | None = None) -> nn.Module:
    derived = layer_type(original) if found is None else _support(original, found)
    if derived is None:
        raise TypeError(f"{original.__name__} is not registered here; call register_layer as before the network was pickled")
    return derived.__new__(derived)
