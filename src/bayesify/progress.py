"""A progress bar for long work: on the terminal, from the moment the work has taken two seconds."""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Self

__all__ = ["ProgressBar"]


class ProgressBar:
    """A rich bar on standard error.

    Args:
        what: the description.
        show: None shows it where rich is installed and standard error is a terminal; True at once and everywhere; False never.
        total: units of work, None if unknown.
        done: how many of them are done already.

    Raises:
        ImportError: `show=True` without rich.
    """

    patience = 2.0  # seconds

    def __init__(self, what: str, show: bool | None, total: float | None = None, done: float = 0) -> None:
        installed = find_spec("rich") is not None
        if show and not installed:
            raise ImportError('progress=True needs rich: pip install "bayesify[cli]"')
        self.wanted = bool(show) or (show is None and installed and sys.stderr.isatty())
        self.text, self.total, self.done = what, total, done
        self.bar: Any = None
        self.task: Any = None
        self.due = time.perf_counter() + (0.0 if show else self.patience)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.bar is not None:
            self._draw()
            self.bar.stop()

    def advance(self, by: float = 1) -> None:
        """More work is done; drawn at most ten times a second, so that it costs nothing."""
        self.done += by
        if self.wanted and time.perf_counter() >= self.due:
            self._draw()

    def _draw(self) -> None:
        if self.bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

            columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
            self.bar = Progress(*columns, console=Console(stderr=True))
            self.task = self.bar.add_task(self.text, total=self.total, completed=self.done)
            self.bar.start()
        self.bar.update(self.task, completed=self.done, total=self.total, description=self.text)
        self.due = time.perf_counter() + 0.1
