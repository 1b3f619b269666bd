"""What doctests may use without importing it: torch, nn and bayesify's public names; and kernels where their library is missing."""

import importlib.util
import os

import pytest
import torch

import bayesify
from bayesify.native import switch

_KERNELS = {"numba": "src/bayesify/native/*_kernels.py", "triton": "src/bayesify/native/gpu/*_kernels.py"}
collect_ignore_glob = [files for library, files in _KERNELS.items() if importlib.util.find_spec(library) is None]
if not torch.cuda.is_available():  # Triton's kernels run in its interpreter; read when Triton is imported
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def _doctest_namespace(doctest_namespace: dict[str, object]) -> None:
    torch.manual_seed(0)
    doctest_namespace.update({"torch": torch, "nn": torch.nn})
    for module in (bayesify.functional, bayesify):
        doctest_namespace.update({name: getattr(module, name) for name in module.__all__})


@pytest.fixture(autouse=True)
def _native_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    """What turns the native operators off, or on, does so for one test."""
    for device, library in switch.LIBRARIES.items():
        monkeypatch.setitem(switch.LIBRARIES, device, library)
