"""Householder reflections, structured noise, its KL and the penalty it induces, against dense matrices and Monte Carlo."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal, kl_divergence
from torch.utils._python_dispatch import TorchDispatchMode

from bayesify.functional import householder, induced_regularizer, structured_noise, vsd_kl

T_K = [(1, 1), (1, 2), (1, 6), (2, 6), (3, 6), (6, 4)]


def _dense(vectors: Tensor) -> Tensor:
    """U = H_T ... H_1 as a matrix, reflection by reflection."""
    u = torch.eye(vectors.shape[1], dtype=vectors.dtype)
    for v in vectors:
        u = (torch.eye(len(v), dtype=v.dtype) - 2 * torch.outer(v, v) / v.dot(v)) @ u
    return u


def _random(t: int, k: int) -> tuple[Tensor, Tensor]:
    """log alpha and vectors."""
    return torch.randn(k, dtype=torch.float64), torch.randn(t, k, dtype=torch.float64)


@pytest.mark.parametrize(("t", "k"), T_K)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
def test_householder_agrees_with_dense_matrices(t: int, k: int, shape: tuple[int, ...]) -> None:
    _, vectors = _random(t, k)
    x = torch.randn(*shape, k, dtype=torch.float64)
    torch.testing.assert_close(householder(vectors, x), x @ _dense(vectors).T, atol=1e-12, rtol=0)
    # the other way round it is the inverse
    torch.testing.assert_close(householder(vectors.flip(0), householder(vectors, x)), x, atol=1e-12, rtol=0)


def test_the_first_vector_acts_first() -> None:
    # mirror the first axis, then swap the axes and negate: (1, 2) -> (-1, 2) -> (-2, 1)
    vectors = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    torch.testing.assert_close(householder(vectors, x), torch.tensor([-2.0, 1.0], dtype=torch.float64))


@pytest.mark.parametrize(("dtype", "largest"), [(torch.float32, 1e15), (torch.float64, 1e140)])
def test_only_the_directions_of_the_vectors_matter(dtype: torch.dtype, largest: float) -> None:
    vectors, log_alpha = torch.randn(3, 5, dtype=dtype), torch.randn(5, dtype=dtype)
    scaled = vectors * torch.tensor([[largest], [-1 / largest], [-3.0]], dtype=dtype)
    eye = torch.eye(5, dtype=dtype)
    torch.testing.assert_close(householder(scaled, eye), householder(vectors, eye))
    torch.testing.assert_close(vsd_kl(log_alpha, scaled, 2), vsd_kl(log_alpha, vectors, 2))


@pytest.mark.parametrize("length", [0.0, 1e-25, 1e-18])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_vector_without_length_is_left_out(place: int, length: float) -> None:
    vectors = torch.randn(3, 5)
    vectors[place] *= length
    vectors.requires_grad_()
    others = vectors.detach()[[i for i in range(3) if i != place]]
    log_alpha, eps = torch.randn(5, requires_grad=True), torch.randn(4, 5)
    for f in (lambda v: householder(v, eps), lambda v: structured_noise(log_alpha, v, eps), lambda v: vsd_kl(log_alpha, v, 3)):
        value = f(vectors)
        torch.testing.assert_close(value, f(others))
        gradient, of_alpha = torch.autograd.grad(value.square().sum(), (vectors, log_alpha), allow_unused=True)
        assert gradient.isfinite().all()
        assert (gradient[place] == 0).all()
        assert of_alpha is None or of_alpha.isfinite().all()


@pytest.mark.parametrize(("t", "k"), T_K)
def test_structured_noise_agrees_with_dense_matrices(t: int, k: int) -> None:
    log_alpha, vectors = _random(t, k)
    eps = torch.randn(7, k, dtype=torch.float64)
    expected = 1 + eps @ (_dense(vectors) @ torch.diag(log_alpha.exp().sqrt())).T
    torch.testing.assert_close(structured_noise(log_alpha, vectors, eps), expected, atol=1e-12, rtol=0)


def test_structured_noise_has_mean_one_and_a_full_covariance() -> None:
    log_alpha, vectors = _random(2, 4)
    n = 200_000
    noise = structured_noise(log_alpha, vectors, torch.randn(n, 4, dtype=torch.float64))
    u = _dense(vectors)
    covariance = u @ torch.diag(log_alpha.exp()) @ u.T
    variance = covariance.diag()
    assert ((noise.mean(0) - 1).abs() < 5 * (variance / n).sqrt()).all()
    error = 5 * torch.sqrt((variance[:, None] * variance + covariance**2) / n)
    assert ((torch.cov(noise.T) - covariance).abs() < error).all()
    assert (covariance - variance.diag()).abs().max() > 10 * error.max(), "the noise is correlated"


def _columns(log_alpha: Tensor, vectors: Tensor, theta: Tensor) -> list[MultivariateNormal]:
    """The marginals q(W_:j) of the columns of diag(xi) Theta."""
    u = _dense(vectors)
    covariance = u @ torch.diag(log_alpha.exp()) @ u.T
    return [MultivariateNormal(column, torch.diag(column) @ covariance @ torch.diag(column)) for column in theta.T]


@pytest.mark.parametrize(("t", "k"), [(1, 1), (1, 5), (2, 5), (3, 4)])
def test_kl_is_the_least_over_all_prior_precisions(t: int, k: int) -> None:
    log_alpha, vectors = _random(t, k)
    theta = torch.randn(k, 3, dtype=torch.float64)
    log_beta = torch.zeros(k, 3, dtype=torch.float64, requires_grad=True)

    def total() -> Tensor:
        priors = [MultivariateNormal(torch.zeros(k).double(), precision_matrix=torch.diag(b)) for b in log_beta.exp().T]
        return sum(kl_divergence(q, p) for q, p in zip(_columns(log_alpha, vectors, theta), priors, strict=True))

    optimizer = torch.optim.LBFGS([log_beta], max_iter=500, tolerance_grad=1e-11, tolerance_change=0, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = total()
        loss.backward()
        return loss

    optimizer.step(closure)
    torch.testing.assert_close(vsd_kl(log_alpha, vectors, 3), total().detach(), atol=1e-8, rtol=0)


def test_kl_agrees_with_monte_carlo() -> None:
    log_alpha, vectors = _random(2, 4)
    theta = torch.randn(4, 2, dtype=torch.float64)
    n, ratios = 100_000, 0.0
    for q in _columns(log_alpha, vectors, theta):
        w = q.sample((n,))
        second_moments = q.covariance_matrix.diag() + q.mean**2  # the variances of the zero-mean prior that fits q best
        ratios = ratios + q.log_prob(w) - Normal(0.0, second_moments.sqrt()).log_prob(w).sum(-1)
    assert vsd_kl(log_alpha, vectors, 2).item() == pytest.approx(ratios.mean().item(), abs=5 * ratios.std().item() / math.sqrt(n))


def test_kl_is_least_without_reflections() -> None:
    for _ in range(50):
        log_alpha, vectors = _random(2, 6)
        gaussian_dropout = 0.5 * 3 * torch.log1p(torch.exp(-log_alpha)).sum()
        assert vsd_kl(log_alpha, vectors, 3) > gaussian_dropout > 0
        torch.testing.assert_close(vsd_kl(log_alpha, vectors * 0, 3), gaussian_dropout)
        mirrors = torch.eye(6).double()[:2]
        swap = torch.eye(6).double()[:1] - torch.eye(6).double()[4:5]
        for same in (mirrors, swap, torch.cat([mirrors, swap])):
            torch.testing.assert_close(vsd_kl(log_alpha, same, 3), gaussian_dropout, atol=1e-12, rtol=0)
        equal = torch.full_like(log_alpha, 0.3)
        assert vsd_kl(equal, vectors, 3).item() == pytest.approx(9 * math.log1p(math.exp(-0.3)), rel=1e-12)


def test_kl_takes_the_rows_of_u() -> None:
    log_alpha, vectors = _random(2, 4)
    squares = _dense(vectors) ** 2
    rows, columns = squares @ log_alpha.exp(), squares.T @ log_alpha.exp()
    kls = [0.5 * (torch.log1p(s) - log_alpha).sum().item() for s in (rows, columns)]
    assert vsd_kl(log_alpha, vectors, 1).item() == pytest.approx(kls[0], rel=1e-12)
    assert abs(kls[0] - kls[1]) > 1e-3


def test_gradients() -> None:
    log_alpha, vectors = (x.requires_grad_() for x in _random(3, 4))
    eps = torch.randn(2, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(householder, (vectors, eps.clone().requires_grad_()))
    assert torch.autograd.gradcheck(lambda a, v: structured_noise(a, v, eps), (log_alpha, vectors))
    assert torch.autograd.gradcheck(lambda a, v: vsd_kl(a, v, 3), (log_alpha, vectors))
    assert torch.autograd.gradgradcheck(lambda a, v: vsd_kl(a, v, 3), (log_alpha, vectors))
    (of_vectors,) = torch.autograd.grad(vsd_kl(log_alpha, vectors, 3), vectors)
    torch.testing.assert_close((of_vectors * vectors).sum(1), torch.zeros(3).double(), atol=1e-12, rtol=0)


def test_under_vmap() -> None:
    log_alpha, vectors, eps = torch.randn(5, 4), torch.randn(5, 2, 4), torch.randn(5, 3, 4)
    vsd_kls = torch.vmap(lambda a, v: vsd_kl(a, v, 3))(log_alpha, vectors)
    noise = torch.vmap(structured_noise)(log_alpha, vectors, eps)
    slopes = torch.vmap(torch.func.grad(lambda a, v: vsd_kl(a, v, 3)))(log_alpha, vectors)
    for i in range(5):
        a = log_alpha[i].clone().requires_grad_()
        kl = vsd_kl(a, vectors[i], 3)
        torch.testing.assert_close(vsd_kls[i], kl.detach())
        torch.testing.assert_close(slopes[i], torch.autograd.grad(kl, a)[0])
        torch.testing.assert_close(noise[i], structured_noise(log_alpha[i], vectors[i], eps[i]))


@pytest.mark.parametrize("spread", [5.0, 20.0, 40.0])
def test_kl_in_float32_of_extreme_rates(spread: float) -> None:
    log_alpha, vectors = torch.linspace(-spread, spread, 200), torch.randn(2, 200)
    kl = vsd_kl(log_alpha, vectors, 1)
    torch.testing.assert_close(kl.double(), vsd_kl(log_alpha.double(), vectors.double(), 1), atol=0, rtol=1e-5)
    # reflections that leave nearly nothing on the diagonal of U, so that variances are differences of large numbers
    swap = torch.zeros(1, 200)
    swap[0, 0], swap[0, -1] = 1.0, -1.0
    assert vsd_kl(log_alpha, swap, 1).isfinite()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    log_alpha, vectors, eps = torch.randn(300).to(dtype), torch.randn(2, 300).to(dtype), torch.randn(4, 300).to(dtype)
    kl, noise = vsd_kl(log_alpha, vectors, 7), structured_noise(log_alpha, vectors, eps)
    assert kl.dtype == noise.dtype == torch.float32
    torch.testing.assert_close(kl, vsd_kl(log_alpha.float(), vectors.float(), 7))
    torch.testing.assert_close(noise, structured_noise(log_alpha.float(), vectors.float(), eps.float()))
    assert householder(vectors, eps).dtype == dtype


class _Largest(TorchDispatchMode):
    """The most elements any tensor has that is made inside."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for x in torch.utils._pytree.tree_leaves(result):
            self.elements = max(self.elements, x.numel() if isinstance(x, Tensor) else 0)
        return result


