"""Plant faults in a copy of the source, one by one, and run the tests that should notice; print the faults that survive.

    python tools/mutation.py [--only WORD] [--list tools/mutations.toml]

A fault is `file` (in src/bayesify), `old` and `new` text, and `tests` (arguments of pytest). The working tree is never changed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT = 600  # seconds; a fault may make a loop endless


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", type=Path, default=ROOT / "tools" / "mutations.toml")
    parser.add_argument("--only", default="", help="only faults whose file or name contains this")
    arguments = parser.parse_args()
    faults = tomllib.loads(arguments.list.read_text())["fault"]
    chosen = [fault for fault in faults if arguments.only in f"{fault['file']} {fault['name']}"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "src")
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        survivors = [fault for fault in chosen if not _is_noticed(fault, source)]
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} faults were noticed")
    for fault in survivors:
        print(f"survived: {fault['name']} ({fault['file']})")
    sys.exit(1 if survivors else 0)


def plant(fault: dict[str, Any], source: Path) -> str:
    """Return the text of the file with the fault.

    Raises:
        SystemExit: the text to be replaced is not there exactly once.
    """
    text = (source / "bayesify" / fault["file"]).read_text()
    if (count := text.count(fault["old"])) != 1:
        sys.exit(f"{fault['name']}: {fault['file']} has {fault['old']!r} {count} times, not once; update the list of faults")
    return text.replace(fault["old"], fault["new"])


def _is_noticed(fault: dict[str, Any], source: Path) -> bool:
    path = source / "bayesify" / fault["file"]
    original = path.read_text()
    path.write_text(plant(fault, source))
    try:
        environment = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *fault["tests"]]
        run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        noticed = run.returncode == 1
        if run.returncode not in (0, 1):
            sys.exit(
                f"{fault['name']}: the tests {' '.join(fault['tests'])} cannot be run:\n{run.stdout[-2000:]}{run.stderr[-2000:]}"
            )
    except subprocess.TimeoutExpired:
        noticed = True
    finally:
        path.write_text(original)
    print(f"{'noticed ' if noticed else 'SURVIVED'} {fault['name']}", flush=True)
    return noticed


if __name__ == "__main__":
    main()
