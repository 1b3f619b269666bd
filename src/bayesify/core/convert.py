"""`bayesify` makes a network Bayesian in place, `unbayesify` restores it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from bayesify.core.allocation import keep_freed_memory
from bayesify.core.arguments import check_layout, networks, output_selection, patterns
from bayesify.core.fast_paths import disable_fast_paths
from bayesify.core.first_steps import FirstSteps
from bayesify.core.folded import Folded
from bayesify.core.initialization import looks_initialized
from bayesify.core.layer import BayesianLayer
from bayesify.core.layer_report import LayerReport
from bayesify.core.layers import NetworkTrials, OfAnotherLibrary, recognize, type_of
from bayesify.core.layers.own_forward import OwnForward
from bayesify.core.method import Method
from bayesify.core.model import Bayesian
from bayesify.core.modes import modes_kept
from bayesify.core.obstacles import (
    obstacle,
    tell_of_hindered_layers,
    tell_of_unregistered_layers,
    tied_parameters,
    trainable_sizes,
    unmet_need,
)
from bayesify.core.packed import Unpacking, initial_bounds
from bayesify.core.passes import Passes
from bayesify.core.restoration import restore, revert
from bayesify.core.weight_decay import notice_decay
from bayesify.errors import ConfigurationError, NothingRandomError, warn
from bayesify.formatting import listing

__all__ = ["bayesify", "unbayesify"]


def bayesify(
    net: nn.Module | Sequence[nn.Module],
    method: Method | Mapping[str, Method],
    *,
    batch_dim: int = 0,
    fold: bool | None = None,
    unbatched: Collection[str] = (),
    output: str | int | Callable[[Any], Any] | None = None,
) -> Bayesian:
    """Make a network Bayesian, in place: its layers become random, and their weights, for most methods, posterior means.

    Layers of supported types are converted, and subclasses with the same `forward`, or with one that can run with drawn weights;
    `register_layer` adds further types.
    Frozen layers are converted only if a pattern names them. `summary` lists the layers that were not converted, with the reason; a
    `BayesifyWarning` says if more than a tenth of the parameters stay deterministic because their layers cannot be made random.
    The names of layers and parameters do not change, so a checkpoint of the plain network still loads into `result.net`. Posteriors
    add parameters: make the optimizer afterwards, from `result.parameters()`.

    Args:
        net: any network; several of one architecture for an ensemble: `bayesify([make() for _ in range(5)], DeepEnsemble())`.
        method: one method for all layers that it supports and chooses (`Method.assign`), or a mapping from name patterns
            (`fnmatch`: "features.*") to methods. The first match counts; layers without a match are not converted. Only with the
            pattern "*" does a method choose.
        batch_dim: the batch dimension of the network's inputs and outputs. If it is not 0, every draw takes a separate pass, and
            the batch is moved to the front of `Draws.outputs`: (S, B, ...).
        fold: run S draws as one pass over S*B rows. By default the first pass tests on a few rows whether the results are equal;
            if not, every draw takes a separate pass. True skips the test, False never folds.
        unbatched: names of inputs without a batch dimension, such as an attention mask. Tensors whose first dimension is not the
            batch size are always treated as unbatched. If all inputs are named, a call has one example, such as a set or a graph,
            or those that the rows of its output are.
        output: the part of the network's output that passes return: a key or attribute ("logits"), a position, or a function of
            the output. None for all of it.

    Returns:
        The root module: call it for `Draws`, train it with `elbo`, predict with `predict`.

    Raises:
        NothingRandomError: no layer became random, or none of those that a pattern names.
        ConfigurationError: a pattern matches no layer, or only layers that earlier patterns match; a lazy layer has no weight yet,
            `unbatched` names no input, the network's `forward` has an input called `samples` or `coherent`, or the network is
            Bayesian already.
        TypeError: an argument has a wrong type.

        In all cases the network is unchanged.

    Example:
        >>> net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
        >>> bnn = bayesify(net, MeanField())
        >>> bnn(torch.zeros(5, 3), samples=2).outputs.shape
        torch.Size([2, 5, 1])
    """
    nets = networks(net)
    methods = patterns(method)
    select = output_selection(output)
    for each in nets:
        check_layout(each, batch_dim, fold, unbatched)
    keep_freed_memory()
    parameters = [parameter for each in nets for parameter in each.parameters()]
    if isinstance(method, Method) and method.is_whole:
        root = cast(Bayesian, method.whole(nets, partial(bayesify, batch_dim=batch_dim, fold=fold, unbatched=unbatched)))
        for each in (root, *root.members):
            each.batch_dim, each.unbatched = batch_dim, tuple(unbatched)
            each.training = nets[0].training
            each.passes.select = select
            each.first_steps = None
    elif len(nets) > 1:
        raise TypeError(f"several networks make an ensemble: use DeepEnsemble(...), got method={method!r}")
    else:
        root = _converted(nets[0], methods, batch_dim, fold, tuple(unbatched))
        root.passes.select = select
    root.first_steps = FirstSteps(parameters, root)
    notice_decay(root)  # of an ensemble after its members
    return root


def _converted(
    net: nn.Module, methods: Mapping[str, Method], batch_dim: int, fold: bool | None, unbatched: tuple[str, ...]
) -> Bayesian:
    unpacking = Unpacking.of(net, tied_parameters(_layers_of(net)))
    before = list[tuple[nn.Module, dict[str, nn.Parameter | None]]]()
    try:
        layers = _layers_of(net)
        before += [(layer, dict(layer._parameters)) for layer in layers.values()]
        matches = _first_matches(layers, methods, unpacking.owners)
        trials = NetworkTrials()
        for layer in layers.values():
            recognize(layer, trials)
        passes, sizes = Passes(), trainable_sizes(layers)
        assigned = methods["*"].assign(layers) if "*" in methods else {}
        reports, hindered = _convert_layers(layers, matches, methods, assigned, passes, unpacking, trials)
        output = methods["*"].output_layer(layers) if "*" in methods else None
        if output is not None and matches[output] == "*" and isinstance(layer := layers[output], BayesianLayer):
            layer.is_taken_for_output = True
        root = _root(net, [report.method for report in reports])
    except BaseException:
        for layer, parameters in before:
            revert(layer)
            layer._parameters.clear()
            layer._parameters.update(parameters)  # a posterior may have replaced some
        unpacking.undo_all()
        raise
    _warn_of_lost_weights(net, dict(before))
    reports = unpacking.undo_plain(reports, hindered, sizes)
    disable_fast_paths(net)
    root.passes, root.report = passes, tuple(reports)
    root.batch_dim, root.fold, root.unbatched = batch_dim, False if batch_dim else fold, unbatched
    with modes_kept(net.modules()):  # parts may be in eval mode, such as frozen batch normalization
        root.train(net.training)
    tell_of_hindered_layers(root, sizes, hindered)
    tell_of_unregistered_layers(root)
    return root


def _layers_of(net: nn.Module) -> dict[str, nn.Module]:
    """All modules with parameters of their own, by name."""
    return {name: module for name, module in net.named_modules() if any(True for _ in module.parameters(recurse=False))}


def _first_matches(names: Collection[str], methods: Mapping[str, Method], owners: Mapping[str, str]) -> dict[str, str | None]:
    """The first pattern that matches every name, or its owner's; raise a `ConfigurationError` for patterns without effect."""

    def matches_name(name: str, pattern: str) -> bool:
        return fnmatchcase(name, pattern) or (name in owners and fnmatchcase(owners[name], pattern))

    if unmatched := [p for p in methods if p != "*" and not any(matches_name(name, p) for name in names)]:
        raise ConfigurationError(f"no layer matches {listing(map(repr, unmatched))}; the layers are {listing(map(repr, names))}")
    matches = {name: next((p for p in methods if matches_name(name, p)), None) for name in names}
    if hidden := [p for p in methods if p != "*" and p not in matches.values()]:
        raise ConfigurationError(
            f"{listing(map(repr, hidden))} would have no effect: the first pattern that matches a layer counts, and others come "
            f"first in {listing(map(repr, methods))}"
        )
    return matches


