"""MNF: the bound on the KL by quadrature, its gap, the distribution of the flow, and moments of outputs."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal

from bayesify import MNF, Bayesian, BayesianLayer, bayesify
from bayesify.testing.require import require_equal_means

F64 = torch.float64


def _converted(layer: nn.Module, method: MNF, spread: float = 0.5) -> tuple[Bayesian, BayesianLayer]:
    """A layer with random parameters everywhere."""
    torch.manual_seed(2)
    bnn = bayesify(nn.Sequential(layer.double()), method)
    site = next(site for _, site in bnn.random_layers())
    with torch.no_grad():
        for parameter in bnn.parameters():
            parameter.add_(spread * torch.randn_like(parameter))
    return bnn, site


def _mean_and_error(values: Tensor) -> tuple[float, float]:
    return values.mean().item(), values.std().item() / math.sqrt(len(values))


@torch.no_grad()
def _kl(bnn: Bayesian, calls: int = 1000) -> tuple[float, float]:
    return _mean_and_error(torch.stack([bnn.kl() for _ in range(calls)]))


class _Scalar:
    """One weight, without bias: the flows are affine, so q(z), q(w | z) and r(z | w) are normal; on a grid of z and w."""

    def __init__(self) -> None:
        self.bnn, site = _converted(nn.Linear(1, 1, bias=False), MNF(flow_units=3, prior_std=0.8))
        nn.init.constant_(site.weight, 1.5)
        p = site.posterior
        mean, std = p.z_mean.item(), p.z_log_std.exp().item()
        scale, shift = self.affine(p.flows)
        inverse_scale, inverse_shift = self.affine(p.auxiliary_flows)
        z = Normal(torch.tensor(scale * mean + shift, dtype=F64), scale * std)
        prior = Normal(torch.zeros((), dtype=F64), 0.8)
        self.z = torch.linspace(z.mean - 8 * z.stddev, z.mean + 8 * z.stddev, 801, dtype=F64)
        sigma = p.weight_log_std.exp().item()
        self.w = torch.linspace(-12, 12, 4001, dtype=F64)
        q_w = Normal(1.5 * self.z[:, None], sigma)
        c = p.direction.item()
        t = torch.tanh(c * self.w)
        a, b = p.auxiliary_offset.detach(), p.auxiliary_slope.detach()
        # g(z) ~ N(m, s^2), hence z ~ N((m - shift) / scale, (s / scale)^2)
        r = Normal((a[0] + b[0] * t - inverse_shift) / inverse_scale, torch.exp(a[1] + b[1] * t) / inverse_scale)
        log_q_z, log_q_w = z.log_prob(self.z)[:, None], q_w.log_prob(self.w)
        joint = (log_q_z + log_q_w).exp()
        log_joint_ratio = log_q_w - prior.log_prob(self.w) + log_q_z - r.log_prob(self.z[:, None])
        self.bound = self.integral(joint * log_joint_ratio)
        marginal = torch.trapezoid(joint, self.z, dim=0)
        self.kl = torch.trapezoid(marginal * (marginal.clamp_min(1e-300).log() - prior.log_prob(self.w)), self.w).item()
        log_posterior = log_q_z + log_q_w - marginal.clamp_min(1e-300).log()
        self.gap = self.integral(joint * (log_posterior - r.log_prob(self.z[:, None])))
        assert abs(self.integral(joint) - 1) < 1e-6

    @staticmethod
    def affine(flows: nn.Module) -> tuple[float, float]:
        """Scale and shift of two flows of one variable, of which the second keeps it."""
        h = torch.tanh(flows.hidden_bias[0])
        sigma = torch.sigmoid(flows.gate_weight[0] @ h + flows.gate_bias[0]).item()
        return sigma, (1 - sigma) * (flows.shift_weight[0] @ h + flows.shift_bias[0]).item()

    def integral(self, values: Tensor) -> float:
        return torch.trapezoid(torch.trapezoid(values, self.w, dim=1), self.z).item()


def test_the_bound_of_one_weight_by_quadrature() -> None:
    exact = _Scalar()
    mean, error = _kl(exact.bnn)
    assert error < 0.1
    assert abs(mean - exact.bound) < 5 * error
    # the bound exceeds the KL by the divergence of r(z | w) from the posterior of z
    assert exact.gap > 0.1
    assert exact.bound - exact.kl == pytest.approx(exact.gap, abs=1e-6)


@torch.no_grad()
def test_the_bound_exceeds_the_kl_of_two_weights() -> None:
    # flows that are not affine, and q(W) as a mixture over 10,000 draws of z
    bnn, site = _converted(nn.Linear(2, 1, bias=False), MNF(flow_units=4, prior_std=0.7), spread=0.7)
    std = site.posterior.weight_log_std.exp()[0]
    w = site.posterior.sample(site, 1000)[0][:, 0]
    means = site.weight[0] * site.posterior.draw_z(10_000)[0]
    log_q = torch.cat([Independent(Normal(means, std), 1).log_prob(some[:, None]).logsumexp(1) for some in w.split(100)])
    ratio = log_q - math.log(10_000) - Normal(torch.zeros(2, dtype=F64), 0.7).log_prob(w).sum(1)
    kl, kl_error = _mean_and_error(ratio)
    bound, error = _kl(bnn)
    assert bound > kl + 5 * math.hypot(error, kl_error)


@torch.no_grad()
@pytest.mark.parametrize("layer", [nn.Linear(2, 3, bias=False), nn.Conv1d(3, 2, 2, bias=False)])
def test_the_bound_by_the_densities_of_joint_draws(layer: nn.Module) -> None:
    # log densities of z from the Jacobian of autograd, of W and r from torch.distributions
    bnn, site = _converted(layer, MNF(flow_units=4, prior_std=0.7))
    p = site.posterior
    z, eps, _ = p.draw_z(12_000)
    z0 = p.z_mean + p.z_log_std.exp() * eps
    weight = site.weight if p.of_kernels else site.weight.mT
    sigma = (p.weight_log_std if p.of_kernels else p.weight_log_std.mT).exp().flatten(1)
    q_w = Independent(Normal(z[:, :, None] * weight.flatten(1), sigma), 2)
    w = q_w.sample()
    log_q_z = Independent(Normal(p.z_mean, p.z_log_std.exp()), 1).log_prob(z0) - _log_jacobian(p.flows, z0)
    t = torch.tanh(torch.einsum("k,skj->sj", p.direction, w)).mean(1, keepdim=True)
    r_mean, r_log_std = (p.auxiliary_offset[i] + t * p.auxiliary_slope[i] for i in range(2))
    r = Independent(Normal(r_mean, r_log_std.exp()), 1)
    log_r = r.log_prob(p.auxiliary_flows(z)[0]) + _log_jacobian(p.auxiliary_flows, z)
    log_prior = Independent(Normal(torch.zeros_like(sigma), 0.7), 2).log_prob(w)
    expected, expected_error = _mean_and_error(q_w.log_prob(w) - log_prior + log_q_z - log_r)
    mean, error = _kl(bnn)
    assert math.hypot(error, expected_error) < 0.2
    assert abs(mean - expected) < 5 * math.hypot(error, expected_error)


@torch.no_grad()
def test_the_log_determinant_of_the_flow_counts_once(monkeypatch) -> None:
    _, site = _converted(nn.Linear(2, 3), MNF(flow_units=4))
    p = site.posterior
    z, eps, log_det = p.draw_z(8)
    torch.testing.assert_close(log_det, _log_jacobian(p.flows, p.z_mean + p.z_log_std.exp() * eps))
    bounds = []
    for more in (0, 1):  # nats, by which q(z) would be less dense
        monkeypatch.setattr(p, "draw_z", lambda _, more=more: (z, eps, log_det + more))
        torch.manual_seed(0)
        bounds.append(p.kl(site))
    torch.testing.assert_close(bounds[0] - bounds[1], torch.ones_like(bounds[0]))


def _log_jacobian(flows: nn.Module, z: Tensor) -> Tensor:
    jacobian = torch.func.vmap(torch.func.jacrev(lambda v: flows(v[None])[0][0]))(z)
    return torch.linalg.slogdet(jacobian)[1]


@torch.no_grad()
@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.Linear(3, 2), (3,)), (nn.Conv2d(2, 4, 2, groups=2), (2, 3, 3)), (nn.ConvTranspose1d(3, 2, 2), (3, 2))],
    ids=["linear", "convolution", "transposed"],
)
def test_outputs_are_those_of_weights_with_scaled_means(layer: nn.Module, shape: tuple[int, ...]) -> None:
    bnn, site = _converted(layer, MNF(flow_units=4))
    p, draws, x = site.posterior, 20_000, torch.randn(1, *shape, dtype=F64)
    y = bnn(x, samples=draws).outputs[:, 0]
    reference = bnn(x, samples=draws, coherent=True).outputs[:, 0]
    require_equal_means(y, reference, "mean")
    require_equal_means((y - y.mean(0)) ** 2, (reference - reference.mean(0)) ** 2, "variance")
    weight, z = p.sample(site, draws)[0], p.draw_z(draws)[0]
    scales = z.reshape(draws, *[-1 if i == p.axis else 1 for i in range(site.weight.dim())])
    require_equal_means(weight, site.weight * scales, "mean of the weight")


def test_it_starts_at_the_weights_of_the_network() -> None:
    plain = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 1))
    weights = [layer.weight.detach().clone() for layer in (plain[0], plain[2])]
    bnn = bayesify(plain, MNF())
    for (_, site), weight in zip(bnn.random_layers(), weights, strict=True):
        torch.testing.assert_close(site.posterior.mean(site)[0], weight)
        std = site.posterior.draw_z(10_000)[0].std(0)
        gate = 1 / (1 + math.exp(-3.0))
        torch.testing.assert_close(std, torch.full_like(std, 0.1 * gate), rtol=0.05, atol=0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"flows": 0}, "flows must be a whole number of at least 1, got 0"),
        ({"flow_units": 0}, "flow_units must be a whole number"),
        ({"prior_std": 0.0}, "prior_std must be"),
        ({"initial_std": math.inf}, "initial_std must be"),
        ({"initial_z_std": -1.0}, "initial_z_std must be"),
    ],
)
def test_errors(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MNF(**fields)
