"""Factors of channels and the KL of Gaussian dropout in one pass: values and gradients of the composed operators."""
# pyright: basic, reportArgumentType=false

import pytest
import torch

from bayesify import MCDropout, MeanField, VariationalDropout, bayesify
from bayesify.core.layer import BayesianLayer
from bayesify.functional import log_uniform_kl
from bayesify.native import channels, switch
from bayesify.native.channels import scale_channels, scales_in_one_pass

pytest.importorskip("numba", reason="the native operators need bayesify[fast]")

F32, F64 = torch.float32, torch.float64
FORMATS = [torch.contiguous_format, torch.channels_last]


@pytest.fixture(autouse=True)
def _native(monkeypatch):
    monkeypatch.setitem(switch.LIBRARIES, "cpu", "numba")
    torch.manual_seed(0)


def _arguments(*shape, dtype=F64, memory_format=torch.contiguous_format):
    x = torch.randn(shape, dtype=dtype).contiguous(memory_format=memory_format).requires_grad_()
    return x, torch.randn(shape[:2], dtype=dtype, requires_grad=True), torch.randn(shape[1], dtype=dtype, requires_grad=True)


def _composed(x, factors, shift=None):
    ones = [1] * (x.dim() - 2)
    y = x * factors.reshape(*factors.shape, *ones)
    return y if shift is None else y + shift.reshape(-1, *ones)


@pytest.mark.default("memory_format0-dtype0-*", "memory_format1-dtype1-False")
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("memory_format", FORMATS)
def test_scaled_channels(memory_format, dtype, shifted):
    arguments = _arguments(9, 5, 12, 17, dtype=dtype, memory_format=memory_format)[: 2 + shifted]
    assert scales_in_one_pass(*arguments, *[None] * (not shifted))
    y = scale_channels(*arguments, *[None] * (not shifted))
    upstream = torch.randn(9, 5, 12, 17, dtype=dtype)  # contiguous: also not in the order of x
    wide = [t.detach().double().requires_grad_() for t in arguments]
    expected = _composed(*wide)
    found = [y, *torch.autograd.grad(y, arguments, upstream)]
    reference = [expected, *torch.autograd.grad(expected, wide, upstream.double())]
    assert y.stride() == arguments[0].stride()
    for a, b in zip(found, reference, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=4 * torch.finfo(dtype).eps, atol=1e-4 if dtype == F32 else 1e-12)


@pytest.mark.parametrize("memory_format", FORMATS)
def test_gradients_and_their_gradients(memory_format):
    arguments = _arguments(2, 3, 2, 2, memory_format=memory_format)
    for given in (arguments, (*arguments[:2], None)):
        assert torch.autograd.gradcheck(scale_channels, given)
        assert torch.autograd.gradgradcheck(scale_channels, given)
    upstream = torch.randn(2, 3, 2, 2, dtype=F64)
    found = torch.autograd.grad(scale_channels(*arguments), arguments, upstream, create_graph=True)
    for a, b in zip(found, torch.autograd.grad(_composed(*arguments), arguments, upstream), strict=True):
        torch.testing.assert_close(a, b)


def test_threads_give_the_same_numbers(monkeypatch):
    monkeypatch.setattr(channels, "THREAD", 64)
    x, factors, shift = _arguments(64, 3, 16, 16, dtype=F32)
    results = []
    for threads in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        y = scale_channels(x, factors, shift)
        results.append([y, *torch.autograd.grad(y, (x, factors, shift), y.detach())])
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)


def test_what_the_kernels_do_not_take():
    x, factors, shift = _arguments(9, 5, 30, 17)
    assert scales_in_one_pass(x, factors, shift)
    assert not scales_in_one_pass(x[..., ::2], factors, shift)  # neither order
    assert not scales_in_one_pass(x, factors[:1], shift)  # one row for all
    assert not scales_in_one_pass(x, factors.float(), shift)
    assert not scales_in_one_pass(x[:, :, :2, :2], factors, shift)  # too few
    assert not scales_in_one_pass(x.detach(), factors, shift)
    with torch.autocast("cpu"):
        assert not scales_in_one_pass(x, factors, shift)


@pytest.mark.parametrize("dtype", [F64, F32])
def test_log_uniform_kl(dtype, monkeypatch):
    edges = torch.tensor([-800.0, 800.0, torch.inf, -torch.inf, torch.nan], dtype=dtype)
    x = torch.cat([torch.linspace(-40, 60, 4001, dtype=dtype), edges]).requires_grad_()
    value = log_uniform_kl(x)
    found = [value, *torch.autograd.grad(value.sum(), x)]
    monkeypatch.setitem(switch.LIBRARIES, "cpu", None)
    wide = x.detach().double().requires_grad_()
    expected = log_uniform_kl(wide)
    reference = [expected, *torch.autograd.grad(expected.sum(), wide)]
    for a, b in zip(found, reference, strict=True):  # the logarithm of PyTorch's softplus is linear from 20, with an error of 1e-9
        torch.testing.assert_close(a.double(), b, rtol=1e-6 if dtype == F32 else 1e-12, atol=2e-9, equal_nan=True)


def test_second_derivatives_of_the_kl():
    x = torch.linspace(-3, 3, 7, dtype=F64, requires_grad=True)
    assert torch.autograd.gradgradcheck(log_uniform_kl, x)


@pytest.mark.parametrize(
    "build",
    [
        lambda: torch.nn.Conv2d(3, 4, 8, stride=4, padding=2),  # a large kernel on images: an output of every channel
        lambda: torch.nn.Conv2d(3, 4, 8, bias=False, padding=3, padding_mode="circular"),
        lambda: torch.nn.Conv2d(3, 4, 3),
        lambda: torch.nn.Conv2d(1, 4, 3),
        lambda: torch.nn.Conv2d(4, 4, 8, groups=2),
        lambda: torch.nn.ConvTranspose2d(3, 4, 8),
        lambda: torch.nn.ConvTranspose2d(1, 4, 3),
    ],
)
def test_factors_of_inputs_act_on_the_input(build):
    bnn = bayesify(build().double(), VariationalDropout())
    (layer,) = [module for module in bnn.modules() if isinstance(module, BayesianLayer)]
    x = torch.randn(5, layer.input_channels, 16, 16, dtype=F64)
    v = torch.rand(5, layer.input_channels, dtype=F64, requires_grad=True)
    parameters = [v, *(p for p in (layer.weight, layer.bias) if p is not None)]
    y = layer.op_of_scaled(x, v, layer.weight, layer.bias)
    expected = layer.op(x * v[..., None, None], layer.weight, layer.bias)
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)
    upstream = torch.randn_like(y)
    for a, b in zip(torch.autograd.grad(y, parameters, upstream), torch.autograd.grad(expected, parameters, upstream), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("method", [VariationalDropout(), MCDropout(p=0.5), MeanField(noise="flipout")])
def test_methods_draw_the_same_with_and_without(method, monkeypatch):
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3))
    bnn = bayesify(net, method)
    x, runs = torch.randn(8, 3, 20, 20), []
    for use in (True, False):
        monkeypatch.setitem(switch.LIBRARIES, "cpu", "numba")
        with torch.random.fork_rng(devices=[]):
            monkeypatch.setattr(channels, "_LEAST", 2**13 if use else 2**62)
            torch.manual_seed(1)
            draws = bnn(x)
            loss = draws.outputs.square().mean() + 1e-3 * draws.kl
            runs.append([draws.outputs, *torch.autograd.grad(loss, list(bnn.parameters()), allow_unused=True)])
    for a, b in zip(*runs, strict=True):
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
