"""Weights that are drawn before the network calls its layers: the draws, the KL and the gradients are those of layer by layer."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bayesify import MCDropout, MeanField, VariationalDropout, bayesify
from bayesify.core.folded import Folded
from bayesify.core.forward_pass import ForwardPass
from bayesify.methods.mean_field import GaussianPosterior
from bayesify.native import switch

pytest.importorskip("numba", reason="the native operators need bayesify[fast]")

SHARED = MeanField(noise="shared", initial_std=0.5)


@pytest.fixture(autouse=True)
def _native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(switch.LIBRARIES, "cpu", "numba")
    torch.manual_seed(0)


def _net() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
    ).double()


def _run(bnn: Folded, x: Tensor, ahead: bool, **settings: object) -> list[Tensor]:
    bnn._is_checkpointed = not ahead
    torch.manual_seed(1)
    draws = bnn(x, **settings)
    loss = draws.outputs.square().mean() + 1e-2 * draws.kl
    return [draws.outputs, draws.kl, *torch.autograd.grad(loss, list(bnn.parameters()))]


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("fold", [None, False])
@pytest.mark.parametrize("method", [SHARED, MeanField(prior_mean="pretrained", noise="shared")])
def test_a_pass_is_that_of_layer_by_layer(method: MeanField, fold: bool | None, samples: int) -> None:
    bnn, x = bayesify(_net(), method, fold=fold), torch.randn(6, 2, 4, 4, dtype=torch.float64)
    assert isinstance(bnn, Folded)
    bnn(x)  # the examination of the network
    for a, b in zip(_run(bnn, x, True, samples=samples), _run(bnn, x, False, samples=samples), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_flipout_draws_what_does_not_contract_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    bnn, x = bayesify(_net(), MeanField(noise="flipout")), torch.randn(6, 2, 4, 4, dtype=torch.float64)
    bnn(x)
    groups = _groups(monkeypatch)
    draws = bnn(x)
    assert groups == [1]  # the layer normalization
    torch.testing.assert_close(draws.kl, bnn.kl())


def test_coherent_passes_of_local_noise_are_drawn_ahead_too(monkeypatch: pytest.MonkeyPatch) -> None:
    bnn, x = bayesify(_net(), MeanField()), torch.randn(6, 2, 4, 4, dtype=torch.float64)
    assert isinstance(bnn, Folded)
    bnn(x)
    groups = _groups(monkeypatch)
    ahead = _run(bnn, x, True, coherent=True)
    assert groups == [4]
    for a, b in zip(ahead, _run(bnn, x, False, coherent=True), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def _groups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of layers that were drawn together before the network ran."""
    groups: list[int] = []
    begin, together = ForwardPass.begin, GaussianPosterior.sample_together
    running = False

    def note(posterior: GaussianPosterior, layers: list[nn.Module]) -> object:
        if running:
            groups.append(len(layers))
        return together(posterior, layers)  # pyright: ignore[reportArgumentType]

    def begun(forward_pass: ForwardPass) -> None:
        nonlocal running
        running = True
        begin(forward_pass)
        running = False

    monkeypatch.setattr(GaussianPosterior, "sample_together", note)
    monkeypatch.setattr(ForwardPass, "begin", begun)
    return groups


def test_large_layers_and_other_methods_draw_where_they_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Linear(4, 300), nn.ReLU(), nn.Linear(300, 300), nn.Linear(300, 5), nn.ReLU(), nn.Linear(5, 2))
    bnn = bayesify(net, {"0": SHARED, "2": SHARED, "3": MeanField(), "5": VariationalDropout()})
    bnn(torch.randn(3, 4))
    groups = _groups(monkeypatch)
    draws = bnn(torch.randn(3, 4))
    assert groups == [1]
    torch.testing.assert_close(draws.kl, bnn.kl(), rtol=1e-5, atol=0.0)  # sums of 90,000 terms in float32, in another order


def test_groups_have_one_prior(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(5)))
    bnn = bayesify(net, {"[01]": SHARED, "[23]": MeanField(noise="shared", prior_std=0.2), "4": MCDropout()})
    bnn(torch.randn(3, 4))
    groups = _groups(monkeypatch)
    draws = bnn(torch.randn(3, 4))
    assert groups == [2, 2]
    torch.testing.assert_close(draws.kl, bnn.kl())


def test_a_layer_that_is_not_called_pays_its_kl() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    bnn = bayesify(Unused(), SHARED)
    for _ in range(2):
        draws = bnn(torch.randn(5, 4))
        torch.testing.assert_close(draws.kl, bnn.kl())
        bnn.zero_grad()
        draws.kl.backward()
        assert all(p.grad is not None for name, p in bnn.named_parameters())


def test_without_native_operators_nothing_is_drawn_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(switch.LIBRARIES, "cpu", None)
    bnn = bayesify(_net(), SHARED)
    groups = _groups(monkeypatch)
    x = torch.randn(6, 2, 4, 4, dtype=torch.float64)
    assert bnn(x).kl.isfinite()
    assert not groups


@pytest.mark.parametrize("between", [nn.Dropout(0.5), nn.Identity()])
def test_compiled_code_draws_in_the_same_order(between: nn.Module) -> None:
    bnn = bayesify(nn.Sequential(nn.Linear(4, 8), between, nn.ReLU(), nn.Linear(8, 3)), SHARED)
    compiled, x = torch.compile(bnn, backend="eager", fullgraph=True), torch.randn(6, 4)
    runs = []
    for network in (bnn, compiled):
        network(x)
        torch.manual_seed(2)
        runs.append(network(x))
    torch.testing.assert_close(runs[0].outputs, runs[1].outputs)
    torch.testing.assert_close(runs[0].kl, runs[1].kl)
    torch.compiler.reset()


def test_a_network_with_reentrant_checkpoints_draws_where_layers_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)
            self.reentrant: bool | None = None

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            return self.second(h) if self.reentrant is None else checkpoint(self.second, h, use_reentrant=self.reentrant)

    bnn, x = bayesify(Checkpointed().double(), SHARED), torch.randn(5, 4, dtype=torch.float64)
    assert isinstance(bnn, Folded)
    bnn(x)
    runs = []
    for kind in (None, False, True):
        bnn.net.reentrant = kind  # pyright: ignore[reportArgumentType]
        torch.manual_seed(1)
        draws = bnn(x)
        bnn.zero_grad()
        (draws.outputs.square().sum() + draws.kl).backward()
        runs.append([draws.outputs, draws.kl, *(p.grad for p in bnn.parameters())])
        assert bnn._is_checkpointed is (kind is True)
    for run in runs[1:]:
        for a, b in zip(run, runs[0], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
