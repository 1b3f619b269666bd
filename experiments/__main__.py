"""The command line of the experiments: list, run, report.

python -m experiments run uci/standard --dataset boston --splits 0-4
"""

from __future__ import annotations

import sys

from bayesify.cli import quit_on_interrupt

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> None:
    """Run the command line: exit code 1 where a job failed, 2 where the command or a configuration is wrong, 130 on Ctrl-C."""
    quit_on_interrupt()
    from bayesify.cli.terminal import interruptible, say
    from bayesify.errors import ConfigurationError, MissingDependencyError, TrackingError
    from experiments.app import app

    try:
        with interruptible():
            app(arguments)
    except (ConfigurationError, MissingDependencyError, TrackingError) as error:
        say(f"experiments: {error}", style="red")
        sys.exit(2)
    sys.exit(0)


if __name__ == "__main__":
    main()
