"""Progress of a run: bars with the remaining time on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn

from bayesify.formatting import duration, plural
from experiments.harness.plan import Task

__all__ = ["Display"]


class Display:
    """Shows tasks as they start, advance and end. The remaining time is estimated from their costs and the time so far.

    Args:
        tasks: all tasks of the run.
        console: standard error if None.
    """

    def __init__(self, tasks: Sequence[Task], console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self.count, self.total = len(tasks), sum(task.cost for task in tasks)
        self.ended, self.spent = 0, 0.0
        self.running: dict[str, tuple[float, float]] = {}  # cost and share done
        self.started = time.perf_counter()
        columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[left]}")
        self.bars = Progress(*columns, console=self.console) if self.console.is_terminal else None
        self.lines: dict[str, TaskID] = {}
        self.overall = None if self.bars is None else self.bars.add_task("all jobs", total=max(self.total, 1e-9), left="")

    def __enter__(self) -> Self:
        if self.bars is not None:
            self.bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.bars is not None:
            self.bars.stop()

    def start(self, task: Task) -> None:
        """Show a task that starts."""
        self.running[task.name] = (task.cost, 0.0)
        if self.bars is not None:
            self.lines[task.name] = self.bars.add_task(task.name, total=1.0, left="")

    def advance(self, task: Task, share: float) -> None:
        """Show the share of a task that is done."""
        self.running[task.name] = (task.cost, min(max(share, 0.0), 1.0))
        if self.bars is not None:
            self.bars.update(self.lines[task.name], completed=share)

    def finish(self, task: Task, seconds: float, error: str | None) -> None:
        """Show a task that has ended, with its error if it failed."""
        del self.running[task.name]
        self.ended, self.spent = self.ended + 1, self.spent + task.cost
        if self.bars is not None:
            self.bars.remove_task(self.lines.pop(task.name))
        result = (
            f"{plural(len(task.units), 'unit')} in {duration(seconds)}"
            if error is None
            else f"FAILED after {duration(seconds)}: {error}"
        )
        left = f"; {self.left()}" if self.ended < self.count else ""
        self.console.print(f"[{self.ended}/{self.count}] {task.name}: {result}{left}", markup=False)

    def say(self, text: str) -> None:
        """Print a note."""
        self.console.print(text, markup=False)

    def tick(self) -> None:
        """Redraw the remaining time."""
        if self.bars is not None and self.overall is not None:
            self.bars.update(self.overall, completed=self.done(), left=self.left())

    def done(self) -> float:
        """The cost of what is done."""
        return self.spent + sum(cost * share for cost, share in self.running.values())

    def left(self) -> str:
        """The remaining time as text, empty before any progress."""
        done = self.done()
        if done <= 0:
            return ""
        seconds = (time.perf_counter() - self.started) * (self.total - done) / done
        return f"about {duration(max(0.0, seconds))} left"
