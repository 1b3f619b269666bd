"""Layers of other libraries that compute what a supported layer does.

Libraries of pretrained networks and of graph networks define normalizations and linear layers as classes of their own, often one
per architecture, some with an activation after them. Such a layer is recognized by its parameters, and its function and gradients
are verified at random weights and inputs of several scales. Its own `forward` never runs again, so the attributes that it read are
compared at every call. Linear layers and convolutions that compute something else (with a standardized or masked weight), or have
settings, are recognized if their `forward` computes with any weight that it is given.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.core.inputs import NETWORK_ERRORS
from bayesify.core.layer import BayesianLayer
from bayesify.core.layers import normalization
from bayesify.core.layers.linear import InputMajorLinear, OutputMajorLinear
from bayesify.core.layers.normalization import (
    EPSILONS,
    ChannelsFirstLayerNormalization,
    LayerNormalization,
    RMSNormalization,
    epsilon,
)
from bayesify.core.layers.own_forward import CONTRACTING, kind_with_own_forward
from bayesify.core.layers.trials import LARGE, LARGEST, are_close, depends_on_mode, have_values, watched, with_parameters
from bayesify.core.turns import turn

__all__ = ["MAY_OVERRIDE", "STATISTICS", "UNCHANGEABLE", "Recognized", "is_normalization", "recognized"]

_NORMALIZATIONS = {kind.original: kind for kind in normalization.LAYERS}
MAY_OVERRIDE = frozenset((*CONTRACTING, *_NORMALIZATIONS))  # classes whose `forward` libraries write again
STATISTICS = frozenset(("running_mean", "running_var", "num_batches_tracked"))  # buffers that trials fill with values of their own

UNCHANGEABLE = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, FunctionType, BuiltinFunctionType)


class _Trial(NamedTuple):
    """Factors of the random weights and inputs, and whether gradients are compared, too."""

    weights: float
    inputs: float
    has_gradients: bool


# Bounds on large values, and thresholds for small ones, are of consequence at one of these scales.
_TRIALS = (_Trial(1.0, 1.0, False), _Trial(100.0, 1e4, True), _Trial(1e-2, 1e-2, True))


class Recognized(NamedTuple):
    """What a layer of another library is.

    Attributes:
        kind: the kind of supported layer whose function it has, or whose weight, if it has its own function.
        then: what it does with the output of that layer.
        has_own_forward: whether it has its own function.
        settings: its attributes on which this depends; if one changes, the layer may be another function.
    """

    kind: type[BayesianLayer]
    then: Callable[[Any, Tensor], Tensor] | None = None
    has_own_forward: bool = False
    settings: tuple[str, ...] = ()


@torch.inference_mode(mode=False)
def recognized(layer: nn.Module) -> Recognized | None:
    """What a layer of another library is, with the same parameters; None if it is unlike every supported layer."""
    if isinstance(layer, torch.jit.ScriptModule) or not _has_one_input(layer):
        return None
    if not all(p.is_floating_point() for p in layer.parameters()):  # bitsandbytes warns if its layers are tried
        return None
    with turn():  # the layer may draw from the generators of the process, which are set back
        if (supported := _as_supported(layer)) is not None:
            return supported
        kind = kind_with_own_forward(layer)
    return None if kind is None else Recognized(kind, has_own_forward=True)


def _as_supported(layer: nn.Module) -> Recognized | None:
    """What supported layer a layer is."""
    base = _normalization(layer)
    children = [child for name, child in layer.named_children() if name != "posterior"]
    if base is None and (children or any(True for _ in layer.buffers())):
        return None
    if base is not None and (_has_settings(layer, base) or any(True for child in children for _ in child.state_dict())):
        return None
    shapes = {name: tuple(p.shape) for name, p in layer.named_parameters() if not isinstance(p, nn.UninitializedParameter)}
    candidates, size = list(_candidates(layer, base, shapes)), sum(map(math.prod, shapes.values()))
    if not candidates or size > LARGEST:
        return None
    generator, dtype = torch.Generator().manual_seed(0), torch.float64 if size < LARGE else torch.float32
    values = {name: torch.rand(shape, generator=generator, dtype=dtype, device="cpu").sub_(0.4) for name, shape in shapes.items()}
    then = through_children if children else None
    for kind, shape, function in candidates:
        x = torch.randn(shape, generator=generator, dtype=dtype, device="cpu")
        x[1] *= 1e-3  # where the eps of a normalization is of consequence
        read = set[str]()
        if all(_agrees_in_both_modes(layer, values, x, function, trial, read) for trial in _TRIALS):
            settings = _settings(layer, kind, base, read)
            return None if settings is None else Recognized(kind, then, settings=settings)
    return None


def is_normalization(layer: nn.Module) -> bool:
    """Whether the class of a layer is that of a supported normalization, or derived from one."""
    return _normalization(layer) is not None


def _normalization(layer: nn.Module) -> type[nn.Module] | None:
    return next((cls for cls in type(layer).__mro__ if cls in _NORMALIZATIONS), None)


def through_children(layer: nn.Module, y: Tensor) -> Tensor:
    """The output of a layer's own modules for y, one after the other: an activation, dropout."""
    for name, child in layer.named_children():
        if name != "posterior":
            y = child(y)
    return y


