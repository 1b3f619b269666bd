"""Networks that differentiate in `forward`, such as forces as derivatives of an energy, where gradients are disabled."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from bayesify.core.generators import generator_states, set_generator_states
from bayesify.core.outputs import Draws

__all__ = ["Differentiation", "lacks_gradients"]


def lacks_gradients(error: Exception) -> bool:
    """Whether this is the error of a network that differentiates where gradients are disabled."""
    return isinstance(error, RuntimeError) and "does not require grad" in str(error)


class Differentiation:
    """Calls a network with gradients where they are disabled, as in `predict`, if it cannot do without; its draws have none.

    Attributes:
        needed: whether a call failed without gradients; None before the first one.
    """

    def __init__(self) -> None:
        self.needed: bool | None = None

    def run(self, call: Callable[[], Draws], tensors: Iterable[Tensor]) -> Draws:
        """The draws of a call.

        Args:
            call: of the network.
            tensors: on the devices from whose generators it draws.
        """
        if torch.compiler.is_compiling() or torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            return call()
        if not self.needed:
            tensors = list(tensors) if self.needed is None else []
            states = generator_states(tensors) if self.needed is None else {}
            try:
                draws = call()
            except RuntimeError as error:
                if not lacks_gradients(error):
                    raise
                if states:
                    set_generator_states(tensors, states)  # equal seeds give equal draws in all calls
            else:
                self.needed = False
                return draws
        self.needed = True
        with torch.enable_grad():
            draws = call()
        parts = draws.outputs, draws.kl, draws.local_kl, draws.score
        outputs, kl, local_kl, score = tree_map_only(Tensor, Tensor.detach, parts)
        return draws._replace(outputs=outputs, kl=kl, local_kl=local_kl, score=score)
