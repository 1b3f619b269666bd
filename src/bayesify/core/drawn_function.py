"""One draw from the posterior as a function: `Bayesian.function`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from bayesify.core.modes import modes_kept
from bayesify.core.shards import put_away
from bayesify.errors import StaleFunctionError

__all__ = ["DrawnFunction"]


class DrawnFunction:
    """A function of the net's inputs for as long as the net stays what it was; the net is in eval mode meanwhile.

    Args:
        net: the network.
        apply: from the net's inputs to its outputs.
        batch_dim: the batch dimension of these; the function's outputs have it first.
    """

    def __init__(self, net: nn.Module, apply: Callable[..., Any], batch_dim: int = 0) -> None:
        self.net, self.apply, self.batch_dim = net, apply, batch_dim
        self._state = _state(net)

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        if _state(self.net) != self._state:
            raise StaleFunctionError(
                "the network was trained or changed after this function was drawn from it; draw another one with bnn.function(seed)"
            )
        if any(module.training for module in self.net.modules()):
            with modes_kept(self.net.modules()):
                self.net.eval()
                outputs = self.apply(*inputs, **kwargs)
        else:
            outputs = self.apply(*inputs, **kwargs)
        return tree_map(lambda y: y.movedim(self.batch_dim, 0) if self.batch_dim and isinstance(y, Tensor) else y, outputs)


def _state(net: nn.Module) -> list[tuple[str, int, int, torch.device]]:
    """Names, identity, version and device of all tensors: every optimiser step and every new layer changes one of them."""
    put_away(net)
    tensors = [*net.named_parameters(), *net.named_buffers()]
    return [(name, id(x), -1 if x.is_inference() else x._version, x.device) for name, x in tensors]
