"""Checks of networks that use their layers or inputs in unusual ways."""

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
from bayesify.diagnostics.summaries import LayerSummary, summary
from bayesify.errors import BayesifyWarning, ConfigurationError, ContractError, NothingRandomError
from bayesify.testing.nets import (
    MultiheadAttention,
    Named,
    Nested,
    OwnSamples,
    Reader,
    Recurrent,
    Scaled,
    SequenceFirst,
    TiedReader,
    TwoLayers,
)
from bayesify.testing.require import NotApplicable, require
from bayesify.testing.trial import Trial, convert, fixed_inputs, is_random, skip_ensembles, skip_unless_weights


def check_kl_of_larger_layers(method: Method) -> None:
    """The KL of a layer with 256 times the weights is at least twice as large: a sum over parameters, not their mean."""
    skip_ensembles(method)
    values, sizes = [], []
    for inputs, outputs in ((4, 3), (64, 48)):
        torch.manual_seed(7)
        bnn = convert(method, nn.Sequential(nn.Linear(inputs, outputs)).double(), "0")
        kl = torch.stack([bnn.kl() for _ in range(50)]).mean()  # it may be an estimate
        parameters = [p for p in bnn.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(kl, parameters, allow_unused=True, materialize_grads=True) if kl.requires_grad else ()
        values.append(float(kl.detach()))
        sizes.append(sum(int(gradient.count_nonzero()) for gradient in gradients))
    if not 0 < 10 * sizes[0] <= sizes[1]:
        raise NotApplicable("the KL does not depend on more parameters in a larger layer")
    of_two = " and ".join(f"{value:.4g} in a layer with {size} parameters" for value, size in zip(values, sizes, strict=True))
    require(values[1] >= 2 * values[0], f"the KL is {of_two}: it must be a sum over parameters, not their mean")


def check_read_weights(method: Method) -> None:
    """A network that reads `layer.weight` gets the draw of the pass."""
    trial = Trial(method, Reader, (fixed_inputs(5, 4),), ("layer",))
    trial.require_equal_weights()


def check_tied_embedding(method: Method) -> None:
    """An embedding that is called and whose weight is read has the same draw in both."""
    trial = Trial(method, TiedReader, (torch.tensor([[0, 1], [2, 2], [4, 3]]),), ("layer",))
    trial.require_equal_weights()


def check_recurrent_network(method: Method) -> None:
    """A recurrent network has one draw of its weights for all steps and rows."""
    parts = [f"layer.{part}_l0{direction}" for direction in ("", "_reverse") for part in ("ih", "hh")]
    trial = Trial(method, Recurrent, (fixed_inputs(3, 4, 3),), (*parts, "head"))
    trial.require_equal_weights(coherent=[True])


def check_multihead_attention(method: Method) -> None:
    """The projections of PyTorch's attention are random layers."""
    parts = [f"layer.{part}_proj" for part in ("q", "k", "v", "out")]
    trial = Trial(method, MultiheadAttention, (fixed_inputs(3, 4, 4),), (*parts, "head"))
    trial.require_equal_weights(coherent=[True])


def check_subclassed_layer(method: Method) -> None:
    """A subclass that does not override `forward` is made random like its base class."""
    _require_like_linear(method, Named)


def check_registered_layer(method: Method) -> None:
    """A subclass that overrides `forward` is made random once registered with `register_layer`."""
    skip_unless_weights(method)
    _register_scaled()
    _require_like_linear(method, Scaled)


def check_unused_layer(method: Method) -> None:
    """A layer that the network never uses does not count as random, and there is a warning."""
    skip_unless_weights(method)
    bnn = convert(method, TwoLayers(spare=nn.Linear(2, 2)).double(), "layer", "head", "spare")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bnn(fixed_inputs(5, 4), samples=2)
    rows = {row.name: row for row in summary(bnn).layers}
    require(not rows["spare"].random, "a layer that is never used counts as random")
    require(rows["spare"].reason or rows["spare"].remark, "summary does not report an unused layer")
    for name, layer in bnn.random_layers():
        if name != "spare" and is_random(layer):
            require(rows[name].random, f"{name} is random, but not in summary")
            require(any(issubclass(each.category, BayesifyWarning) for each in caught), "no warning about the unused layer")


def check_frozen_layer(method: Method) -> None:
    """A frozen layer is not made random unless a pattern names it."""
    skip_unless_weights(method)
    net = TwoLayers().double()
    net.layer.requires_grad_(False)
    try:
        bnn = bayesify(copy.deepcopy(net), method)
    except NothingRandomError as error:
        raise NotApplicable(str(error)) from error
    names = [name for name, _ in bnn.random_layers()]
    require("layer" not in names, "a frozen layer was made random")
    require(not any(p.requires_grad for p in bnn.net.get_submodule("layer").parameters()), "a frozen layer can be trained")
    _random_row(convert(method, net, "layer"), "layer")


def check_reserved_names(method: Method) -> None:
    """A network whose `forward` has an input `samples` is refused when it is converted."""
    try:
        convert(method, OwnSamples(), "head")
    except ConfigurationError:
        return
    raise ContractError("a network with an input `samples` was accepted")


def check_nested_inputs(method: Method) -> None:
    """Inputs may be nested dicts and lists."""
    inputs = {"table": {"numbers": fixed_inputs(5, 4)}, "more": [fixed_inputs(5, 3)]}
    trial = Trial(method, Nested, (inputs,))
    trial.require_equal_weights(coherent=[True])


def check_batch_in_dimension_one(method: Method) -> None:
    """With `batch_dim=1`, draws and functions return the batch first."""
    x = fixed_inputs(4, 3, 3)[:, :2]
    skip_ensembles(method)
    bnn = convert(method, SequenceFirst().double(), "head", batch_dim=1)
    require(bnn(x, samples=3).outputs.shape == (3, 2, 4, 2), "draws are not (S, B, T, D)")
    y = bnn.function(0)(x)
    require(y.shape == (2, 4, 2), f"a function returns {tuple(y.shape)}, not (B, T, D)")
    trial = Trial(method, SequenceFirst, (x,), batch_dim=1)
    trial.require_equal_weights()


def _require_like_linear(method: Method, kind: type[nn.Linear]) -> None:
    """Check a network with one layer of a subclass of `nn.Linear`."""
    skip_unless_weights(method)
    convert(method, TwoLayers(), "layer", "head")  # not every method supports nn.Linear
    try:
        trial = Trial(method, lambda: TwoLayers(kind(4, 3)), (fixed_inputs(5, 4),))
    except NotApplicable as reason:
        raise ContractError(f"a {kind.__name__} is not made random: {reason}") from reason
    require(isinstance(trial.bnn.net.get_submodule("layer"), kind), "the layer has lost its type")
    trial.require_equal_weights(coherent=[True])
    trial.require_equal_moments()


@functools.cache
def _register_scaled() -> None:
    """Register the layer type, once per process."""
    public: Any = importlib.import_module("bayesify")  # users import it from there
    public.register_layer(Scaled, like=nn.Linear, then=Scaled.after)


def _random_row(bnn: Any, name: str) -> LayerSummary:
    """The row of a layer in `summary`; the layer must be converted."""
    row = next(row for row in summary(bnn).layers if row.name == name)
    require(row.method, f"{name} was named by a pattern but not converted: {row.reason}")
    return row
