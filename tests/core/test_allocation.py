"""Training steps reuse the memory of earlier steps."""

import os
import platform
import subprocess
import sys

import pytest

STEPS = """
import resource
import torch
from torch import nn
from bayesify import MeanField, bayesify

torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 10))
bnn, x = bayesify(net, MeanField()), torch.randn(128, 784)
optimizer = torch.optim.Adam(bnn.parameters(), fused=True)

def step():
    optimizer.zero_grad()
    draws = bnn(x)
    (draws.outputs.square().mean() + draws.kl).backward()
    optimizer.step()

for _ in range(5):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have other rules")
@pytest.mark.extended
def test_steps_do_not_request_memory_again():
    settings = {
        name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD"))
    }
    done = subprocess.run([sys.executable, "-c", STEPS], env=settings, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1000  # page faults; about 9,000 if memory is returned to the system
