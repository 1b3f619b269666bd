"""`bayesify` makes a network random in place, `unbayesify` gives it back; both speak of every layer they meet."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import cast

import torch
from torch import nn

from bayesify.core.checks import check_integer
from bayesify.core.model import Bayesian, LayerReport
from bayesify.core.posterior import Method
from bayesify.core.sites import SITES, Drawing, Site
from bayesify.errors import NothingRandomError

__all__ = ["bayesify", "unbayesify"]


def bayesify(
    net: nn.Module,
    method: Method | Mapping[str, Method],
    *,
    batch_dim: int = 0,
    fold: bool | None = None,
    shared: Collection[str] = (),
) -> Bayesian:
    """Make a network Bayesian, in place: its layers become random, its weights become (where the method has them) posterior means.

    Only layers of an exactly supported type are converted; `summary` lists all others with the reason. Layer and parameter names
    stay, so a checkpoint of the plain network still loads into `result.net`.

    Args:
        net: any network.
        method: one method for every layer it supports (of those it chooses: `Method.assign`), or a mapping from name patterns
            (`fnmatch`: "features.*") to methods; the first match wins, layers without a match stay as they are. Only with
            the pattern "*" does a method choose.
        batch_dim: the batch dimension of the net's inputs and outputs. Other than 0, every draw takes a pass of its own and
            `Draws.outputs` has the batch moved to the front: (S, B, ...).
        fold: run S draws as one pass over S*B rows. By default wherever the batch comes first in all of the net. A net that
            moves the batch elsewhere in between (a transpose, then a linear layer) needs `fold=False`.
        shared: names of inputs without a batch dimension, such as an attention mask. Tensors whose first dimension is not the
            batch size are taken to be shared in any case.

    Returns:
        The root module: call it for `Draws`; train it with `elbo`, use it with `predict`.

    Raises:
        ValueError: nothing was made random, a pattern matches no layer, a lazy layer has no weight yet, `shared` names no input, or
            the net is Bayesian already.
        TypeError: wrong kinds of arguments.

        The net is left untouched by all of them.

    Example:
        >>> net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
        >>> bnn = bayesify(net, MeanField())
        >>> bnn(torch.zeros(5, 3), samples=2).outputs.shape
        torch.Size([2, 5, 1])
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"net must be a torch.nn.Module, got {type(net).__name__}")
    if any(isinstance(module, Bayesian | Site) for module in net.modules()):
        raise ValueError("the net is Bayesian already; give back the original with unbayesify(bnn) first")
    patterns = _patterns(method)
    _check_layout(net, batch_dim, fold, shared)
    if isinstance(method, Method):
        whole = method.whole(net, partial(bayesify, batch_dim=batch_dim, fold=fold, shared=shared))
        if whole is not None:
            for root in (whole, *whole.members):
                root.batch_dim, root.shared = batch_dim, tuple(shared)
            return whole
    layers = {name: module for name, module in net.named_modules() if any(True for _ in module.parameters(recurse=False))}
    if unmatched := [p for p in patterns if p != "*" and not any(fnmatchcase(name, p) for name in layers)]:
        names = ", ".join(map(repr, layers)) or "none"
        raise ValueError(f"no layer matches {', '.join(map(repr, unmatched))}; the layers are {names}")

    drawing = Drawing(batch_dim=batch_dim)
    reports: list[LayerReport] = []
    tied = _tied_parameters(layers)
    assigned = patterns["*"].assign(layers) if "*" in patterns else {}
    before = [(layer, dict(layer._parameters)) for layer in layers.values()]
    try:
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
                reason = _obstacle(layer, tied)
            if chosen is not None and not reason and not _convert(layer, chosen, drawing):
                reason = f"{type(chosen).__name__} leaves {kind} as it is"
            reports.append(LayerReport(name, kind, None if reason else chosen, reason))
        if all(report.method is None for report in reports):
            listing = "; ".join(f"{r.name or 'the net itself'} ({r.layer}): {r.reason}" for r in reports) or "it has no parameters"
            raise NothingRandomError(f"no layer of the net could be made random: {listing}")
        root = _root(net, [report.method for report in reports])
    except BaseException:
        for layer, parameters in before:
            _revert(layer)
            layer._parameters.clear()
            layer._parameters.update(parameters)  # a posterior may have taken the place of some
        raise
    _disable_fast_paths(net)
    root.drawing, root.report = drawing, tuple(reports)
    root.batch_dim, root.shared = batch_dim, tuple(shared)
    root.fold = (batch_dim == 0 and _batch_first_throughout(net)) if fold is None else fold
    modes = [(module, module.training) for module in net.modules()]
    root.train(net.training)
    for module, training in modes:  # parts of a net may be kept in eval mode, such as frozen batch normalisation
        module.training = training
    return root


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
    for _, site in list(bnn.sites()):
        with torch.no_grad():
            means = site.posterior.mean(site)
        for name, mean in zip(("weight", "bias"), means, strict=True):
            current = getattr(site, name)
            if mean is not None and mean is not current:
                setattr(site, name, nn.Parameter(mean.detach().clone()))
        _revert(site)
    _restore_fast_paths(bnn.net)
    return bnn.net


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
    if any(p.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD) for p in inputs.values()):
        return  # any name may be an input
    if unknown := [name for name in shared if name not in inputs]:
        raise ValueError(f"shared names {', '.join(map(repr, unknown))}, but the net's inputs are {', '.join(map(repr, inputs))}")


