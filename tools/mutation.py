"""Plant faults in a copy of the source, one by one, and run the tests that should notice; print the faults that survive.

    python tools/mutation.py [--only WORD] [--list tools/mutations.toml] [--resume FILE]

A fault is `file` (in src/bayesify), `old` and `new` text, and `tests` (arguments of pytest). The working tree is never changed.
With --resume, outcomes are appended to a file, and faults of which it has the outcome are not planted again.
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
    parser.add_argument("--resume", type=Path, help="file of outcomes, to be continued")
    arguments = parser.parse_args()
    faults = tomllib.loads(arguments.list.read_text())["fault"]
    chosen = [fault for fault in faults if arguments.only in f"{fault['file']} {fault['name']}"]
    for fault in chosen:
        plant(fault, ROOT / "src")  # all are there, before the first run
    outcomes = _outcomes(arguments.resume)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "src")
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        for fault in chosen:
            if fault["name"] in outcomes:
                continue
            outcome = outcomes[fault["name"]] = _outcome(fault, source)
            print(f"{outcome:8} {fault['name']}", flush=True)
            if arguments.resume is not None:
                with arguments.resume.open("a") as file:
                    file.write(f"{outcome} {fault['name']}\n")
    missed = [fault for fault in chosen if outcomes[fault["name"]] != "noticed"]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} faults were noticed")
    for fault in missed:
        print(f"{outcomes[fault['name']]}: {fault['name']} ({fault['file']})")
    sys.exit(1 if missed else 0)


def _outcomes(path: Path | None) -> dict[str, str]:
    lines = [] if path is None or not path.exists() else path.read_text().splitlines()
    return {name: outcome for outcome, _, name in (line.partition(" ") for line in lines)}


def plant(fault: dict[str, Any], source: Path) -> str:
    """Return the text of the file with the fault.

    Raises:
        SystemExit: the text to be replaced is not there exactly once.
    """
    text = (source / "bayesify" / fault["file"]).read_text()
    if (count := text.count(fault["old"])) != 1:
        sys.exit(f"{fault['name']}: {fault['file']} has {fault['old']!r} {count} times, not once; update the list of faults")
    return text.replace(fault["old"], fault["new"])


def _outcome(fault: dict[str, Any], source: Path) -> str:
    """`noticed`, `survived`, or `broken` if the tests cannot be run."""
    path = source / "bayesify" / fault["file"]
    original = path.read_text()
    path.write_text(plant(fault, source))
    environment = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", *fault["tests"]]
    try:
        # numba's cache does not see changes of files that a kernel imports
        with tempfile.TemporaryDirectory() as cache:
            environment |= {"NUMBA_CACHE_DIR": cache} if fault["file"].startswith("native/") else {}
            run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return "noticed"
    finally:
        path.write_text(original)
    if run.returncode not in (0, 1):
        print(f"{' '.join(command)}\n{run.stdout[-2000:]}{run.stderr[-2000:]}", file=sys.stderr)
        return "broken"
    return "noticed" if run.returncode else "survived"


if __name__ == "__main__":
    main()
