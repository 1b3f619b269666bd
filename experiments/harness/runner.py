"""Running tasks on an engine, the longest first, and showing their progress."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from bayesify.formatting import duration
from bayesify.jobs import RayCluster
from experiments.harness.engine import Ended, Engine, Failure, Progress, Started
from experiments.harness.plan import Task
from experiments.harness.processes import Processes
from experiments.harness.progress import Display
from experiments.harness.ray_tasks import RayTasks
from experiments.harness.tracking import Tracker

__all__ = ["run_tasks"]


def run_tasks(
    tasks: Sequence[Task],
    *,
    workers: int = 1,
    data_dir: Path | None = None,
    cluster: RayCluster | None = None,
    minutes: float = math.inf,
    tracker: Tracker | None = None,
) -> list[Failure]:
    """Run tasks, and show their progress.

    A task that fails, or whose process dies, is reported and does not stop the others.
    Ctrl-C stops at once and loses running units only.

    Args:
        tasks: from `plan`.
        workers: processes that share the cores of this machine.
        data_dir: folder of the data; None for the default ones.
        cluster: a Ray cluster on which the tasks run instead; dead processes and machines are replaced.
        minutes: after which tasks are stopped, as by Ctrl-C; finished units are saved.
        tracker: gets the results of every task that has ended.

    Raises:
        ClusterError, ConfigurationError: the cluster cannot run the tasks, or is lost.
        UsageError: a results file cannot be written.
    """
    waiting = sorted(tasks, key=lambda task: -task.cost)
    if not waiting:
        return []
    engine: Engine = Processes(workers, data_dir) if cluster is None else RayTasks(cluster, data_dir)
    failures: list[Failure] = []
    end = time.monotonic() + 60 * minutes
    with Display(waiting) as display, closing(engine.run(waiting)) as events:
        for event in events:
            match event:
                case Started(task):
                    display.start(task)
                case Progress(task, share):
                    display.advance(task, share)
                case Ended(task, seconds, failure):
                    display.finish(task, seconds, failure and failure.error)
                    failures += [] if failure is None else [failure]
                    if tracker is not None:
                        tracker.add(task, failed=failure is not None)
                case None:
                    display.tick()
            if time.monotonic() > end:
                display.say(f"stopped after {duration(60 * minutes)}; the same command continues with what is missing")
                break
    return failures
