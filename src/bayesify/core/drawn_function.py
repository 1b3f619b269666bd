"""One draw from the posterior as a function: `Bayesian.function`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from bayesify.core.modes import eval_mode
from bayesify.core.shards import reshard
from bayesify.core.turns import turn
from bayesify.errors import StaleFunctionError

__all__ = ["DrawnFunction"]


class DrawnFunction:
    """A function of a network's inputs, evaluated in eval mode, that is valid until the network changes.

    Args:
        net: the network.
        apply: from the network's inputs to its outputs.
        batch_dim: the batch dimension of these outputs; the function moves it to the front.

    Raises:
        StaleFunctionError: when called, if the network was trained or changed.
    """

    def __init__(self, net: nn.Module, apply: Callable[..., Any], batch_dim: int = 0) -> None:
        self.net, self.apply, self.batch_dim = net, apply, batch_dim
        self._state = _state(net)

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        if _state(self.net) != self._state:
            raise StaleFunctionError(
                "the network was trained or changed after this function was drawn from it; draw another one with bnn.function(seed)"
            )
        with turn(), eval_mode(self.net) if any(module.training for module in self.net.modules()) else nullcontext():
            outputs = self.apply(*inputs, **kwargs)
        return tree_map(lambda y: y.movedim(self.batch_dim, 0) if self.batch_dim and isinstance(y, Tensor) else y, outputs)


def _state(net: nn.Module) -> list[tuple[str, int, int, torch.device]]:
    """Names, ids, versions and devices of all tensors; every optimizer step and every new layer changes one of them."""
    reshard(net)
    tensors = [*net.named_parameters(), *net.named_buffers()]
    return [(name, id(x), -1 if x.is_inference() else x._version, x.device) for name, x in tensors]
