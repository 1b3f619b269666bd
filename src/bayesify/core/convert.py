"""`bayesify` makes a network random in place, `unbayesify` gives it back; both report every layer they visit."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from bayesify.core.checks import check_integer
from bayesify.core.fast_paths import disable_fast_paths, restore_fast_paths
from bayesify.core.folded import Folded
from bayesify.core.forward_pass import Passes
from bayesify.core.initialization import looks_initialized
from bayesify.core.layer import BayesianLayer
from bayesify.core.layers import layer_type, unsupported
from bayesify.core.method import Method
from bayesify.core.model import Bayesian, LayerReport
from bayesify.core.modes import modes_kept
from bayesify.errors import NothingRandomError, warn

__all__ = ["bayesify", "unbayesify"]


def bayesify(
    net: nn.Module | Sequence[nn.Module],
    method: Method | Mapping[str, Method],
    *,
    batch_dim: int = 0,
    fold: bool | None = None,
    shared: Collection[str] = (),
) -> Bayesian:
    """Make a network Bayesian, in place: its layers become random, its weights become (where the method has them) posterior means.

    Layers of supported types are converted, and subclasses that do not override `forward`; `register_layer` teaches others. Frozen
    layers stay as they are unless a pattern names them. `summary` lists all that stayed, with the reason. Layer and parameter names
    stay too, so a checkpoint of the plain network still loads into `result.net`.

    Args:
        net: any network; several of one architecture for an ensemble: `bayesify([make() for _ in range(5)], DeepEnsemble())`.
        method: one method for every layer it supports (of those it chooses: `Method.assign`), or a mapping from name patterns
            (`fnmatch`: "features.*") to methods; the first match wins, layers without a match stay as they are. Only with
            the pattern "*" does a method choose.
        batch_dim: the batch dimension of the net's inputs and outputs. Other than 0, every draw takes a pass of its own and
            `Draws.outputs` has the batch moved to the front: (S, B, ...).
        fold: run S draws as one pass over S*B rows. By default the first pass finds out on a few rows whether that is right, and
            every draw takes a pass of its own where it is not; True overrules that, False never folds.
        shared: names of inputs without a batch dimension, such as an attention mask. Tensors whose first dimension is not the
            batch size are taken to be shared in any case.

    Returns:
        The root module: call it for `Draws`; train it with `elbo`, use it with `predict`.

    Raises:
        NothingRandomError: nothing was made random (a ValueError).
        ValueError: a pattern matches no layer, a lazy layer has no weight yet, `shared` names no input, the net's own `forward` has
            an input called `samples` or `coherent`, or the net is Bayesian already.
        TypeError: wrong kinds of arguments.

        The net is left untouched by all of them.

    Example:
        >>> net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
        >>> bnn = bayesify(net, MeanField())
        >>> bnn(torch.zeros(5, 3), samples=2).outputs.shape
        torch.Size([2, 5, 1])
    """
    nets = _nets(net)
    patterns = _patterns(method)
    for each in nets:
        _check_layout(each, batch_dim, fold, shared)
    whole = isinstance(method, Method) and method.is_whole
    if len(nets) > 1 and not whole:
        raise TypeError(f"several networks make an ensemble: use DeepEnsemble(...), got method={method!r}")
    if whole:
        assert isinstance(method, Method)
        root = cast(Bayesian, method.whole(nets, partial(bayesify, batch_dim=batch_dim, fold=fold, shared=shared)))
        for each in (root, *root.members):
            each.batch_dim, each.shared = batch_dim, tuple(shared)
            each.training = nets[0].training
        return root
    return _converted(nets[0], patterns, batch_dim, fold, tuple(shared))


def _converted(
    net: nn.Module, patterns: Mapping[str, Method], batch_dim: int, fold: bool | None, shared: tuple[str, ...]
) -> Bayesian:
    layers = {name: module for name, module in net.named_modules() if any(True for _ in module.parameters(recurse=False))}
    if unmatched := [p for p in patterns if p != "*" and not any(fnmatchcase(name, p) for name in layers)]:
        raise ValueError(f"no layer matches {', '.join(map(repr, unmatched))}; the layers are {_listing(map(repr, layers))}")
    passes = Passes()
    assigned = patterns["*"].assign(layers) if "*" in patterns else {}
    before = [(layer, dict(layer._parameters)) for layer in layers.values()]
    try:
        reports = _convert_layers(layers, patterns, assigned, passes)
        root = _root(net, [report.method for report in reports])
    except BaseException:
        for layer, parameters in before:
            _revert(layer)
            layer._parameters.clear()
            layer._parameters.update(parameters)  # a posterior may have taken the place of some
        raise
    _warn_of_lost_weights(net, dict(before))
    disable_fast_paths(net)
    root.passes, root.report = passes, tuple(reports)
    root.batch_dim, root.fold, root.shared = batch_dim, False if batch_dim else fold, shared
    with modes_kept(net.modules()):  # parts of a net may be kept in eval mode, such as frozen batch normalisation
        root.train(net.training)
    return root


def _convert_layers(
    layers: Mapping[str, nn.Module], patterns: Mapping[str, Method], assigned: Mapping[str, Method], passes: Passes
) -> list[LayerReport]:
    """Convert what patterns and methods say.

    Raises:
        NothingRandomError: nothing has become random.
    """
    tied = _tied_parameters(layers)
    reports = list[LayerReport]()
    for name, layer in layers.items():
        kind = type(layer).__name__
        pattern = next((p for p in patterns if fnmatchcase(name, p)), None)
        chosen = None if pattern is None else assigned.get(name) if pattern == "*" else patterns[pattern]
        if chosen is not None and any(isinstance(p, nn.UninitializedParameter) for p in layer.parameters(recurse=False)):
            raise ValueError(f"{name!r} ({kind}) has no weight yet: run one batch through the net first")
        if pattern is None:
            reason = "its name matches no pattern"
        elif chosen is None:
            reason = f"{type(patterns[pattern]).__name__} leaves it as it is"
        else:
            reason = _obstacle(layer, tied, named=pattern != "*")
        if chosen is not None and not reason and not _convert(layer, chosen, passes):
            reason = f"{type(chosen).__name__} leaves {kind} as it is"
        reports.append(LayerReport(name, kind, None if reason else chosen, reason))
    _check_random(layers, reports, patterns)
    return reports


def _check_random(layers: Mapping[str, nn.Module], reports: Sequence[LayerReport], patterns: Mapping[str, Method]) -> None:
    random = [layer for layer in layers.values() if isinstance(layer, BayesianLayer) and layer.posterior.is_random]
    if all(report.method is None for report in reports) or (not random and any(m.is_random for m in patterns.values())):
        left = _listing(
            (f"{r.name or 'the net itself'} ({r.layer}): {r.reason or 'a point estimate'}" for r in reports), separator="; "
        )
        raise NothingRandomError(f"no layer of the net could be made random: {left or 'it has no parameters'}")


def unbayesify(bnn: Bayesian) -> nn.Module:
    """Give back the ordinary network, in place, with the posterior means as its weights.

    Classes and parameter names are those from before `bayesify`; the Bayesian root is of no further use.

    Args:
        bnn: what `bayesify` returned.

    Returns:
        The network.

    Example:
        >>> unbayesify(bayesify(nn.Linear(3, 1), MeanField()))
        Linear(in_features=3, out_features=1, bias=True)
    """
    if not isinstance(bnn, Bayesian):
        raise TypeError(f"bnn must be what bayesify returned, got {type(bnn).__name__}")
    if bnn.members:
        raise ValueError(f"bnn consists of {len(bnn.members)} networks; give back one of them: unbayesify(bnn.members[0])")
    for _, layer in list(bnn.random_layers()):
        with torch.no_grad():
            means = layer.posterior.mean(layer)
        for name, mean, trained in zip(("weight", "bias"), means, layer.requires_grads, strict=True):
            if mean is not None and mean is not layer._parameters[name]:
                layer._parameters[name] = nn.Parameter(mean.detach().clone(), requires_grad=trained)
        _revert(layer)
    restore_fast_paths(bnn.net)
    return bnn.net


def _nets(net: nn.Module | Sequence[nn.Module]) -> list[nn.Module]:
    nets: list[Any] = list(net) if isinstance(net, list | tuple) else [net]
    if not nets or not all(isinstance(each, nn.Module) for each in nets):
        kinds = ", ".join(type(each).__name__ for each in nets) or "an empty list"
        raise TypeError(f"net must be a torch.nn.Module, or a list of them for an ensemble, got {kinds}")
    if any(isinstance(module, Bayesian | BayesianLayer) for each in nets for module in each.modules()):
        raise ValueError("the net is Bayesian already; give back the original with unbayesify(bnn) first")
    return nets


def _patterns(method: Method | Mapping[str, Method]) -> dict[str, Method]:
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


def _check_layout(net: nn.Module, batch_dim: int, fold: bool | None, shared: Collection[str]) -> None:
    check_integer("batch_dim", batch_dim, least=0)
    if fold and batch_dim != 0:
        raise ValueError(f"fold=True needs the batch in dimension 0, got batch_dim={batch_dim}; leave fold out")
    if isinstance(shared, str):
        raise TypeError(f"shared must be a collection of input names, such as [{shared!r}], got {shared!r}")
    inputs = inspect.signature(net.forward).parameters
    if taken := [name for name in ("samples", "coherent") if name in inputs]:
        raise ValueError(
            f"the net's forward has an input named {taken[0]!r}, which a Bayesian network takes itself; wrap the net in a module "
            "whose input has another name"
        )
    if any(p.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD) for p in inputs.values()):
        return  # any name may be an input
    if unknown := [name for name in shared if name not in inputs]:
        raise ValueError(f"shared names {', '.join(map(repr, unknown))}, but the net's inputs are {', '.join(map(repr, inputs))}")


def _obstacle(layer: nn.Module, tied: Mapping[int, list[str]], named: bool) -> str:
    """Why a layer cannot be made random, or nothing."""
    if reason := unsupported(type(layer)):
        return reason
    weight = layer._parameters.get("weight")
    if weight is None:
        return "its weight is computed by a hook (weight_norm, spectral_norm)"
    if "forward" in vars(layer):
        return "its forward was replaced by another function"
    if not weight.is_floating_point():
        return "its weight is not of a real floating point type"
    if not named and not any(p.requires_grad for p in layer.parameters(recurse=False)):
        return "it is frozen; a pattern that names it makes it random all the same"
    for name, parameter in layer.named_parameters(recurse=False):
        if id(parameter) in tied:
            return f"its {name} is tied: {' and '.join(map(repr, tied[id(parameter)]))} share one parameter"
    if isinstance(layer, nn.Embedding):
        if layer.max_norm is not None or layer.sparse or layer.scale_grad_by_freq:
            return "max_norm, sparse and scale_grad_by_freq have no meaning for a random embedding"
        padded = layer.padding_idx is not None and not layer.weight.is_meta
        if padded and bool((layer.weight[layer.padding_idx] != 0).any()):
            return "its padding vector is not zero"
    return ""


def _convert(layer: nn.Module, method: Method, passes: Passes) -> bool:
    """Make the layer random with a posterior of its own; False, and the layer untouched, if the method leaves it alone."""
    reference = cast(torch.Tensor, layer.weight)
    layer.__class__ = cast(type[BayesianLayer], layer_type(type(layer)))
    assert isinstance(layer, BayesianLayer)
    layer.passes, layer.is_read, layer.is_used = passes, False, None
    bias = layer._parameters.setdefault("bias", None)  # an embedding has none
    layer.weight_shape = tuple(reference.shape)
    layer.bias_shape = None if bias is None else tuple(bias.shape)
    layer.requires_grads = reference.requires_grad, bias is not None and bias.requires_grad
    posterior = method.build(layer)
    if posterior is None:
        _revert(layer)
        return False
    layer.posterior = posterior.to(device=reference.device, dtype=reference.dtype).train(layer.training)
    return True


def _revert(layer: nn.Module) -> None:
    """Undo `_convert`; harmless on any other layer."""
    if isinstance(layer, BayesianLayer):
        layer._modules.pop("posterior", None)
        for name in ("passes", "weight_shape", "bias_shape", "requires_grads", "is_read", "is_used"):
            layer.__dict__.pop(name, None)
        cast(nn.Module, layer).__class__ = layer.original
        if isinstance(layer, nn.Embedding):
            layer._parameters.pop("bias", None)


def _root(net: nn.Module, methods: Sequence[Method | None]) -> Bayesian:
    own = {id(m): m for m in methods if m is not None and m.has_root}
    if len(own) > 1:
        names = ", ".join(sorted(type(m).__name__ for m in own.values()))
        raise ValueError(f"{names} each need the whole network; use one of them per bayesify call")
    chosen = next(iter(own.values()), None)
    return Folded(net) if chosen is None else cast(Bayesian, chosen.root(net))


def _warn_of_lost_weights(net: nn.Module, before: Mapping[nn.Module, Mapping[str, Any]]) -> None:
    """Warn where posteriors have dropped weights that were no mere initial values."""
    lost = [
        name or "the net itself"
        for name, layer in net.named_modules()
        if isinstance(layer, BayesianLayer)
        and layer.posterior.drops_weights
        and not looks_initialized(layer.original, before[layer]["weight"])
    ]
    if lost:
        warn(f"the weights of layers were dropped, and these start at random: {_listing(lost)}; `summary` says more")


def _tied_parameters(layers: Mapping[str, nn.Module]) -> dict[int, list[str]]:
    """Parameters owned by more than one layer: id to layer names."""
    owners: dict[int, list[str]] = {}
    for name, layer in layers.items():
        for parameter in layer.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(name)
    return {key: names for key, names in owners.items() if len(names) > 1}


def _listing(items: Iterable[str], separator: str = ", ", most: int = 10) -> str:
    items = list(items)
    more = f"{separator}... and {len(items) - most} more" if len(items) > most else ""
    return separator.join(items[:most]) + more
