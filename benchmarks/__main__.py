"""Run all benchmarks in turn and update docs/performance.md: about two hours on two cores.

    python -m benchmarks [NAME ...]

Each benchmark is also a module, `python -m benchmarks.NAME`; `--help` shows its settings.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

NAMES = (
    "training_step",
    "breakdown",
    "compiled",
    "compiled_blocks",
    "prediction",
    "pretrained",
    "peers",
    "hadamard",
    "draws",
    "native_steps",
    "by_hand",
    "many_models",
    "scaling",
    "tables",
    "cost_model",
    "processes",
    "growth",
    "page",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(NAMES)}; default: all")
    selected = parser.parse_args().names or NAMES
    if unknown := [name for name in selected if name not in NAMES]:
        parser.error(f"unknown benchmarks {', '.join(unknown)}; available are {', '.join(NAMES)}")
    for name in NAMES:
        if name in selected:
            print(f"=== {name}", flush=True)
            subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=True)


if __name__ == "__main__":
    main()