def _candidates(
    layer: nn.Module, base: type[nn.Module] | None, shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[type[BayesianLayer], tuple[int, ...], Callable[[Any, Tensor], Tensor]]]:
    """Kinds of layers with parameters of these shapes, a shape of inputs, and the function of a plain layer of this kind."""
    weight, bias = shapes.get("weight", ()), shapes.get("bias")
    if set(shapes) - {"bias"} != {"weight"}:
        return
    if base is not None:
        last = issubclass(base, nn.LayerNorm | nn.RMSNorm)
        yield _NORMALIZATIONS[base], (2, 3, *weight) if last else (4, *weight, *[3] * _positions(base)), base.forward
    if len(weight) == 1 and bias is None and (eps := epsilon(layer)) is not None:
        yield RMSNormalization, (2, 3, *weight), lambda plain, x: F.rms_norm(x, weight, plain.weight, eps)
    if base in (None, nn.LayerNorm) and len(weight) == 1 and bias == weight and (eps := epsilon(layer)) is not None:
        yield LayerNormalization, (2, 3, *weight), lambda plain, x: F.layer_norm(x, weight, plain.weight, plain.bias, eps)
        yield (
            ChannelsFirstLayerNormalization,
            (2, *weight, 3, 3),
            lambda plain, x: F.layer_norm(x.movedim(1, -1), weight, plain.weight, plain.bias, eps).movedim(-1, 1),
        )
    if base is None and len(weight) == 2 and bias in (None, weight[:1]):
        yield OutputMajorLinear, (2, 3, weight[1]), lambda plain, x: F.linear(x, plain.weight, _bias(plain))
    if base is None and len(weight) == 2 and bias in (None, weight[1:]):
        yield InputMajorLinear, (2, 3, weight[0]), lambda plain, x: F.linear(x, plain.weight.mT, _bias(plain))


def _bias(layer: nn.Module) -> Tensor | None:
    return layer._parameters.get("bias")


def _positions(base: type[nn.Module]) -> int:
    """The number of dimensions after batch and channels of an input."""
    return next((dims for dims in (1, 3) if base.__name__.endswith(f"{dims}d")), 2)


def _has_settings(layer: nn.Module, base: type[nn.Module]) -> bool:
    """Whether a normalization has numbers or buffers of its own, which may matter where a trial does not reach (ghost batches)."""
    plain = vars(_plain(base))
    own = [value for name, value in vars(layer).items() if name not in plain]
    harmless = (bool, str, type(None), torch.dtype)
    return any(not isinstance(value, harmless) and not callable(value) for value in own) or not (
        layer._buffers.keys() <= STATISTICS
    )


def _plain(base: type[nn.Module]) -> nn.Module:
    """The smallest normalization of this class."""
    return base(1, 1) if base is nn.GroupNorm else base(1)


def _has_one_input(layer: nn.Module) -> bool:
    try:
        parameters = inspect.signature(type(layer).forward).parameters.values()
    except (TypeError, ValueError):  # geoopt's manifolds are modules whose `forward` is NotImplemented
        return False
    return len(parameters) == 2 and all(p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty for p in parameters)


