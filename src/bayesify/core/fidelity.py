"""Whether a network with random layers is the plain network with their weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bayesify.core.candidates import Candidate, candidates
from bayesify.core.comparison import close
from bayesify.core.examination import Examination
from bayesify.core.inputs import NETWORK_ERRORS, Inputs
from bayesify.core.layer import BayesianLayer
from bayesify.core.shards import shards_of
from bayesify.formatting import listing

__all__ = ["missed_weights", "unlike_plain"]


def unlike_plain(net: nn.Module, examination: Examination, inputs: Inputs, candidate: Candidate) -> str:
    """How the network differs from the plain one with the weights of a draw; empty if it does not.

    Networks differ that read parameters past their layers (`parameters()`, `functional_call`), that copy layers, or ask for their
    exact class; and networks that keep something from one call to the next.
    """
    layers = [layer for layer in examination.layers if layer.posterior.is_plain]  # of others, what they compute is not known
    if shards_of(net) or not layers:
        return ""
    expected = examination.outputs
    try:
        plain = examination.outputs_of(inputs, candidate, layers)
    except NETWORK_ERRORS:  # it, or a hook, needs random layers
        return ""
    if _agree(plain, expected):
        return ""
    try:
        if not _agree(examination.outputs_of(inputs, candidate), expected):
            return (
                "the network gives other outputs when it is called again with the same inputs and weights: it draws noise past "
                "PyTorch's generators, or keeps results for its next calls, and then draws mix; reset what it keeps in forward, "
                "or keep it out of the passes"
            )
        differing = [layer for layer in layers if not _agree(examination.outputs_of(inputs, candidate, [layer]), expected)]
    except NETWORK_ERRORS:
        differing = []
    names = {module: name for name, module in net.named_modules()}
    return (
        f"the network does not compute what it does with plain layers of the same weights, because of "
        f"{listing((repr(names[layer]) for layer in differing or layers), most=3)}: it may take their weights from parameters() or "
        "functional_call, which have no draws, copy or set them, or ask for their exact class; let it call them, or read "
        "layer.weight, and use isinstance, or leave them out by patterns"
    )


def missed_weights(net: nn.Module, examination: Examination, inputs: Inputs) -> str:
    """Which layers have no weight left that a network which fails looks for; empty if it fails for other reasons."""
    replaced = [layer for layer in examination.layers if layer.is_replaced]

    def runs(candidate: Candidate, plain: list[BayesianLayer]) -> bool:
        try:
            examination.outputs_of(inputs, candidate, plain)
        except NETWORK_ERRORS:
            return False
        return True

    with examination.with_draws():
        accepted = next((rows for rows in candidates(inputs) if runs(rows, replaced)), None) if replaced else None
        if accepted is None or runs(accepted, []):  # then not the network fails, but what is done with its outputs
            return ""
        missed = [layer for layer in replaced if not runs(accepted, [other for other in replaced if other is not layer])]
    names = {module: name for name, module in net.named_modules()}
    found = listing((repr(names[layer]) for layer in missed or replaced), most=3)
    return (
        f"the network takes the weight of {found} from parameters() or state_dict(), but its method replaced that parameter; let "
        "the network call the layer, or read layer.weight, or leave the layer out by patterns, or use a method that keeps weights, "
        "such as MeanField()"
    )


def _agree(outputs: list[Tensor], expected: list[Tensor]) -> bool:
    return len(outputs) == len(expected) and all(map(_are_close, outputs, expected))


def _are_close(a: Tensor, b: Tensor) -> bool:
    """Whether outputs are equal up to the rounding of the coarser dtype: under autocast, equal layers may return another."""
    if a.is_floating_point() and b.is_floating_point():
        coarser = max(a.dtype, b.dtype, key=lambda dtype: torch.finfo(dtype).eps)
        a, b = a.to(coarser), b.to(coarser)
    # Many libraries normalize in float32 whatever the dtype of the network, and random layers do not.
    return close(a, b, eps=torch.finfo(torch.float32).eps)
