"""Passes of a Bayesian net: nothing is left over between them, in eager mode, compiled, checkpointed, copied or interrupted."""

import copy
import threading
import warnings
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bayesify import (
    ECMP,
    EMP,
    VIFO,
    VSD,
    WHVI,
    Bayesian,
    Deterministic,
    MCDropout,
    MeanField,
    VariationalDropout,
    bayesify,
    elbo,
    unbayesify,
)
from bayesify.core import turns
from bayesify.core.forward_pass import ForwardPass
from bayesify.errors import BayesifyWarning, PassError


def _mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def _seeded(bnn: Bayesian, *args, **kwargs):
    torch.manual_seed(5)
    return bnn(*args, **kwargs)


@pytest.mark.parametrize("method", [MeanField(), MCDropout(), WHVI()], ids=["mean field", "dropout", "replaced weights"])
def test_the_network_called_without_its_root_is_noticed_once(method):
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    bnn, x = bayesify(net, method), torch.randn(5, 4)
    with pytest.warns(BayesifyWarning, match=r"called outside a pass of its Bayesian network, as by `net\(x\)`"):
        net(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayesifyWarning)
        net(x)
        certain = nn.Linear(4, 2)
        bayesify(certain, Deterministic())
        certain(x)
        with bayesify(nn.Linear(4, 2), MeanField()).drawn(seed=0) as drawn:
            drawn(x)
    assert bnn(x).outputs.shape == (1, 5, 2)


def test_a_layer_called_on_its_own_knows_nothing_of_the_last_pass():
    x = torch.randn(5, 4)
    bnn = bayesify(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), MeanField(noise="shared", initial_std=1.0))
    bnn(x, samples=3, coherent=True)
    first, second = bnn.net[0](x), bnn.net[0](x)
    assert first.shape == (5, 8)
    assert not torch.equal(first, second), "drawn afresh by every call"
    with pytest.raises(RuntimeError):
        bnn(torch.randn(5, 3), samples=3, coherent=True)
    assert bnn.passes.current is None
    assert bnn.net[0](x).shape == (5, 8)
    weight, _ = bnn.net[0].draw()
    assert weight.shape == (1, 8, 4)


@pytest.mark.parametrize("method", [MeanField(initial_std=1.0), MeanField(noise="shared", initial_std=1.0), MCDropout(p=0.5)])
def test_passes_draw_afresh(method):
    bnn, x = bayesify(_mlp(), method), torch.randn(3, 4)
    for coherent in (False, True):
        first, second = (bnn(x, samples=2, coherent=coherent).outputs for _ in range(2))
        assert not torch.equal(first, second)
        assert not torch.equal(first[0], first[1])
    rows = x[:1].expand(3, 4)
    assert (bnn(rows, coherent=True).outputs == bnn.net(rows[:1])).sum() < 6, "coherence ends with its pass"


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_passes_without_gradients(mode):
    bnn = bayesify(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), MeanField())
    with mode():
        assert not bnn(torch.randn(5, 4), samples=2).outputs.requires_grad
    bnn(torch.randn(5, 4), samples=2).outputs.sum().backward()
    assert all(p.grad is not None for p in bnn.net[0].parameters())
    assert bnn.net[1].num_batches_tracked == 4, "two passes of two draws"


def test_a_copy_shares_nothing_with_the_original():
    bnn = bayesify(_mlp(), MeanField(noise="shared"))
    other = copy.deepcopy(bnn)
    assert {id(p) for p in bnn.parameters()}.isdisjoint(id(p) for p in other.parameters())
    assert {id(layer.passes) for _, layer in other.random_layers()} == {id(other.passes)} != {id(bnn.passes)}

    def pass_in_between(module: nn.Module, args: object) -> None:
        other(torch.zeros(2, 4), samples=5, coherent=True)

    handle = bnn.net[2].register_forward_pre_hook(pass_in_between)
    torch.manual_seed(1)
    bnn(torch.zeros(3, 4), samples=2)
    handle.remove()
    unbayesify(other)
    assert bnn(torch.zeros(3, 4), samples=2).outputs.shape == (2, 3, 2)


