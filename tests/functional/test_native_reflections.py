"""The compact form of reflections with the KL in one call: values and gradients of the composed operators and of a dense matrix."""
# pyright: basic, reportArgumentType=false, reportCallIssue=false

import pytest
import torch

from bayesify.functional import compact_form, structured_noise, structured_noise_and_kl, vsd_kl
from bayesify.native import switch
from bayesify.native.reflections import rotates_natively

pytest.importorskip("numba", reason="the native operators need bayesify[fast]")

F32, F64 = torch.float32, torch.float64


@pytest.fixture(autouse=True)
def _native(monkeypatch):
    monkeypatch.setitem(switch.LIBRARIES, "cpu", "numba")
    torch.manual_seed(0)


def _arguments(count=2, n=5, rows=7, dtype=F64):
    log_alpha = torch.randn(n, dtype=dtype, requires_grad=True)
    return log_alpha, torch.randn(count, n, dtype=dtype, requires_grad=True), torch.randn(rows, n, dtype=dtype)


def _connections(count, n, rank=3, dtype=F64):
    shapes = (rank, n), (rank,), (n, rank), (n,)
    return [tuple(torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes) for _ in range(count)]


def _connected(vectors, connections):
    """All vectors, one by one."""
    rows = list(vectors)
    for w1, b1, w2, b2 in connections:
        rows.append(w2 @ (w1 @ rows[-1] + b1).clamp_min(0) + b2)
    return torch.stack(rows)


def _composed(log_alpha, vectors, eps, columns):
    form = compact_form(vectors)
    return structured_noise(log_alpha, form, eps), vsd_kl(log_alpha, form, columns)


def _dense(log_alpha, vectors, eps, columns):
    """By the matrix U of the reflections."""
    n = len(log_alpha)
    u, unit = torch.eye(n, dtype=F64), torch.eye(n, dtype=F64)
    for v in vectors:
        u = (unit - 2 * torch.outer(v, v) / (v @ v)) @ u
    covariance = u @ log_alpha.exp().diag() @ u.T
    noise = 1 + (eps * (0.5 * log_alpha).exp()) @ u.T
    return noise, 0.5 * columns * ((1 + covariance.diagonal()).log() - log_alpha).sum()


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("dtype", [F64, F32])
def test_against_the_dense_matrix(count, dtype):
    log_alpha, vectors, eps = _arguments(count, 19, dtype=dtype)
    assert rotates_natively(log_alpha, vectors, eps, [])
    noise, kl = structured_noise_and_kl(log_alpha, vectors, eps, 3)
    wide = [t.detach().double().requires_grad_() for t in (log_alpha, vectors)]
    expected, expected_kl = _dense(*wide, eps.double(), 3)
    upstream = torch.randn_like(noise)
    found = torch.autograd.grad((noise * upstream).sum() + 0.7 * kl, (log_alpha, vectors))
    reference = torch.autograd.grad((expected * upstream).sum() + 0.7 * expected_kl, wide)
    for a, b in zip((noise, kl, *found), (expected, expected_kl, *reference), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=3e-5 if dtype == F32 else 1e-11, atol=1e-5 if dtype == F32 else 1e-11)


def test_gradients_and_their_gradients():
    log_alpha, vectors, eps = _arguments(3)

    def noise_and_kl(log_alpha, vectors):
        return structured_noise_and_kl(log_alpha, vectors, eps, 2)

    assert torch.autograd.gradcheck(noise_and_kl, (log_alpha, vectors))
    assert torch.autograd.gradgradcheck(noise_and_kl, (log_alpha, vectors))
    for i in range(2):  # one output alone
        assert torch.autograd.gradcheck(lambda *tensors, i=i: noise_and_kl(*tensors)[i], (log_alpha, vectors))


@pytest.mark.parametrize("given", [1, 2])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("rows", [7, 64, 150])  # chunks of 64
def test_connected_vectors_against_the_dense_matrix(given, count, rows):
    log_alpha, vectors, eps = _arguments(given, 11, rows)
    connections = _connections(count, 11)
    assert rotates_natively(log_alpha, vectors, eps, connections)
    upstream = torch.randn_like(eps)
    runs = []
    inputs = [log_alpha, vectors, *(t for c in connections for t in c)]
    for noise, kl in (
        structured_noise_and_kl(log_alpha, vectors, eps, 3, connections),
        _dense(log_alpha, _connected(vectors, connections), eps, 3),
    ):
        runs.append([noise, kl, *torch.autograd.grad((noise * upstream).sum() + 0.7 * kl, inputs)])
    for a, b in zip(*runs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_gradients_of_connections_and_their_gradients():
    log_alpha, vectors, eps = _arguments(1)
    connections = _connections(2, 5, rank=2)

    def noise_and_kl(log_alpha, vectors, *parameters):
        return structured_noise_and_kl(log_alpha, vectors, eps, 2, [parameters[:4], parameters[4:]])

    inputs = log_alpha, vectors, *(t for c in connections for t in c)
    assert torch.autograd.gradcheck(noise_and_kl, inputs)
    assert torch.autograd.gradgradcheck(noise_and_kl, inputs)


def test_connections_of_two_sizes_are_composed():
    log_alpha, vectors, eps = _arguments(1)
    connections = _connections(1, 5, rank=2) + _connections(1, 5, rank=3)
    assert not rotates_natively(log_alpha, vectors, eps, connections)
    found = structured_noise_and_kl(log_alpha, vectors, eps, 2, connections)
    torch.testing.assert_close(found, _dense(log_alpha, _connected(vectors, connections), eps, 2))


@pytest.mark.parametrize("vectors", [torch.zeros(2, 5), torch.tensor([[1e-30] * 5, [1.0, 0, 0, 0, 0]]), torch.full((2, 5), 1e18)])
def test_vectors_of_extreme_lengths(vectors):
    log_alpha, _, eps = _arguments(dtype=F32)
    vectors.requires_grad_()
    results = [function(log_alpha, vectors, eps, 2) for function in (structured_noise_and_kl, _composed)]
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert all(g.isfinite().all() for g in torch.autograd.grad(results[0][0].sum() + results[0][1], (log_alpha, vectors)))
