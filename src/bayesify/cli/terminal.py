"""Terminal output: results on standard output, notes and errors on standard error, exit codes.

Exit codes: 0 success, 2 an error that the user can correct, 70 an internal error (a bug in bayesify), 130 interrupted.
"""

import _thread
import contextlib
import contextvars
import functools
import os
import signal
import sys
import threading
import time
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, ParamSpec, TypeVar

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bayesify.errors import BayesifyError, BayesifyWarning, ConfigurationError
from bayesify.progress import ProgressBar

__all__ = [
    "UsageError",
    "fail",
    "handle_errors",
    "interruptible",
    "print_line",
    "print_lines",
    "print_table",
    "say",
    "until_the_end",
]

_LINE_SECONDS = 30.0  # between lines of progress where standard error is no terminal

_resources = contextvars.ContextVar[contextlib.ExitStack]("resources of the command")

P = ParamSpec("P")
R = TypeVar("R")


class UsageError(ConfigurationError):
    """A command-line argument, or a combination of arguments, is not possible."""


def say(text: str, *, style: str = "", wrap: bool = True) -> None:
    """Print a note on standard error; `wrap=False` for commands and paths, which are copied."""
    _print(Console(stderr=True, highlight=False), Text(text, style=style), wrap)


def print_line(text: str = "", *, style: str = "") -> None:
    """Print a line on standard output."""
    _print(Console(highlight=False), Text(text, style=style))


def _print(console: Console, text: Text, wrap: bool = True) -> None:
    """Print text, wrapped between words on a terminal, and in one line elsewhere."""
    console.print(text, soft_wrap=not (wrap and console.is_terminal))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> None:
    """Print a table on standard output; aligned plain text if that is not a terminal.

    Args:
        header: names of the columns.
        rows: cells.
        left: number of left-aligned columns; the others are right-aligned.
    """
    console = Console(highlight=False)
    if console.is_terminal:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
        for j, name in enumerate(header):
            table.add_column(Text(name), justify="left" if j < left else "right", overflow="fold", no_wrap=j == 0)
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(table)
        return
    widths = [max(len(row[j]) for row in (header, *rows)) for j in range(len(header))]
    for row in (header, *rows):
        cells = (
            cell.ljust(width) if j < left else cell.rjust(width) for j, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join(cells).rstrip())


def print_lines(lines: Sequence[Mapping[str, str]]) -> None:
    """Print records as a table, with an empty line after it; nothing if there are none."""
    if lines:
        print_table(list(lines[0]), [list(line.values()) for line in lines])
        print_line()


def fail(message: str, code: int = 2) -> NoReturn:
    """Print a message as one line and exit."""
    _print(Console(stderr=True, highlight=False), Text.assemble(("bayesify: ", "bold red"), " ".join(message.split())))
    raise typer.Exit(code)


def handle_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Decorate a command: its errors become messages and exit codes, and warnings become notes."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        ProgressBar.line_seconds = _LINE_SECONDS
        with _warnings_as_notes(), contextlib.ExitStack() as resources:
            token = _resources.set(resources)
            try:
                with interruptible():
                    return command(*args, **kwargs)
            except (typer.Exit, typer.Abort, ModuleNotFoundError):  # the last is reported by `main`
                raise
            except KeyboardInterrupt:
                fail("interrupted", 130)
            except BrokenPipeError:  # the reader of a pipe, such as head, has closed it
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise typer.Exit(0) from None
            except (BayesifyError, OSError) as error:
                fail(str(error))
            except Exception as error:  # noqa: BLE001 - whatever is left is a bug
                traceback.print_exc()
                fail(f"internal error ({type(error).__name__}). This is a bug; please report it with the traceback", 70)
            finally:
                _resources.reset(token)

    return run


def until_the_end(manager: contextlib.AbstractContextManager[R]) -> R:
    """Enter a context that ends with the command."""
    return _resources.get().enter_context(manager)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt on Ctrl-C even if a library converts it into another error, or Python would print and ignore it.

    An interrupt in an import waits until the import is over: modules in C++ end the process with a dump of the stack.
    """
    handler, hook = signal.getsignal(signal.SIGINT), sys.unraisablehook
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield  # interrupts are ignored or handled elsewhere
        return
    interrupted = False

    def interrupt(number: int, frame: types.FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        if not _is_importing(frame):
            raise KeyboardInterrupt
        _thread.start_new_thread(_interrupt_soon, ())

    def repeat(ignored: Any) -> None:
        if issubclass(ignored.exc_type, KeyboardInterrupt):  # in a callback, such as those of imports
            _thread.start_new_thread(_interrupt_soon, ())
        else:
            hook(ignored)

    signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = repeat
    try:
        yield
    except (typer.Exit, typer.Abort):  # the command has reported the interrupt
        raise
    except Exception as error:
        if interrupted:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, handler)
        sys.unraisablehook = hook


def _is_importing(frame: types.FrameType | None) -> bool:
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


def _interrupt_soon() -> None:
    time.sleep(0.01)
    _thread.interrupt_main()


@contextlib.contextmanager
def _warnings_as_notes() -> Iterator[None]:
    """Print warnings for users as notes; hide those for developers, such as deprecations."""

    def show(message: Warning | str, category: type[Warning], *rest: Any) -> None:
        if category in (UserWarning, BayesifyWarning):
            say(f"note: {message}", style="yellow")

    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = show
        yield