def _obstacle(layer: nn.Module, tied: Mapping[int, list[str]]) -> str:
    """Why a layer cannot be made random, or nothing."""
    kind = type(layer)
    if kind not in SITES:
        base = next((known for known in SITES if isinstance(layer, known)), None)
        return f"a subclass of {base.__name__} may use its weight in its own way" if base else "this type is not supported"
    weight = layer._parameters.get("weight")
    if weight is None:
        return "its weight is computed by a hook (weight_norm, spectral_norm)"
    if "forward" in vars(layer):
        return "its forward was replaced by another function"
    if not weight.is_floating_point():
        return "its weight is not of a real floating point type"
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


def _convert(layer: nn.Module, method: Method, drawing: Drawing) -> bool:
    """Turn the layer into a site with a posterior; False, and the layer untouched, if the method leaves it alone."""
    layer.__class__ = SITES[type(layer)]
    assert isinstance(layer, Site)
    layer.drawing = drawing
    layer.weight_shape = tuple(layer.weight.shape)
    bias = layer._parameters.get("bias")
    layer.bias_shape = None if bias is None else tuple(bias.shape)
    if "bias" not in layer._parameters:
        layer.bias = None  # an embedding has none
    reference = layer.weight
    posterior = method.build(layer)
    if posterior is None:
        _revert(layer)
        return False
    layer.posterior = posterior.to(device=reference.device, dtype=reference.dtype).train(layer.training)
    return True


def _revert(layer: nn.Module) -> None:
    """Undo `_convert`; harmless on any other layer."""
    if isinstance(layer, Site):
        layer._modules.pop("posterior", None)
        for name in ("drawing", "weight_shape", "bias_shape"):
            layer.__dict__.pop(name, None)
        cast(nn.Module, layer).__class__ = layer.original
        if isinstance(layer, nn.Embedding):
            layer.__dict__.pop("bias", None)
            layer._parameters.pop("bias", None)


def _root(net: nn.Module, methods: list[Method | None]) -> Bayesian:
    own = {id(m): m for m in methods if m is not None and type(m).root is not Method.root}
    if len(own) > 1:
        names = ", ".join(sorted(type(m).__name__ for m in own.values()))
        raise ValueError(f"{names} each need the whole network; use one of them per bayesify call")
    chosen = next(iter(own.values()), None) or next(m for m in methods if m is not None)
    return chosen.root(net)


def _tied_parameters(layers: Mapping[str, nn.Module]) -> dict[int, list[str]]:
    """Parameters owned by more than one layer: id to layer names."""
    owners: dict[int, list[str]] = {}
    for name, layer in layers.items():
        for parameter in layer.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(name)
    return {key: names for key, names in owners.items() if len(names) > 1}


def _batch_first_throughout(net: nn.Module) -> bool:
    return all(getattr(module, "batch_first", True) for module in net.modules())


class _FastPathOff:
    """A forward pre-hook whose presence alone matters; it remembers what it switched off."""

    def __init__(self, nested: bool) -> None:
        self.nested = nested

    def __call__(self, module: nn.Module, args: object) -> None:
        pass


def _disable_fast_paths(net: nn.Module) -> None:
    """PyTorch's fused transformer kernels read the weights and bypass the layers; a forward hook makes it use the layers."""
    for module in net.modules():
        if not any(isinstance(m, Site) for m in module.modules()):
            continue
        if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerEncoder):
            encoder = isinstance(module, nn.TransformerEncoder)
            module.register_forward_pre_hook(_FastPathOff(encoder and module.use_nested_tensor))
            if encoder:
                module.use_nested_tensor = False


def _restore_fast_paths(net: nn.Module) -> None:
    for module in net.modules():
        for key, hook in list(module._forward_pre_hooks.items()):
            if isinstance(hook, _FastPathOff):
                del module._forward_pre_hooks[key]
                if isinstance(module, nn.TransformerEncoder):
                    module.use_nested_tensor = hook.nested
