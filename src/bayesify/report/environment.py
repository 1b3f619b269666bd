"""What a result was made with: versions, commit where it is known, hardware."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import torch

__all__ = ["environment"]


def environment() -> dict[str, str]:
    """Versions of bayesify, PyTorch and Python, the commit of a source checkout, system, processor, threads and GPU.

    Example:
        >>> environment()["PyTorch"] == torch.__version__
        True
    """
    from bayesify import __version__  # the package's own front door, which may still be loading when this module is

    commit = _commit()
    facts = {
        "bayesify": f"{__version__}{f', commit {commit[:12]}' if commit else ''}",
        "PyTorch": str(torch.__version__),
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": f"{_processor()}, {torch.get_num_threads()} threads",
    }
    if torch.cuda.is_available():
        facts["GPU"] = torch.cuda.get_device_name()
    return facts


def _commit() -> str | None:
    """The commit of this file where it is part of a git checkout (not merely installed inside somebody else's)."""
    here = Path(__file__).resolve()
    commands = (["ls-files", "--error-unmatch", here.name], ["rev-parse", "HEAD"])
    answer = ""
    try:
        for command in commands:
            run = subprocess.run(["git", *command], cwd=here.parent, capture_output=True, text=True, timeout=5, check=True)
            answer = run.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return answer or None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
