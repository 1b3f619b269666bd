"""The command line. `main` is what the `bayesify` command runs."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; a missing extra is one line, not a traceback."""
    try:
        from bayesify.cli.app import app
    except KeyboardInterrupt:
        sys.exit(130)
    except ImportError as error:
        ours = (error.name or "").split(".")[0] == "bayesify"
        if ours or (error.name is None and "bayesify[" not in str(error)):
            raise
        what = f"the package {error.name} is missing" if error.name else str(error).split(":")[0]
        print(f'bayesify: the command line needs more packages ({what}): pip install "bayesify[all]"', file=sys.stderr)
        sys.exit(2)
    app()
