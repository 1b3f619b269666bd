"""Tasks on a Ray cluster. Units come back as messages, and this process saves them: the machines need no common file system."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from bayesify.jobs import Channel, Event, RayCluster, run_jobs
from experiments.harness.config import UsageError
from experiments.harness.engine import Ended, Engine, Failure, Progress, Started, check_complete
from experiments.harness.plan import Task
from experiments.harness.protocol import Context, Unit, UnitError
from experiments.harness.store import Recorder, cache_path

__all__ = ["RayTasks"]


@dataclasses.dataclass(frozen=True)
class _Assignment:
    """What a machine of the cluster gets: a task, its units from earlier runs, and the data folder, which exists there too."""

    task: Task
    ready: Mapping[str, Unit]
    data_dir: Path | None
    fingerprint: str


def _work(assignment: _Assignment, channel: Channel) -> None:
    """Run a task, without the units that an earlier attempt has sent."""
    task, data_dir = assignment.task, assignment.data_dir
    _check_data(task, data_dir)
    finished = {unit: result for message in channel.sent for unit, result in message.items()}

    def save(units: Mapping[str, Unit]) -> None:
        if new := {unit: result for unit, result in units.items() if unit not in finished}:
            channel.send(new)
            finished.update(new)

    units = [unit for unit in task.units if unit not in finished]
    shared = task.table.folder.is_dir()  # a file system that this machine has too
    context = Context(
        data_dir=data_dir,
        progress=channel.progress,
        save=save,
        ready={**assignment.ready, **finished},
        cache=cache_path(task.table, task.job, assignment.fingerprint) if shared else None,
    )
    if units:
        save(task.protocol.run(task.job, units, context))


def _check_data(task: Task, data_dir: Path | None) -> None:
    """Check that this machine has the data of the machine that started the run."""
    if not task.checksums:
        return
    from bayesify.datasets import checksum

    for name, expected in task.checksums.items():
        try:
            found = checksum(name, data_dir)
        except (OSError, ValueError, ImportError) as error:
            raise UnitError(str(error)) from error
        if found != expected:
            raise UnitError(f"the data set {name!r} of this machine of the cluster differs from the one where the run was started")


class _Running:
    """A task whose results arrive.

    Attributes:
        recorder: saves them; None before the task has started.
        since: when it started.
    """

    def __init__(self, task: Task) -> None:
        self.task, self.since = task, time.perf_counter()
        self.recorder: Recorder | None = None


class RayTasks(Engine):
    """Tasks in the processes of a Ray cluster.

    Args:
        cluster: the cluster, and the resources of a task.
        data_dir: folder of the data, on every machine; None for $BAYESIFY_DATA or the default ones.
    """

    def __init__(self, cluster: RayCluster, data_dir: Path | None = None) -> None:
        folder = data_dir or os.environ.get("BAYESIFY_DATA")
        self.cluster, self.data_dir = cluster, Path(folder).absolute() if folder else None

    def run(self, tasks: Sequence[Task]) -> Generator[Started | Progress | Ended | None]:
        running = [_Running(task) for task in tasks]
        with closing(run_jobs(_work, [self._assignment(task) for task in tasks], self.cluster)) as events:
            for event in events:
                yield None if event is None else self._handle(event, running[event.job])

    def _assignment(self, task: Task) -> _Assignment:
        recorder = Recorder(task.table, task.job, task.protocol, task.checksums, {})
        return _Assignment(task, recorder.ready(), self.data_dir, recorder.fingerprint)

    def _handle(self, event: Event, running: _Running) -> Started | Progress | Ended | None:
        task, value = running.task, event.value
        if event.kind == "start":
            if running.recorder is not None:  # its process has died
                return Progress(task, 0.0)
            running.since = time.perf_counter()
            running.recorder = Recorder(task.table, task.job, task.protocol, task.checksums, value)
            return Started(task)
        if event.kind == "progress":
            return Progress(task, value) if running.recorder is not None else None
        if event.kind == "message":
            assert running.recorder is not None
            running.recorder.save(value)
            return None
        return Ended(task, time.perf_counter() - running.since, _failure(task, running.recorder, event))


def _failure(task: Task, recorder: Recorder | None, event: Event) -> Failure | None:
    if event.kind == "error":
        error, details = event.value
        expected = isinstance(error, UnitError | UsageError | ConnectionError)
        return Failure(task, str(error) if expected else f"{type(error).__name__}: {error}", "" if expected else details)
    assert recorder is not None
    try:
        check_complete(task, recorder)
    except UnitError as error:
        return Failure(task, str(error))
    return None
