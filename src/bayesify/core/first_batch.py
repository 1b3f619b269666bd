"""Parameters that a network sets by itself, in a pass: normalization that is initialized from the first batch (ActNorm)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from bayesify.core.layer import BayesianLayer
from bayesify.core.shards import shards_of
from bayesify.errors import PassError
from bayesify.formatting import listing

__all__ = ["FirstBatchError", "SetParameters", "may_set_parameters"]

_MOST_ELEMENTS = 1_000_000  # of a parameter that is watched: scales and shifts have one per channel


class FirstBatchError(PassError):
    """A test of the network has initialized it."""


class SetParameters:
    """Watches which parameters the passes of an examination set, and undoes updates that every pass makes.

    Passes with other weights and few rows must not be the ones that initialize a network.

    Args:
        net: the converted network. Parameters of PyTorch's own layers and of this library's are not watched.
    """

    def __init__(self, net: nn.Module) -> None:
        modules = {} if shards_of(net) else {module: name for name, module in net.named_modules() if _may_set(module)}
        self._watched = {
            f"{prefix}.{name}".lstrip("."): (parameter, parameter.detach().clone())
            for module, prefix in modules.items()
            for name, parameter in module.named_parameters(recurse=False)
            if not isinstance(parameter, nn.parameter.UninitializedParameter) and parameter.numel() <= _MOST_ELEMENTS
        }
        self._passes: list[set[str]] = []

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Note what a pass changes."""
        before = {name: parameter.detach().clone() for name, (parameter, _) in self._watched.items()}
        yield
        self._passes.append({name for name, value in before.items() if not _equal(self._watched[name][0], value)})

    @torch.no_grad()
    def restore(self) -> None:
        """Undo what passes have changed.

        Raises:
            FirstBatchError: the first pass has changed parameters that the last has not: it has initialized them.
        """
        first, *others = self._passes or [set[str]()]
        if names := [name for name in self._watched if name in first and not (others and name in others[-1])]:
            raise FirstBatchError(
                f"the network sets {listing(map(repr, names), most=3)} in its first pass, from the batch (as ActNorm does), which "
                "would be a test of the network with few rows here; build it again, and call it once with a batch of the training "
                "data before bayesify()"
            )
        for parameter, value in self._watched.values():
            if not _equal(parameter, value):
                parameter.copy_(value)


def may_set_parameters(net: nn.Module) -> bool:
    """Whether modules other than PyTorch's own and this library's have parameters, which they may set in their first pass."""
    return any(_may_set(module) and any(True for _ in module.parameters(recurse=False)) for module in net.modules())


def _may_set(module: nn.Module) -> bool:
    return not (isinstance(module, BayesianLayer) or type(module).__module__.startswith(("torch.nn.", "bayesify.")))


def _equal(parameter: nn.Parameter, value: Tensor) -> bool:
    with torch._C.DisableTorchFunction():  # this comparison is no decision of the network
        return parameter.shape == value.shape and torch.equal(parameter.detach().nan_to_num(), value.nan_to_num())
