"""What people see: results on standard output, everything else on standard error, and one clear line where something is wrong."""

import contextlib
import functools
import os
import signal
import sys
import threading
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["UsageError", "fail", "interruptible", "polite", "print_line", "print_table", "say"]

P = ParamSpec("P")
R = TypeVar("R")

_PACKAGE = str(Path(__file__).resolve().parents[1])


class UsageError(ValueError):
    """Something the person at the keyboard can put right."""


def say(text: str, *, style: str = "") -> None:
    """A remark on standard error."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(Text(text, style=style))


def print_line(text: str = "", *, style: str = "") -> None:
    """A line of the result on standard output."""
    Console(highlight=False, soft_wrap=True).print(Text(text, style=style))


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, strong: Sequence[tuple[int, int]] = ()
) -> None:
    """A table on standard output; plain aligned text where that is not a terminal.

    Args:
        header: names of the columns.
        rows: cells.
        left: so many columns are set flush left, the others flush right.
    """
    console = Console(highlight=False)
    if console.is_terminal:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
        for place, name in enumerate(header):
            table.add_column(Text(name), justify="left" if place < left else "right", overflow="fold")
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


def fail(message: str, code: int = 2) -> NoReturn:
    """Print one message and leave."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(Text.assemble(("bayesify: ", "bold red"), " ".join(message.split())))
    raise typer.Exit(code)


def polite(command: Callable[P, R]) -> Callable[P, R]:
    """Turn what a person can put right into one line and exit code 2, and Ctrl-C into one line and 130; let the rest through."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with _remarks():
            try:
                with interruptible():
                    return command(*args, **kwargs)
            except KeyboardInterrupt:
                fail("interrupted", 130)
            except BrokenPipeError:  # the reader of the pipe has seen enough
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise typer.Exit(0) from None
            except (ValueError, FloatingPointError, OSError, ImportError) as error:
                if not _expected(error):
                    raise
                fail(str(error))

    return run


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C arrive as what it is.

    It may come while a library is at work that turns it into an error of its own, such as an import that "failed".

    Raises:
        KeyboardInterrupt: in place of any error after Ctrl-C.
    """
    usual = signal.getsignal(signal.SIGINT)
    if not callable(usual) or threading.current_thread() is not threading.main_thread():
        yield  # interrupts are ignored, or come elsewhere
        return
    interrupted = False

    def interrupt(number: int, frame: types.FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        usual(number, frame)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Exception as error:
        if interrupted:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, usual)


def _expected(error: BaseException) -> bool:
    """Files and disks fail by themselves; other errors count when bayesify itself raised them, with a message for people."""
    if isinstance(error, ImportError):
        return "bayesify[" in str(error)
    if isinstance(error, OSError):
        return True
    raised = traceback.extract_tb(error.__traceback__)[-1]
    return raised.filename.startswith(_PACKAGE)


@contextlib.contextmanager
def _remarks() -> Iterator[None]:
    """Warnings that speak to people become remarks; those about the insides of packages stay out of sight."""

    def show(message: Warning | str, category: type[Warning], *rest: Any) -> None:
        if category is UserWarning:
            say(f"note: {message}", style="yellow")

    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = show
        yield
