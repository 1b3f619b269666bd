"""Normal weights, their KL and local reparameterization in one pass: values and gradients of the composed operators."""
# pyright: basic, reportMissingImports=false, reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false

import math

import pytest
import torch
from torch import nn

from bayesify import Categorical, MeanField, bayesify, elbo
from bayesify.functional import gaussian_kl, local_reparameterization
from bayesify.native import gaussian_calls, gaussians, local_linear, switch
from bayesify.native.gaussians import draws_and_kl, runs_in_one_pass, variances_and_kl, with_square

numba = pytest.importorskip("numba", reason="the native operators need bayesify[fast]")

F32, F64 = torch.float32, torch.float64
LEAST = torch.finfo(F64).tiny


@pytest.fixture(autouse=True)
def _native(monkeypatch):
    monkeypatch.setitem(switch.LIBRARIES, "cpu", "numba")
    torch.manual_seed(0)


def _weights(dtype=F64, rows=2, grad=True):
    """Means, log standard deviations, centers and noise of a weight and a bias."""
    shapes = (rows, 5), (3,)
    means, log_stds = ([torch.randn(s, dtype=dtype).requires_grad_(grad) for s in shapes] for _ in range(2))
    return means, log_stds, [None, torch.randn(3, dtype=dtype)], [torch.randn(s, dtype=dtype) for s in shapes]


def _kl(means, log_stds, centers, prior_std):
    rows = zip(means, log_stds, centers, strict=True)
    return sum(gaussian_kl(m, s, 0.0 if c is None else c, prior_std).sum() for m, s, c in rows)


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("prior_std", [1.0, 0.3])
def test_draws_against_composed_operators(dtype, prior_std):
    means, log_stds, centers, eps = _weights(dtype, rows=4000)
    drawn, kl = draws_and_kl(means, log_stds, centers, prior_std, eps)
    wide = [[None if t is None else t.detach().double().requires_grad_() for t in column] for column in (means, log_stds, centers)]
    expected = [(m + s.exp() * e).unsqueeze(0) for m, s, e in zip(*wide[:2], eps, strict=True)]
    expected_kl = _kl(*wide, prior_std)
    upstream = [torch.randn(m.shape, dtype=dtype) for m in means]
    loss = sum((x * u).sum() for x, u in zip(drawn, upstream, strict=True)) + 0.7 * kl
    expected_loss = sum((x * u).sum() for x, u in zip(expected, upstream, strict=True)) + 0.7 * expected_kl
    found = [*drawn, kl, *torch.autograd.grad(loss, means + log_stds)]
    reference = [*expected, expected_kl, *torch.autograd.grad(expected_loss, wide[0] + wide[1])]
    for x, y in zip(found, reference, strict=True):
        torch.testing.assert_close(x.double(), y, rtol=8 * torch.finfo(dtype).eps, atol=4e-6 if dtype == F32 else 1e-13)


@pytest.mark.parametrize("dtype", [F64, F32])
def test_variances_against_composed_operators(dtype):
    means, log_stds, centers, _ = _weights(dtype, rows=4000)
    passed, variances, kl = variances_and_kl(means, log_stds, centers, 0.3)
    wide = [[None if t is None else t.detach().double().requires_grad_() for t in column] for column in (means, log_stds, centers)]
    expected, expected_kl = [(2 * s).exp() for s in wide[1]], _kl(*wide, 0.3)
    upstream = [torch.randn(m.shape, dtype=dtype) for m in means]

    def loss(means, variances, kl):
        return sum((m.sin() + v * u).sum() for m, v, u in zip(means, variances, upstream, strict=True)) + 0.7 * kl

    found = [*variances, kl, *torch.autograd.grad(loss(passed, variances, kl), means + log_stds)]
    reference = [*expected, expected_kl, *torch.autograd.grad(loss(wide[0], expected, expected_kl), wide[0] + wide[1])]
    assert all(torch.equal(x, m) for x, m in zip(passed, means, strict=True))
    for x, y in zip(found, reference, strict=True):
        torch.testing.assert_close(x.double(), y, rtol=8 * torch.finfo(dtype).eps, atol=4e-6 if dtype == F32 else 1e-13)