def _convert_layers(
    layers: Mapping[str, nn.Module],
    matches: Mapping[str, str | None],
    methods: Mapping[str, Method],
    assigned: Mapping[str, Method],
    passes: Passes,
    unpacking: Unpacking,
    trials: NetworkTrials,
) -> tuple[list[LayerReport], dict[str, str]]:
    """Convert the layers that patterns and methods choose.

    Returns:
        All layers; name and type of those that a method chose, not a name, and that cannot be made random.

    Raises:
        NothingRandomError: no layer became random, or none of those that a pattern names.
    """
    tied = tied_parameters(layers)
    reports, hindered = list[LayerReport](), dict[str, str]()
    for name, layer in layers.items():
        kind = type(layer).__name__
        pattern = matches[name]
        chosen = None if pattern is None else assigned.get(name) if pattern == "*" else methods[pattern]
        if chosen is not None and any(isinstance(p, nn.UninitializedParameter) for p in layer.parameters(recurse=False)):
            raise ConfigurationError(f"{name!r} ({kind}) has no weight yet: run one batch through the network first")
        if pattern is None:
            reason = "its name matches no pattern"
        elif chosen is None:
            reason = f"{type(methods[pattern]).__name__} leaves it as it is"
        else:
            free = pattern != "*" or chosen.keeps_weight
            reason = obstacle(layer, {} if chosen.keeps_weight else tied, may_be_frozen=free, trials=trials)
            if reason and pattern == "*" and chosen.is_random:
                hindered[name] = kind
        if chosen is not None and not reason and not _convert(layer, chosen, passes, trials):
            reason = f"{type(chosen).__name__} leaves {kind} as it is"
        if isinstance(layer, BayesianLayer) and (need := unmet_need(layer, unpacking.is_called(name))):
            revert(layer)
            reason = f"{type(chosen).__name__} needs {need}"
            if chosen is not None and chosen.is_random:
                hindered[name] = kind
        reports.append(LayerReport(name, kind, None if reason else chosen, reason))
    _check_random(layers, matches, reports, methods)
    return reports, hindered


