"""The arguments of `bayesify`, checked."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from bayesify.core.checks import check_integer
from bayesify.core.inputs import input_parameters
from bayesify.core.layer import BayesianLayer
from bayesify.core.method import Method
from bayesify.core.model import Bayesian
from bayesify.core.outputs import OutputSelection
from bayesify.errors import ConfigurationError

__all__ = ["check_layout", "networks", "output_selection", "patterns"]

_WRAPPERS = {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "DeepSpeedEngine"}
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def networks(net: nn.Module | Sequence[nn.Module]) -> list[nn.Module]:
    """The networks to convert: one, or one per ensemble member."""
    nets: list[Any] = list(net) if isinstance(net, list | tuple) else [net]
    if not nets or not all(isinstance(each, nn.Module) for each in nets):
        kinds = ", ".join(type(each).__name__ for each in nets) or "an empty list"
        raise TypeError(f"net must be a torch.nn.Module, or a list of them for an ensemble, got {kinds}")
    if any(isinstance(module, Bayesian | BayesianLayer) for each in nets for module in each.modules()):
        raise ConfigurationError("the network is Bayesian already; restore the original with unbayesify(bnn) first")
    for module in (module for each in nets for module in each.modules()):
        if any(kind.__name__ in _WRAPPERS for kind in type(module).__mro__):
            raise ConfigurationError(
                f"the network is in a {type(module).__name__}, which would not synchronize the parameters that bayesify adds; "
                "convert the network first, and wrap the result: DistributedDataParallel(bayesify(net, method))"
            )
    if any(isinstance(each, torch.jit.ScriptModule) for each in nets):
        raise ConfigurationError("a scripted network has no layers that can be made random; convert the network it was made from")
    for each in nets:
        _check_memory(each)
    return nets


def _check_memory(net: nn.Module) -> None:
    """Raise a `ConfigurationError` if accelerate keeps what is to be trained elsewhere, and brings it for a call alone."""
    offloaded = next((name for name, p in net.named_parameters() if p.is_meta and p.requires_grad), None)
    if offloaded is not None and any(hasattr(module, "_hf_hook") for module in net.modules()):
        raise ConfigurationError(
            f"accelerate offloads trainable parameters, such as {offloaded!r}, whose values the network does not have; load it "
            "without offloading to the CPU or to disk, as with a smaller or quantized base model"
        )


def patterns(method: Method | Mapping[str, Method]) -> dict[str, Method]:
    """Methods by name pattern; "*" for a single method."""
    if isinstance(method, Method):
        return {"*": method}
    if not isinstance(method, Mapping):
        raise TypeError(f"method must be a Method such as MeanField(), or a mapping of name patterns to Methods, got {method!r}")
    for pattern, value in method.items():
        if not isinstance(pattern, str):
            raise TypeError(f'a pattern must be a string such as "features.*", got {pattern!r}')
        if not isinstance(value, Method):
            raise TypeError(f"the method for {pattern!r} must be a Method such as MeanField(), got {value!r}")
    return dict(method)


def output_selection(output: object) -> OutputSelection | None:
    """The function that selects a part of the network's output; None for all of it."""
    if output is None:
        return None
    if isinstance(output, bool) or not (isinstance(output, str | int) or callable(output)):
        raise TypeError(f'output must be a key such as "logits", a position, a function or None, got {output!r}')
    return OutputSelection(output)


def check_layout(net: nn.Module, batch_dim: int, fold: bool | None, unbatched: Collection[str]) -> None:
    """Check the layout of a network's inputs."""
    check_integer("batch_dim", batch_dim, least=0)
    if fold and batch_dim != 0:
        raise ConfigurationError(f"fold=True needs the batch in dimension 0, got batch_dim={batch_dim}; leave fold out")
    if isinstance(unbatched, str):
        raise TypeError(f"unbatched must be a collection of input names, such as [{unbatched!r}], got {unbatched!r}")
    inputs = input_parameters(net)
    if reserved := [name for name in ("samples", "coherent") if name in inputs]:
        raise ConfigurationError(
            f"the network's forward has an input named {reserved[0]!r}, which is an argument of every Bayesian network; wrap the "
            "network in a module whose input has another name"
        )
    if any(parameter.kind in _VARIADIC for parameter in inputs.values()):
        return  # any name may be an input
    if unknown := [name for name in unbatched if name not in inputs]:
        raise ConfigurationError(
            f"unbatched names {', '.join(map(repr, unknown))}, but the network's inputs are {', '.join(map(repr, inputs))}"
        )