@pytest.mark.parametrize("coherent", [False, True])
@pytest.mark.parametrize("method", [MeanField(), MeanField(noise="shared"), MCDropout(), VariationalDropout()])
def test_activation_checkpointing_repeats_the_pass(method, coherent):
    """The backward recomputes layers outside the pass; gradients must be those of the draws that were made in it."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.saving = nn.Linear(4, 8), nn.Linear(8, 2), False

        def forward(self, x: Tensor) -> Tensor:
            h = checkpoint(self.a, x, use_reentrant=False) if self.saving else self.a(x)
            return self.b(torch.tanh(h))

    bnn, x = bayesify(Net(), method), torch.randn(5, 4)
    gradients = []
    for bnn.net.saving in (False, True):
        bnn.zero_grad()
        _seeded(bnn, x, samples=3, coherent=coherent).outputs.square().sum().backward()
        gradients.append([p.grad for p in bnn.net.a.parameters() if p.grad is not None])
    assert gradients[0]
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


@pytest.mark.default("method0-*", "method3-False")
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("method", [MeanField(), MeanField(noise="shared"), VSD(), VSD(hierarchical=True)])
def test_the_kl_found_in_a_pass_has_the_gradients_of_the_definition(method, reentrant):
    """Layers compute it on the way where they can; also where they are called again in the backward, or without gradients."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.saving = nn.Linear(4, 8), nn.Linear(8, 2), False

        def forward(self, x: Tensor) -> Tensor:
            h = checkpoint(self.a, x, use_reentrant=reentrant) if self.saving else self.a(x)
            return self.b(torch.tanh(h))

    bnn, x = bayesify(Net(), method), torch.randn(5, 4, requires_grad=True)
    parameters = list(bnn.parameters())
    expected = torch.autograd.grad(bnn.kl(), parameters, allow_unused=True, materialize_grads=True)
    for bnn.net.saving in (False, True):
        bnn.zero_grad()
        draws = bnn(x, samples=2)
        (draws.outputs.sum() * 0 + draws.kl).backward()
        torch.testing.assert_close(draws.kl, bnn.kl())
        torch.testing.assert_close([p.grad for p in parameters], list(expected))


@pytest.mark.parametrize("method", [MeanField(), MeanField(noise="shared"), VSD()])
def test_no_kl_outlives_its_pass(method):
    bnn, x = bayesify(_mlp(), method), torch.randn(5, 4)
    before = bnn(x).kl
    with torch.no_grad():
        bnn(x)
        for parameter in bnn.parameters():
            parameter.mul_(1.5)
    after = bnn.kl()
    assert after != before
    torch.testing.assert_close(bnn(x).kl, after)
    assert not bnn.net[0].forward_pass.wants_kl(), "a layer on its own is not asked for it"


