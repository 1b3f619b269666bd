"""The engine of one machine: a pool of processes, which save their units themselves."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import traceback
from collections.abc import Generator, Mapping, Sequence
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bayesify.environment import machine
from experiments.harness.config import UsageError
from experiments.harness.engine import Ended, Engine, Failure, Progress, Started, execute
from experiments.harness.plan import Task
from experiments.harness.protocol import UnitError

__all__ = ["Processes"]

_SECONDS_TO_END = 10  # for an idle worker
_SPAWN = get_context("spawn")  # a forked process inherits the locks of PyTorch's threads


class Processes(Engine):
    """A pool of processes that share the processor's cores.

    Args:
        workers: their number.
        data_dir: folder of the data; None for the default ones.
    """

    def __init__(self, workers: int = 1, data_dir: Path | None = None) -> None:
        self.workers, self.data_dir = workers, data_dir

    def run(self, tasks: Sequence[Task]) -> Generator[Started | Progress | Ended | None]:
        waiting, pool = list(tasks), list[_Worker]()
        workers = min(self.workers, len(waiting))
        threads = max(1, torch.get_num_threads() // max(workers, 1))
        origin = {**machine(), "threads": threads}
        try:
            while waiting or any(worker.task for worker in pool):
                while waiting and len(pool) < workers:
                    pool.append(_Worker(threads, self.data_dir, origin))
                for worker in pool:
                    if worker.task is None and waiting:
                        worker.start(waiting[0])
                        yield Started(waiting.pop(0))
                ready = connection.wait([worker.pipe for worker in pool if worker.task], timeout=0.5)
                for worker in [worker for worker in pool if worker.pipe in ready]:
                    task, message = worker.task, worker.receive()
                    assert task is not None
                    if not isinstance(message, _Final):
                        yield Progress(task, message)
                        continue
                    failure = None if message.error is None else Failure(task, message.error, message.details)
                    worker.task = None
                    if not worker.process.is_alive():
                        worker.stop()
                        pool.remove(worker)
                    yield Ended(task, time.perf_counter() - worker.since, failure)
                yield None
        finally:
            for worker in pool:
                worker.stop()


class _Final(NamedTuple):
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

    def receive(self) -> float | _Final:
        """The share of the task that is done, or its final message."""
        try:
            return self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            return _Final(f"its process died with exit code {self.process.exitcode} (-9: killed, perhaps out of memory)")

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
        except (UnitError, UsageError) as error:
            pipe.send(_Final(str(error)))
        except Exception as error:  # noqa: BLE001 - the other jobs go on
            pipe.send(_Final(f"{type(error).__name__}: {error}", traceback.format_exc()))
        else:
            pipe.send(_Final())


def _follow_parent() -> None:
    """Exit with the parent, even if it is killed: a second run must not meet this worker."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
