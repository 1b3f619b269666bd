"""Layers of other libraries that compute what a supported layer does.

Libraries of pretrained networks and of graph networks define normalizations and linear layers as classes of their own, often one
per architecture, some with an activation after them. Such a layer is recognized by its parameters, and its function is verified
at random weights and inputs. Linear layers and convolutions that compute something else (with a standardized or masked weight) are
recognized if their `forward` computes with any weight that it is given.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.core.inputs import NETWORK_ERRORS
from bayesify.core.layer import BayesianLayer
from bayesify.core.layers import normalization
from bayesify.core.layers.linear import InputMajorLinear, OutputMajorLinear
from bayesify.core.layers.normalization import ChannelsFirstLayerNormalization, LayerNormalization, RMSNormalization, epsilon
from bayesify.core.layers.own_forward import CONTRACTING, kind_with_own_forward
from bayesify.core.layers.trials import LARGE, LARGEST, are_close, have_values, with_parameters

__all__ = ["MAY_OVERRIDE", "Recognized", "recognized"]

_NORMALIZATIONS = {kind.original: kind for kind in normalization.LAYERS}
MAY_OVERRIDE = frozenset((*CONTRACTING, *_NORMALIZATIONS))  # classes whose `forward` libraries write again


class Recognized(NamedTuple):
    """The kind of supported layer whose function a layer has, and what it does with the output of it; or its own function."""

    kind: type[BayesianLayer]
    then: Callable[[Any, Tensor], Tensor] | None = None
    has_own_forward: bool = False


def recognized(layer: nn.Module) -> Recognized | None:
    """What a layer of another library is, with the same parameters; None if it is unlike every supported layer."""
    if isinstance(layer, torch.jit.ScriptModule) or not _has_one_input(layer):
        return None
    if not all(p.is_floating_point() for p in layer.parameters()):  # bitsandbytes warns if its layers are tried
        return None
    if (supported := _as_supported(layer)) is not None:
        return supported
    kind = kind_with_own_forward(layer)
    return None if kind is None else Recognized(kind, has_own_forward=True)


def _as_supported(layer: nn.Module) -> Recognized | None:
    """What supported layer a layer is."""
    base = next((cls for cls in type(layer).__mro__ if cls in _NORMALIZATIONS), None)
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
        if all(_agrees(layer, values, x, function, training) for training in (False, True)):
            return Recognized(kind, then)
    return None


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
    plain = base(1, 1) if base is nn.GroupNorm else base(1)
    own = [value for name, value in vars(layer).items() if name not in vars(plain)]
    harmless = (bool, str, type(None), torch.dtype)
    return any(not isinstance(value, harmless) and not callable(value) for value in own) or not (
        layer._buffers.keys() <= {"running_mean", "running_var", "num_batches_tracked"}
    )


def _has_one_input(layer: nn.Module) -> bool:
    try:
        parameters = inspect.signature(type(layer).forward).parameters.values()
    except (TypeError, ValueError):  # geoopt's manifolds are modules whose `forward` is NotImplemented
        return False
    return len(parameters) == 2 and all(p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty for p in parameters)


@torch.no_grad()
def _agrees(
    layer: nn.Module, values: Mapping[str, Tensor], x: Tensor, function: Callable[[Any, Tensor], Tensor], training: bool
) -> bool:
    """Whether the layer computes this function of its input and parameters in this mode."""
    probe = _probe(layer, {name: value.clone() for name, value in values.items()}, training)
    plain = _probe(layer, values, training)
    state = torch.get_rng_state()
    try:
        result = type(layer).forward(probe, x.clone())
        torch.set_rng_state(state)  # of a dropout among its modules
        expected = through_children(plain, function(plain, x))
    except NETWORK_ERRORS:  # it takes other inputs
        return False
    finally:
        torch.set_rng_state(state)
    pairs = [(result, expected), *zip(probe.buffers(recurse=False), plain.buffers(recurse=False), strict=True)]
    return have_values(probe._parameters, values) and all(are_close(one, other) for one, other in pairs)


def _probe(layer: nn.Module, values: Mapping[str, Tensor], training: bool) -> nn.Module:
    """The layer with these parameters, and statistics of its own."""
    probe = with_parameters(layer, values, training)
    like = next(iter(values.values()))
    probe.__dict__["_buffers"] = {
        name: value if value is None else like.new_ones(value.shape, dtype=like.dtype if value.is_floating_point() else value.dtype)
        for name, value in layer._buffers.items()
    }
    return probe
