"""The fast transform against the dense matrix, and everything that can be done with a PyTorch operator."""

import pytest
import torch
from scipy import linalg
from torch.fx.experimental.proxy_tensor import make_fx

from bayesify.functional import fwht, hadamard_core, hadamard_matrix, hadamard_projection, hadamard_second_moments
from bayesify.functional.hadamard import factors

F64 = torch.float64


@pytest.mark.parametrize("n", [1, 2, 4, 64, 1024])
def test_the_matrix_is_that_of_scipy(n):
    assert torch.equal(hadamard_matrix(n, dtype=F64), torch.from_numpy(linalg.hadamard(n)).double())


@pytest.mark.parametrize("n", [2**d for d in range(12)])
def test_against_the_dense_product(n):
    x = torch.randn(2, 3, n, dtype=F64)
    dense = x @ torch.from_numpy(linalg.hadamard(n)).double()
    torch.testing.assert_close(fwht(x), dense, rtol=1e-12, atol=1e-12 * n)
    torch.testing.assert_close(fwht(x, normalize=True), dense / n**0.5, rtol=1e-12, atol=1e-12 * n)
    torch.testing.assert_close(fwht(x[0, 0]), dense[0, 0], rtol=1e-12, atol=1e-12 * n)


@pytest.mark.parametrize("n", [2**13, 2**14, 2**15])
def test_large_sizes(n):
    # entry (i, j) is the parity of i and j's common bits
    x = torch.randn(2, n, dtype=F64)
    torch.testing.assert_close(fwht(fwht(x)), n * x, rtol=1e-12, atol=1e-9)
    i = [0, 1, 3, 1234, n - 1]
    rows = [[1 - 2 * ((a & b).bit_count() % 2) for b in range(n)] for a in i]
    torch.testing.assert_close(fwht(x)[:, i], x @ torch.tensor(rows, dtype=F64).T, rtol=1e-11, atol=1e-9)


@pytest.mark.parametrize("n", [2**d for d in range(21)])
def test_factors_multiply_to_the_size(n):
    assert torch.tensor(factors(n)).prod() == n
    assert max(factors(n)) <= 128


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n", [32, 512, 2048])
def test_lower_precision(dtype, n):
    x = torch.randn(4, n, dtype=dtype)
    y = fwht(x, normalize=True)
    assert y.dtype == dtype
    expected = x.double() @ hadamard_matrix(n, dtype=F64) / n**0.5
    assert (y.double() - expected).abs().max() < 20 * torch.finfo(dtype).eps * expected.abs().max()


def test_layouts_and_empty_batches():
    x = torch.randn(128, 6, dtype=F64).T
    torch.testing.assert_close(fwht(x), x @ hadamard_matrix(128, dtype=F64))
    wide = torch.randn(5, 256, dtype=F64)[:, ::2]
    torch.testing.assert_close(fwht(wide), wide @ hadamard_matrix(128, dtype=F64))
    assert fwht(torch.zeros(0, 3, 256)).shape == (0, 3, 256)


@pytest.mark.parametrize("n", [4, 256])
def test_gradients_of_first_and_second_order(n):
    x = torch.randn(2, n, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: fwht(v).square(), x, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda v: fwht(v, normalize=True) ** 3, x, fast_mode=True)
    upstream = torch.randn(2, n, dtype=F64)
    (gradient,) = torch.autograd.grad(fwht(x), x, upstream)
    torch.testing.assert_close(gradient, upstream @ hadamard_matrix(n, dtype=F64).T)


@pytest.mark.parametrize("n", [8, 256])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_vmap_over_any_dimension_and_per_example_gradients(n, dim):
    x = torch.randn(3, 4, n, dtype=F64).movedim(0, dim)
    expected = x.movedim(dim, 0) @ hadamard_matrix(n, dtype=F64)
    torch.testing.assert_close(torch.vmap(fwht, in_dims=dim)(x), expected)
    gradients = torch.vmap(torch.func.grad(lambda v: fwht(v).square().sum()))(x.movedim(dim, 0))
    torch.testing.assert_close(gradients, 2 * n * x.movedim(dim, 0))


