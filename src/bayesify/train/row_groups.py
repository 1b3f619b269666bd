"""Training data larger than memory: groups of rows that are read in a random order, a buffer of rows at a time."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch.utils._pytree import tree_map

from bayesify.errors import DataError
from bayesify.train.batch import Batch, as_batch
from bayesify.train.process_state import seed_for

__all__ = ["RowGroups", "Windows"]

T = TypeVar("T")
_INTERLEAVED = 8  # groups that are read at a time


class RowGroups(ABC):
    """Training data in groups of rows, such as those of Parquet files, which are never in memory as a whole.

    `fit` reads the groups in another random order in every pass, eight at a time in turns, and shuffles `buffer` rows at a time.
    With several processes each reads another share of the rows, and together they read every row once per pass. A subclass defines
    `sizes` and `read`.

    Attributes:
        sizes: number of rows of every group.
        parts: of a pass, of almost equal size. An epoch of `fit` reads one part, so that validation, the learning rate and
            checkpoints need not wait for the end of a long pass: `parts=4` and `epochs=8` are two passes.
        buffer: rows that are shuffled at a time.
        seed: of the order of the groups.
        fingerprint: identifies the data; a run resumes from a checkpoint only with equal data.

    Example:
        >>> class Lines(RowGroups):
        ...     sizes = (100, 50)
        ...     def read(self, group, start, stop):
        ...         x = torch.linspace(group, group + 1, self.sizes[group])[start:stop, None]
        ...         yield x, 2 * x
        >>> from bayesify import MeanField, bayesify
        >>> from bayesify.likelihoods import Gaussian
        >>> from bayesify.train import fit
        >>> history = fit(bayesify(torch.nn.Linear(1, 1), MeanField()), Lines(), Gaussian(), epochs=2, accelerator="cpu")
        >>> len(history), history.n
        (2, 150)
    """

    sizes: Sequence[int]
    parts: int = 1
    buffer: int = 2**17
    seed: int = 0
    fingerprint: str = ""

    @abstractmethod
    def read(self, group: int, start: int, stop: int) -> Iterator[Any]:
        """Yield rows `start` to `stop` (exclusive) of a group in order, in pieces such as `(inputs, y)`, as `fit` takes them.

        It is called in a thread, and must not draw from PyTorch's global random generators.
        """

    @cached_property
    def example(self) -> Batch:
        """The first row."""
        group = next(i for i, size in enumerate(self.sizes) if size)
        return as_batch("data", next(self.read(group, 0, 1)))


class Windows:
    """Rows of one process, in windows that fit into the buffer, each of which has the same number of batches.

    A pass is the concatenation of all groups in a random order. It is divided evenly, up to one row, among the parts, in these
    among the processes, and in these among windows, so that all processes have the same number of batches.

    Attributes:
        rows: number of rows of all groups.
        count: number of windows per epoch.
        batches: number of batches per window.
    """

    def __init__(self, name: str, data: RowGroups, batch_size: int, rank: int, world_size: int) -> None:
        self.name, self.data, self.rank, self.world_size = name, data, rank, world_size
        self.rows = sum(data.sizes)
        shares = data.parts * world_size
        self.count = max(1, -(-self.rows // (shares * data.buffer)))
        largest = -(-self.rows // (shares * self.count))
        self.batches = -(-largest // batch_size)
        if self.rows < max(1, shares * self.count * self.batches):
            raise DataError(f"{name} has {self.rows} rows, too few for {shares} parts and processes with batches of {batch_size}")

    def sizes(self, window: int, epoch: int) -> list[int]:
        """Return the number of rows of each batch of a window; batches differ by one row at most."""
        start, stop = self._bounds(window, epoch)
        edges = [(stop - start) * k // self.batches for k in range(self.batches + 1)]
        return [b - a for a, b in itertools.pairwise(edges)]

    def read(self, epoch: int) -> Iterator[Batch]:
        """Yield the windows of an epoch; a thread reads the next one meanwhile."""
        return _prefetched(self._read(epoch))

    def _bounds(self, window: int, epoch: int) -> tuple[int, int]:
        """First row and end of a window in the concatenation of all groups."""
        data = self.data
        number = (((epoch - 1) % data.parts) * self.world_size + self.rank) * self.count + window
        windows = data.parts * self.world_size * self.count
        return self.rows * number // windows, self.rows * (number + 1) // windows

    def _read(self, epoch: int) -> Iterator[Batch]:
        first, end = self._bounds(0, epoch)[0], self._bounds(self.count - 1, epoch)[1]
        pieces = _interleaved(self._streams(epoch, first, end))
        held: deque[tuple[Any, ...]] = deque()
        rows = 0
        for window in range(self.count):
            start, stop = self._bounds(window, epoch)
            while rows < stop - start:
                piece = next(pieces, None)
                if piece is None:
                    raise DataError(f"{self.name} has fewer rows than its sizes say; the data have changed")
                held.append(piece.tensors)
                rows += piece.size
            tensors = tree_map(lambda *parts: torch.cat(parts), *held) if len(held) > 1 else held[0]
            size, held = stop - start, deque([tree_map(lambda x: x[stop - start :], tensors)])  # noqa: B023
            rows -= size
            yield Batch(*tree_map(lambda x: x[:size], tensors))  # noqa: B023

    def _streams(self, epoch: int, first: int, end: int) -> Iterator[Iterator[Batch]]:
        """Yield the groups from row `first` to `end` of the concatenation, the first and the last of them in part."""
        sizes = self.data.sizes
        seed = seed_for(self.data.seed, "groups", (epoch - 1) // self.data.parts)
        offset = 0
        for group in torch.randperm(len(sizes), generator=torch.Generator().manual_seed(seed), device="cpu").tolist():
            start, stop = max(first - offset, 0), min(end - offset, sizes[group])
            if start < stop:
                name = f"group {group} of {self.name}"
                yield (as_batch(name, piece) for piece in self.data.read(group, start, stop))
            offset += sizes[group]


def _interleaved(streams: Iterable[Iterator[T]]) -> Iterator[T]:
    """Yield the items of iterators in turns, of eight at a time."""
    waiting = iter(streams)
    active = deque(itertools.islice(waiting, _INTERLEAVED))
    while active:
        stream = active.popleft()
        for item in itertools.islice(stream, 1):
            yield item
            active.append(stream)
            break
        else:
            active.extend(itertools.islice(waiting, 1))


def _prefetched(items: Iterator[T]) -> Iterator[T]:
    """Yield the items of an iterator, each of which is computed by a thread while the one before is in use."""
    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(next, items, None)
        while (item := following.result()) is not None:
            following = thread.submit(next, items, None)
            yield item
