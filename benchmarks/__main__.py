"""All benchmarks, one after the other, and the page they are published on: half an hour on two cores.

    python -m benchmarks [NAME ...]

Each is a module of its own, `python -m benchmarks.NAME`, with settings that `--help` shows.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

NAMES = ("training_step", "breakdown", "prediction", "peers", "hadamard", "many_models", "scaling", "cost_model", "page")


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all of them by default")
    wanted = parser.parse_args().names or NAMES
    if unknown := [name for name in wanted if name not in NAMES]:
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(NAMES)}")
    for name in NAMES:
        if name in wanted:
            print(f"=== {name}", flush=True)
            subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=True)


if __name__ == "__main__":
    main()
