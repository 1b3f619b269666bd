"""Running tasks in worker processes, the longest first; units are saved as soon as they finish."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bayesify.environment import machine
from experiments.harness.plan import Task
from experiments.harness.progress import Display
from experiments.harness.protocol import Context, UnitError
from experiments.harness.store import Recorder, cache_path

__all__ = ["Failure", "execute", "run_tasks"]

_SECONDS_TO_END = 10  # for an idle worker
_SPAWN = get_context("spawn")  # a forked process inherits the locks of PyTorch's threads


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


def execute(
    task: Task, data_dir: Path | None, origin: Mapping[str, object], progress: Callable[[float], object] = lambda share: None
) -> None:
    """Run one task in this process and save its results.

    Raises:
        UnitError: some units have no results; the others are saved.
    """
    recorder = Recorder(task.table, task.job, task.protocol, task.checksums, origin)
    existing = recorder.existing()
    context = Context(
        data_dir=data_dir,
        progress=progress,
        save=recorder.save,
        ready={} if existing is None else {unit: existing.units[unit] for unit in task.job.units if unit in existing.units},
        cache=cache_path(task.table, task.job, recorder.fingerprint),
    )
    recorder.save(task.protocol.run(task.job, task.units, context))
    if missing := [unit for unit in task.units if unit not in recorder.saved]:
        raise UnitError(f"no results for {', '.join(missing)}")


def run_tasks(tasks: Sequence[Task], *, workers: int = 1, data_dir: Path | None = None) -> list[Failure]:
    """Run tasks in worker processes that share the processor's cores, and show their progress.

    A task that fails, or whose process dies, is reported and does not stop the others.
    Ctrl-C stops at once and loses running units only.
    """
    waiting = sorted(tasks, key=lambda task: -task.cost)
    workers = min(workers, len(waiting))
    threads = max(1, torch.get_num_threads() // max(workers, 1))
    origin = machine()
    failures: list[Failure] = []
    pool: list[_Worker] = []
    with Display(waiting) as display:
        try:
            while waiting or any(worker.task for worker in pool):
                while waiting and len(pool) < workers:
                    pool.append(_Worker(threads, data_dir, {**origin, "threads": threads}))
                for worker in pool:
                    if worker.task is None and waiting:
                        worker.start(waiting[0])
                        display.start(waiting.pop(0))
                ready = connection.wait([worker.pipe for worker in pool if worker.task], timeout=0.5)
                for worker in [worker for worker in pool if worker.pipe in ready]:
                    task, message = worker.task, worker.receive()
                    assert task is not None
                    if not isinstance(message, _Ended):
                        display.advance(task, message)
                        continue
                    if message.error is not None:
                        failures.append(Failure(task, message.error, message.details))
                    display.finish(task, time.perf_counter() - worker.since, message.error)
                    worker.task = None
                    if not worker.process.is_alive():
                        worker.stop()
                        pool.remove(worker)
                display.tick()
        finally:
            for worker in pool:
                worker.stop()
    return failures


class _Ended(NamedTuple):
    """A worker's final message about a task: its error and traceback, if any."""

    error: str | None = None
    details: str = ""


class _Worker:
    """The parent's handle of a process that runs one task after another."""

    def __init__(self, threads: int, data_dir: Path | None, origin: Mapping[str, object]) -> None:
        self.pipe, theirs = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=_work, args=(theirs, threads, data_dir, origin), daemon=True)
        self.process.start()
        theirs.close()
        self.task: Task | None = None
        self.since = 0.0

    def start(self, task: Task) -> None:
        self.task, self.since = task, time.perf_counter()
        with contextlib.suppress(ConnectionError):  # `receive` reports a process that has died
            self.pipe.send(task)

    def receive(self) -> float | _Ended:
        """The share of the task that is done, or its final message."""
        try:
            return self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            return _Ended(f"its process died with exit code {self.process.exitcode} (-9: killed, perhaps out of memory)")

    def stop(self) -> None:
        """End the process: a busy one at once; an idle one exits by itself and releases its resources."""
        self.pipe.close()
        if self.task is None:
            self.process.join(_SECONDS_TO_END)
        self.process.terminate()
        self.process.join()


def _work(pipe: Any, threads: int, data_dir: Path | None, origin: Mapping[str, object]) -> None:
    """Main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent stops its workers
    threading.Thread(target=_follow_parent, daemon=True).start()
    torch.set_num_threads(threads)
    due = 0.0

    def progress(share: float) -> None:
        nonlocal due
        if time.perf_counter() >= due:
            pipe.send(float(share))
            due = time.perf_counter() + 0.2

    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        try:
            execute(task, data_dir, origin, progress)
        except UnitError as error:
            pipe.send(_Ended(str(error)))
        except Exception as error:  # noqa: BLE001 - the other jobs go on
            pipe.send(_Ended(f"{type(error).__name__}: {error}", traceback.format_exc()))
        else:
            pipe.send(_Ended())


def _follow_parent() -> None:
    """Exit with the parent, even if it is killed: a second run must not meet this worker."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
