"""Every test starts from the same random state; processes that share a machine take one thread each."""

import gc
import importlib.util
import os
import sys

import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"  # for processes that tests start: sums are rounded differently by more threads
    torch.set_num_threads(1)

gc.set_threshold(50_000, 20, 50)  # tracing by the compiler makes many objects, and garbage collection took an eighth of its time

if getattr(importlib.util.find_spec("datasets"), "origin", None) is None:
    sys.modules["datasets"] = None  # the folder of that name, which transformers would take for the library


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
    torch.compiler.reset()


@pytest.fixture(autouse=True)
def _replay_of_small_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predictions of the small networks of tests are replayed where those of large ones are."""
    monkeypatch.setattr("bayesify.core.replay.prefix.WORTH_REPLAY", 0)
