"""Checks of networks whose rows interact, are regrouped or are missing, so that draws folded into the batch could mix."""

from __future__ import annotations

import warnings

import torch

from bayesify.core.method import Method
from bayesify.diagnostics.summaries import summary
from bayesify.errors import BayesifyWarning
from bayesify.testing.nets import Attention, Experts, Graph, Mixer, Normalized, Positions, RowCoupling
from bayesify.testing.require import NotApplicable, require, require_close
from bayesify.testing.trial import Trial, fixed_inputs, is_random, require_equal_moments, warnings_ignored

_EDGES = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]])


def check_graph_network(method: Method) -> None:
    """Messages along edges stay within their draw."""
    trial = Trial(method, Graph, (fixed_inputs(5, 4), _EDGES))
    trial.require_equal_weights()


def check_moved_batch(method: Method) -> None:
    """A random layer applied to (T, B, D) uses one weight per draw."""
    trial = Trial(method, Mixer, (fixed_inputs(3, 4, 3),))
    trial.require_equal_weights()


def check_coupled_rows(method: Method) -> None:
    """Features centered over the batch are centered within their draw."""
    trial = Trial(method, RowCoupling, (fixed_inputs(5, 4),))
    trial.require_equal_weights()


def check_mixture_of_experts(method: Method) -> None:
    """Rows that random features route to experts use the weights of their draw, in every pass."""
    trial = Trial(method, Experts, (fixed_inputs(7, 4),), ("layer", "expert"))
    trial.require_equal_weights(coherent=[False] * 3 + [True] * 3)  # the routing differs between passes


def check_batch_normalization_in_training(method: Method) -> None:
    """Plain batch normalization in training mode has separate statistics per draw, also after passes in eval mode."""
    trial = Trial(method, Normalized, (fixed_inputs(5, 4),))
    x = trial.inputs[0]
    with warnings_ignored():
        trial.bnn(x, samples=4)
    trial.plain.train()
    trial.bnn.train()
    trial.require_equal_weights(coherent=[True])
    with torch.no_grad(), warnings_ignored():
        folded = torch.cat([trial.bnn(x, samples=4).outputs for _ in range(200)])
        single = torch.cat([trial.bnn(x).outputs for _ in range(800)])
    require_equal_moments(folded, single)


def check_positions(method: Method) -> None:
    """A layer of T positions, where T is the number of rows of all draws, is one function per draw."""
    trial = _positions(method)
    trial.require_equal_weights(coherent=[True])
    trial.require_equal_moments()


def check_compiled_positions(method: Method) -> None:
    """As `check_positions`, with a compiled first pass."""
    trial = _positions(method)
    torch.compiler.reset()
    compiled = torch.compile(trial.bnn, fullgraph=True, backend="aot_eager")
    x = trial.inputs[0][:1].expand(2, 8)
    with torch.no_grad(), warnings_ignored():
        outputs = torch.stack([compiled(x, samples=4, coherent=True).outputs for _ in range(8)])  # (pass, S, B, T, D)
    require_close(outputs[:, :, 0], outputs[:, :, 1], "equal rows in a compiled pass")
    if all(is_random(layer) for _, layer in trial.bnn.random_layers()):
        require((outputs != outputs[:, :1]).any(), "all draws of a compiled pass are equal")


def check_mask_as_large_as_the_batch(method: Method) -> None:
    """A mask (T, T) is not split by rows for T rows."""
    mask = torch.full((3, 3), -torch.inf, dtype=torch.float64).triu(1)
    trial = Trial(method, Attention, (fixed_inputs(3, 3, 3), mask))
    with warnings_ignored():
        trial.bnn(*trial.inputs, samples=4)
    trial.require_equal_weights(coherent=[True])


def check_slow_passes_are_announced(method: Method) -> None:
    """A network that needs a pass per draw is reported by one warning and by `summary`."""
    trial = Trial(method, Graph, (fixed_inputs(5, 4), _EDGES))
    before = str(summary(trial.bnn))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            trial.bnn(*trial.inputs, samples=4)
    messages = [str(each.message) for each in caught if issubclass(each.category, BayesifyWarning)]
    require(len(messages) == 1, f"{len(messages)} warnings, not 1: {messages}")
    require(str(summary(trial.bnn)) != before, "summary does not report that every draw takes a separate pass")


def _positions(method: Method) -> Trial:
    """8 positions for 4 draws of 2 rows, through an embedding, or a linear layer if the method supports no embedding."""
    x = fixed_inputs(2, 8)
    try:
        return Trial(method, lambda: Positions(8, embedding=True), (x,), ("layer",))
    except NotApplicable:
        return Trial(method, lambda: Positions(8, embedding=False), (x,), ("layer",))