def _agrees_in_both_modes(
    layer: nn.Module,
    values: Mapping[str, Tensor],
    x: Tensor,
    function: Callable[[Any, Tensor], Tensor],
    trial: _Trial,
    read: set[str],
) -> bool:
    """`_agrees` in eval mode, and in training mode unless the layer would compute the same again: where it did not ask for it."""
    seen = set[str]()
    agrees = _agrees(layer, values, x, function, trial, False, seen)
    read |= seen
    return agrees and (not depends_on_mode(layer, seen) or _agrees(layer, values, x, function, trial, True, read))


def _agrees(
    layer: nn.Module,
    values: Mapping[str, Tensor],
    x: Tensor,
    function: Callable[[Any, Tensor], Tensor],
    trial: _Trial,
    training: bool,
    read: set[str],
) -> bool:
    """Whether the layer computes this function of its input and parameters in this mode, and changes nothing else.

    Adds the names of the attributes that its `forward` reads to `read`.
    """
    x, values = x * trial.inputs, {name: value * trial.weights for name, value in values.items()}
    probe = _probe(layer, {name: value.clone() for name, value in values.items()}, training)
    plain = _probe(layer, values, training)
    leaves = [[x.clone(), *(each._parameters[name] for name in values)] for each in (probe, plain)]
    for leaf in itertools.chain(*leaves):
        leaf.requires_grad_(trial.has_gradients)
    before = dict(vars(probe))
    probe.__class__ = watched(type(layer), read)
    state = torch.get_rng_state()
    try:
        with torch.set_grad_enabled(trial.has_gradients):
            given, other = (own[0].clone() for own in leaves)  # no leaves, as inside a network
            result = type(layer).forward(probe, given)
            torch.set_rng_state(state)  # of a dropout among its modules
            expected = through_children(plain, function(plain, other))
        if not are_close(result, expected) or not torch.equal(given, x):
            return False
        pairs = list(zip(probe.buffers(recurse=False), plain.buffers(recurse=False), strict=True))
        if trial.has_gradients:
            towards = torch.randn_like(expected)
            pairs += zip(*(_gradients(y, own, towards) for y, own in zip((result, expected), leaves, strict=True)), strict=True)
    except NETWORK_ERRORS:  # it takes other inputs, or has no gradients
        return False
    finally:
        torch.set_rng_state(state)
    probe.__class__ = type(layer)
    after = vars(probe)
    remembers = after.keys() != before.keys() or any(after[name] is not value for name, value in before.items())
    return not remembers and have_values(probe._parameters, values) and all(are_close(one, other) for one, other in pairs)


def _gradients(y: Tensor, leaves: list[Tensor], towards: Tensor) -> tuple[Tensor | None, ...]:
    return torch.autograd.grad(y, leaves, towards.to(y.dtype), allow_unused=True)


def _settings(layer: nn.Module, kind: type[BayesianLayer], base: type[nn.Module] | None, read: set[str]) -> tuple[str, ...] | None:
    """Those attributes that `forward` read and that a layer of this kind does not read itself.

    None if they may change unnoticed, or if the layer can run its own `forward` instead, which is right also after a change.
    """
    known = {*vars(nn.Module() if base is None else _plain(base)), *nn.Linear.__constants__}
    known.update(layer._parameters, layer._buffers, layer._modules, EPSILONS if kind.normalizes else ())
    names = list[str]()
    for name in sorted(read - known):
        of_class = inspect.getattr_static(type(layer), name, None)
        if name.startswith("__") or (name not in vars(layer) and hasattr(of_class, "__get__")):  # a method, or a property
            continue
        value = getattr(layer, name, None)
        if any(not isinstance(part, UNCHANGEABLE) for part in (value if isinstance(value, tuple) else (value,))):
            return None
        names.append(name)
    return None if names and isinstance(layer, nn.Linear) else tuple(names)


def _probe(layer: nn.Module, values: Mapping[str, Tensor], training: bool) -> nn.Module:
    """The layer with these parameters, and statistics of its own."""
    probe = with_parameters(layer, values, training)
    like = next(iter(values.values()))
    probe.__dict__["_buffers"] = {
        name: value if value is None else like.new_ones(value.shape, dtype=like.dtype if value.is_floating_point() else value.dtype)
        for name, value in layer._buffers.items()
    }
    return probe
