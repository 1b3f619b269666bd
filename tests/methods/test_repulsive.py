"""Repulsive ensembles: their forces against double loops in NumPy, their spread against exact posteriors, what they refuse."""

import copy
import json
import math
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bayesify import Bayesian, DeepEnsemble, Deterministic, Draws, Method, RepulsiveEnsemble, bayesify, elbo, fit, predict, summary
from bayesify.errors import ConfigurationError
from bayesify.estimators import BayesianClassifier, BayesianRegressor
from bayesify.functional import log_kernel_density, median_bandwidth
from bayesify.likelihoods import Categorical, Gaussian
from bayesify.persistence import load_model, save_model
from bayesify.train import Training, fit_many


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1))


def forces(particles: np.ndarray, bandwidth: float) -> np.ndarray:
    """sum_j grad k(w_i, w_j) / sum_j k(w_i, w_j), pair by pair."""
    result = np.zeros_like(particles)
    for i, w in enumerate(particles):
        numerator, denominator = np.zeros_like(w), 0.0
        for v in particles:
            k = math.exp(-float(np.sum((w - v) ** 2)) / (2 * bandwidth**2))
            numerator += k * (v - w) / bandwidth**2
            denominator += k
        result[i] = numerator / denominator
    return result


def loop_bandwidth(particles: np.ndarray) -> float:
    m = len(particles)
    squares = sorted(float(np.sum((particles[i] - particles[j]) ** 2)) for i in range(m) for j in range(i))
    return math.sqrt(squares[(len(squares) - 1) // 2] / (2 * math.log(m + 1)))


def flat(bnn: Bayesian) -> Tensor:
    return torch.stack([torch.cat([p.flatten() for p in member.parameters()]) for member in bnn.members])


def flat_gradients(bnn: Bayesian) -> Tensor:
    return torch.stack([torch.cat([p.grad.flatten() for p in m.parameters() if p.grad is not None]) for m in bnn.members])


def test_density_and_its_gradient_are_those_of_a_double_loop() -> None:
    particles = (torch.randn(7, 5, dtype=torch.float64) + 30).requires_grad_()
    bandwidth = median_bandwidth(particles)
    assert float(bandwidth) == pytest.approx(loop_bandwidth(particles.detach().numpy()), rel=1e-12)
    density = log_kernel_density(particles, bandwidth)
    points = particles.detach().numpy()
    expected = [
        math.log(sum(math.exp(-float(np.sum((w - v) ** 2)) / (2 * float(bandwidth) ** 2)) for v in points) / 7) for w in points
    ]
    torch.testing.assert_close(density, torch.tensor(expected, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(density.sum(), particles)
    torch.testing.assert_close(gradient, torch.from_numpy(forces(points, float(bandwidth))))


def test_float32_keeps_small_distances_of_large_weights() -> None:
    wide = torch.randn(5, 10_000, dtype=torch.float64) * 1e-3 + 3 * torch.randn(10_000, dtype=torch.float64)
    density = log_kernel_density(wide, median_bandwidth(wide))
    narrow = wide.float()
    torch.testing.assert_close(log_kernel_density(narrow, median_bandwidth(narrow)).double(), density, rtol=0, atol=1e-3)


def test_repulsion_is_symmetric_and_drives_apart() -> None:
    pair = torch.tensor([[0.0, 1.0], [2.0, -1.0]], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(log_kernel_density(pair, 1.5).sum(), pair)
    torch.testing.assert_close(gradient[0], -gradient[1])
    moved = pair.detach() - 0.1 * gradient
    assert (moved[0] - moved[1]).norm() > (pair[0] - pair[1]).norm()
    order = torch.tensor([3, 0, 2, 1])
    particles = torch.randn(4, 3, dtype=torch.float64)
    density = log_kernel_density(particles, 0.7)
    torch.testing.assert_close(log_kernel_density(particles[order], 0.7), density[order])


@pytest.mark.parametrize("equal", [torch.ones(1, 3), torch.ones(4, 3)])
def test_equal_particles_have_no_force(equal: Tensor) -> None:
    equal.requires_grad_()
    density = log_kernel_density(equal, median_bandwidth(equal))
    torch.testing.assert_close(density, torch.zeros(len(equal)))
    assert not torch.autograd.grad(density.sum(), equal)[0].any()


def test_particles_keep_the_variance_of_a_normal() -> None:
    """The flow with a score alone collapses to the mode; the density estimate is wider than the particles by the kernel."""
    std = torch.tensor([0.5, 2.0], dtype=torch.float64)
    particles = torch.randn(200, 2, dtype=torch.float64)
    for _ in range(400):
        w = particles.clone().requires_grad_()
        loss = (0.5 * (w / std).square().sum(1) + log_kernel_density(w, 0.3)).sum()
        particles = particles - 0.1 * torch.autograd.grad(loss, w)[0]
    torch.testing.assert_close(particles.mean(0), torch.zeros(2, dtype=torch.float64), rtol=0, atol=0.1)
    # of particles plus kernel, the variance is the target's
    torch.testing.assert_close(particles.var(0, correction=0) + 0.3**2, std**2, rtol=0.25, atol=0)


@pytest.mark.parametrize("space", ["weight", "function"])
def test_gradients_of_members_are_those_of_the_flow(space: Literal["weight", "function"]) -> None:
    method = RepulsiveEnsemble(members=3, space=space, prior_std=0.7, bandwidth=None)
    bnn, x, y = bayesify(mlp(), method).double().train(), torch.randn(5, 2).double(), torch.randn(5, 1).double()
    draws = bnn(x, samples=6)
    log_prob = -0.5 * (draws.outputs - y).square().sum(-1)
    (-elbo(draws, log_prob, n=40)).backward()
    for k, member in enumerate(bnn.members):
        weights = list(member.parameters())
        outputs = member.net(x)
        log_joint = 40 / 5 * -0.5 * (outputs - y).square().sum() - sum(w.square().sum() for w in weights) / (2 * 0.7**2)
        if space == "weight":
            particles = flat(bnn).detach().numpy()
            force = torch.from_numpy(forces(particles, loop_bandwidth(particles))[k])
        else:
            particles = torch.stack([m.net(x).flatten() for m in bnn.members]).detach().numpy()
            on_outputs = torch.from_numpy(forces(particles, loop_bandwidth(particles))[k]).reshape(5, 1)
            force = torch.cat([g.flatten() for g in torch.autograd.grad(outputs, weights, on_outputs, retain_graph=True)])
        score = torch.cat([g.flatten() for g in torch.autograd.grad(log_joint, weights)])
        torch.testing.assert_close(flat_gradients(bnn)[k], -(score - force) / 40 / 3)


def test_one_member_is_the_maximum_a_posteriori() -> None:
    x, y = torch.randn(20, 2).double(), torch.randn(20, 1).double()
    net = mlp().double()
    repulsive = bayesify([copy.deepcopy(net)], RepulsiveEnsemble(members=1, prior_std=0.6))
    single = bayesify(net, Deterministic(prior_std=0.6))
    for bnn in (repulsive, single):
        fit(bnn, (x, y), Gaussian(std=0.5).double(), epochs=3, batch_size=7, accelerator="cpu", progress=False)
    for p, q in zip(repulsive.parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(p, q)


@pytest.mark.parametrize("space", ["weight", "function"])
def test_fitted_slopes_have_the_spread_of_the_posterior(space: Literal["weight", "function"]) -> None:
    """y = a x + noise has a normal posterior of a; a plain ensemble of the same size collapses to its mode."""
    torch.manual_seed(0)
    x = torch.randn(16, 1).double()
    y = 1.5 * x + 0.5 * torch.randn(16, 1).double()
    precision = float(x.square().sum()) / 0.25 + 1
    mean, variance = float((x * y).sum()) / 0.25 / precision, 1 / precision
    nets = [nn.Linear(1, 1, bias=False).double() for _ in range(20)]
    # a quarter of the posterior's standard deviation, in the unit of the particles
    scale = 1.0 if space == "weight" else float(x.norm())
    method = RepulsiveEnsemble(members=20, space=space, bandwidth=0.25 * scale * math.sqrt(variance))
    bnn = bayesify(nets, method)
    optimizer = torch.optim.SGD(bnn.parameters(), lr=20 * 16 * 0.2 * variance)
    for _ in range(150):
        draws = bnn(x)
        loss = -elbo(draws, Gaussian(std=0.5).double().log_prob(draws.outputs, y), n=16)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    slopes = flat(bnn).detach()
    assert float(slopes.mean()) == pytest.approx(mean, abs=0.1 * math.sqrt(variance))
    assert float(slopes.var()) == pytest.approx(variance, rel=0.3)


def test_prediction_and_kl() -> None:
    bnn, x = bayesify(mlp(), RepulsiveEnsemble(members=3)), torch.randn(5, 2)
    predictive = predict(bnn, x, Gaussian(std=0.1), samples=4)
    assert predictive.samples == 6
    torch.testing.assert_close(predictive.mean, torch.stack([m.net(x) for m in bnn.members]).mean(0).squeeze(1))
    weights = bayesify(mlp(), RepulsiveEnsemble(members=3, space="weight", bandwidth=1e6))
    # nearby in units of the bandwidth, members have a log density of zero
    torch.testing.assert_close(weights.kl(), flat(weights).square().sum(1).mean() / 2, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(weights(x).kl, weights.kl())


@pytest.mark.parametrize("space", ["weight", "function"])
def test_several_train_together_as_alone(space: Literal["weight", "function"]) -> None:
    x, y = torch.randn(16, 2), torch.randn(16, 1)

    def trainings() -> list[Training]:
        torch.manual_seed(1)
        made = [bayesify([mlp() for _ in range(2)], RepulsiveEnsemble(members=2, space=space)) for _ in range(2)]
        return [Training(bnn=bnn, data=(x, y), likelihood=Gaussian(std=0.3), seed=k) for k, bnn in enumerate(made)]

    together, alone = trainings(), trainings()
    for batch, flag in ((together, True), (alone, False)):
        fit_many(batch, epochs=2, batch_size=8, together=flag, accelerator="cpu", progress=False)
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(flat(one.bnn), flat(other.bnn), rtol=1e-4, atol=1e-5)


def test_one_training_with_a_checkpoint(tmp_path: Path) -> None:
    bnn, x = bayesify(mlp(), RepulsiveEnsemble(members=2)), torch.randn(12, 2)
    history = fit(
        bnn, (x, x[:, :1]), Gaussian(std=0.3), epochs=3, validation=(x, x[:, :1]), checkpoint=tmp_path / "run", accelerator="cpu"
    )
    assert len(history.validation_nll) == 3
    with pytest.raises(ConfigurationError, match="'folds' for an ensemble"):
        fit(bnn, (x, x[:, :1]), Gaussian(std=0.3), validation="folds", accelerator="cpu")


def test_estimators(tmp_path: Path) -> None:
    x = torch.randn(40, 2).numpy()
    model = BayesianRegressor(method=RepulsiveEnsemble(members=3), epochs=2, hidden=(8,)).fit(x, x[:, 0])
    assert model.samples_in_use() == 3
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    np.testing.assert_allclose(loaded.predict(x), model.predict(x), rtol=1e-5)
    classifier = BayesianClassifier(method="RepulsiveEnsemble", epochs=2, hidden=(8,)).fit(x, x[:, 0] > 0)
    assert classifier.predict_proba(x).shape == (40, 2)


def test_it_survives_json_and_lists_its_members() -> None:
    method = RepulsiveEnsemble(members=2, space="weight", bandwidth=0.3)
    assert Method.from_dict(json.loads(json.dumps(method.to_dict()))) == method
    assert "1.net.2" in str(summary(bayesify(mlp(), method)))


class Branching(nn.Module):
    """Depends on values, which no vectorized call can."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y if y.sum() > 0 else 2 * y


class Replacing(nn.Module):
    """Replaces a buffer by another tensor, and changes its input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x.mul_(2))
        self.mean = 0.5 * self.mean + 0.5 * y.detach().mean(0)
        return y - self.mean


def normalized() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))


def _pair(make, together: bool, **kwargs) -> Bayesian:
    torch.manual_seed(0)
    bnn = bayesify([make() for _ in range(3)], RepulsiveEnsemble(members=3), **kwargs).double().train()
    bnn._stacked.able = None if together else False
    return bnn


@pytest.mark.parametrize(
    ("make", "shape", "able"),
    [
        (mlp, (2,), True),
        (normalized, (2,), True),
        (Replacing, (2,), True),
        (lambda: nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 1)), (2,), True),
        (Branching, (2,), False),
        (lambda: nn.Sequential(nn.Conv1d(2, 3, 2), nn.Flatten(), nn.Linear(9, 1)), (2, 4), False),
    ],
    ids=["MLP", "batch normalization", "replaced buffer", "layer normalization", "branch", "convolution"],
)
@pytest.mark.parametrize("samples", [1, 6])
def test_one_call_of_all_members_is_that_of_each(make, shape, able: bool, samples: int) -> None:
    x = torch.randn(5, *shape, dtype=torch.float64)
    results = []
    for together in (True, False):
        bnn, before = _pair(make, together), x.clone()
        optimizer = torch.optim.SGD(bnn.parameters(), lr=0.1)
        for _ in range(3):
            draws = bnn(x, samples=samples)
            optimizer.zero_grad()
            (-elbo(draws, -draws.outputs.square().sum(-1), n=10)).backward()
            optimizer.step()
        assert bnn._stacked.able is (able and together)
        assert torch.equal(x, before)
        results.append((draws.outputs.detach(), draws.kl.detach(), draws.local_kl, bnn.state_dict()))
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-11)


def test_members_drop_other_elements() -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(x * self.scale, 0.25, self.training)

    bnn = bayesify([Dropping() for _ in range(3)], RepulsiveEnsemble(members=3)).train()
    outputs = bnn(torch.ones(4000, 2), samples=6).outputs
    assert bnn._stacked.able
    kept = (outputs != 0).double()
    torch.testing.assert_close(kept.mean((1, 2)), torch.full((6,), 0.75).double(), rtol=0, atol=0.03)
    assert torch.equal(outputs[0], outputs[1])  # a member's draws are equal
    both = (kept[0] * kept[2]).mean(), (kept[2] * kept[4]).mean()
    torch.testing.assert_close(torch.stack(both), torch.full((2,), 0.75**2).double(), rtol=0, atol=0.03)


def test_members_are_called_one_by_one_where_they_differ() -> None:
    x, calls = torch.randn(4, 2), []
    tanh, relu = mlp(), nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 1))
    bnn = bayesify([tanh, relu], RepulsiveEnsemble(members=2)).train()
    torch.testing.assert_close(bnn(x).outputs, torch.stack([tanh(x), relu(x)]))
    hooked = bayesify(mlp(), RepulsiveEnsemble(members=3)).train()
    for member in hooked.members:
        member.net[0].register_forward_hook(lambda *_: calls.append(1))
    hooked(x)
    assert len(calls) == 3
    mixed = bayesify(normalized(), RepulsiveEnsemble(members=2)).train()
    mixed.members[1].eval()
    mixed(x)
    assert [int(m.net[1].num_batches_tracked) for m in mixed.members] == [1, 0]
    with torch.autocast("cpu", torch.bfloat16):
        assert bayesify(mlp(), RepulsiveEnsemble(members=2)).train()(x).outputs.dtype == torch.bfloat16