def test_no_matrix_of_k_by_k_is_built() -> None:
    log_alpha, vectors, eps = torch.randn(50, requires_grad=True), torch.randn(3, 50, requires_grad=True), torch.randn(4, 50)
    with _Largest() as largest:
        (
            vsd_kl(log_alpha, vectors, 2) + structured_noise(log_alpha, vectors, eps).sum() + householder(vectors, eps).sum()
        ).backward()
    assert largest.elements == 4 * 50


def _quadratic_loss(h: Tensor) -> Tensor:
    """A squared error after a fixed linear map, per row."""
    weight = torch.tensor([[1.0, -0.5, 0.3], [0.4, 0.8, -1.0]], dtype=torch.float64)
    return 0.5 * (h @ weight.T - 0.7).square().sum(-1)


def test_induced_regularizer_is_exact_for_a_quadratic_loss() -> None:
    log_alpha, vectors = _random(2, 3)
    h = torch.tensor([[0.5, -1.0, 2.0], [1.5, 0.2, -0.7]], dtype=torch.float64)
    hessian = torch.vmap(torch.func.hessian(_quadratic_loss))(h)
    penalty = induced_regularizer(log_alpha, vectors, h, hessian)
    noise = structured_noise(log_alpha, vectors, torch.randn(400_000, 3, dtype=torch.float64))
    for i in range(2):
        added = _quadratic_loss(h[i] * noise) - _quadratic_loss(h[i])
        assert penalty[i].item() == pytest.approx(added.mean().item(), abs=5 * added.std().item() / math.sqrt(len(added)))
        assert added.std().item() / math.sqrt(len(added)) < 0.02 * penalty[i].item(), "a factor of two would be seen"


