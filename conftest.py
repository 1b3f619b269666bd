"""What doctests may use without importing it: torch, nn and bayesify's public names."""

import importlib.util

import pytest
import torch

import bayesify
from bayesify.native import switch

if importlib.util.find_spec("numba") is None:
    collect_ignore_glob = ["src/bayesify/native/*_kernels.py"]


@pytest.fixture(autouse=True)
def _doctest_namespace(doctest_namespace: dict[str, object]) -> None:
    torch.manual_seed(0)
    doctest_namespace.update({"torch": torch, "nn": torch.nn})
    for module in (bayesify.functional, bayesify):
        doctest_namespace.update({name: getattr(module, name) for name in module.__all__})


@pytest.fixture(autouse=True)
def _native_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    """What turns the native operators off, or on, does so for one test."""
    monkeypatch.setattr(switch, "_is_used", switch._is_used)