@pytest.mark.parametrize("n", [16, 256])
def test_compile_export_and_tracing(n):
    x = torch.randn(5, n, dtype=F64, requires_grad=True)
    expected = x @ hadamard_matrix(n, dtype=F64)
    torch.compiler.reset()
    compiled = torch.compile(fwht, fullgraph=True, backend="aot_eager", dynamic=True)
    y = compiled(x)
    torch.testing.assert_close(y, expected)
    y.square().sum().backward()
    torch.testing.assert_close(x.grad, 2 * n * x.detach())

    class Net(torch.nn.Module):
        def forward(self, x):
            return fwht(x)

    program = torch.export.export(Net(), (x.detach(),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    other = torch.randn(9, n, dtype=F64)
    torch.testing.assert_close(program.module()(other), other @ hadamard_matrix(n, dtype=F64))
    for mode in ("fake", "symbolic"):
        graph = make_fx(lambda v: fwht(v), tracing_mode=mode, _allow_non_fake_inputs=True)(other)  # noqa: PLW0108 - arguments are counted
        torch.testing.assert_close(graph(other), other @ hadamard_matrix(n, dtype=F64))
    torch.testing.assert_close(fwht(other), other @ hadamard_matrix(n, dtype=F64), msg="tracing left something behind")


@pytest.mark.parametrize("n", [64, 512])
def test_autocast_runs_in_the_lower_precision_like_a_matrix_product(n):
    x, h = torch.randn(3, n, requires_grad=True), hadamard_matrix(n)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = fwht(x)
        assert y.dtype == (x @ h).dtype == torch.bfloat16
        assert fwht(x.double()).dtype == torch.float64
    y.float().sum().backward()
    assert x.grad.dtype == torch.float32
    torch.testing.assert_close(x.grad, h.sum(0).expand(3, n), rtol=0.01, atol=0.5)


@pytest.mark.parametrize("n", [64, 512, 4096])
def test_nothing_of_the_input_is_kept_for_the_backward_pass(n):
    x, kept = torch.randn(1000, n, requires_grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        fwht(x)
    assert sum(t.untyped_storage().nbytes() for t in kept) <= 3 * 4 * 128**2


def test_the_meta_device_knows_shapes():
    assert fwht(torch.zeros(3, 128, device="meta")).shape == (3, 128)


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (torch.zeros(2, 3), ValueError, r"the last dimension of x must be a power of two, got 3; x has shape \(2, 3\), pad it"),
        (torch.zeros(2, 0), ValueError, "must be a power of two, got 0"),
        (torch.zeros(()), ValueError, "at least one dimension"),
        (torch.zeros(4, dtype=torch.int64), TypeError, "x must be a floating point tensor, got torch.int64"),
        (torch.zeros(4, dtype=torch.complex64), TypeError, "floating point"),
        ([1.0, 2.0], TypeError, "got list"),
    ],
)
def test_errors(x, error, message):
    with pytest.raises(error, match=message):
        fwht(x)
    with pytest.raises(ValueError, match="n must be a power of two, got 12"):
        hadamard_matrix(12)


# --- matrices


@pytest.mark.parametrize("n", [1, 2, 16, 128])
def test_the_core_is_h_g_h(n):
    g, h = torch.randn(3, n, dtype=F64), hadamard_matrix(n, dtype=F64)
    dense = h @ torch.diag_embed(g) @ h
    torch.testing.assert_close(hadamard_core(g), dense)
    torch.testing.assert_close(hadamard_core(g, (n + 1) // 2, n), dense[:, : (n + 1) // 2])


@pytest.mark.parametrize("n", [2, 8])
def test_second_moments_are_the_marginals_and_no_more(n):
    s1, s2 = torch.randn(n, dtype=F64), torch.randn(n, dtype=F64)
    factor = torch.randn(n, n, dtype=F64)
    covariance, h = factor @ factor.T, hadamard_matrix(n, dtype=F64)
    # vect(W) = A g with A by columns of W, from the definition
    columns = torch.stack([(s1.diag() @ h @ e.diag() @ h @ s2.diag()).T.reshape(-1) for e in torch.eye(n, dtype=F64)], 1)
    full = (columns @ covariance @ columns.T).reshape(n, n, n, n)  # [column, row, column, row]
    rows, cols = torch.einsum("jajb->ab", full), torch.einsum("iaja->ij", full)
    u, v = hadamard_second_moments(s1, s2, covariance)
    torch.testing.assert_close(u, rows)
    torch.testing.assert_close(v * u.trace(), cols)
    if n == 8:  # erratum W1: the law is far from matrix normal
        law = columns @ covariance @ columns.T
        assert torch.linalg.norm(torch.kron(v, u) - law) > 0.5 * torch.linalg.norm(law)
        assert torch.linalg.matrix_rank(law) == n


@pytest.mark.parametrize("tied", [False, True])
def test_projection_finds_a_weight_of_the_family(tied):
    n, h = 8, hadamard_matrix(8, dtype=F64)
    s1, s2 = torch.rand(2, 2, n, dtype=F64) + 0.5
    g = torch.randn(1 if tied else 2, n, dtype=F64)
    weight = s1.diag_embed() @ h @ g.diag_embed() @ h @ s2.diag_embed()
    kept = torch.ones(n, n, dtype=torch.bool)
    kept[:, 6:] = False
    a, b, c, error = hadamard_projection(weight, kept, tied=tied, sweeps=400)
    assert c.shape == g.shape
    assert error < 1e-6
    found = a.diag_embed() @ h @ c.diag_embed() @ h @ b.diag_embed()
    torch.testing.assert_close(found[..., :6], weight[..., :6], rtol=1e-5, atol=1e-5)


def test_projection_reports_what_is_lost_and_is_a_stationary_point():
    n, h = 16, hadamard_matrix(16, dtype=F64)
    weight, kept = torch.randn(1, n, n, dtype=F64), torch.ones(n, n, dtype=torch.bool)
    *factors, error = hadamard_projection(weight, kept, sweeps=800)
    a, b, c = (x.requires_grad_() for x in factors)
    miss = weight - a.diag_embed() @ h @ c.diag_embed() @ h @ b.diag_embed()
    torch.testing.assert_close(miss.norm() / weight.norm(), error)
    assert 0.7 < error < (1 - 1 / n) ** 0.5  # better than g alone could be on average, far from a fit
    miss.square().sum().backward()
    scale = miss.square().sum().item()
    assert all(x.grad.abs().max() * x.detach().abs().max() < 1e-3 * scale for x in (a, b, c))


def test_projection_of_nothing_and_of_what_is_not_finite():
    a, b, c, error = hadamard_projection(torch.zeros(1, 4, 4), torch.ones(4, 4, dtype=torch.bool))
    assert error == 0
    assert all(x.isfinite().all() for x in (a, b, c))
    with pytest.raises(ValueError, match="weight must be finite"):
        hadamard_projection(torch.full((1, 4, 4), torch.nan), torch.ones(4, 4, dtype=torch.bool))
