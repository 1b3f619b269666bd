"""Checks of networks that use their layers, or their inputs, in ways of their own."""

from __future__ import annotations

import copy
import functools
import importlib
import warnings
from typing import Any

import torch
from torch import nn

from bayesify.core.convert import bayesify
from bayesify.core.method import Method
from bayesify.core.summary import LayerSummary, summary
from bayesify.errors import BayesifyWarning, ContractError, NothingRandomError
from bayesify.testing.cases import random_layers
from bayesify.testing.nets import Named, Nested, OwnSamples, Reader, Scaled, SequenceFirst, TiedReader, TwoLayers
from bayesify.testing.require import NotApplicable, require
from bayesify.testing.trial import Trial, convert, is_random, need_one_network, need_weights, numbers

__all__ = ["LAYER_USE_CHECKS"]

_MODES = (False, True)


def check_weights_read_by_the_net(method: Method) -> None:
    """A net that computes with `layer.weight` itself gets this pass's draw."""
    trial = Trial(method, Reader, (numbers(5, 4),), ("layer",))
    for coherent in _MODES:
        trial.require_equal_weights(coherent=coherent)


def check_an_embedding_as_output_projection(method: Method) -> None:
    """An embedding that is called, and whose weight is read, is one draw in both places."""
    trial = Trial(method, TiedReader, (torch.tensor([[0, 1], [2, 2], [4, 3]]),), ("layer",))
    for coherent in _MODES:
        trial.require_equal_weights(coherent=coherent)


def check_subclassed_layer(method: Method) -> None:
    """A subclass that does not override `forward` is made random like its base."""
    _require_like_linear(method, Named)


def check_registered_layer(method: Method) -> None:
    """So is one that does, once `register_layer` has said what follows the layer."""
    need_weights(method)
    _teach_scaled()
    _require_like_linear(method, Scaled)


def check_unused_layer(method: Method) -> None:
    """A layer that the net never uses is no random layer, and there is a warning."""
    need_weights(method)
    bnn = convert(method, TwoLayers(spare=nn.Linear(2, 2)).double(), "layer", "head", "spare")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bnn(numbers(5, 4), samples=2)
    rows = {row.name: row for row in summary(bnn).layers}
    require(not rows["spare"].random, "a layer that is never used counts as random")
    require(rows["spare"].reason or rows["spare"].remark, "summary does not say that a layer is never used")
    for name, layer in random_layers(bnn.net):
        if name != "spare" and is_random(layer):
            require(rows[name].random, f"{name} is random, and summary does not say so")
            require(any(issubclass(each.category, BayesifyWarning) for each in caught), "no warning about the unused layer")


def check_frozen_layer(method: Method) -> None:
    """A frozen layer stays as it is unless a pattern names it."""
    need_weights(method)
    net = TwoLayers().double()
    net.layer.requires_grad_(False)
    try:
        bnn = bayesify(copy.deepcopy(net), method)
    except NothingRandomError as error:
        raise NotApplicable(str(error)) from error
    names = [name for name, _ in random_layers(bnn.net)]
    require("layer" not in names, "a frozen layer was made random")
    require(not any(p.requires_grad for p in bnn.net.get_submodule("layer").parameters()), "a frozen layer can be trained")
    _random_row(convert(method, net, "layer"), "layer")


def check_names_of_its_own(method: Method) -> None:
    """A net whose `forward` takes `samples` is refused when it is made random, not misled later."""
    try:
        convert(method, OwnSamples(), "head")
    except (TypeError, ValueError):
        return
    raise ContractError("a net with a keyword `samples` of its own was accepted")


def check_nested_inputs(method: Method) -> None:
    """Inputs may be nested dicts and lists."""
    inputs = {"table": {"numbers": numbers(5, 4)}, "more": [numbers(5, 3)]}
    trial = Trial(method, Nested, (inputs,))
    trial.require_equal_weights(coherent=True)


def check_batch_in_dimension_one(method: Method) -> None:
    """With `batch_dim=1`, draws and functions come batch first."""
    x = numbers(4, 3, 3)[:, :2]
    need_one_network(method)
    bnn = convert(method, SequenceFirst().double(), "head", batch_dim=1)
    require(bnn(x, samples=3).outputs.shape == (3, 2, 4, 2), "draws are not (S, B, T, D)")
    y = bnn.function(0)(x)
    require(y.shape == (2, 4, 2), f"a function gives {tuple(y.shape)}, not (B, T, D)")
    trial = Trial(method, SequenceFirst, (x,), batch_dim=1)
    for coherent in _MODES:
        trial.require_equal_weights(coherent=coherent)


def _require_like_linear(method: Method, kind: type[nn.Linear]) -> None:
    """The trial of a network one of whose layers is of another type."""
    need_weights(method)
    convert(method, TwoLayers(), "layer", "head")  # not every method supports nn.Linear
    try:
        trial = Trial(method, lambda: TwoLayers(kind(4, 3)), (numbers(5, 4),))
    except NotApplicable as reason:
        raise ContractError(f"{kind.__name__}, a linear layer, is not made random: {reason}") from reason
    require(isinstance(trial.bnn.net.get_submodule("layer"), kind), "the layer is no longer of its type")
    trial.require_equal_weights(coherent=True)
    trial.require_equal_moments()


@functools.cache
def _teach_scaled() -> None:
    """Register the layer type, once per process."""
    public: Any = importlib.import_module("bayesify")  # where users find it; `bayesify.testing` lies below
    public.register_layer(Scaled, like=nn.Linear, then=Scaled.after)


def _random_row(bnn: Any, name: str) -> LayerSummary:
    """What `summary` says of a layer that has to be converted."""
    row = next(row for row in summary(bnn).layers if row.name == name)
    require(row.method, f"{name} was named by a pattern and stayed as it was: {row.reason}")
    return row


LAYER_USE_CHECKS = (
    check_weights_read_by_the_net,
    check_an_embedding_as_output_projection,
    check_subclassed_layer,
    check_registered_layer,
    check_unused_layer,
    check_frozen_layer,
    check_names_of_its_own,
    check_nested_inputs,
    check_batch_in_dimension_one,
)