def test_other_layouts_are_called_together() -> None:
    """The batch in another dimension, and a selected output."""
    rows = {}
    for together in (True, False):
        bnn = _pair(TwoOutputs, together, output="logits", batch_dim=1)
        rows[together] = bnn(torch.randn(3, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), samples=6)
        assert bnn._stacked.able is together
    assert rows[True].outputs.shape == (6, 4, 3, 3)
    torch.testing.assert_close(rows[True].outputs, rows[False].outputs)


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.layer(x)}


def test_what_it_refuses() -> None:
    with pytest.raises(ConfigurationError, match="members must be"):
        RepulsiveEnsemble(members=0)
    with pytest.raises(ConfigurationError, match="space must be"):
        RepulsiveEnsemble(space="both")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match="prior_std must be"):
        RepulsiveEnsemble(prior_std=0.0)
    with pytest.raises(ConfigurationError, match="bandwidth must be"):
        RepulsiveEnsemble(bandwidth=-1.0)
    with pytest.raises(ConfigurationError, match="base must not be a RepulsiveEnsemble"):
        DeepEnsemble(base=RepulsiveEnsemble())
    with pytest.raises(ConfigurationError, match="without name patterns"):
        bayesify(mlp(), {"0": RepulsiveEnsemble()})
    with pytest.raises(ConfigurationError, match=r"RepulsiveEnsemble\(members=3\) needs 3 networks, got 2"):
        bayesify([mlp(), mlp()], RepulsiveEnsemble(members=3))
    trained = mlp()
    trained.load_state_dict({name: 9 * x for name, x in trained.state_dict().items()})
    with pytest.raises(ConfigurationError, match=r"RepulsiveEnsemble\(members=5\)"):
        bayesify(trained, RepulsiveEnsemble())
    with pytest.raises(ConfigurationError, match="needs an output that is one tensor, got dict; select a part with"):
        bayesify(TwoOutputs(), RepulsiveEnsemble(members=2)).train()(torch.zeros(1, 2))
    selected = bayesify(TwoOutputs(), RepulsiveEnsemble(members=2), output="logits").train()
    draws = selected(torch.zeros(4, 2))
    assert isinstance(draws, Draws)
    assert Categorical().log_prob(draws.outputs, torch.zeros(4, dtype=torch.long)).shape == (2, 4)
    frozen = mlp().requires_grad_(False)
    with pytest.raises(ConfigurationError, match="all are frozen"):
        bayesify([frozen], RepulsiveEnsemble(members=1)).kl()
