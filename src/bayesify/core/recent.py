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
        self._texts: dict[str, V] = {}  # items of another process, by the text of their keys

    def texts(self) -> dict[str, V]:
        """All items, by the text of their keys, which has no addresses and may be stored."""
        return {**self._texts, **{repr(key): value for key, value in self.items()}}

    def take(self, texts: dict[str, V]) -> None:
        """Replace all items with those of `texts` of another process, which `recall` finds."""
        super().clear()
        self._texts = dict(texts)

    def recall(self, key: K) -> V | None:
        """The value of a key, also from another process."""
        if key not in self and self._texts and (text := repr(key)) in self._texts:
            self[key] = self._texts.pop(text)
        return self.get(key)

    def clear(self) -> None:
        super().clear()
        self._texts = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.most,), vars(self), None, iter(self.items())  # pickle sets items before attributes

    def __setitem__(self, key: K, value: V) -> None:
        if key not in self and len(self) >= self.most:
            del self[next(iter(self))]
        super().__setitem__(key, value)

    def setdefault(self, key: K, default: V) -> V:  # pyright: ignore[reportIncompatibleMethodOverride]
        if key not in self:
            self[key] = default
        return self[key]
