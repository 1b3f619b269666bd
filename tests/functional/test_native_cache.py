"""Kernels cached on disk are compiled again after a change of any file that they are written with."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import bayesify.native

pytest.importorskip("numba", reason="the native operators need bayesify[fast]")

SOURCES = Path(bayesify.native.__file__).parent
RUN = """
from array import array
import numpy as np
from bayesify.native import draw_kernels
out = np.empty(64, np.float32)
record = array("q", (0, 1, 1, out.ctypes.data, out.size, 1, 0, 2, 3))
draw_kernels.draw32.call(record.buffer_info()[0])
print(out.sum(), draw_kernels.draw32.compiled.cache_hits)
"""


@pytest.fixture
def package(tmp_path):
    """The kernels without the rest of the package, which they do not import."""
    native = tmp_path / "bayesify" / "native"
    native.mkdir(parents=True)
    for folder in (native, native.parent):
        (folder / "__init__.py").touch()
    for name in ("compilation.py", "records.py", "vectors.py", "draw_kernels.py"):
        shutil.copy2(SOURCES / name, native)
    return native


def run(package):
    """The sum of uniform draws, and how often machine code was loaded from disk, in a new process."""
    root = package.parent.parent
    settings = {"NUMBA_CACHE_DIR": str(root / "cache"), "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", RUN], env=os.environ | settings, capture_output=True, text=True, check=True)
    total, hits = done.stdout.split()
    return float(total), int(hits)


@pytest.mark.extended
def test_a_change_of_the_vectors_is_compiled(package):
    total, hits = run(package)
    assert hits == 0
    assert run(package) == (total, 1)
    path = package / "vectors.py"
    text, times = path.read_text(), (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    path.write_text(text.replace('self._with("mul", other)', 'self._with("add", other)'))  # of the same length
    os.utime(path, ns=times)
    changed, hits = run(package)
    assert hits == 0
    assert changed != total