@pytest.mark.parametrize("outputs", [(0,), (1,), (2,), (0, 1, 2)])
def test_gradients_and_their_gradients(outputs):
    means, log_stds, centers, eps = _weights()

    def some(values):
        return tuple(values[i] for i in outputs)

    def draw(*parameters):
        drawn, kl = draws_and_kl(parameters[:2], parameters[2:], centers, 0.7, eps)
        return some([*drawn, kl])

    def variance(*parameters):
        passed, variances, kl = variances_and_kl(parameters[:2], parameters[2:], centers, 0.7)
        return some([passed[0] * variances[0], variances[1], kl])

    for function in (draw, variance):
        assert torch.autograd.gradcheck(function, (*means, *log_stds))
        assert torch.autograd.gradgradcheck(function, (*means, *log_stds))


def test_frozen_parameters():
    means, log_stds, centers, eps = _weights(grad=False)
    log_stds = [s.requires_grad_() for s in log_stds]
    passed, variances, kl = variances_and_kl(means, log_stds, centers, 1.0)
    assert not any(m.requires_grad for m in passed)
    (sum(v.sum() for v in variances) + kl).backward()
    for s in log_stds:
        torch.testing.assert_close(s.grad, 3 * (2 * s.detach()).exp() - 1)
    assert all(m.grad is None for m in means)
    with torch.no_grad():
        assert not draws_and_kl(means, log_stds, centers, 1.0, eps)[1].requires_grad


def test_the_exponential():
    from bayesify.native import elementary_kernels
    from bayesify.native.vectors import float32_at

    @numba.njit
    def run(source, target, n):
        x, y = float32_at(source), float32_at(target)
        for i in range(n):
            y[i] = elementary_kernels.exponential(x[i])

    def exp(x):
        y = torch.empty_like(x)
        run(x.data_ptr(), y.data_ptr(), len(x))
        return y

    x = torch.linspace(-87, 88, 200_001)
    assert (exp(x).double() / x.double().exp() - 1).abs().max() < 2e-7
    special = torch.tensor([math.inf, -math.inf, math.nan, 100.0, -100.0, 0.0])
    torch.testing.assert_close(exp(special), torch.tensor([math.inf, 0.0, math.nan, math.inf, 0.0, 1.0]), equal_nan=True)


def test_invalid_numbers_are_passed_on():
    means, log_stds, centers, eps = _weights(F32, grad=False)
    log_stds[0][0, 0] = math.nan
    drawn, kl = draws_and_kl(means, log_stds, centers, 1.0, eps)
    assert drawn[0].isnan().sum() == 1
    assert kl.isnan()


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
def test_local_reparameterization(dtype, format, monkeypatch):
    mean = torch.randn(3, 4, 5, 6, dtype=dtype).to(memory_format=format).requires_grad_()
    variance = torch.rand(3, 4, 5, 6, dtype=dtype).to(memory_format=format)
    variance[0, 0] = 0
    variance.requires_grad_()
    assert runs_in_one_pass(mean, variance)
    results = []
    for native in (True, False):
        monkeypatch.setitem(switch.LIBRARIES, "cpu", "numba" if native else None)
        torch.manual_seed(1)
        y = local_reparameterization(mean, variance)
        results.append([y, *torch.autograd.grad(y.sin().sum(), [mean, variance])])
    for x, reference in zip(*results, strict=True):
        assert x.stride() == reference.stride()
        torch.testing.assert_close(x, reference, rtol=4 * torch.finfo(dtype).eps, atol=2 * torch.finfo(dtype).eps)
    assert results[0][2].isfinite().all()


def test_gradients_of_local_reparameterization():
    mean, variance = (torch.rand(3, 4, dtype=F64).add(0.1).requires_grad_() for _ in range(2))

    def draw(mean, variance):
        torch.manual_seed(2)
        return local_reparameterization(mean, variance)

    assert torch.autograd.gradcheck(draw, (mean, variance))
    assert torch.autograd.gradgradcheck(draw, (mean, variance))