def _check_random(
    layers: Mapping[str, nn.Module],
    matches: Mapping[str, str | None],
    reports: Sequence[LayerReport],
    methods: Mapping[str, Method],
) -> None:
    random = [layer for layer in layers.values() if isinstance(layer, BayesianLayer) and layer.posterior.is_random]
    if all(report.method is None for report in reports) or (not random and any(m.is_random for m in methods.values())):
        raise NothingRandomError(f"no layer of the network became random: {_reasons(reports) or 'it has no parameters'}")
    for pattern, method in methods.items():
        named = [report for report in reports if matches[report.name] == pattern]
        if pattern != "*" and method.is_random and all(report.method is None for report in named):
            raise NothingRandomError(f"no layer that {pattern!r} names became random: {_reasons(named)}")


def _reasons(reports: Sequence[LayerReport]) -> str:
    """Why layers are not random, and which."""
    by_reason = dict[str, list[str]]()
    for report in reports:
        by_reason.setdefault(report.reason or "a point estimate", []).append(
            f"{report.name or 'the network itself'} ({report.layer})"
        )
    return listing((f"{listing(names, most=3)}: {reason}" for reason, names in by_reason.items()), separator="; ", most=5)


def unbayesify(bnn: Bayesian) -> nn.Module:
    """Restore the plain network, in place, with the posterior means as its weights.

    Classes and parameter names become those from before `bayesify`. The Bayesian root must not be used afterwards.

    Args:
        bnn: the result of `bayesify`.

    Returns:
        The plain network.

    Raises:
        ConfigurationError: `bnn` is an ensemble.

    Example:
        >>> unbayesify(bayesify(nn.Linear(3, 1), MeanField()))
        Linear(in_features=3, out_features=1, bias=True)
    """
    if not isinstance(bnn, Bayesian):
        raise TypeError(f"bnn must be what bayesify returned, got {type(bnn).__name__}")
    if bnn.members:
        raise ConfigurationError(f"bnn consists of {len(bnn.members)} networks; restore one of them: unbayesify(bnn.members[0])")
    restore(bnn.net, lambda layer: layer.posterior.mean(layer))
    return bnn.net


def _convert(layer: nn.Module, method: Method, passes: Passes, trials: NetworkTrials) -> bool:
    """Make the layer random; False, with the layer unchanged, if the method returns no posterior."""
    reference = cast(torch.Tensor, layer.weight)
    layer.__class__ = cast(type[BayesianLayer], type_of(layer, trials))
    assert isinstance(layer, BayesianLayer)
    layer.passes, layer.is_read, layer.is_repeated, layer.is_used = passes, False, False, None
    if isinstance(layer, OwnForward):
        layer.given = None
    if isinstance(layer, OfAnotherLibrary):
        layer.note_settings()
    layer.lacks_bias = "bias" not in layer._parameters
    bias = layer._parameters.setdefault("bias", None)
    layer.weight_shape = tuple(reference.shape)
    layer.bias_shape = None if bias is None else tuple(bias.shape)
    layer.requires_grads = reference.requires_grad, bias is not None and bias.requires_grad
    posterior = method.build(layer)
    if posterior is None:
        revert(layer)
        return False
    parameters = {"weight": reference, "bias": bias}
    layer.replaced = tuple(name for name, own in parameters.items() if own is not None and layer._parameters[name] is None)
    layer.posterior = posterior.to(device=reference.device, dtype=reference.dtype).train(layer.training)
    return True


def _root(net: nn.Module, methods: Sequence[Method | None]) -> Bayesian:
    with_root = {id(m): m for m in methods if m is not None and m.has_root}
    if len(with_root) > 1:
        names = ", ".join(sorted(type(m).__name__ for m in with_root.values()))
        raise ConfigurationError(f"{names} each need the whole network; use one of them per bayesify call")
    chosen = next(iter(with_root.values()), None)
    return Folded(net) if chosen is None else cast(Bayesian, chosen.root(net))


def _warn_of_lost_weights(net: nn.Module, before: Mapping[nn.Module, Mapping[str, Any]]) -> None:
    """Warn if posteriors dropped weights that may not be those of an initialization."""
    bounds = initial_bounds(net)
    lost = [
        name or "the network itself"
        for name, layer in net.named_modules()
        if isinstance(layer, BayesianLayer)
        and layer.posterior.drops_weights
        and not looks_initialized(layer.original, before[layer]["weight"], bounds.get(layer))
    ]
    if lost:
        warn(f"the weights of layers were dropped, and these start at random: {listing(lost)}; see `summary`")
