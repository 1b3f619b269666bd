"""Choices of a few rows of a batch, on which a network is examined."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator

from torch import Tensor

from bayesify.core.inputs import Arguments, Inputs, fold

__all__ = ["Candidate", "candidates"]

_ROWS = 3
_MOST_AMBIGUOUS = 3  # inputs that are tried with and without rows


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A choice of a few rows of the inputs: which leaves have rows, and the number of rows to take."""

    rows: tuple[bool, ...]
    count: int

    def single(self, inputs: Inputs, then: Callable[[Tensor], Tensor] = lambda x: x) -> Arguments:
        return inputs.map(lambda x: then(self._cut(x, inputs)), self.rows)

    def folded(self, inputs: Inputs, then: Callable[[Tensor], Tensor] = lambda x: x, samples: int = 2) -> Arguments:
        return inputs.map(lambda x: then(fold(self._cut(x, inputs), samples)), self.rows)

    def _cut(self, x: Tensor, inputs: Inputs) -> Tensor:
        return x.narrow(inputs.batch_dim, 0, self.count).clone()


def candidates(inputs: Inputs, whole: bool = False) -> Iterator[Candidate]:
    """The first rows if they are valid inputs, otherwise the whole batch; then the same without rows for ambiguous tensors."""
    ambiguous = inputs.ambiguous[:_MOST_AMBIGUOUS]
    for size in range(len(ambiguous) + 1):
        for missing in itertools.combinations(ambiguous, size):
            rows = tuple(has and i not in missing for i, has in enumerate(inputs.has_rows))
            few = min(_ROWS, inputs.batch) if inputs.can_be_cut and not whole else inputs.batch
            yield from (Candidate(rows, count) for count in dict.fromkeys((few, inputs.batch)))
