"""Networks whose blocks are compiled (regional compilation): one version serves all blocks, with the values of eager code."""

import copy

import pytest
import torch
import torch._dynamo.testing
import torch.nn.functional as F
from contract_methods import METHODS
from torch import nn

from bayesify import EMP, VSD, WHVI, BLoB, MeanField, ScalaBL, bayesify, predict
from bayesify.likelihoods import Gaussian

DEPTH = 4
ONE_OF_EACH = list({type(method): method for method, _ in METHODS if not isinstance(method, BLoB | ScalaBL)}.values())  # need LoRA
METHODS = [*ONE_OF_EACH, MeanField(noise="shared"), VSD(hierarchical=True), WHVI(noise="shared")]


@pytest.fixture(autouse=True)
def _reset():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Block(nn.Module):
    def __init__(self, size=32):
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(size), nn.Linear(size, size), nn.Linear(size, size)

    def forward(self, x):
        return x + self.outer(F.relu(self.inner(self.norm(x))))


def network(method):
    torch.manual_seed(0)
    return bayesify(nn.Sequential(nn.Linear(4, 32), *(Block() for _ in range(DEPTH)), nn.Linear(32, 2)), method)


def compile_blocks(bnn):
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    for block in bnn.net[1 : DEPTH + 1]:
        block.compile(backend=counter, fullgraph=True)
    return counter


def seeded(bnn, x, **options):
    torch.manual_seed(1)
    draws = bnn(x, **options)
    leaves = [p for p in bnn.parameters() if p.requires_grad]
    loss = draws.outputs.square().mean() + draws.kl + draws.local_kl.mean()
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    return draws.outputs.detach(), draws.kl.detach(), [torch.zeros(()) if g is None else g for g in gradients]


@pytest.mark.default(
    "compiled-MeanField0",
    "compiled-EMP",
    extended=[
        "eager-EMP",
        "compiled-VSD0",
        "compiled-WHVI0",
        "compiled-VariationalDropout",
        "compiled-DropConnect",
        "compiled-SLANG",
        "compiled-Deterministic",
    ],
)
@pytest.mark.parametrize(
    ("method", "first"),
    [pytest.param(m, first, id=f"{first}-{type(m).__name__}") for m in METHODS for first in ("compiled", "eager")],
)
def test_compiled_blocks(method, first):
    x, bnn = torch.randn(8, 4), network(method)
    expected = seeded(copy.deepcopy(bnn), x)
    if first == "eager":
        seeded(bnn, x)
    counter = compile_blocks(bnn)
    found = seeded(bnn, x)
    versions = counter.frame_count
    for a, b in zip((*found[:2], *found[2]), (*expected[:2], *expected[2]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    seeded(bnn, x)
    assert counter.frame_count == versions
    assert versions <= 2, "a value that layers share is drawn in the first block"
    copy.deepcopy(bnn)  # which cannot contain a graph


@pytest.mark.default("noise-method0", "coherent-method3", extended=["noise-method2"])
@pytest.mark.parametrize("method", [MeanField(initial_std=0.3), MeanField(noise="shared", initial_std=0.3), WHVI(), EMP()])
@pytest.mark.parametrize("options", [{"samples": 3}, {"samples": 3, "coherent": True}], ids=["noise", "coherent"])
def test_several_draws(method, options):
    x, bnn = torch.randn(8, 4), network(method)
    expected = seeded(copy.deepcopy(bnn), x, **options)
    compile_blocks(bnn)
    for a, b in zip(seeded(bnn, x, **options)[:2], expected[:2], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_block_that_is_used_several_times_is_one_function():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block()

        def forward(self, x):
            first = self.block.inner(x)
            return self.block(x), first - self.block.inner(x)

    for kind in ("before", "after"):
        bnn, x = bayesify(Shared(), MeanField(initial_std=1.0)), torch.randn(8, 32)
        if kind == "after":
            bnn(x)
        bnn.net.compile(backend="eager")
        assert bnn.net.block.inner.is_repeated or kind == "before"
        _, difference = bnn(x, samples=2).outputs
        assert bnn.net.block.inner.is_repeated
        torch.testing.assert_close(difference, torch.zeros_like(difference))


@pytest.mark.extended
def test_a_function_and_a_prediction():
    x, bnn = torch.randn(8, 4), network(MeanField(initial_std=0.3))
    function, plain = bnn.function(3), predict(bnn, x, Gaussian(std=1.0), samples=50, seed=1)
    expected = function(x)
    compile_blocks(bnn)
    torch.testing.assert_close(bnn.function(3)(x), expected)
    found = predict(bnn, x, Gaussian(std=1.0), samples=50, seed=1)
    torch.testing.assert_close(found.mean, plain.mean, rtol=0, atol=0.5 * float(plain.std.max()))
    torch.testing.assert_close(found.std, plain.std, rtol=0.45, atol=0)  # other draws, of which there are 50


@pytest.mark.extended
def test_an_interrupted_pass_leaves_nothing():
    class Interrupted(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks, self.fails = nn.Sequential(Block(), Block()), False

        def forward(self, x):
            x = self.blocks(x)
            if self.fails:
                raise KeyboardInterrupt
            return x

    bnn, x = bayesify(Interrupted(), MeanField()), torch.randn(8, 32)
    expected = seeded(copy.deepcopy(bnn), x)
    for block in bnn.net.blocks:
        block.compile(backend="aot_eager")
    bnn(x)
    bnn.net.fails = True
    with pytest.raises(KeyboardInterrupt):
        bnn(x)
    bnn.net.fails = False
    again = seeded(copy.deepcopy(bnn), x)
    torch.testing.assert_close(again[1], expected[1])
