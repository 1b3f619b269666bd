"""The command line. `main` is the entry point of the `bayesify` command."""

import sys

from bayesify.errors import MissingDependencyError

__all__ = ["main"]


def main() -> None:
    """Run the command line; a missing package is reported in one line."""
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


def _missing(error: MissingDependencyError) -> int:
    print(f"bayesify: {error}", file=sys.stderr)
    return 2
