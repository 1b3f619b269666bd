"""Functions and networks drawn from the posterior of the default root.

Shapes: S draws, B batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bayesify.core.checks import check_integer
from bayesify.core.copies import copied_module
from bayesify.core.drawn_function import DrawnFunction
from bayesify.core.forward_pass import ForwardPass
from bayesify.core.generators import own_noise
from bayesify.core.layer import BayesianLayer
from bayesify.core.modes import eval_mode
from bayesify.core.planning import Planning
from bayesify.core.restoration import restore
from bayesify.core.shards import check_whole, reshard, shards_of
from bayesify.core.turns import turn

__all__ = ["DrawnNetworks"]


class DrawnNetworks(Planning):
    """A root whose passes with given weights are functions of the inputs.

    Attributes:
        function_pass: the pass of a function drawn from a sharded network, while the root is called for it.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self.function_pass: ForwardPass | None = None

    def function(self, seed: int) -> Callable[..., Any]:
        drawn = self._weights(seed)

        def apply(*inputs: Any, **kwargs: Any) -> Any:
            forward_pass = ForwardPass(coherent=True, drawn=drawn)
            if not shards_of(self):
                return self.passes.run(forward_pass, self.net, inputs, kwargs, alone=True)
            self.function_pass = forward_pass
            try:
                return self(*inputs, **kwargs)  # FSDP gathers parameters when the root is called
            finally:
                self.function_pass = None
                reshard(self)

        return DrawnFunction(self, apply, self.batch_dim)

    def drawn(self, seed: int) -> AbstractContextManager[nn.Module]:
        return self.drawn_together([seed])

    @contextmanager
    def drawn_together(self, seeds: Sequence[int]) -> Iterator[nn.Module]:
        check_whole(self)
        draws = [self._weights(seed) for seed in seeds]
        drawn = {layer: tuple(map(_cat, zip(*(draw[layer] for draw in draws), strict=True))) for layer in draws[0]}
        rows = len(draws) if len(draws) > 1 else None
        with ExitStack() as stack:
            with turn():
                stack.enter_context(self.passes.hold(ForwardPass(len(draws), coherent=True, drawn=drawn, rows=rows)))
                stack.enter_context(eval_mode(self.net))
            yield self.net

    def sample_network(self, seed: int) -> nn.Module:
        check_whole(self)
        weights = self._weights(seed)
        net = copied_module(self.net)
        copies = (module for module in net.modules() if isinstance(module, BayesianLayer))
        original = dict(zip(copies, weights, strict=True))

        def values(layer: BayesianLayer) -> tuple[Tensor, Tensor | None]:
            weight, bias = weights[original[layer]]
            return weight[0], None if bias is None else bias[0]

        restore(net, values)
        return net

    def _weights(self, seed: int) -> dict[BayesianLayer, tuple[Tensor, Tensor | None]]:
        """One draw of weight (1, *) and bias (1, *) of every layer."""
        check_integer("seed", seed, least=0)
        with torch.no_grad(), own_noise(self.parameters()) as reseed:
            reseed(seed)
            return self.passes.draw(self._layers())


def _cat(tensors: Sequence[Tensor | None]) -> Tensor | None:
    """Concatenate draws of a weight or bias; None for a layer without bias."""
    present = [x for x in tensors if x is not None]
    return torch.cat(present) if present else None
