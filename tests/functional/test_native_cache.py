"""Kernels cached on disk are compiled again after a change of any file they are written with, and compute what new ones do."""

import importlib
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
GRADIENTS = """
from array import array
from hashlib import sha256
import numpy as np
from bayesify.native import channel_kernels
rows, channels, positions = 6, 16, 81
for kernel, dtype in ((channel_kernels.scale_gradient32, np.float32), (channel_kernels.scale_gradient64, np.float64)):
    draw = np.random.default_rng(0).standard_normal
    shapes = [(rows, channels, positions)] * 2 + [(rows, channels)]
    tensors = [draw(shape).astype(dtype) for shape in shapes + shapes[1:] + shapes[2:]]
    record = array("q", (0, rows, rows, *(t.ctypes.data for t in tensors), channels, positions, 0))
    kernel.call(record.buffer_info()[0])
    print(sha256(b"".join(t.tobytes() for t in tensors[3:])).hexdigest(), kernel.compiled.cache_hits)
"""


@pytest.fixture
def package(tmp_path):
    """The kernels without the rest of the package, which they do not import."""
    native = tmp_path / "bayesify" / "native"
    native.mkdir(parents=True)
    for folder in (native, native.parent):
        (folder / "__init__.py").touch()
    kernels = "elementary_kernels.py", "channel_kernels.py", "draw_kernels.py"
    for name in ("compilation.py", "records.py", "vectors.py", *kernels):
        shutil.copy2(SOURCES / name, native)
    return native


def run(package, code=RUN):
    """What a new process computes with the kernels, and how often machine code was loaded from disk."""
    root = package.parent.parent
    settings = {"NUMBA_CACHE_DIR": str(root / "cache"), "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | settings, capture_output=True, text=True, check=True)
    *values, hits = done.stdout.split()
    return values, int(hits)


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


@pytest.mark.extended
def test_compiled_and_cached_kernels_give_the_same_bits(package):
    (single, _, double), hits = run(package, GRADIENTS)
    assert hits == 0
    assert run(package, GRADIENTS) == ([single, "1", double], 1)


def test_no_function_of_a_kernel_is_called():
    # a call goes to whichever copy of the function the process has loaded first, and copies round differently
    from numba.core.dispatcher import Dispatcher

    modules = [importlib.import_module(f"bayesify.native.{path.stem}") for path in SOURCES.glob("*_kernels.py")]
    functions = [f for module in modules for f in vars(module).values() if isinstance(f, Dispatcher)]
    assert functions
    assert all(f.targetoptions["forceinline"] for f in functions)
