"""Software and hardware that a result was produced with."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import torch

from bayesify.formatting import plural

__all__ = ["environment", "machine"]

_CODE = (":/src/*.py", ":/benchmarks/*.py", ":/experiments/*.py", ":/experiments/*.toml")  # relative to the root of the checkout


def environment() -> dict[str, str]:
    """Describe the environment for readers: versions, commit of a source checkout, system, processor and threads, GPU.

    Example:
        >>> environment()["PyTorch"] == torch.__version__
        True
    """
    commit = _commit()
    facts = {
        "bayesify": f"{_version()}{f', commit {commit[:12]}' if commit else ''}",
        "PyTorch": str(torch.__version__),
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": f"{_processor()}, {plural(torch.get_num_threads(), 'thread')}",
    }
    if torch.cuda.is_available():
        facts["GPU"] = torch.cuda.get_device_name()
    return facts


def machine() -> dict[str, object]:
    """Describe the environment for files of results.

    Returns:
        Processor, number of threads, versions, commit (empty without a source checkout), whether the code differs from that commit
        (`dirty`), and the GPU if there is one.
    """
    commit = _commit()
    facts: dict[str, object] = {
        "cpu": _processor(),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "bayesify": _version(),
        "commit": commit[:7],
        "dirty": bool(commit and _git("status", "--porcelain", "--", *_CODE)),
    }
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    return facts


def _version() -> str:
    from bayesify import __version__  # the package may still be loading when this module is imported

    return __version__


def _commit() -> str:
    """Commit of the checkout that this file is tracked in; empty if there is none."""
    return _git("rev-parse", "HEAD") if _git("ls-files", "--error-unmatch", Path(__file__).name) else ""


def _git(*arguments: str) -> str:
    """Output of a git command in the folder of this file; empty on failure."""
    folder = Path(__file__).resolve().parent
    try:
        run = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return run.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
