"""Draws in compiled code: the values of eager code, never merged, and calls of operators only where a CPU's compiler makes them."""

import pytest
import torch
from scipy import stats
from torch import nn
from torch._dynamo.backends.common import aot_autograd

from bayesify import MeanField, bayesify
from bayesify.functional import bernoulli, standard_normal, standard_uniform

F64 = torch.float64
DRAWS = {
    "normal": lambda like, *size: standard_normal(*size, like=like),
    "uniform": lambda like, *size: standard_uniform(*size, like=like),
    "bernoulli": lambda like, *size: bernoulli(*size, p=0.3, like=like),
}
EACH = pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)


@pytest.fixture(autouse=True)
def _reset():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def _operators(function, *arguments):
    """The names of all operators of the compiled forward graph."""
    names = []

    def keep(graph, _):
        names.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    torch.compile(function, fullgraph=True, backend=aot_autograd(fw_compiler=keep))(*arguments)
    return names


@pytest.mark.default("dtype0-*")
@EACH
@pytest.mark.parametrize("dtype", [torch.float32, F64, torch.bfloat16])
def test_compiled_draws_have_the_values_of_eager_ones(draw, dtype):
    def function(x):
        return x * (draw(x, 3, 4) + 2 * draw(x, 3, 4))

    x = torch.ones(4, dtype=dtype, requires_grad=True)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        torch.manual_seed(5)
        expected = function(x)
        torch.manual_seed(5)
        found = compiled(x)
        assert found.dtype == dtype
        assert torch.equal(found, expected)
        gradients = [torch.autograd.grad(y.sum(), x)[0] for y in (expected, found)]
        assert torch.equal(*gradients), "the backward pass has the noise of the forward pass"


@EACH
def test_equal_calls_are_not_merged(draw):
    def function(x):
        return x * draw(x, 1000), x * draw(x, 1000)

    first, second = torch.compile(function, fullgraph=True, backend="aot_eager")(torch.ones(1, requires_grad=True))
    assert not torch.equal(first, second)


def test_compiled_graphs_call_operators():
    x = torch.ones(2, requires_grad=True)
    for draw, name in zip(DRAWS.values(), ("randn", "rand", "bernoulli"), strict=True):
        assert f"bayesify.{name}.default" in _operators(lambda x, draw=draw: x * draw(x, 2), x)


def test_exported_programs_do_not():
    bnn = bayesify(nn.Linear(3, 2), MeanField()).eval()
    program = torch.export.export(bnn, (torch.randn(4, 3),))
    names = [str(node.target) for node in program.graph.nodes]
    assert any("randn" in name for name in names)
    assert not any("bayesify" in name for name in names)


def test_transforms_in_compiled_code_use_pytorch_s_own_draws():
    def function(x):
        return torch.func.vmap(lambda row: row + standard_normal(2, like=row), randomness="different")(x)

    names = _operators(function, torch.zeros(5, 2))
    assert not any("bayesify" in name for name in names)


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [("randn", (torch.float32, 0)), ("rand", (F64, 1)), ("bernoulli", (0.5, torch.float32, 2))],
)
def test_registration(operator, arguments):
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(getattr(torch.ops.bayesify, operator).default, ((2, 3), *arguments), test_utils=checks)


def test_distributions():
    torch.manual_seed(0)
    like = torch.zeros((), dtype=F64)
    assert stats.kstest(standard_normal(20_000, like=like).numpy(), "norm").pvalue > 1e-3
    assert stats.kstest(standard_uniform(20_000, like=like).numpy(), "uniform").pvalue > 1e-3
    kept = int(bernoulli(20_000, p=0.3, like=like).sum())
    assert stats.binomtest(kept, 20_000, 0.3).pvalue > 1e-3  # a standard error is 65; p = 0.7 or 0.15 is far away
    assert bernoulli(1000, p=1.0, like=like).all()
    assert not bernoulli(1000, p=0.0, like=like).any()
