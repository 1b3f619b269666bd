"""One draw as a network: held in place, or copied, with the weights of `function`."""

import copy
import warnings

import pytest
import torch
from torch import nn

from bayesify import (
    ECMP,
    ELRG,
    EMP,
    VIFO,
    VSD,
    WHVI,
    DeepEnsemble,
    DropConnect,
    MCDropout,
    MeanField,
    Radial,
    VariationalDropout,
    bayesify,
)
from bayesify.errors import PassError

METHODS = [
    MeanField(initial_std=0.3), MCDropout(p=0.5), DropConnect(p=0.5), VariationalDropout(p=0.4), VSD(p=0.4, hierarchical=True),
    WHVI(initial_std=0.5), EMP(where="*", spread=1.0), ECMP(where="*", spread=1.0), DeepEnsemble(members=3),
    DeepEnsemble(members=2, base=MeanField(initial_std=0.3)),
]  # fmt: skip


class Generator(nn.Module):
    """Calls itself many times, as language models do."""

    def __init__(self):
        super().__init__()
        self.norm, self.cell, self.head = nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.cell(self.norm(x))))

    def generate(self, x, steps):
        for _ in range(steps):
            x = torch.cat([x[:, 2:], self(x)], 1)
        return x


class Reading(nn.Module):
    """Computes with a weight instead of calling the layer."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.tanh(x @ self.layer.weight.mT))


@pytest.mark.parametrize("method", METHODS, ids=repr)
@pytest.mark.parametrize("make", [Generator, Reading])
def test_held_and_copied_draws_are_those_of_the_function(make, method):
    torch.manual_seed(0)
    net, x = make().double(), torch.randn(5, 4, dtype=torch.float64)
    bnn = bayesify(net, method).double().train()
    outputs = set()
    for seed in range(3):
        expected = bnn.function(seed)(x)  # before any pass: nothing is known yet of how the network uses its layers
        with bnn.drawn(seed) as held:
            assert not held.training
            torch.testing.assert_close(held(x), expected)
            torch.testing.assert_close(held(x[:2]), expected[:2])
        copied = bnn.sample_network(seed).eval()
        torch.testing.assert_close(copied(x), expected)
        outputs.add(expected[0, 0].item())
    assert len(outputs) > 1
    assert all(module.training for module in bnn.modules())
    assert not any(hasattr(module, "posterior") for module in copied.modules())
    assert [name for name, _ in copied.named_parameters()] == [name for name, _ in make().named_parameters()]


def test_methods_of_the_network_work_with_one_draw():
    bnn, x = bayesify(Generator(), MeanField(initial_std=0.3)), torch.randn(3, 4)
    with bnn.drawn(0) as net:
        generated = net.generate(x, 5)
    f, expected = bnn.function(0), x
    for _ in range(5):
        expected = torch.cat([expected[:, 2:], f(expected)], 1)
    torch.testing.assert_close(generated, expected)


def test_draws_are_released():
    bnn, x = bayesify(Generator(), MeanField(initial_std=0.3)), torch.randn(3, 4)
    with bnn.drawn(0) as net:
        held = net(x)
        with pytest.raises(PassError, match=r"a draw of this network is held: leave `with bnn\.drawn"):
            bnn(x)
        with pytest.raises(PassError, match="held"), bnn.drawn(1):
            pass
        copy.deepcopy(bnn)(x)  # a copy holds nothing
    assert not torch.equal(bnn.net(x), held)
    with pytest.raises(ZeroDivisionError), bnn.drawn(0):
        raise ZeroDivisionError
    bnn(x)


def test_copies_are_independent():
    bnn, x = bayesify(Generator(), MeanField()), torch.randn(3, 4)
    before = bnn.function(0)(x)
    with torch.no_grad():
        for parameter in bnn.sample_network(0).parameters():
            parameter.zero_()
    torch.testing.assert_close(bnn.function(0)(x), before, rtol=0, atol=0)


@pytest.mark.parametrize("draw", ["drawn", "sample_network"])
def test_random_outputs_are_no_network(draw):
    with pytest.raises(NotImplementedError, match=r"draws outputs, not networks; use function\(seed\)"):
        getattr(bayesify(Generator(), VIFO()), draw)(0)


@pytest.mark.parametrize("draw", [lambda bnn: bnn.drawn(0).__enter__(), lambda bnn: bnn.sample_network(0)], ids=["drawn", "copied"])
def test_sharded_parameters_are_refused(draw, monkeypatch):
    bnn = bayesify(Generator(), MeanField())
    monkeypatch.setattr("bayesify.core.shards.shards_of", lambda net: [net])
    with pytest.raises(PassError, match=r"are sharded \(FSDP\): use bnn\.function\(seed\)"):
        draw(bnn)


class SumOfTokens(nn.Module):
    """Adds the vectors of tokens, also those of padding, and computes with the matrix of the vectors."""

    def __init__(self, reads):
        super().__init__()
        self.tokens, self.last, self.reads = nn.Embedding(5, 3, padding_idx=0), nn.Linear(3, 2), reads

    def forward(self, x):
        h = self.tokens(x).sum(1)
        return self.last(h + self.tokens.weight.sum(0) if self.reads else h)


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize(
    "method", [MeanField(initial_std=0.5), ELRG(), EMP(spread=0.5), Radial()], ids=lambda method: type(method).__name__
)
def test_the_vector_of_padding_is_zero_in_every_draw(method, reads):
    torch.manual_seed(0)
    x = torch.tensor([[1, 4, 0, 0], [2, 2, 0, 0], [3, 0, 0, 0]])
    bnn = bayesify(SumOfTokens(reads), {"tokens": method}).eval()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*does not compute what it does with plain layers")
        bnn(x, samples=2)
    drawn = bnn.sample_network(3)
    assert not drawn.tokens.weight[0].any()
    assert drawn.tokens.weight[1:].all()
    torch.testing.assert_close(drawn(x), bnn.function(3)(x))
    if reads:
        bnn.train()
        bnn(x).outputs.sum().backward()
        gradients = [p.grad for p in bnn.net.tokens.parameters() if p.grad is not None and p.shape == (5, 3)]
        assert all(not gradient[0].any() for gradient in gradients), "a draw has padding"
