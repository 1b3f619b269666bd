"""Processes that are forked from one whose threads have computed: they predict, on one thread, and do not hang."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")

# The threads of PyTorch and of native kernels work in the parent before the fork.
SCRIPT = """
import faulthandler, multiprocessing, sys, warnings
import torch
from torch import nn
from torch.utils.data import DataLoader
from bayesify import BayesifyWarning, Gaussian, MeanField, WHVI, bayesify, functional, predict

torch.set_num_threads(2)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1))
bnn = bayesify(net, WHVI() if sys.argv[1] == "WHVI" else MeanField())
x = torch.ones(300, 1024)

class Transformed(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, i):
        return functional.fwht(i * torch.ones(512, 1024))[0, 0]

def predicted():
    return float(predict(bnn, x, Gaussian(std=0.1), samples=4, seed=0, progress=False).mean.sum())

def child(queue):
    faulthandler.dump_traceback_later(100, exit=True)
    with warnings.catch_warnings(record=True) as noticed:
        warnings.simplefilter("always")
        results = predicted(), predicted()
    messages = [str(each.message) for each in noticed if issubclass(each.category, BayesifyWarning)]
    queue.put((results, messages, torch.get_num_threads()))

expected = predicted()
assert functional.fwht(torch.ones(512, 1024))[0, 0] == 1024
for values in (list(DataLoader(Transformed(), num_workers=2)) for _ in range(2)):
    assert [float(value) for value in values] == [0, 1024, 2048, 3072]
context = multiprocessing.get_context("fork")
for _ in range(2):
    queue = context.SimpleQueue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    process.join()
    assert process.exitcode == 0
    results, messages, threads = queue.get()
    assert max(abs(value - expected) for value in results) < 1e-4 * (1 + abs(expected)), (results, expected)
    assert len(messages) == 1 and "was forked" in messages[0] and threads == 1, messages
assert predicted() == expected and torch.get_num_threads() == 2
"""


@pytest.mark.default(extended=["1-MeanField"])
@pytest.mark.parametrize("method", ["MeanField", "WHVI"])
@pytest.mark.parametrize("native", ["0", "1"])
def test_predictions_after_threads_have_computed(method, native):
    environment = os.environ | {"BAYESIFY_NATIVE": native, "OMP_NUM_THREADS": "2"}
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, method],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stderr
