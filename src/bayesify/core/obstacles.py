"""Why a layer cannot be made random, and what of a network stays deterministic for such reasons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from bayesify.core.layer import BayesianLayer
from bayesify.core.layers import NetworkTrials, kind_of, unrecognized, unsupported
from bayesify.core.layers.own_forward import OwnForward
from bayesify.core.model import Bayesian
from bayesify.core.values import are_finite, may_look_at
from bayesify.errors import ConfigurationError
from bayesify.formatting import listing, plural

__all__ = [
    "obstacle",
    "tell_of_hindered_layers",
    "tell_of_replaced_layers",
    "tell_of_unregistered_layers",
    "tied_parameters",
    "trainable_sizes",
    "unmet_need",
]

_CONSIDERABLE = 0.1  # of the trainable parameters


def obstacle(layer: nn.Module, tied: Mapping[int, list[str]], may_be_frozen: bool, trials: NetworkTrials) -> str:
    """Why a layer cannot be made random; empty if it can."""
    own = dict(layer.named_parameters(recurse=False))
    if kind_of(layer) is BayesianLayer and "weight" not in own:
        return f"this type is not supported; its own parameters ({listing(own, most=3)}) stay as they are"
    weight = own.get("weight")
    if weight is not None and not weight.is_floating_point():
        return "its weight is not of a real floating point type"
    if reason := unsupported(type(layer)) or unrecognized(layer, trials):
        return reason
    if weight is None:
        return _reason_of_computed_weight(layer)
    if is_parametrized(layer):
        return "its bias is parametrized"
    if "forward" in vars(layer):
        by = ", a hook of accelerate: convert the network first, then dispatch it" if hasattr(layer, "_hf_hook") else ""
        return f"its forward was replaced by another function{by}"
    if hasattr(weight, "full_tensor"):
        return "its weight is sharded (DTensor): convert the network first, then shard it"
    if is_traceable_wrapper_subclass(weight):
        return f"its weight is quantized or otherwise not an ordinary tensor ({type(weight).__name__})"
    _check_weights(layer)
    if not may_be_frozen and not any(own[name].requires_grad for name in ("weight", "bias") if name in own):
        return "it is frozen; a pattern that names it makes it random"
    for name, parameter in layer.named_parameters(recurse=False):
        if id(parameter) in tied:
            return f"its {name} is tied: {' and '.join(map(repr, tied[id(parameter)]))} share one parameter"
    return _obstacle_of_embedding(layer) if isinstance(layer, nn.Embedding) else ""


def unmet_need(layer: BayesianLayer, is_called: bool) -> str:
    """What the posterior of a layer needs and does not have; empty if there is nothing."""
    posterior = layer.posterior
    if posterior.needs_calls and not is_called:
        return "the inputs of layers, and a recurrent network computes with weights alone"
    if isinstance(layer, OwnForward) and (posterior.needs_linearity or posterior.needs_calls or not posterior.is_plain):
        return f"layers that are linear in their weight, and {layer.original.__name__} has its own forward; see register_layer"
    return ""


def _obstacle_of_embedding(layer: nn.Embedding) -> str:
    """Why an embedding cannot be made random; empty if it can."""
    if layer.max_norm is not None or layer.sparse or layer.scale_grad_by_freq:
        return "max_norm, sparse and scale_grad_by_freq are not supported for a random embedding"
    padded = layer.padding_idx is not None and not layer.weight.is_meta
    if padded and bool((layer.weight[layer.padding_idx] != 0).any()):
        return "its padding vector is not zero"
    return ""


def _reason_of_computed_weight(layer: nn.Module) -> str:
    """What computes the weight of a layer; if that only rescales it, how to get an ordinary weight."""
    hooks = layer._forward_pre_hooks.values()
    parts: list[str] = []
    if is_parametrized(layer, "weight"):
        parts = [type(part).__name__.lstrip("_") for part in cast(Any, layer.parametrizations)["weight"]]
    if parts == ["WeightNorm"]:
        way = "torch.nn.utils.parametrize.remove_parametrizations(layer, 'weight')"
    elif any(isinstance(hook, WeightNorm) for hook in hooks):
        way = "torch.nn.utils.remove_weight_norm(layer)"
    elif parts:
        return f"its weight is computed, by the parametrization {listing(parts, most=3)}"
    elif any(isinstance(hook, prune.BasePruningMethod) for hook in hooks):
        return "its weight is computed, by pruning"
    elif any(isinstance(hook, SpectralNorm) for hook in hooks):
        return "its weight is computed, by spectral_norm"
    else:
        return "its weight is computed, by a hook or a property"
    return f"its weight is computed, by weight_norm; first call {way}, which keeps its function"


def _check_weights(layer: nn.Module) -> None:
    """Raise a `ConfigurationError` if weights are NaN or infinite, as a posterior around them would be, or not differentiable."""
    for name, parameter in layer.named_parameters(recurse=False):
        if parameter.is_inference():
            raise ConfigurationError(
                f"{name} of a {type(layer).__name__} {tuple(parameter.shape)} was made in torch.inference_mode(), so that PyTorch "
                "cannot differentiate it; make the network outside, or use torch.no_grad()"
            )
        if may_look_at(parameter) and not are_finite(parameter):
            count = int((~parameter.isfinite()).sum())
            raise ConfigurationError(
                f"{name} of a {type(layer).__name__} {tuple(parameter.shape)} has {count} NaN or infinite values; load or train "
                "the network again"
            )


def tied_parameters(layers: Mapping[str, nn.Module]) -> dict[int, list[str]]:
    """Parameters owned by more than one layer: id to layer names."""
    owners: dict[int, list[str]] = {}
    for name, layer in layers.items():
        for parameter in layer.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(name)
    return {key: names for key, names in owners.items() if len(names) > 1}


def trainable_sizes(layers: Mapping[str, nn.Module]) -> dict[str, dict[int, int]]:
    """The size of every trainable parameter by its id, for every layer."""
    sizes: dict[str, dict[int, int]] = {}
    for name, layer in layers.items():
        own = [p for p in layer.parameters(recurse=False) if p.requires_grad and not isinstance(p, nn.UninitializedParameter)]
        sizes[name] = {id(p): p.numel() for p in own}
    return sizes


def tell_of_hindered_layers(root: Bayesian, sizes: Mapping[str, Mapping[int, int]], hindered: Mapping[str, str]) -> None:
    """Warn if a considerable part of the network stays deterministic although no one chose so.

    Args:
        root: of the converted network.
        sizes: `trainable_sizes` of the plain network.
        hindered: name and type of the layers that a method should make random, and cannot.
    """
    everything = {key: size for own in sizes.values() for key, size in own.items()}
    certain = {key: size for name in hindered for key, size in sizes[name].items()}
    share = sum(certain.values()) / max(1, sum(everything.values()))
    if share > _CONSIDERABLE:
        largest = sorted((name for name in hindered if sizes[name]), key=lambda name: -sum(sizes[name].values()))
        names = listing((f"{name!r} ({hindered[name]})" for name in largest), most=3)
        root.tell(
            f"{share:.0%} of the parameters stay deterministic, as these layers cannot be made random: {names}; `summary` has the "
            "reasons. To accept it, name the layers that should be random: bayesify(net, {pattern: method})"
        )


def tell_of_unregistered_layers(root: Bayesian) -> None:
    """Warn of trainable layers in lists, tuples and dicts, in which PyTorch does not look for them."""
    registered = set(root.net.modules())
    for name, module in root.net.named_modules():
        for attribute, value in vars(module).items():
            parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
            layers = [part for part in parts if isinstance(part, nn.Module) and part not in registered]
            if any(parameter.requires_grad for layer in layers for parameter in layer.parameters()):
                count, place = plural(len(layers), "layer"), f"{name}.{attribute}".lstrip(".")
                root.tell(
                    f"PyTorch does not find {count} in {place!r}, which is a {type(value).__name__}: not trained, not saved and "
                    "not random. Use nn.ModuleList or nn.ModuleDict, or freeze what is meant to stay outside"
                )


def tell_of_replaced_layers(root: Bayesian) -> None:
    """Warn if layers that the conversion made random are plain ones now, or no longer there."""
    missing = sum(report.method is not None for report in root.report) - sum(1 for _ in root.random_layers())
    if missing > 0:
        modules = dict(root.net.named_modules())
        places = [modules[report.name] for report in root.report if report.method is not None and report.name in modules]
        kinds = {type(layer).__name__ for layer in places if not any(isinstance(part, BayesianLayer) for part in layer.modules())}
        way = f"replaced by {listing(sorted(kinds), most=3)}" if kinds else "removed"
        root.tell(
            f"{plural(missing, 'random layer')} became deterministic after the conversion ({way}); first change the network, as by "
            "synchronized batch normalization or by merging adapters, then convert it with bayesify"
        )
