"""What there is to run, and running it: jobs in worker processes, the longest first, every unit kept as soon as it is ready."""

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
from benchmarks.measure import machine

from experiments.harness.plan import Task
from experiments.harness.progress import Display
from experiments.harness.protocol import Context, UnitError
from experiments.harness.store import Recorder, cache_path

__all__ = ["Failure", "execute", "run_tasks"]

_SECONDS_TO_END = 10  # that an idle worker has
_SPAWN = get_context("spawn")  # a forked process inherits PyTorch's threads as locks that nobody opens


@dataclasses.dataclass(frozen=True)
class Failure:
    """A task that did not come to an end.

    Attributes:
        task: which.
        error: in a line.
        details: the traceback, where it tells more.
    """

    task: Task
    error: str
    details: str = ""


def execute(
    task: Task, data_dir: Path | None, origin: Mapping[str, object], progress: Callable[[float], object] = lambda share: None
) -> None:
    """Run one task in this process and keep its results.

    Raises:
        UnitError: some units have no results; the others are kept.
    """
    recorder = Recorder(task.table, task.job, task.protocol, task.checksums, origin)
    kept = recorder.kept()
    context = Context(
        data_dir=data_dir,
        progress=progress,
        save=recorder.save,
        ready={} if kept is None else {unit: kept.units[unit] for unit in task.job.units if unit in kept.units},
        cache=cache_path(task.table, task.job.key, recorder.fingerprint),
    )
    recorder.save(task.protocol.run(task.job, task.units, context))
    if missing := [unit for unit in task.units if unit not in recorder.saved]:
        raise UnitError(f"no results for {', '.join(missing)}")


def run_tasks(tasks: Sequence[Task], *, workers: int = 1, data_dir: Path | None = None) -> list[Failure]:
    """Run tasks in worker processes that share the processor's cores, and show how far they are.

    A task that fails, or whose process dies, is reported and does not stop the others. Ctrl-C stops at once; what is ready is kept.
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
    """A worker's last word about a task: what went wrong, if anything, and the traceback where it tells more."""

    error: str | None = None
    details: str = ""


class _Worker:
    """A process that runs one task after another, as seen from outside."""

    def __init__(self, threads: int, data_dir: Path | None, origin: Mapping[str, object]) -> None:
        self.pipe, theirs = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=_work, args=(theirs, threads, data_dir, origin), daemon=True)
        self.process.start()
        theirs.close()
        self.task: Task | None = None
        self.since = 0.0

    def start(self, task: Task) -> None:
        self.task, self.since = task, time.perf_counter()
        with contextlib.suppress(ConnectionError):  # a process that has died meanwhile is noticed by `receive`
            self.pipe.send(task)

    def receive(self) -> float | _Ended:
        """The share of the task that is done, or its end."""
        try:
            return self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            return _Ended(f"its process died with exit code {self.process.exitcode} (-9: killed, perhaps for want of memory)")

    def stop(self) -> None:
        """End the process: at once where it is at work, otherwise by itself, so that it puts away what it holds."""
        self.pipe.close()
        if self.task is None:
            self.process.join(_SECONDS_TO_END)
        self.process.terminate()
        self.process.join()


def _work(pipe: Any, threads: int, data_dir: Path | None, origin: Mapping[str, object]) -> None:
    """The worker's side."""
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
        except Exception as error:
            pipe.send(_Ended(f"{type(error).__name__}: {error}", traceback.format_exc()))
        else:
            pipe.send(_Ended())


def _follow_parent() -> None:
    """Die with the parent, even if it is killed: a second run would otherwise meet this one at work."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
