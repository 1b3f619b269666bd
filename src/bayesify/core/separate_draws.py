"""Draws of one call that take a pass each, but depend on each other."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

__all__ = ["SeparateDraws"]


class SeparateDraws:
    """Values for S draws that S passes share, one row each."""

    def __init__(self, draws: int) -> None:
        self.draws = draws
        self._values: dict[str, tuple[int, Tensor]] = {}

    def one(self, s: int, key: str, make: Callable[[int], Tensor]) -> Tensor:
        """Row s of what `make` returns for all draws; the first pass that asks calls it.

        That pass calls it again when a backward pass recomputes its layers, which makes equal draws from the restored random state
        and leaves that state as it was the first time.
        """
        owner, values = self._values.get(key, (s, None))
        if values is None or owner == s:
            values = make(self.draws)
            self._values[key] = s, values
        return values[s : s + 1]
