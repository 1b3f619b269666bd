"""Networks that compute with the parameters of posteriors, which the plain network does not have: a penalty over all parameters."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from torch import Tensor, nn
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode

from bayesify.core.layer import BayesianLayer
from bayesify.core.passes import Passes
from bayesify.core.shards import shards_of
from bayesify.core.tensor_functions import tensors_in
from bayesify.formatting import listing

__all__ = ["PosteriorUses"]

_COPIES = frozenset(("clone", "_to_copy", "copy_", "detach"))  # compute nothing


class PosteriorUses(TorchDispatchMode):
    """Records which layers' posteriors have parameters that enter computations outside of random layers.

    Args:
        net: the network; of sharded ones nothing is recorded.
        layers: its random layers.
        passes: their passes.
    """

    supports_higher_order_operators = True  # such as flex_attention

    def __init__(self, net: nn.Module, layers: Collection[BayesianLayer], passes: Passes) -> None:
        super().__init__()
        self._net, self._passes = net, passes
        self._found: set[BayesianLayer] = set()
        whole = [] if shards_of(net) else layers
        self._owners = {_memory(p): layer for layer in whole for p in layer.posterior.parameters()}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the default imports PyTorch's compiler, which takes a second

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        forward_pass = self._passes.current
        outside = forward_pass is not None and not forward_pass.inside_layer
        computes = not (isinstance(func, HigherOrderOperator) or func.is_view or func.overloadpacket.__name__ in _COPIES)
        if outside and computes:
            memories = map(_memory, tensors_in((args, kwargs)))
            self._found.update(self._owners[memory] for memory in memories if memory in self._owners)
        return func(*args, **(kwargs or {}))

    def finding(self) -> str:
        """What to say of the layers that were found; empty without any."""
        if not self._found:
            return ""
        names = [repr(name) for name, module in self._net.named_modules() if module in self._found]
        return (
            f"the network computes with parameters() of the posteriors of {listing(names, most=3)}, such as logarithms of standard "
            "deviations; a penalty on them is not that of the plain network. The KL regularizes random layers: leave out names "
            'with ".posterior.", or read layer.weight for a penalty on draws'
        )


def _memory(x: Tensor) -> int:
    """Identity of a tensor's memory, which views share."""
    return x.untyped_storage()._cdata
