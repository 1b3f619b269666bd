"""Long runs: memory, objects, open files, threads and compiled graphs stay as they are after the first calls."""

import gc
import os
import threading
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch._dynamo.utils
from torch import nn

from bayesify import VIFO, VSD, DeepEnsemble, Gaussian, MCDropout, MeanField, bayesify, elbo, predict
from bayesify.core.folded import Folded
from bayesify.train import fit

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads Linux's /proc")
LIKELIHOOD = Gaussian(std=0.1)
WINDOWS, OBJECTS = 5, 400
LEAK = 2048  # bytes per call; one object per call of the short runs would be more than OBJECTS


def usage():
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return resident, len(gc.get_objects()), len(os.listdir("/proc/self/fd")), threading.active_count(), graphs


def check_flat(call, calls, warm_up):
    """Make calls 0, 1, ..., and compare what is used after the first and after the last.

    The allocator asks for memory in steps, and keeps what tests before this one have freed in pieces. So resident
    memory is read several times: a leak makes it grow every time, a step does so once.
    """
    for i in range(warm_up):
        call(i)
    readings = [usage()]
    length = (calls - warm_up) // WINDOWS
    for start in range(warm_up, warm_up + WINDOWS * length, length):
        for i in range(start, start + length):
            call(i)
        readings.append(usage())
    memory = [reading[0] for reading in readings]
    growth = min(later - earlier for earlier, later in pairwise(memory))
    before, after = readings[0], readings[-1]
    assert growth < LEAK * length, f"resident memory grew all the time, in bytes: {memory}"
    assert after[1] - before[1] < OBJECTS, f"{after[1] - before[1]} more objects"
    assert after[2:] == before[2:], f"open files, threads, graphs: {before[2:]}, then {after[2:]}"


def network(method):
    torch.manual_seed(0)
    return bayesify(nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1)), method)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "calls"),
    [
        pytest.param(MeanField(), 5000, marks=pytest.mark.slow, id="MeanField"),
        pytest.param(MCDropout(), 1000, marks=pytest.mark.slow, id="MCDropout"),
        pytest.param(VIFO(), 1000, marks=pytest.mark.slow, id="VIFO"),
        pytest.param(VIFO(), 700, id="VIFO, short"),
        pytest.param(DeepEnsemble(members=2, base=VSD()), 1000, marks=pytest.mark.slow, id="DeepEnsemble"),
    ],
)
def test_predictions(method, calls):
    """With other numbers of rows and draws from call to call."""
    bnn = network(method)

    def call(i):
        rows = 1 + i % 7
        predict(bnn, torch.randn(rows, 3), LIKELIHOOD, samples=2 + i % 5, coherent=i % 2 == 0, batch_size=4)
        if i % 10 == 0 and not isinstance(method, VIFO):
            bnn.function(seed=i)(torch.randn(rows, 3))

    check_flat(call, calls, warm_up=200 if calls < 1000 else 500)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "calls"),
    [
        pytest.param(MeanField(), 700, id="MeanField, short"),
        pytest.param(MeanField(), 2000, marks=pytest.mark.slow, id="MeanField"),
        pytest.param(VSD(), 2000, marks=pytest.mark.slow, id="VSD"),
    ],
)
def test_training_steps(method, calls):
    bnn = network(method).train()
    optimizer = torch.optim.Adam(bnn.parameters())

    def step(i):
        x = torch.randn(4 + i % 5, 3)
        draws = bnn(x, samples=1 + i % 2)
        optimizer.zero_grad()
        (-elbo(draws, LIKELIHOOD.log_prob(draws.outputs, x.sum(1)), n=100)).backward()
        optimizer.step()

    check_flat(step, calls, warm_up=200 if calls < 1000 else 300)


@pytest.mark.slow
def test_fits():
    """Forty runs of 50 steps."""
    data = torch.randn(100, 3), torch.randn(100)
    bnn = network(MeanField())
    check_flat(lambda i: fit(bnn, data, Gaussian(), epochs=5, batch_size=10, accelerator="cpu", progress=False), 48, warm_up=8)


@pytest.mark.slow
def test_compiled_networks():
    """Any number of rows takes the same graphs."""
    torch.compiler.reset()
    bnn = network(MeanField()).eval()
    compiled = torch.compile(bnn, backend="eager")
    check_flat(lambda i: predict(compiled, torch.randn(2 + i % 7, 3), LIKELIHOOD, samples=4, seed=i), 1000, warm_up=100)
    torch.compiler.reset()


@pytest.mark.slow
def test_new_networks():
    """What is known of a network is freed with it."""

    def call(i):
        bnn = network(MeanField())
        predict(bnn, torch.randn(2, 3), LIKELIHOOD, samples=2)
        bnn.function(seed=0)(torch.randn(2, 3))

    check_flat(call, 400, warm_up=50)


@pytest.mark.slow
def test_kinds_of_inputs_are_forgotten():
    """A network that takes any number of inputs, as one with a growing cache does."""

    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, *inputs):
            return self.layer(torch.stack(inputs).sum(0))

    bnn = bayesify(Sum(), MeanField())
    call = partial(torch.ones, 2, 3)
    for count in range(1, 150):
        bnn(*(call() for _ in range(count)), samples=2)
    assert isinstance(bnn, Folded)
    assert len(bnn._verdicts) <= 100
    assert bnn(call(), samples=2).outputs.shape == (2, 2, 1)
