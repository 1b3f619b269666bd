"""Planar and masked flows: log-determinants against the Jacobian of autograd, inverses, and invertibility for any parameters."""

import mpmath
import pytest
import torch
from torch.func import jacrev

from bayesify.functional import masked_flow, planar_flow, planar_flow_inverse, planar_identity

F64 = torch.float64


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_log_determinants_are_those_of_the_jacobian(scale):
    for n in (1, 2, 5):
        z, u, w = torch.randn(3, 7, n, dtype=F64) * scale
        b = torch.randn(7, dtype=F64)
        _, log_det = planar_flow(z, u, w, b)
        for i in range(7):
            jacobian = jacrev(lambda v, own=(u[i], w[i], b[i]): planar_flow(v, *own)[0])(z[i])
            sign, expected = torch.linalg.slogdet(jacobian)
            assert sign == 1
            torch.testing.assert_close(log_det[i], expected, rtol=1e-8, atol=1e-8)


def test_parameters_that_are_allowed_keep_the_textbook_form():
    # wherever u-hat is taken for u, the map is z + u-hat tanh(w.z + b) with u-hat.w = softplus(u.w) - 1 along w
    z, u, w = torch.randn(3, 6, dtype=F64)
    b = torch.tensor(0.3, dtype=F64)
    step = (planar_flow(z, u, w, b)[0] - z) / torch.tanh(w @ z + b)
    torch.testing.assert_close(step @ w, torch.log(1 + torch.exp(u @ w)) - 1)
    across = torch.eye(6, dtype=F64) - torch.outer(w, w) / (w @ w)
    torch.testing.assert_close(across @ step, across @ u)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_inverse(dtype):
    # erratum W8: standard normal parameters at n = 128, of which nearly half would not be invertible as they are
    z, u, w = torch.randn(3, 200, 128, dtype=dtype)
    b = torch.randn(200, dtype=dtype)
    assert 0.3 < ((u * w).sum(-1) < -1).double().mean() < 0.6
    image, log_det = planar_flow(z, u, w, b)
    assert log_det.isfinite().all()
    torch.testing.assert_close(planar_flow_inverse(image, u, w, b), z, rtol=0, atol=1e-9 if dtype == F64 else 1e-2)


def test_identity():
    w = torch.randn(4, 8, dtype=F64)
    z = torch.randn(4, 8, dtype=F64)
    image, log_det = planar_flow(z, planar_identity(w), w, torch.randn(4, dtype=F64))
    torch.testing.assert_close(image, z)
    torch.testing.assert_close(log_det, torch.zeros_like(log_det))


def test_w_of_zero_is_a_shift():
    z, u = torch.randn(3, dtype=F64), torch.randn(3, dtype=F64, requires_grad=True)
    w = torch.zeros(3, dtype=F64, requires_grad=True)
    image, log_det = planar_flow(z, u, w, torch.tensor(0.5, dtype=F64))
    torch.testing.assert_close(image, z + u * torch.tanh(torch.tensor(0.5, dtype=F64)))
    assert log_det == 0
    image.sum().backward()
    torch.testing.assert_close(u.grad, torch.full_like(u, 0.5).tanh())
    assert w.grad.isfinite().all()


@pytest.mark.parametrize("product", [-80.0, -20.0, -17.0, -10.0, 0.0, 5.0])
@pytest.mark.parametrize("offset", [0.0, 1e-3, 0.7])
def test_float32_has_log_determinants_of_maps_that_are_nearly_not_invertible(product, offset):
    # u.w rounds to -1 from a product of -17 on
    u, z = torch.tensor([product], requires_grad=True), torch.zeros(1)
    log_det = planar_flow(z, u, torch.ones(1), torch.tensor(offset))[1]
    with mpmath.workdps(50):
        bend, p = mpmath.tanh(mpmath.mpf(float(torch.tensor(offset)))) ** 2, mpmath.mpf(product)
        stretch = mpmath.log1p(mpmath.exp(p))
        total = bend + stretch * (1 - bend)
        slope = (1 - bend) / (1 + mpmath.exp(-p)) / total
    assert log_det.item() == pytest.approx(float(mpmath.log(total)), rel=1e-5)
    assert torch.autograd.grad(log_det, u)[0].item() == pytest.approx(float(slope), rel=1e-5)


def test_gradients_and_vmap():
    z, u, w = (torch.randn(3, 4, dtype=F64, requires_grad=True) for _ in range(3))
    b = torch.randn(3, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(planar_flow, (z, u, w, b))
    mapped = torch.vmap(planar_flow)(z, u, w, b)
    for one, other in zip(mapped, planar_flow(z, u, w, b), strict=True):
        torch.testing.assert_close(one, other)


def _masked(n, hidden, scale=1.0):
    """A mask, and networks with random weights."""
    mask = (torch.arange(n) % 2).double()
    shapes = ((hidden, n), (hidden,), (n, hidden), (n,), (n, hidden), (n,))
    weights = [scale * torch.randn(shape, dtype=F64) for shape in shapes]
    return mask, *((weights[i], weights[i + 1]) for i in (0, 2, 4))


@pytest.mark.parametrize("scale", [0.3, 2.0])
def test_masked_log_determinants_are_those_of_the_jacobian(scale):
    for n in (1, 2, 5):
        flow = _masked(n, 3, scale)
        z = torch.randn(4, n, dtype=F64)
        image, log_det = masked_flow(z, *flow)
        for i in range(4):
            jacobian = jacrev(lambda v, flow=flow: masked_flow(v, *flow)[0])(z[i])
            sign, expected = torch.linalg.slogdet(jacobian)
            assert sign == 1
            torch.testing.assert_close(log_det[i], expected, rtol=1e-8, atol=1e-8)
        assert torch.equal(image[:, 1::2], z[:, 1::2]), "masked elements pass"


def test_a_masked_flow_is_inverted_by_its_own_gate_and_shift():
    # z' = sigma z + (1 - sigma) mu, so that z = (z' - (1 - sigma) mu) / sigma, with networks of what passes
    mask, (a, b), (c, d), (e, f) = _masked(4, 3)
    z = torch.randn(7, 4, dtype=F64)
    image, _ = masked_flow(z, mask, (a, b), (c, d), (e, f))
    h = torch.tanh((mask * image) @ a.T + b)
    mu, sigma = h @ c.T + d, 1 / (1 + torch.exp(-(h @ e.T + f)))
    torch.testing.assert_close(torch.where(mask == 1, image, (image - (1 - sigma) * mu) / sigma), z)


def test_masked_gradients_and_vmap():
    z, flow = torch.randn(3, 4, dtype=F64), _masked(4, 2)
    leaves = [z, *(t for pair in flow[1:] for t in pair)]

    def run(z, *weights):
        return masked_flow(z, flow[0], weights[:2], weights[2:4], weights[4:])

    assert torch.autograd.gradcheck(run, [leaf.requires_grad_() for leaf in leaves])
    mapped = torch.vmap(lambda z: masked_flow(z, *flow))(z)
    for one, other in zip(mapped, masked_flow(z, *flow), strict=True):
        torch.testing.assert_close(one, other)
