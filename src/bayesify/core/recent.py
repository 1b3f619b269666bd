"""`Recent`: what is known of the last kinds of inputs."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

__all__ = ["Recent"]

K = TypeVar("K")
V = TypeVar("V")


class Recent(dict[K, V], Generic[K, V]):
    """A dict of a limited number of items: a new one replaces the oldest. A network with a growing cache gets ever new inputs."""

    def __init__(self, most: int = 100) -> None:
        super().__init__()
        self.most = most

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.most,), None, None, iter(self.items())  # pickle sets items before attributes

    def __setitem__(self, key: K, value: V) -> None:
        if key not in self and len(self) >= self.most:
            del self[next(iter(self))]
        super().__setitem__(key, value)

    def setdefault(self, key: K, default: V) -> V:  # pyright: ignore[reportIncompatibleMethodOverride]
        if key not in self:
            self[key] = default
        return self[key]
