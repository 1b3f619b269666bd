"""Plain layers in place of random ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn

from bayesify.core.fast_paths import restore_fast_paths
from bayesify.core.layer import BayesianLayer
from bayesify.core.modes import own_casts
from bayesify.core.packed import pack
from bayesify.errors import ConfigurationError
from bayesify.formatting import listing

__all__ = ["as_plain", "check_plain", "restore", "restore_layers", "revert"]

_ATTRIBUTES = (
    "passes",
    "weight_shape",
    "bias_shape",
    "requires_grads",
    "replaced",
    "is_read",
    "is_repeated",
    "is_used",
    "is_taken_for_output",
    "lacks_bias",
    "given",
    "settings_read",
)


def restore(net: nn.Module, values: Callable[[BayesianLayer], tuple[Tensor, Tensor | None]]) -> None:
    """Make a converted network the plain one from before `bayesify`, in place.

    Args:
        net: the network.
        values: from a random layer to its weight and bias.

    Raises:
        ConfigurationError: a posterior has no weights of a plain layer (SNGP); the network is unchanged.
    """
    restore_layers(net, values)
    pack(net)
    restore_fast_paths(net)


def restore_layers(net: nn.Module, values: Callable[[BayesianLayer], tuple[Tensor, Tensor | None]]) -> None:
    """Make random layers plain ones, as `restore`; the network keeps all its layers, also those of unpacked modules."""
    check_plain(net)
    for layer in [module for module in net.modules() if isinstance(module, BayesianLayer)]:
        with torch.no_grad():
            weight_and_bias = values(layer)
        for name, value, trained in zip(("weight", "bias"), weight_and_bias, layer.requires_grads, strict=True):
            if value is not None and value is not layer._parameters[name]:
                layer._parameters[name] = nn.Parameter(value.detach().clone(), requires_grad=trained)
        revert(layer)


def check_plain(net: nn.Module) -> None:
    """Raise a `ConfigurationError` if a posterior has no weights of a plain layer (SNGP)."""
    layers = {name: module for name, module in net.named_modules() if isinstance(module, BayesianLayer)}
    if others := [name or "the network itself" for name, layer in layers.items() if not layer.posterior.is_plain]:
        raise ConfigurationError(
            f"no plain layer computes what {listing(others, most=3)} does, a Gaussian process; keep the Bayesian network: call it, "
            "draw functions with bnn.function(seed), export it, or save its state_dict"
        )


def revert(layer: nn.Module) -> None:
    """Undo the conversion of a layer; no effect on other layers."""
    if isinstance(layer, BayesianLayer):
        layer._modules.pop("posterior", None)
        if layer.lacks_bias:
            layer._parameters.pop("bias", None)
        for name in _ATTRIBUTES:
            layer.__dict__.pop(name, None)
        cast(nn.Module, layer).__class__ = layer.original


@contextmanager
def as_plain(weights: Mapping[BayesianLayer, tuple[Tensor | None, Tensor | None]]) -> Iterator[None]:
    """Make layers plain ones with these weights, or their own for None; random again on exit.

    Parameters keep their identity, not their values.
    """
    undo: list[Callable[[], None]] = []
    with own_casts():
        try:
            for layer, values in weights.items():
                undo.append(_state_restorer(layer))
                for name, value in zip(("weight", "bias"), values, strict=True):
                    parameter = layer._parameters[name]
                    if value is None:
                        continue
                    if parameter is None:
                        layer._parameters[name] = nn.Parameter(value.clone(), requires_grad=False)
                    else:  # a network may hold the parameter itself
                        undo.append(_data_restorer(parameter))
                        parameter.data = value.clone()
                revert(layer)
            yield
        finally:
            for step in reversed(undo):
                step()


def _state_restorer(layer: BayesianLayer) -> Callable[[], None]:
    """A function that makes a layer what it is now."""
    kind, attributes = type(layer), {name: vars(layer)[name] for name in _ATTRIBUTES if name in vars(layer)}
    parameters, modules = dict(layer._parameters), dict(layer._modules)

    def restore_state() -> None:
        cast(nn.Module, layer).__class__ = kind
        vars(layer).update(attributes)
        layer._parameters.clear()
        layer._parameters.update(parameters)
        layer._modules.clear()
        layer._modules.update(modules)

    return restore_state


def _data_restorer(parameter: Tensor) -> Callable[[], None]:
    """A function that gives a parameter its present values."""
    data = parameter.data

    def restore_data() -> None:
        parameter.data = data

    return restore_data
