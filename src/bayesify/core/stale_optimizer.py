"""Notice optimizers that were made before `bayesify`, and lack the parameters that it added."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from torch import nn

__all__ = ["StaleOptimizer"]

_STEPS = 3  # that changed the network's own parameters, and none of those added
_PASSES = 20  # in training mode that changed none at all: more than most accumulate gradients for
_GIVEN_UP = 200  # passes, after which the network is not observed any longer


class StaleOptimizer:
    """Observes which parameters change between the first passes in training mode.

    In most networks the second of these passes shows that all is well, and is the last one that is observed. Copies do not observe.

    Args:
        before: the parameters of the plain network.
        bnn: the root of the converted network.

    Example:
        >>> net = nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        >>> bnn = bayesify(net, MeanField()).train()
        >>> for _ in range(4):
        ...     bnn(torch.zeros(5, 3)).outputs.sum().backward()
        ...     optimizer.step()
        >>> len(bnn.findings)
        1
    """

    def __init__(self, before: Iterable[nn.Parameter] = (), bnn: nn.Module | None = None) -> None:
        named = {} if bnn is None else dict(bnn.named_parameters())
        old = {id(p): p for p in before if _has_version(p)}
        present = {id(p) for p in named.values()}
        # weak references: sharding replaces parameters, whose memory is needed
        self.kept = [weakref.ref(p) for p in old.values() if id(p) in present]
        self.added = {name: weakref.ref(p) for name, p in named.items() if id(p) not in old and _has_version(p)}
        self.dropped = [weakref.ref(p) for p in old.values() if id(p) not in present]
        self.first = next((weakref.ref(p) for p in named.values()), None)
        self.passes = self.steps = 0
        self.versions: tuple[list[int], list[int]] | None = None

    def __reduce__(self) -> tuple[type[StaleOptimizer], tuple[()]]:
        return StaleOptimizer, ()

    def finding(self, bnn: nn.Module) -> str | None:
        """What a pass in training mode shows: a sentence, an empty string if there is nothing more to observe, else None."""
        kept, added = [p() for p in self.kept], [p() for p in self.added.values()]
        if self.first is None or self.passes == _GIVEN_UP or not any(p is not None and p.requires_grad for p in added):
            return ""
        if next(bnn.parameters(), None) is not self.first():  # in a functional call
            return None
        self.passes += 1
        versions = [-1 if p is None else p._version for p in kept], [-1 if p is None else p._version for p in added]
        before, self.versions = self.versions or versions, versions
        if before[1] != versions[1]:
            return ""
        self.steps += before[0] != versions[0]
        if self.steps < _STEPS and (self.passes <= _PASSES or self.steps or all(p() is None for p in self.dropped)):
            return None
        return (
            f"the parameters that `bayesify` added, such as {next(iter(self.added))!r}, have not changed in training. An optimizer "
            "made before `bayesify` lacks them: make it from bnn.parameters()"
        )


def _has_version(parameter: nn.Parameter) -> bool:
    """Whether PyTorch counts the changes of a parameter."""
    return not isinstance(parameter, nn.UninitializedParameter) and not parameter.is_inference()
