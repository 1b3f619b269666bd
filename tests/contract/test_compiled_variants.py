"""Networks with different numbers in their methods, compiled in one process: each computes what it computes without a compiler."""

import dataclasses
import inspect

import pytest
import torch
import torch._dynamo.testing
from contract_methods import METHODS
from torch import nn

from bayesify import EMP, BLoB, Gaussian, MeanField, ScalaBL, bayesify, predict

ONE_OF_EACH = list({type(method): method for method, _ in METHODS if not isinstance(method, BLoB | ScalaBL)}.values())  # need LoRA


def marks(method):
    if type(method) is MeanField:
        return ()
    return pytest.mark.extended if type(method) is EMP else pytest.mark.slow


VARIED = [
    pytest.param(method, id=type(method).__name__, marks=marks(method))
    for method in ONE_OF_EACH
    if any(isinstance(value, float) for value in vars(method).values())
]


def variants(method):
    """The method, and two more with every real number changed: the compiler makes changing numbers inputs of a graph."""
    numbers = {name: value for name, value in vars(method).items() if isinstance(value, float)}
    return [dataclasses.replace(method, **{name: value * factor for name, value in numbers.items()}) for factor in (1, 0.9, 0.8)]


def network(method):
    torch.manual_seed(0)
    return bayesify(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), method)


def seeded(bnn, x):
    torch.manual_seed(1)
    draws = bnn(x, samples=2)
    loss = draws.outputs.square().mean() + draws.kl + draws.local_kl.mean()
    loss.backward()
    return draws.outputs.detach(), draws.kl.detach()


@pytest.fixture(autouse=True)
def _reset():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("method", VARIED)
def test_other_numbers(method):
    x = torch.randn(8, 4)
    for variant in variants(method):
        bnn = network(variant)
        expected, gradients = seeded(bnn, x), [p.grad for p in bnn.parameters()]
        bnn.zero_grad()
        compiled = torch.compile(bnn, backend="aot_eager")
        torch.testing.assert_close(seeded(compiled, x), expected)
        torch.testing.assert_close([p.grad for p in bnn.parameters()], gradients)


@pytest.mark.slow
@pytest.mark.skipif("isolate_recompiles" not in inspect.signature(torch.compile).parameters, reason="needs PyTorch 2.13")
def test_more_networks_than_the_recompile_limit():
    """All networks share the code of one class, of which PyTorch compiles 8 versions, unless it counts each `compile` apart."""
    counter = torch._dynamo.testing.CompileCounter()
    count = 0
    for method in ONE_OF_EACH[:14]:
        compiled = torch.compile(network(method), backend=counter, isolate_recompiles=True)
        for samples, rows in ((2, 8), (3, 8), (4, 6)):
            compiled(torch.randn(rows, 4), samples=samples)
        assert counter.frame_count > count, "it was not compiled"
        count = counter.frame_count


def test_predictions_between_compiled_steps_do_not_compile_again():
    """They examine the network after ever more updates."""
    counter = torch._dynamo.testing.CompileCounter()
    bnn = network(MeanField())
    compiled, optimizer, x = torch.compile(bnn, backend=counter), torch.optim.SGD(bnn.parameters(), 1e-3), torch.randn(8, 4)
    compiled_before = 0
    for step in range(20):
        optimizer.zero_grad()
        draws = compiled(x, samples=2)
        (draws.outputs.sum() + draws.kl).backward()
        optimizer.step()
        predict(bnn, x, Gaussian(std=1.0), samples=2, progress=False)
        compiled_before = compiled_before or counter.frame_count * (step == 2)
    assert counter.frame_count == compiled_before > 0
