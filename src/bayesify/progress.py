"""A progress bar on the terminal, shown after two seconds; lines of text in a log."""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from types import TracebackType
from typing import Any, ClassVar, Self

from bayesify.errors import MissingDependencyError

__all__ = ["ProgressBar"]


class ProgressBar:
    """A rich bar on standard error.

    Args:
        description: text before the bar.
        show: None shows it after two seconds if rich is installed and standard error is a terminal, True immediately, False never.
        total: units of work, None if unknown.

    Raises:
        MissingDependencyError: `show=True` without rich.
    """

    patience = 2.0  # seconds
    line_seconds: ClassVar[float | None] = None
    """Seconds between lines of text where standard error is no terminal; None for no lines. The command line sets it."""

    def __init__(self, description: str, show: bool | None, total: float | None = None) -> None:
        installed = show is not False and find_spec("rich") is not None
        if show and not installed:
            raise MissingDependencyError("progress=True", "rich", extra="cli")
        is_terminal = sys.stderr.isatty()
        self.as_lines = show is None and not is_terminal and self.line_seconds is not None
        self.enabled = bool(show) or self.as_lines or (show is None and installed and is_terminal)
        self.text, self.total, self.done = description, total, 0.0
        self.bar: Any = None
        self.task: Any = None
        wait = self.line_seconds if self.as_lines else self.patience
        self.due = time.perf_counter() + (0.0 if show else wait or 0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.bar is not None:
            self._draw()
            self.bar.stop()

    def advance(self, by: float = 1) -> None:
        """Add to the units done; redraws at most ten times per second."""
        self.done += by
        if self.enabled and time.perf_counter() >= self.due:
            self._draw()

    def _draw(self) -> None:
        if self.as_lines:
            share = f"{self.done / self.total:.0%}" if self.total else f"{self.done:g}"
            print(f"{self.text}: {share}", file=sys.stderr, flush=True)
            self.due = time.perf_counter() + (self.line_seconds or 0.0)
            return
        if self.bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

            columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
            self.bar = Progress(*columns, console=Console(stderr=True))
            self.task = self.bar.add_task(self.text, total=self.total, completed=self.done)
            self.bar.start()
        self.bar.update(self.task, completed=self.done, total=self.total, description=self.text)
        self.due = time.perf_counter() + 0.1
