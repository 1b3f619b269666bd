"""Whether a network with random layers is the plain network with their weights."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from bayesify.core.comparison import close
from bayesify.core.examination import SHAPE_ERRORS, Candidate, Examination
from bayesify.core.inputs import Inputs
from bayesify.core.shards import shards_of
from bayesify.formatting import listing

__all__ = ["unlike_plain"]


def unlike_plain(net: nn.Module, examination: Examination, inputs: Inputs, candidate: Candidate) -> str:
    """How the network differs from the plain one with the weights of a draw; empty if it does not.

    Networks differ that read parameters past their layers (`parameters()`, `functional_call`), that copy layers, or ask for their
    exact class; and networks that keep something from one call to the next.
    """
    layers = list(examination.layers)
    if shards_of(net) or not all(layer.posterior.is_plain for layer in layers):
        return ""
    expected = examination.outputs
    try:
        plain = examination.outputs_of(inputs, candidate, layers)
    except (*SHAPE_ERRORS, AttributeError):  # it, or a hook, needs random layers
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
    except SHAPE_ERRORS:
        differing = []
    names = {module: name for name, module in net.named_modules()}
    return (
        f"the network does not compute what it does with plain layers of the same weights, because of "
        f"{listing((repr(names[layer]) for layer in differing or layers), most=3)}: it may take their weights from parameters() or "
        "functional_call, which have no draws, copy them, or ask for their exact class; let it call them, or read layer.weight, "
        "and use isinstance, or leave them out by patterns"
    )


def _agree(outputs: list[Tensor], expected: list[Tensor]) -> bool:
    # Many libraries normalize in float32 whatever the dtype of the network, and random layers do not.
    rounding = partial(close, eps=torch.finfo(torch.float32).eps)
    return len(outputs) == len(expected) and all(map(rounding, outputs, expected))
