"""Layers that a network calls several times, recomputes, transforms or calls for some of its rows: one function in each draw."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from bayesify import (
    EMP,
    SLANG,
    VSD,
    WHVI,
    BatchEnsemble,
    Gaussian,
    MCDropout,
    MeanField,
    Rank1,
    VariationalDropout,
    bayesify,
    predict,
    unbayesify,
)
from bayesify.core.method import Method
from bayesify.core.model import Bayesian
from bayesify.testing.trial import captured_weights, require_equal_moments

METHODS: list[Method] = [MeanField(initial_std=0.5), MCDropout(p=0.3), VariationalDropout(), WHVI()]


class Net(nn.Module):
    """Three linear layers and a function that applies them."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(self, *inputs)


def _inputs(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def _converted(function: Callable[..., Tensor], method: Method) -> tuple[nn.Module, Bayesian]:
    torch.manual_seed(4)
    net = Net(function).double().eval()
    return net, bayesify(copy.deepcopy(net), method).eval()


def _difference(net: Any, a: Tensor, b: Tensor) -> Tensor:
    """A siamese network."""
    return net.last(net.second(net.first(a).tanh()) - net.second(net.first(b).tanh()))


def _recurrent(net: Any, x: Tensor) -> Tensor:
    hidden = net.first(x[:, 0])
    for _ in range(x.shape[1]):
        hidden = hidden + net.second(hidden.tanh())
    return net.last(hidden)


def _expected(net: nn.Module, bnn: Bayesian, inputs: tuple[Tensor, ...], draws: int) -> Tensor:
    """Outputs of the plain network for weights drawn one by one."""
    layers = dict(bnn.random_layers())
    drawn = bnn.passes.draw(layers.values(), draws)
    outputs = []
    for s in range(draws):
        weights = {f"{name}.weight": drawn[layer][0][s] for name, layer in layers.items()}
        weights |= {f"{name}.bias": bias[s] for name, layer in layers.items() if (bias := drawn[layer][1]) is not None}
        outputs.append(functional_call(net, weights, inputs))
    return torch.stack(outputs)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
@torch.no_grad()
def test_two_calls_with_equal_inputs_differ_in_no_draw(method: Method) -> None:
    _, bnn = _converted(_difference, method)
    x = _inputs(5, 4)
    hidden: list[Tensor] = []
    handle = bnn.net.last.register_forward_pre_hook(lambda _, args: hidden.append(args[0]))
    bnn(x, x.clone(), samples=20)
    handle.remove()
    assert float(hidden[-1].abs().max()) < 1e-12


@pytest.mark.parametrize("function", [_difference, _recurrent])
@torch.no_grad()
def test_moments_are_those_of_weights(function: Callable[..., Tensor]) -> None:
    net, bnn = _converted(function, MeanField(initial_std=0.5))
    inputs = (_inputs(3, 4), _inputs(3, 4).flip(0)) if function is _difference else (_inputs(3, 5, 4),)
    draws = torch.cat([bnn(*inputs, samples=20).outputs for _ in range(100)])
    require_equal_moments(draws, _expected(net, bnn, inputs, 2000))


@pytest.mark.parametrize("samples", [1, 3])
def test_a_longer_sequence_than_the_first(samples: int) -> None:
    """With one step the layer is called once and may draw noise per row; with more it may not."""
    _, bnn = _converted(_recurrent, MeanField(initial_std=0.5))
    bnn(_inputs(3, 1, 4), samples=samples)
    assert not bnn.net.second.is_repeated
    outputs = bnn(_inputs(1, 5, 4).expand(7, 5, 4), samples=samples).outputs
    assert bnn.net.second.is_repeated
    assert not bnn.net.first.is_repeated
    assert outputs.isfinite().all()
    assert "is_repeated" not in vars(unbayesify(bnn).second)


@pytest.mark.default("MeanField-3", "VSD-1")
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize(
    "method", [*METHODS, VSD(), Rank1(), BatchEnsemble(), EMP(where="*"), SLANG()], ids=lambda method: type(method).__name__
)
def test_the_seed_of_a_pass_that_first_calls_a_layer_twice(method: Method, samples: int) -> None:
    """In the middle of training, and with more calls in the next step: equal seeds give the draws that they give later."""
    outputs: dict[str, list[Tensor]] = {}
    for history in ("one call so far", "two calls so far"):
        _, bnn = _converted(_recurrent, method)
        bnn.train()(_inputs(3, 1 if history == "one call so far" else 2, 4), samples=samples)
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            outputs.setdefault(history, []).append(bnn(_inputs(3, 2, 4), samples=samples).outputs)
    first, again, other = outputs["one call so far"]
    assert torch.equal(first, again)
    assert torch.equal(first, outputs["two calls so far"][0])
    assert not torch.equal(first, other)


class _Reversible(torch.autograd.Function):
    """A reversible block, whose backward pass computes its inputs from its outputs (Gomez et al., 2017)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, f: nn.Module, g: nn.Module, *parameters: Tensor) -> Tensor:
        ctx.f, ctx.g = f, g
        with torch.no_grad():
            a, b = x.chunk(2, -1)
            a = a + f(b)
            y = torch.cat([a, b + g(a)], -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (a, b), (da, db) = ctx.saved_tensors[0].chunk(2, -1), gradients[0].chunk(2, -1)
        parameters = [list(part.parameters()) for part in (ctx.f, ctx.g)]
        with torch.enable_grad():
            a = a.detach().requires_grad_()
            ga = ctx.g(a)
        dga, *of_g = torch.autograd.grad(ga, [a, *parameters[1]], db, allow_unused=True)
        da, b = da + dga, (b - ga).detach()
        with torch.enable_grad():
            b.requires_grad_()
            fb = ctx.f(b)
        dfb, *of_f = torch.autograd.grad(fb, [b, *parameters[0]], da, allow_unused=True)
        return torch.cat([da, db + dfb], -1), None, None, *of_f, *of_g


class Reversible(nn.Module):
    def __init__(self, recomputes: bool) -> None:
        super().__init__()
        self.recomputes, self.first, self.last = recomputes, nn.Linear(4, 8), nn.Linear(8, 2)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for f, g in zip(self.blocks[::2], self.blocks[1::2], strict=True):
            if self.recomputes:
                x = _Reversible.apply(x, f, g, *f.parameters(), *g.parameters())
            else:
                a, b = x.chunk(2, -1)
                a = a + f(b)
                x = torch.cat([a, b + g(a)], -1)
        return self.last(x)


@pytest.mark.parametrize("coherent", [False, True])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_gradients_of_a_reversible_network(method: Method, coherent: bool) -> None:
    """Its backward pass runs layers again, and does not restore random states as PyTorch's checkpoints do."""
    results = []
    for recomputes in (True, False):
        torch.manual_seed(0)
        bnn = bayesify(Reversible(recomputes).double(), method)
        torch.manual_seed(1)
        outputs = bnn(_inputs(5, 4), samples=2, coherent=coherent).outputs
        before = torch.get_rng_state()
        outputs.square().sum().backward()
        assert torch.equal(torch.get_rng_state(), before)
        results.append([outputs, *(p.grad for p in bnn.parameters() if p.grad is not None)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def _by_rows(net: Any, x: Tensor) -> Tensor:
    return torch.func.vmap(lambda row: net.last(net.first(row).tanh()))(x)


def _jacobian(net: Any, x: Tensor) -> Tensor:
    return torch.func.vmap(torch.func.jacrev(lambda row: net.last(net.first(row).tanh())))(x)


@pytest.mark.filterwarnings("ignore::bayesify.errors.BayesifyWarning")
@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("function", [_by_rows, _jacobian])
def test_layers_inside_a_vmap(function: Callable[..., Tensor], method: Method) -> None:
    net, bnn = _converted(function, method)
    x = _inputs(5, 4)
    bnn(x)
    for _ in range(2):
        with captured_weights(bnn) as weights:
            draws = bnn(x, samples=3).outputs
        expected = torch.stack([functional_call(net, each, (x,)) for each in weights[-3:]])
        torch.testing.assert_close(draws, expected)
    (draws.square().sum() + bnn.kl()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in bnn.net.first.posterior.parameters())


def _experts(net: Any, x: Tensor) -> Tensor:
    """Every row takes one of two layers, by a random score."""
    hidden = net.first(x)
    chosen = hidden[:, 0] > 0
    outputs = torch.zeros_like(hidden)
    for layer, rows in ((net.second, chosen), (net.third, ~chosen)):
        if rows.any():
            outputs[rows] = layer(hidden[rows])
    return net.last(outputs)


@pytest.mark.filterwarnings("ignore::bayesify.errors.BayesifyWarning")
@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_coherent_draws_of_a_mixture_of_experts_do_not_depend_on_the_batches(method: Method) -> None:
    """Which layers are called depends on the rows; their draws must not."""
    torch.manual_seed(4)
    net = Net(_experts)
    net.third = nn.Linear(6, 6)
    bnn = bayesify(net.double(), method).eval()
    x = _inputs(12, 4)
    options: dict[str, Any] = {"samples": 6, "chunk": 3, "seed": 0, "coherent": True}
    whole = predict(bnn, x, Gaussian(std=1.0), **options).mean
    for size in (1, 5):
        torch.testing.assert_close(predict(bnn, x, Gaussian(std=1.0), batch_size=size, **options).mean, whole)


@pytest.mark.filterwarnings("error::bayesify.errors.BayesifyWarning")
@pytest.mark.parametrize("first", [1, 4])
def test_positions_fold_also_in_a_batch_of_one_row(first: int) -> None:
    """The positions (1, T) of a batch of one are no row of it."""

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.types, self.layer = nn.Embedding(5, 6), nn.Embedding(2, 6), nn.Linear(4, 6)

        def forward(self, x: Tensor) -> Tensor:
            positions = torch.arange(x.shape[1]).unsqueeze(0)
            types = torch.zeros_like(positions).expand(len(x), -1)  # (B, T), unlike the positions, but not of the inputs
            return self.layer(x).tanh() + self.table(positions) * self.types(types)

    torch.manual_seed(0)
    net = Positions().double()
    bnn = bayesify(copy.deepcopy(net), MeanField(initial_std=0.5)).eval()
    calls: list[None] = []
    bnn.net.register_forward_hook(lambda *_: calls.append(None))
    bnn(_inputs(first, 3, 4), samples=3)
    for rows in (1, 4):
        x = _inputs(rows, 3, 4)
        bnn(x, samples=3)  # which compares passes of this size
        calls.clear()
        with captured_weights(bnn) as weights:
            draws = bnn(x, samples=3, coherent=True).outputs
        assert len(calls) == 1
        torch.testing.assert_close(draws, torch.stack([functional_call(net, each, (x,)) for each in weights[-3:]]))


def _tied_parameters() -> nn.Sequential:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    net[2].weight = net[0].weight
    return net


def _shared_module() -> nn.Sequential:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(4, 2))


@pytest.mark.parametrize(("make", "random"), [(_tied_parameters, ["4"]), (_shared_module, ["0", "4"])])
@pytest.mark.parametrize("pattern", ["*", "?"])
def test_the_kl_counts_every_distinct_weight_once(make: Callable[[], nn.Module], random: list[str], pattern: str) -> None:
    """A weight that several layers share has no posterior; a layer that is used several times has one."""
    bnn = bayesify(make().double(), {pattern: MeanField(initial_std=0.3, prior_std=0.7)})
    layers = dict(bnn.random_layers())
    assert list(layers) == random
    expected = torch.zeros((), dtype=torch.float64)
    for layer in layers.values():
        for mean, log_std in ((layer.weight, layer.posterior.weight_log_std), (layer.bias, layer.posterior.bias_log_std)):
            posterior, prior = torch.distributions.Normal(mean, log_std.exp()), torch.distributions.Normal(0.0, 0.7)
            expected = expected + torch.distributions.kl_divergence(posterior, prior).sum()
    for kl in (bnn.kl(), bnn(_inputs(5, 4), samples=2).kl, bnn(_inputs(5, 4), samples=2, coherent=True).kl):
        torch.testing.assert_close(kl, expected)


def test_coherent_draws_do_not_depend_on_batches_that_take_other_decisions() -> None:
    """A batch that is examined anew in the middle of a prediction gets the same draws as the others."""

    def padded(net: Any, x: Tensor, mask: Tensor) -> Tensor:
        hidden = net.second(net.first(x).tanh())
        return net.last(hidden if mask.all() else hidden * mask.unsqueeze(-1))

    _, bnn = _converted(padded, MeanField(initial_std=0.5))
    inputs = _inputs(5, 4), torch.tensor([1, 1, 0, 1, 1], dtype=torch.float64)
    options: dict[str, Any] = {"samples": 6, "chunk": 3, "seed": 0, "coherent": True}
    whole = predict(bnn, inputs, Gaussian(std=1.0), **options).mean
    torch.testing.assert_close(predict(bnn, inputs, Gaussian(std=1.0), batch_size=1, **options).mean, whole)
