"""Checks of networks whose rows interact, are regrouped or are missing, where draws folded into the batch may meet."""

from __future__ import annotations

import warnings

import torch

from bayesify.core.method import Method
from bayesify.core.summary import summary
from bayesify.errors import BayesifyWarning
from bayesify.testing.cases import random_layers
from bayesify.testing.nets import Attention, Experts, Graph, Mixer, Normalized, Positions, RowCoupling
from bayesify.testing.require import NotApplicable, require, require_close
from bayesify.testing.trial import Trial, is_random, numbers, quietly, require_equal_moments

__all__ = ["ROW_CHECKS"]

_EDGES = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]])
_MODES = (False, True)


def check_graph_network(method: Method) -> None:
    """Messages along edges reach the rows of every draw."""
    trial = Trial(method, Graph, (numbers(5, 4), _EDGES))
    for coherent in _MODES:
        trial.require_equal_weights(coherent=coherent)


def check_moved_batch(method: Method) -> None:
    """A random layer that works on (T, B, D) uses one weight per draw."""
    trial = Trial(method, Mixer, (numbers(3, 4, 3),))
    for coherent in _MODES:
        trial.require_equal_weights(coherent=coherent)


def check_coupled_rows(method: Method) -> None:
    """Rows that are centered over the batch are centered within their draw."""
    trial = Trial(method, RowCoupling, (numbers(5, 4),))
    for coherent in _MODES:
        trial.require_equal_weights(coherent=coherent)


def check_mixture_of_experts(method: Method) -> None:
    """Rows that random features sort to experts keep the weight of their draw, in every pass."""
    trial = Trial(method, Experts, (numbers(7, 4),), ("layer", "expert"))
    for coherent in _MODES:
        for _ in range(3):  # the routing differs between passes
            trial.require_equal_weights(coherent=coherent)


def check_batch_normalization_in_training(method: Method) -> None:
    """Plain batch normalization has statistics of its own in every draw, in training mode, also after passes in eval mode."""
    trial = Trial(method, Normalized, (numbers(5, 4),))
    x = trial.inputs[0]
    with quietly():
        trial.bnn(x, samples=4)
    trial.plain.train()
    trial.bnn.train()
    trial.require_equal_weights(coherent=True)
    with torch.no_grad(), quietly():
        together = torch.cat([trial.bnn(x, samples=4).outputs for _ in range(200)])
        one_by_one = torch.cat([trial.bnn(x).outputs for _ in range(800)])
    require_equal_moments(together, one_by_one)


def check_positions(method: Method) -> None:
    """A layer that is given T positions, as many as all draws have rows, is one function per draw."""
    trial = _positions(method)
    trial.require_equal_weights(coherent=True)
    trial.require_equal_moments()


def check_compiled_positions(method: Method) -> None:
    """So it is where the first pass is compiled."""
    trial = _positions(method)
    torch.compiler.reset()
    compiled = torch.compile(trial.bnn, fullgraph=True, backend="aot_eager")
    x = trial.inputs[0][:1].expand(2, 8)
    with torch.no_grad(), quietly():
        outputs = torch.stack([compiled(x, samples=4, coherent=True).outputs for _ in range(8)])  # (pass, S, B, T, D)
    require_close(outputs[:, :, 0], outputs[:, :, 1], "equal rows in a compiled pass")
    if all(is_random(layer) for _, layer in random_layers(trial.bnn.net)):
        require((outputs != outputs[:, :1]).any(), "all draws of a compiled pass are equal")


def check_mask_as_large_as_the_batch(method: Method) -> None:
    """A mask (T, T) belongs to no row, also where there are T rows."""
    mask = torch.full((3, 3), -torch.inf, dtype=torch.float64).triu(1)
    trial = Trial(method, Attention, (numbers(3, 3, 3), mask))
    with quietly():
        trial.bnn(*trial.inputs, samples=4)
    trial.require_equal_weights(coherent=True)


def check_slow_passes_are_announced(method: Method) -> None:
    """A net that takes a pass per draw is reported: one warning, and `summary` says so."""
    trial = Trial(method, Graph, (numbers(5, 4), _EDGES))
    before = str(summary(trial.bnn))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            trial.bnn(*trial.inputs, samples=4)
    told = [str(each.message) for each in caught if issubclass(each.category, BayesifyWarning)]
    require(len(told) == 1, f"{len(told)} warnings, not 1: {told}")
    require(str(summary(trial.bnn)) != before, "summary does not say that every draw takes a pass of its own")


def _positions(method: Method) -> Trial:
    """8 positions for 4 draws of 2 rows: of an embedding, or of a linear layer if the method supports no embedding."""
    x = numbers(2, 8)
    try:
        return Trial(method, lambda: Positions(8, embedding=True), (x,), ("layer",))
    except NotApplicable:
        return Trial(method, lambda: Positions(8, embedding=False), (x,), ("layer",))


ROW_CHECKS = (
    check_graph_network,
    check_moved_batch,
    check_coupled_rows,
    check_mixture_of_experts,
    check_batch_normalization_in_training,
    check_positions,
    check_compiled_positions,
    check_mask_as_large_as_the_batch,
    check_slow_passes_are_announced,
)
