"""Where tasks run: the contract of an engine, and one task in the process of an engine."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.harness.plan import Task
from experiments.harness.protocol import Context, UnitError
from experiments.harness.store import Recorder, cache_path

__all__ = ["Ended", "Engine", "Failure", "Progress", "Started", "check_complete", "execute"]


@dataclasses.dataclass(frozen=True)
class Failure:
    """A task that failed.

    Attributes:
        task: the task.
        error: one line.
        details: the traceback; empty for expected errors.
    """

    task: Task
    error: str
    details: str = ""


class Started(NamedTuple):
    """A task has started, perhaps again."""

    task: Task


class Progress(NamedTuple):
    """A share of a task, in [0, 1], is done."""

    task: Task
    share: float


class Ended(NamedTuple):
    """A task has ended."""

    task: Task
    seconds: float
    failure: Failure | None = None


class Engine(ABC):
    """Runs tasks in other processes, and saves their units as soon as they finish."""

    @abstractmethod
    def run(self, tasks: Sequence[Task]) -> Generator[Started | Progress | Ended | None]:
        """Run tasks, the first ones first; a failure does not stop the others. Closing the iterator stops all at once.

        Yields:
            What happens, as it happens, and None about twice a second.
        """


def execute(
    task: Task, data_dir: Path | None, origin: Mapping[str, object], progress: Callable[[float], object] = lambda share: None
) -> None:
    """Run one task in this process and save its results.

    Raises:
        UnitError: some units have no results; the others are saved.
        UsageError: a results file cannot be written.
    """
    recorder = Recorder(task.table, task.job, task.protocol, task.checksums, origin)
    context = Context(
        data_dir=data_dir,
        progress=progress,
        save=recorder.save,
        ready=recorder.ready(),
        cache=cache_path(task.table, task.job, recorder.fingerprint),
    )
    recorder.save(task.protocol.run(task.job, task.units, context))
    check_complete(task, recorder)


def check_complete(task: Task, recorder: Recorder) -> None:
    """Raise a `UnitError` if units of the task have not been saved."""
    if missing := [unit for unit in task.units if unit not in recorder.saved]:
        raise UnitError(f"no results for {', '.join(missing)}")
