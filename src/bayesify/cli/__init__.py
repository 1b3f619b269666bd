"""The command line. `main` is the entry point of the `bayesify` command."""

import os
import signal
import sys

__all__ = ["main", "quit_on_interrupt"]


def main() -> None:
    """Run the command line; a missing package is reported in one line."""
    quit_on_interrupt()
    from bayesify.errors import MissingDependencyError

    try:
        from bayesify.cli.app import app

        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except MissingDependencyError as error:
        sys.exit(_missing(error))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("bayesify"):
            raise
        sys.exit(_missing(MissingDependencyError("the command line", error.name, extra="cli")))


def quit_on_interrupt() -> None:
    """Let Ctrl-C end the process at once, with exit code 130: while there is nothing to undo, as in imports and at exit.

    A `KeyboardInterrupt` there would be printed with a traceback, converted by a library into a failed import, or lost.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))


def _missing(error: Exception) -> int:
    print(f"bayesify: {error}", file=sys.stderr)
    return 2
