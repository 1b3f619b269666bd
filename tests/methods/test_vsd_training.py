"""Training with variational structured dropout: traced for many models at once, and where it ends in a model that can be solved."""

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from bayesify import VSD, bayesify, elbo


@pytest.mark.parametrize("method", [VSD(), VSD(transforms=3, rank=None, hierarchical=True, hyperprior="gamma")])
def test_a_traced_training_step_runs_for_many_models_at_once(method: VSD) -> None:
    bnn = bayesify(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), method)
    names = [name for name, _ in bnn.named_parameters()]

    def gradients(x: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        values = [p.detach().requires_grad_() for p in parameters]
        draws = functional_call(bnn, dict(zip(names, values, strict=True)), (x,), {"samples": 2})
        return torch.autograd.grad(-elbo(draws, -draws.outputs.square().sum(-1), n=10), values)

    x = torch.randn(5, 3)
    single = [p.detach() for p in bnn.parameters()]
    bnn(x)  # the first pass finds out that draws may be folded
    graph = make_fx(gradients)(x, *single)
    random = {
        str(node.target) for node in graph.graph.nodes if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    }
    assert random == {"aten.randn.default"}
    many = [torch.stack([p, 0.5 * p, p + 0.1]) for p in single]
    # The same noise for all models, so that each can be compared with its own step.
    torch.manual_seed(1)
    together = torch.vmap(graph, in_dims=(None, *[0] * len(many)), randomness="same")(x, *many)
    for k in range(3):
        torch.manual_seed(1)
        for one, stacked in zip(gradients(x, *[p[k] for p in many]), together, strict=True):
            torch.testing.assert_close(stacked[k], one, atol=1e-5, rtol=1e-4)


def test_it_learns_the_covariance_that_the_objective_wants() -> None:
    # A linear model y = (x o xi) theta + noise with theta given. The expected loss and the KL depend on C = U diag(alpha) U' alone:
    # tr(M C) / 2 + Q / 2 (sum_i log(1 + C_ii) - log det C), M = sum_n (x_n o theta)(x_n o theta)' / s^2. With two inputs one
    # reflection reaches every C, and the best one solves C = (M / Q + D)^-1, D_ii = 1 / (1 + C_ii).
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(30, 2, generator=generator, dtype=torch.float64) @ torch.tensor([[1.0, 0.6], [0.0, 0.5]]).double()
    theta, std = torch.tensor([1.0, -1.5]).double(), 2.0
    y = x @ theta
    m = (x * theta).T @ (x * theta) / std**2
    best = torch.eye(2).double()
    for _ in range(200):
        best = torch.linalg.inv(m + torch.diag(1 / (1 + best.diag())))
    assert abs(best[0, 1]) > 0.3 * (best[0, 0] * best[1, 1]).sqrt(), "the best noise is correlated"

    layer = nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(theta)
    layer.weight.requires_grad_(False)
    bnn = bayesify(layer, {"": VSD(transforms=1, p=0.5)})
    posterior = layer.posterior
    optimizer = torch.optim.Adam(posterior.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
    for _ in range(400):
        optimizer.zero_grad()
        draws = bnn(x, samples=50)
        (-elbo(draws, Normal(draws.outputs[..., 0], std).log_prob(y), n=len(x))).backward()
        optimizer.step()
        schedule.step()
    (v,) = posterior.vectors().detach()
    u = torch.eye(2).double() - 2 * torch.outer(v, v) / v.dot(v)
    torch.testing.assert_close(u @ torch.diag(posterior.log_alpha.detach().exp()) @ u.T, best, atol=0.03, rtol=0.05)


def test_what_cannot_have_channel_noise_stays_as_it_is() -> None:
    bnn = bayesify(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)), VSD())
    assert [name for name, _ in bnn.random_layers()] == ["0"]