def test_square():
    x = torch.randn(3, 4, dtype=F64, requires_grad=True)
    for function in (with_square, lambda x: with_square(x)[0], lambda x: with_square(x)[1]):
        assert torch.autograd.gradcheck(function, (x,))
        assert torch.autograd.gradgradcheck(function, (x,))
    plain, square = with_square(x)
    assert torch.equal(plain, x)
    assert torch.equal(square, x * x)


def test_values_do_not_depend_on_threads(monkeypatch):
    monkeypatch.setattr(gaussian_calls, "THREAD", gaussian_calls._CHUNK)
    means, log_stds, centers, eps = _weights(F32, rows=20_001)
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            drawn, kl = draws_and_kl(means, log_stds, centers, 1.0, eps)
            passed, variances, second = variances_and_kl(means, log_stds, centers, 1.0)
            loss = sum(x.square().sum() for x in (*drawn, *variances, *passed)) + kl + second
            results.append([*drawn, *variances, kl, second, *torch.autograd.grad(loss, means + log_stds)])
    finally:
        torch.set_num_threads(threads)
    for found in results[1:]:
        assert all(torch.equal(x, y) for x, y in zip(found, results[0], strict=True))


def _step(native, method, dtype, format, monkeypatch, compiled=False):
    monkeypatch.setitem(switch.LIBRARIES, "cpu", "numba" if native else None)
    torch.manual_seed(3)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 60, bias=False), nn.Linear(60, 5))
    bnn = bayesify(net, method).to(dtype).to(memory_format=format)
    x, y = torch.randn(6, 3, 6, 6, dtype=dtype).to(memory_format=format), torch.arange(6) % 5

    def loss():
        draws = bnn(x)
        return -elbo(draws, Categorical().log_prob(draws.outputs, y), n=6)

    torch.manual_seed(4)
    value = (torch.compile(loss, backend="aot_eager") if compiled else loss)()
    value.backward()
    return [value.detach(), *(p.grad for p in bnn.parameters())]


@pytest.mark.parametrize("noise", ["local", "shared"])
@pytest.mark.parametrize("prior_mean", ["zero", "pretrained"])
@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
def test_mean_field_steps(noise, prior_mean, dtype, format, monkeypatch):
    # Draws of fewer than 4,096 numbers are PyTorch's in both.
    method = MeanField(noise=noise, prior_mean=prior_mean, prior_std=0.4, initial_std=0.3)
    calls, run = [], gaussian_calls.run_kernel
    for module in (gaussian_calls, gaussians, local_linear):
        monkeypatch.setattr(module, "run_kernel", lambda name, *rest, **options: calls.append(name) or run(name, *rest, **options))
    native = _step(True, method, dtype, format, monkeypatch)
    local = {"variance", "variance_gradient", "reparameterize", "add_kl_gradient"}
    assert set(calls) == (local if noise == "local" else {"draw", "draw_gradient"})
    composed = _step(False, method, dtype, format, monkeypatch)
    for x, y in zip(native, composed, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4 if dtype == F32 else 1e-12, atol=1e-4 if dtype == F32 else 1e-12)


@pytest.mark.parametrize("noise", ["local", "shared"])
@pytest.mark.default(extended=["shared"])
def test_compiled_steps_have_the_values_of_native_ones(noise, monkeypatch):
    torch.compiler.reset()
    settings = MeanField(noise=noise), F32, torch.contiguous_format, monkeypatch
    for x, y in zip(_step(True, *settings), _step(True, *settings, compiled=True), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)
    torch.compiler.reset()


def test_when_one_pass_is_used():
    x = torch.zeros(3, 4)
    assert runs_in_one_pass(x, x.clone())
    assert not runs_in_one_pass(x, x.double())
    assert not runs_in_one_pass(x, torch.zeros(4, 3).T)
    assert not runs_in_one_pass(x.bfloat16())
    assert not runs_in_one_pass(torch.zeros(0))
    assert not runs_in_one_pass(x.to("meta"))
    assert not torch.func.vmap(lambda row: torch.tensor(runs_in_one_pass(row)))(x).any()
    switch.use_native(False)
    assert not runs_in_one_pass(x)
