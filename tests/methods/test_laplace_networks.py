"""Laplace approximations of networks that are hard to differentiate: linearized draws against central differences, or an error."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from bayesify import Bayesian, BayesifyWarning, ConfigurationError, Gaussian, Laplace, bayesify, predict
from bayesify.core.method import Method
from bayesify.core.packed import Unpacking
from bayesify.errors import PassError

pytest.importorskip("laplace")
STEP = 1e-6
ALL = Laplace(layers="all", structure="diagonal")


class Net(nn.Module):
    """A linear layer, a function, and a linear layer."""

    def __init__(self, function: Callable[..., Tensor], **parts: Any) -> None:
        super().__init__()
        self.first, self.function = nn.Linear(4, 8), function
        for name, part in parts.items():
            setattr(self, name, part)
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self, self.first(x)).mean(1))


def _masked(net: Any, h: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(h, h, h, attn_mask=net.bias)


def _attention(net: Any, h: Tensor) -> Tensor:
    return net.attention(h, h, h, need_weights=False)[0]


def _layer(net: Any, h: Tensor) -> Tensor:
    return net.attention(h)


NETS: dict[str, Callable[[], Net]] = {
    "attention with a learned mask": lambda: Net(_masked, bias=nn.Parameter(torch.randn(3, 3))),
    "multi-head attention": lambda: Net(_attention, attention=nn.MultiheadAttention(8, 2, batch_first=True)),
    "transformer layer": lambda: Net(_layer, attention=nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)),
}


def _inputs() -> Tensor:
    return torch.randn(5, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def _completed(net: nn.Module, method: Laplace | dict[str, Method]) -> Bayesian:
    y = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    bnn = bayesify(net, method).eval()
    bnn.complete([(_inputs(), y)], Gaussian(std=0.5).double(), progress=False)
    return bnn


@pytest.mark.default("multi-head attention-all-False", "attention with a learned mask-last-True")
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("method", [Laplace(), ALL], ids=["last", "all"])
@pytest.mark.parametrize("make", NETS.values(), ids=NETS)
def test_linearized_attention(make: Callable[[], Net], method: Laplace, gradients: bool) -> None:
    torch.manual_seed(0)
    plain = make().double().eval()
    bnn = _completed(copy.deepcopy(plain), method)
    Unpacking.of(plain, ())  # the names of its layers
    with torch.set_grad_enabled(gradients):
        torch.manual_seed(6)
        draw = bnn(_inputs()).outputs[0]
    torch.manual_seed(6)
    drawn = bnn.passes.draw([layer for _, layer in bnn.random_layers()])
    deviations = {}
    for (name, _), pair in zip(bnn.random_layers(), drawn.values(), strict=True):
        for part, end in zip(("weight", "bias"), pair, strict=True):
            deviations[f"{name}.{part}"] = end[0] - plain.get_parameter(f"{name}.{part}")

    def moved(step: float) -> Tensor:
        weights = {name: plain.get_parameter(name) + step * d for name, d in deviations.items()}
        return functional_call(plain, weights, (_inputs(),))

    torch.testing.assert_close(draw, moved(0.0) + (moved(STEP) - moved(-STEP)) / (2 * STEP), rtol=1e-6, atol=1e-6)


def test_parts_in_torch_script() -> None:
    """They are copied with the network."""
    part = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.Tanh()))
    for method in (Laplace(), ALL):
        bnn = _completed(Net(_layer, attention=copy.deepcopy(part)).double(), method)
        assert bool((predict(bnn, _inputs(), Gaussian(std=0.5).double(), samples=3, progress=False).epistemic > 0).all())


def test_batch_normalization_that_is_always_trained_is_refused() -> None:
    def function(net: Any, h: Tensor) -> Tensor:
        net.norm.training = True
        return net.norm(h.mean(1)).unsqueeze(1)

    with pytest.raises(ConfigurationError, match=r"cannot compute the curvature.*PyTorch says: Expected more than 1 value"):
        _completed(Net(function, norm=nn.BatchNorm1d(8)).double(), ALL)


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * gradients[0]


def test_a_function_of_another_library_is_refused() -> None:
    net = Net(lambda net, h: _Square.apply(h)).double()
    with pytest.raises(ConfigurationError, match=r"cannot compute the curvature.* of 'first', 'last' .*use another method"):
        _completed(net, ALL)


def test_a_function_without_forward_mode_is_refused() -> None:
    bnn = _completed(Net(lambda net, h: h + torch.cdist(h, h).mean(2, keepdim=True)).double(), ALL)
    with pytest.raises(ConfigurationError, match=r"forward-mode derivatives.*linearized=False.*_cdist_forward"):
        bnn(_inputs())


def test_a_layer_that_is_not_used_is_reported() -> None:
    with pytest.raises(ConfigurationError, match=r"curvature.* of 'unused'"):
        _completed(Net(lambda net, h: h, unused=nn.Linear(8, 8)).double(), {"unused": Laplace()})
    net = Net(lambda net, h: h, unused=nn.Linear(8, 8)).double()
    bnn = _completed(net, {"unused": Laplace(structure="diagonal")})
    with pytest.warns(BayesifyWarning, match="does not use 1 of its random layers"):
        predict(bnn, _inputs(), Gaussian(std=0.5).double(), samples=3, progress=False)


def test_a_network_that_keeps_results_is_refused() -> None:
    """The results kept would be those of another draw."""

    def cached(net: Any, h: Tensor) -> Tensor:
        if not hasattr(net, "kept"):
            net.kept = net.hidden(h)
        return h + net.kept

    bnn = bayesify(Net(cached, hidden=nn.Linear(8, 8)).double(), ALL).eval()
    for _, layer in bnn.random_layers():  # as loaded from a file
        layer.posterior.store(std=torch.ones(sum(p.numel() for p in layer.parameters())), evidence=torch.ones(2))
    with pytest.raises(PassError, match="keeps results of random layers"):
        bnn(_inputs())