def test_induced_regularizer_agrees_with_dense_matrices_and_the_sum_over_directions() -> None:
    log_alpha, vectors = _random(3, 5)
    h, root = torch.randn(2, 4, 5, dtype=torch.float64), torch.randn(2, 4, 5, 5, dtype=torch.float64)
    hessian, u = root @ root.mT, _dense(vectors)
    noise = torch.diag_embed(h) @ u @ torch.diag(log_alpha.exp()) @ u.T @ torch.diag_embed(h)
    penalty = induced_regularizer(log_alpha, vectors, h, hessian)
    torch.testing.assert_close(penalty, 0.5 * (hessian * noise).sum((-2, -1)))
    omega = torch.diag_embed(h) @ hessian @ torch.diag_embed(h)
    directions = torch.stack([(u[:, k] @ omega @ u[:, k]) * log_alpha[k].exp() for k in range(5)]).sum(0)
    torch.testing.assert_close(penalty, 0.5 * directions)
    assert (penalty > 0).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: householder(torch.ones(3), torch.ones(3)), r"vectors must be \(T, K\), one row per reflection, got shape \(3,\)"),
        (
            lambda: householder(torch.ones(2, 3), torch.ones(4, 2)),
            r"x must be \(..., 3\) to match vectors \(2, 3\), got \(4, 2\)",
        ),
        (lambda: structured_noise(torch.ones(3), torch.ones(1, 2), torch.ones(1, 2)), r"log_alpha must be \(2,\).*got \(3,\)"),
        (lambda: structured_noise(torch.ones(3), torch.ones(1, 3), torch.ones(3)), r"eps must be \(B, 3\).*got \(3,\)"),
        (lambda: vsd_kl(torch.ones(1, 3), torch.ones(1, 3), 1), r"log_alpha must be \(3,\).*got \(1, 3\)"),
        (lambda: vsd_kl(torch.ones(3), torch.ones(1, 3), 0), "columns must be at least 1.*got 0"),
        (
            lambda: induced_regularizer(torch.ones(3), torch.ones(1, 3), torch.ones(2, 3), torch.ones(2, 3)),
            r"inputs must be \(..., 3\) and hessian \(..., 3, 3\).*got \(2, 3\) and \(2, 3\)",
        ),
    ],
)
def test_errors(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
