"""Agreement of the processes of a run, so that a difference or an error in one of them is one message and not a deadlock."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from bayesify.errors import ClusterError, ConfigurationError
from bayesify.formatting import listing
from bayesify.jobs.worker import portable

if TYPE_CHECKING:
    from lightning.fabric import Fabric

__all__ = ["by_first_process", "check_agreement", "exists_for_first_process", "raised_everywhere"]

T = TypeVar("T")


def _gather(fabric: Fabric, value: T) -> list[T]:
    """Return the values of all processes, which are sent as pickles."""
    if fabric.world_size == 1:
        return [value]
    values: list[Any] = [None] * fabric.world_size
    torch.distributed.all_gather_object(values, value)
    return values


def check_agreement(fabric: Fabric, facts: Mapping[str, object]) -> None:
    """Check that all processes have the same facts, by name.

    Raises:
        ConfigurationError: they differ; raised in every process.
    """
    everyone = _gather(fabric, (platform.node(), dict(facts)))
    first_host, first = everyone[0]
    for rank, (host, other) in enumerate(everyone):
        names = [name for name in {**first, **other} if first.get(name) != other.get(name)]
        if names:
            values = [f"{name} is {str(first.get(name))[:60]} and {str(other.get(name))[:60]}" for name in names]
            raise ConfigurationError(
                f"process 0 on {first_host} and process {rank} on {host} differ: {listing(values, most=3)}; give all processes the "
                "same versions, settings and data, and call torch.manual_seed before the network is made"
            )


@contextmanager
def raised_everywhere(fabric: Fabric) -> Iterator[None]:
    """Raise the error of one process in all: without it the others would wait for that process forever.

    Raises:
        ClusterError: another process failed.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as caught:  # noqa: BLE001 - raised again below
        error = caught
    failures = _gather(fabric, None if error is None else (platform.node(), f"{type(error).__name__}: {error}"))
    if error is not None:
        raise error
    for rank, failure in enumerate(failures):
        if failure is not None:
            raise ClusterError(f"process {rank} on {failure[0]} failed: {failure[1]}")


def by_first_process(fabric: Fabric, function: Callable[[], T]) -> T:
    """Call a function in the first process; return its result, or raise its error, in every process."""
    if fabric.world_size == 1:
        return function()
    outcome: Any = None, None
    original: Exception | None = None
    if fabric.is_global_zero:
        try:
            outcome = function(), None
        except Exception as caught:  # noqa: BLE001 - raised again below
            original, outcome = caught, (None, portable(caught))
    result, error = fabric.broadcast(outcome)
    if error is not None:
        raise original or error
    return result


def exists_for_first_process(fabric: Fabric, path: Path) -> bool:
    """Return whether a file exists for the first process, which reads it.

    Raises:
        ConfigurationError: only for others.
    """
    everyone = _gather(fabric, (platform.node(), path.exists()))
    holders = [(rank, host) for rank, (host, exists) in enumerate(everyone) if exists]
    if holders and not everyone[0][1]:
        rank, host = holders[0]
        raise ConfigurationError(
            f"{path} exists for process {rank} on {host}, but not for process 0 on {everyone[0][0]}, which reads and writes it; "
            "use a folder that all hosts share"
        )
    return everyone[0][1]
