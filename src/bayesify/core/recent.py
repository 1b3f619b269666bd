"""`Recent`: what is known of the last kinds of inputs."""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["Recent"]

K = TypeVar("K")
V = TypeVar("V")
_MOST = 100


class Recent(dict[K, V], Generic[K, V]):
    """A dict of at most 100 items: a new one replaces the oldest. A network with a growing cache gets ever new kinds of inputs."""

    def __setitem__(self, key: K, value: V) -> None:
        if key not in self and len(self) >= _MOST:
            del self[next(iter(self))]
        super().__setitem__(key, value)