class _Adjoint(torch.autograd.Function):
    """A function whose backward pass runs a layer again; both enable gradients for themselves, as solvers of equations do."""

    @staticmethod
    def forward(ctx: Any, layer: nn.Module, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.layer, ctx.x, ctx.parameters = layer, x, parameters
        with torch.enable_grad():
            return layer(x.detach().requires_grad_()).detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        with torch.enable_grad():
            x = ctx.x.detach().requires_grad_()
            return None, *torch.autograd.grad(ctx.layer(x), (x, *ctx.parameters), gradient, allow_unused=True)


class Saving(nn.Module):
    """Uses one layer twice, each time inside a checkpoint of its own (`reentrant`), an adjoint function, or neither."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.layer = nn.Linear(4, 3), nn.Linear(3, 3)
        self.reentrant: tuple[bool | str | None, bool | str | None] = None, None

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        for kind in self.reentrant:
            h = torch.tanh(h)
            if kind is None:
                h = self.layer(h)
            elif kind == "adjoint":
                h = _Adjoint.apply(self.layer, h, *self.layer.parameters())
            else:
                h = checkpoint(self.layer, h, use_reentrant=kind)
        return h


KINDS = (False, True, "adjoint")
CHECKPOINTED = [
    MeanField(initial_std=0.5),
    MeanField(noise="shared", initial_std=0.5),
    MCDropout(p=0.4),
    VSD(hierarchical=True),
    EMP(where="*", spread=1.0),
    WHVI(initial_std=0.5),
]


@pytest.mark.parametrize("reentrant", KINDS)
@pytest.mark.parametrize("method", CHECKPOINTED, ids=lambda method: type(method).__name__)
def test_two_checkpointed_passes_before_one_backward(method, reentrant):
    """Of other samples and rows each, so that the draws of one do not fit the other."""
    torch.manual_seed(0)
    bnn, x = bayesify(Saving().double(), {"layer": method}), torch.randn(5, 4, dtype=torch.float64)
    gradients = []
    for kind in (None, reentrant):
        bnn.net.reentrant = kind, kind
        bnn.zero_grad()
        torch.manual_seed(5)
        first, second = bnn(x, samples=2), bnn(x[:3], samples=3, coherent=True)
        (first.outputs.square().sum() + 7 * second.outputs.square().sum() + first.kl + second.kl).backward()
        gradients.append([p.grad for p in bnn.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("fold", [None, False])
@pytest.mark.parametrize("method", CHECKPOINTED, ids=lambda method: type(method).__name__)
def test_a_layer_inside_and_outside_a_checkpoint(method, fold):
    torch.manual_seed(0)
    gradients = []
    for kinds in ((None, None), *((first, None) for first in KINDS), *((None, second) for second in KINDS)):
        torch.manual_seed(0)
        bnn, x = bayesify(Saving().double(), {"layer": method}, fold=fold), torch.randn(5, 4, dtype=torch.float64)
        bnn.net.reentrant = kinds
        for _ in range(2):  # the first pass of each kind may have to be made again
            bnn.zero_grad()
            draws = _seeded(bnn, x, samples=2, coherent=True)
            (draws.outputs.square().sum() + draws.kl).backward()
            gradients.append([draws.outputs, *(p.grad for p in bnn.parameters())])
            torch.testing.assert_close(gradients[-1], gradients[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("coherent", [False, True])
@pytest.mark.parametrize("method", CHECKPOINTED, ids=lambda method: type(method).__name__)
def test_an_adjoint_function_repeats_noise_of_rows(method, coherent):
    """A layer that is called once has noise of its own for every row, which is not stored as drawn weights are."""

    class Once(Saving):
        def forward(self, x: Tensor) -> Tensor:
            h, (kind, _) = torch.tanh(self.body(x)), self.reentrant
            return self.layer(h) if kind is None else _Adjoint.apply(self.layer, h, *self.layer.parameters())

    torch.manual_seed(0)
    bnn, x = bayesify(Once().double(), {"layer": method}), torch.randn(5, 4, dtype=torch.float64)
    found = []
    for kind in (None, "adjoint"):
        bnn.net.reentrant = kind, kind
        bnn(x, samples=2, coherent=coherent)
        bnn.zero_grad()
        outputs = _seeded(bnn, x, samples=2, coherent=coherent).outputs
        outputs.square().sum().backward()
        found.append([outputs, *(p.grad for p in bnn.parameters() if p.grad is not None)])
    assert not bnn.net.layer.is_repeated
    torch.testing.assert_close(found[1], found[0], rtol=1e-10, atol=1e-12)


def test_a_backward_pass_that_calls_a_layer_of_no_known_pass_is_refused():
    bnn, x = bayesify(Saving().double(), {"layer": MeanField()}), torch.randn(5, 4, dtype=torch.float64)
    bnn.net.reentrant, hidden = ("adjoint", None), []
    handle = bnn.net.layer.register_forward_hook(lambda module, args, output: hidden.append(args[0]))
    bnn(x)
    handle.remove()
    with pytest.raises(PassError, match=r"a backward pass calls a random layer.*Compute gradients of what the Bayesian network"):
        torch.autograd.grad(hidden[-1].sum(), bnn.net.body.weight)


@pytest.mark.parametrize("reentrant", KINDS)
@pytest.mark.parametrize("method", CHECKPOINTED, ids=lambda method: type(method).__name__)
def test_checkpoints_in_passes_of_one_draw_each(method, reentrant):
    torch.manual_seed(0)
    bnn, x = bayesify(Saving().double(), {"layer": method}, fold=False), torch.randn(5, 4, dtype=torch.float64)
    gradients = []
    for kind in (None, reentrant):
        bnn.net.reentrant = kind, kind
        bnn.zero_grad()
        draws = _seeded(bnn, x, samples=3)
        (draws.outputs.square().sum() + draws.kl).backward()
        gradients.append([p.grad for p in bnn.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("reentrant", KINDS)
@pytest.mark.parametrize("method", CHECKPOINTED, ids=lambda method: type(method).__name__)
def test_weights_that_are_read_inside_a_checkpoint(method, reentrant):
    class Reading(Saving):
        def forward(self, x: Tensor) -> Tensor:
            def read(h: Tensor) -> Tensor:
                return torch.tanh(nn.functional.linear(h, self.layer.weight, self.layer.bias))

            h = self.body(x)
            for kind in self.reentrant:
                h = read(h) if kind is None else checkpoint(read, h, use_reentrant=kind)
            return h

    torch.manual_seed(0)
    bnn, x = bayesify(Reading().double(), {"layer": method}), torch.randn(5, 4, dtype=torch.float64)
    gradients = []
    for kind in (None, reentrant):
        bnn.net.reentrant = kind, kind
        bnn.zero_grad()
        _seeded(bnn, x, samples=3).outputs.square().sum().backward()
        gradients.append([p.grad for p in bnn.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("reentrant", KINDS)
@pytest.mark.parametrize("method", CHECKPOINTED, ids=lambda method: type(method).__name__)
def test_functions_of_nets_with_checkpoints(method, reentrant):
    torch.manual_seed(0)
    bnn, x = bayesify(Saving().double(), {"layer": method}), torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    gradients = []
    for kind in (None, reentrant):
        bnn.net.reentrant = kind, kind
        gradients.append(x.grad)
        x.grad = None
        bnn.function(3)(x).square().sum().backward()
    torch.testing.assert_close(x.grad, gradients[1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("method", [VIFO(), VIFO(separate_std=True)], ids=["one network", "two"])
def test_random_outputs_inside_a_checkpoint(method, reentrant):
    class Head(Saving):
        def forward(self, x: Tensor) -> Tensor:
            h, (kind, _) = torch.tanh(self.body(x)), self.reentrant
            return self.layer(h) if kind is None else checkpoint(self.layer, h, use_reentrant=kind)

    torch.manual_seed(0)
    bnn, x = bayesify(Head().double(), method), torch.randn(5, 4, dtype=torch.float64)
    gradients = []
    for kind in (None, reentrant):
        for net in filter(None, (bnn.net, bnn.second)):
            net.reentrant = kind, kind
        bnn.zero_grad()
        draws = _seeded(bnn, x, samples=3)
        (draws.outputs.square().sum() + draws.local_kl.sum()).backward()
        gradients.append([p.grad for p in bnn.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-10, atol=1e-12)


def test_learned_choices_inside_a_reentrant_checkpoint_are_refused():
    method = EMP(where="*", components=3, spread=1.0, learn_probabilities=True)
    bnn, x = bayesify(Saving().double(), {"layer": method}), torch.randn(5, 4, dtype=torch.float64)
    bnn.net.reentrant = True, True
    with pytest.raises(RuntimeError, match=r"no gradient inside .* a reentrant activation checkpoint; use checkpoint\(.*=False"):
        bnn(x, samples=2)
    with torch.no_grad():
        assert bnn(x, samples=2).outputs.shape == (2, 5, 3), "where nothing is learned, nothing is lost"
    gradients = []
    for kind in (None, False):
        bnn.net.reentrant = kind, kind
        bnn.zero_grad()
        draws = _seeded(bnn, x, samples=4)
        (-elbo(draws, -draws.outputs.square().sum(-1), n=10)).backward()
        gradients.append([p.grad for p in bnn.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-10, atol=1e-12)
    assert gradients[0][-1].abs().max() > 1e-6, "the probabilities learn"


@pytest.mark.parametrize("method", [MeanField(noise="shared"), VIFO()], ids=["MeanField", "VIFO"])
def test_a_pass_that_another_waits_for_is_refused_and_the_first_unharmed(method, monkeypatch):
    """In another thread, over inputs of a kind that the root has not met."""
    monkeypatch.setattr(turns, "_LIMIT", 0.2)

    class Pausing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.dropout, self.head, self.pause = nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2), None
            self.modes: list[bool] = []

        def train(self, mode: bool = True) -> nn.Module:
            self.modes.append(mode)
            return super().train(mode)

        def forward(self, x: Tensor, more: Tensor | None = None) -> Tensor:
            if self.pause is not None:
                pause, self.pause = self.pause, None
                pause()
            return self.head(self.dropout(self.layer(x)))

    bnn, x = bayesify(Pausing().double(), method).train(), torch.randn(3, 4, dtype=torch.float64)
    bnn(x, samples=2)
    expected = _seeded(bnn, x, samples=2)
    failures = []

    def second() -> None:
        try:
            bnn(x, x, samples=3)
        except RuntimeError as error:
            failures.append(str(error))

    def pause() -> None:
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()

    bnn.net.pause, bnn.net.modes = pause, []
    found = _seeded(bnn, x, samples=2)
    assert not bnn.net.modes, "nobody has looked at the net, which would change its mode for a while"
    assert len(failures) == 1
    assert "has been in a pass or prediction for 0.2 s" in failures[0]
    torch.testing.assert_close(found.outputs, expected.outputs, rtol=0, atol=0)
    assert all(module.training for module in bnn.modules())
    assert not bnn.findings
    assert bnn(x, x, samples=3).outputs.shape == (3, 3, 2), "and the next pass is as good as any"


@pytest.mark.slow
def test_compile_follows_samples_and_coherent():
    torch.compiler.reset()
    nets = [bayesify(_mlp(), MeanField(noise=noise)) for noise in ("local", "shared")]
    compiled = [torch.compile(bnn, backend="aot_eager", fullgraph=True) for bnn in nets]
    x = torch.randn(5, 4)
    for samples, coherent in ((1, False), (2, False), (2, True), (4, True), (3, False), (1, True)):
        for bnn, fast in zip(nets, compiled, strict=True):
            expected = _seeded(bnn, x, samples=samples, coherent=coherent)
            found = _seeded(fast, x, samples=samples, coherent=coherent)
            torch.testing.assert_close(found.outputs, expected.outputs)
            torch.testing.assert_close(found.kl, expected.kl)
    torch.compiler.reset()


# One of each kind of layer and noise: how a pass is laid out is the matter of the core, not of the method.
@pytest.mark.default("True-method0")
@pytest.mark.parametrize(
    "method", [MeanField(), *(pytest.param(method, marks=pytest.mark.slow) for method in (EMP(), VSD(hierarchical=True)))]
)
@pytest.mark.parametrize("train", [False, True])
def test_compiled_passes_are_compiled_once_more_for_other_samples_and_once_for_other_batches(method, train):
    torch.compiler.reset()
    net = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6) if train else nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(bayesify(net, method).train(train), backend=counter, fullgraph=True)
    frames = []
    with torch.set_grad_enabled(train):
        for samples, rows in ((2, 8), (4, 8), (7, 8), (5, 16), (3, 24), (6, 10)):
            outputs = compiled(torch.randn(rows, 4), samples=samples).outputs
            assert outputs.shape == (samples, rows, 2)
            if train:
                outputs.sum().backward()
            frames.append(counter.frame_count)
    assert frames[1] == frames[2] <= 2
    assert frames[-1] == frames[3] <= 3
    torch.compiler.reset()


@pytest.mark.parametrize("method", [EMP(), ECMP(), MeanField(noise="shared", initial_std=0.5)])
@pytest.mark.parametrize("dtype", [torch.double, torch.bfloat16])
def test_draws_of_batch_normalization_agree_with_passes_of_their_own(method, dtype):
    """In eval mode scale, shift and statistics become one scale and one shift per draw; nothing is rounded on the way."""
    bnn = bayesify(nn.Sequential(nn.BatchNorm2d(3)).to(dtype), method)
    bnn(30 + 3 * torch.randn(20, 3, 4, 4, dtype=dtype))
    x = (30 + torch.randn(5, 3, 4, 4, dtype=dtype)).contiguous(memory_format=torch.channels_last)
    bnn.eval()
    site = bnn.net[0]
    weight, bias = site.sample(4)
    drawn = ForwardPass(4, coherent=True, drawn={site: (weight, bias)})
    outputs = bnn.passes.run(drawn, bnn.net, (x.expand(4, *x.shape).flatten(0, 1),), {}).unflatten(0, (4, 5))
    for s in range(4):
        alone = nn.functional.batch_norm(x, site.running_mean, site.running_var, weight[s], bias[s], False, 0.0, site.eps)
        torch.testing.assert_close(outputs[s], alone)


class Positions(nn.Module):
    """Adds an embedding of the positions, which have no rows, to that of the words."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(7, 3), nn.Embedding(length, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.words(x) + self.places(torch.arange(x.shape[1]))


# As a multiple of the draws, 4 could be taken for rows of two draws; 3 is the number of rows, 6 that of a folded pass.
@pytest.mark.default("method0-False-3", "method0-True-4", "method1-False-6")
@pytest.mark.parametrize("length", [3, 4, 5, 6])
@pytest.mark.parametrize("coherent", [False, True])
@pytest.mark.parametrize("method", [MeanField(initial_std=1.0), MeanField(noise="shared", initial_std=1.0)])
def test_every_draw_has_positions_of_its_own(method, coherent, length):
    torch.manual_seed(0)
    bnn = bayesify(Positions(length).double(), {"places": method})
    x = torch.randint(7, (3, length))
    outputs = torch.cat([bnn(x, samples=2, coherent=coherent).outputs for _ in range(1000)])
    noise = (outputs - bnn.net.words(x)).detach()[:, 0]
    site = bnn.net.places
    assert [verdict.independent_rows for verdict in bnn._verdicts.values()] == [length != 3]
    torch.testing.assert_close(noise.mean(0), site.weight.detach(), atol=6 / 2000**0.5, rtol=0)
    torch.testing.assert_close(noise.var(0), torch.ones_like(noise[0]), atol=0.2, rtol=0)
    pairs = (noise - noise.mean(0)).unflatten(0, (1000, 2))
    assert float((pairs[:, 0] * pairs[:, 1]).mean().abs()) < 5 / (1000 * 3 * length) ** 0.5, "two draws of a pass are independent"


def test_a_net_is_looked_at_once():
    bnn = bayesify(_mlp(), MeanField())
    x = torch.randn(3, 4)
    first, second = _seeded(bnn, x, samples=4).outputs, _seeded(bnn, x, samples=4).outputs
    assert torch.equal(first, second)
    assert [verdict.independent_rows for verdict in bnn._verdicts.values()] == [True]
    assert not [name for name in vars(x) if name.startswith("bayesify")]


class RelativePositions(nn.Module):
    """Attention whose scores have a learned bias by relative position, without rows, as in T5."""

    def __init__(self):
        super().__init__()
        self.words, self.bias, self.head = nn.Embedding(7, 4), nn.Embedding(5, 1), nn.Linear(4, 2)

    def forward(self, tokens):
        x, places = self.words(tokens), torch.arange(tokens.shape[1])
        bias = self.bias((places[:, None] - places).clamp(-2, 2) + 2).permute([2, 0, 1])
        return self.head(((x @ x.mT + bias).softmax(-1) @ x).mean(1))


def test_layers_without_rows_that_are_not_random_act_as_in_the_plain_network():
    net, tokens = RelativePositions(), torch.randint(7, (3, 6))
    expected = net(tokens)
    for method in (Deterministic(), {"head": MeanField(initial_std=1e-8), "*": Deterministic()}):
        bnn = bayesify(copy.deepcopy(net), method)
        torch.testing.assert_close(bnn(tokens, samples=2).outputs, expected.expand(2, 3, 2))


def test_a_copy_that_is_made_in_a_pass_is_in_no_pass():
    bnn, copies = bayesify(nn.Linear(3, 2), MeanField()), []
    handle = bnn.net.register_forward_hook(lambda *_: copies.append(copy.deepcopy(bnn)))
    bnn(torch.zeros(4, 3))
    handle.remove()
    copies[0](torch.zeros(4, 3))


@pytest.mark.parametrize("samples", [1, 3])
def test_a_captured_pass_that_would_be_an_examination(monkeypatch, samples):
    bnn, x = bayesify(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), MeanField()), torch.randn(40, 3)
    with monkeypatch.context() as patch:
        patch.setattr("torch.cuda.is_initialized", lambda: True)
        patch.setattr("torch.cuda.is_current_stream_capturing", lambda: True)
        with pytest.raises(PassError, match="call the network with such inputs a few times, in the same mode, before the capture"):
            bnn(x, samples=samples)
    bnn(x, samples=samples)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: True)
    assert bnn(x, samples=samples).outputs.shape == (samples, 40, 1)
    with pytest.raises(PassError, match="before the capture"):
        bnn(torch.randn(80, 3), samples=samples)
