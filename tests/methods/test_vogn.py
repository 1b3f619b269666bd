"""VOGN and noisy Adam: gradients of single examples against a loop, steps in NumPy, the fixed point by dense algebra."""

import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from bayesify import (
    IVON,
    SLANG,
    VOGN,
    Bayesian,
    BayesianLayer,
    ConfigurationError,
    Gaussian,
    Method,
    NoisyAdam,
    NoisyKFAC,
    bayesify,
    elbo,
    fit,
    update_prior,
)
from bayesify.errors import BayesifyWarning
from bayesify.train import Weighted

F64 = torch.float64


class Positions(nn.Module):
    """Flattens the positions of its rows before a layer, and uses another layer along them."""

    def __init__(self) -> None:
        super().__init__()
        self.flat, self.along = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.flat(x.flatten(0, 1))).unflatten(0, x.shape[:2])
        return self.along(h).sum(1)


class Bag(nn.Module):
    """The sum of embeddings of the tokens of a row, some of which are equal."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(4, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.tokens(x).sum(1))


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2, bias=False))


def _conv() -> nn.Module:
    conv = nn.Conv2d(2, 4, 2, stride=2, padding=1, groups=2)
    return nn.Sequential(conv, nn.Tanh(), nn.ConvTranspose2d(4, 2, 2), nn.Flatten(), nn.Linear(32, 2))


NETS = {
    "MLP": (_mlp, lambda: torch.randn(5, 3, dtype=F64)),
    "convolutions": (_conv, lambda: torch.randn(5, 2, 4, 4, dtype=F64)),
    "positions": (Positions, lambda: torch.randn(5, 6, 3, dtype=F64)),
    "tokens": (Bag, lambda: torch.tensor([[0, 1, 1], [2, 3, 0], [0, 0, 0], [1, 2, 3], [3, 3, 2]])),
}


def _held(bnn: Bayesian, samples: int) -> list[dict[str, Tensor]]:
    """Let all layers have the same draws in every pass, and return the weights by name for each draw."""
    draws: list[dict[str, Tensor]] = [{} for _ in range(samples)]
    for name, layer in bnn.random_layers():
        with torch.no_grad():
            weight, bias = layer.posterior.sample(layer, samples)

        order = itertools.cycle(range(samples))

        def sample(layer: BayesianLayer, samples: int, drawn=(weight, bias), order=order):
            chosen = [next(order) for _ in range(samples)]
            # attached to the parameters, as gradients flow to layers with some
            return tuple(None if v is None else v[chosen] + 0 * layer.weight.sum() for v in drawn)

        layer.posterior.sample = sample
        prefix = f"{name}." if name else ""
        for s in range(samples):
            draws[s][f"{prefix}weight"] = weight[s]
            if bias is not None:
                draws[s][f"{prefix}bias"] = bias[s]
    return draws


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("name", NETS)
def test_squared_gradients_are_those_of_a_loop_over_examples(name: str, fold: bool) -> None:
    torch.manual_seed(0)
    make, inputs = NETS[name]
    plain, x, y = make().double(), inputs(), torch.randn(5, 2, dtype=F64)
    bnn = bayesify(make().double(), VOGN(), fold=fold)
    bnn.optimizer()
    bnn(x, samples=2)  # which examines the network
    weights = _held(bnn, 2)
    draws = bnn(x, samples=2)
    elbo(draws, -0.5 * (draws.outputs - y).square().sum(-1), n=10).backward()
    for layer_name, layer in bnn.random_layers():
        prefix = f"{layer_name}." if layer_name else ""
        observed, passes = bnn.passes.optimizer.observed[layer]
        assert passes == 1
        for part, value in observed.items():
            squares = torch.zeros_like(value)
            for s in range(2):
                for i in range(5):
                    state = {key: v.clone().requires_grad_() for key, v in weights[s].items()}
                    loss = 0.5 * (functional_call(plain, state, (x[i : i + 1],)) - y[i]).square().sum()
                    (gradient,) = torch.autograd.grad(loss, state[f"{prefix}{part}"])
                    squares += gradient.square() / 10
            torch.testing.assert_close(value, squares, rtol=1e-9, atol=1e-12)


def _data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 3, dtype=F64, generator=generator)
    return x, x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=F64) + 0.3


def _log_prob(outputs: Tensor, y: Tensor) -> Tensor:
    return -0.5 * ((y - outputs) / 0.3).square().sum(-1)


@pytest.mark.parametrize("kind", [VOGN, NoisyAdam])
def test_steps_are_those_of_the_papers(kind: type[VOGN] | type[NoisyAdam]) -> None:
    torch.manual_seed(1)
    bnn = bayesify(nn.Linear(3, 1, bias=False).double(), kind(prior_std=0.7, momentum=0.8, hessian_rate=0.2, damping=0.05))
    x, y = _data()
    optimizer, data, ess = bnn.optimizer(learning_rate=0.1), x.numpy(), 12 / 0.5
    m, sigma = bnn.net.weight.detach().numpy().ravel().copy(), np.full(3, 0.1 / math.sqrt(3))
    delta, g = 1 / 0.7**2 / ess, np.zeros(3)
    f = 1 / (12 * sigma**2) - 1 / 0.7**2 / 12
    for t in range(1, 4):
        torch.manual_seed(t)
        theta = bnn.net.posterior.sample(bnn.net, 1)[0].detach().numpy().ravel()
        gradients = -data * (y.numpy().ravel() - data @ theta)[:, None] / 0.3**2
        gradient = gradients.mean(0)
        curvature = (gradients**2).mean(0) if kind is VOGN else gradient**2
        f, g = 0.8 * f + 0.2 * curvature, 0.8 * g + 0.2 * gradient
        m = m - 0.1 * (g / (1 - 0.8**t) + delta * m) / (f + delta + 0.05)
        torch.manual_seed(t)
        draws = bnn(x)
        (-elbo(draws, _log_prob(draws.outputs, y), n=12, beta=0.5)).backward()
        optimizer.step()
        optimizer.zero_grad()
        np.testing.assert_allclose(bnn.net.weight.detach().numpy().ravel(), m, rtol=1e-9)
        stds = bnn.net.posterior.weight_log_std.exp().detach().numpy().ravel()
        np.testing.assert_allclose(stds, 1 / np.sqrt(ess * (f + delta)), rtol=1e-9)


@pytest.mark.parametrize("method", [VOGN(), NoisyKFAC(), SLANG(rank=2)], ids=lambda m: type(m).__name__)
def test_examples_are_observed_in_the_backward_pass(method: Method) -> None:
    """Gradients may be set to zero between the pass and its backward pass, as Lightning does; passes without one do not count."""
    x, y = _data()
    states = []
    for late in (False, True):
        torch.manual_seed(0)
        bnn = bayesify(nn.Linear(3, 1).double(), method)
        optimizer = bnn.optimizer(Gaussian(std=0.3).double(), learning_rate=0.1)
        for step in range(3):
            if late:  # the value of the bound alone
                draws = bnn(5 * x)
                elbo(draws, _log_prob(draws.outputs, y), n=12)
            torch.manual_seed(step)
            draws = bnn(x)
            loss = -elbo(draws, _log_prob(draws.outputs, y), n=12)
            if late:
                optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if not late:
                optimizer.zero_grad()
        states.append(bnn.state_dict())
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, rtol=0, atol=0)


@pytest.mark.parametrize("method", [VOGN(), NoisyKFAC(), SLANG(rank=2)], ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("whole", [True, False])
def test_examples_are_observed_under_autocast(method: Method, whole: bool) -> None:
    """Whether the loss is computed within it or after it; statistics are those of float32, up to the precision of outputs."""
    x, y = torch.randn(16, 3, 5), torch.randn(16, 1)
    likelihood, statistics = Gaussian(std=0.3), []
    for enabled in (True, False):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv1d(3, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(20, 1))
        bnn = bayesify(net, method)
        optimizer = bnn.optimizer(likelihood)
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            draws = bnn(x, samples=2)
            loss = -elbo(draws, likelihood.log_prob(draws.outputs, y), n=16) if whole else None
        (-elbo(draws, likelihood.log_prob(draws.outputs, y), n=16) if loss is None else loss).backward()
        statistics.append([v.norm() for values, _ in optimizer.observed.values() for v in values.values()])
        assert all(v.dtype == torch.float32 for values, _ in optimizer.observed.values() for v in values.values())
        optimizer.step()
    torch.testing.assert_close(*map(torch.stack, statistics), rtol=0.1, atol=0)


def test_a_step_without_observed_examples_is_an_error() -> None:
    x, y = _data()
    bnn = bayesify(nn.Linear(3, 1).double(), VOGN())
    optimizer = bnn.optimizer()
    optimizer.objective = 12.0, 1.0
    draws = bnn(x)
    (draws.kl / 12 - _log_prob(draws.outputs, y).mean()).backward()
    with pytest.raises(ConfigurationError, match="gradients of single examples, and got none"):
        optimizer.step()


def test_the_fixed_point_has_the_posterior_mean_and_the_gauss_newton_precision() -> None:
    """Observed at the mean, in a linear model."""
    (x, y), bnn = _data(), bayesify(nn.Linear(3, 1, bias=False).double(), VOGN(prior_std=0.7, hessian_rate=0.1))
    y = y + 0.3 * torch.randn(12, 1, dtype=F64, generator=torch.Generator().manual_seed(3))
    bnn.net.posterior.sample = lambda layer, samples: (layer.weight.unsqueeze(0), None)
    optimizer = bnn.optimizer(learning_rate=0.2)
    for _ in range(1000):
        draws = bnn(x)
        (-elbo(draws, _log_prob(draws.outputs, y), n=12)).backward()
        optimizer.step()
        optimizer.zero_grad()
    prior = torch.eye(3, dtype=F64) / 0.49
    mean = torch.linalg.solve(x.T @ x / 0.09 + prior, x.T @ y / 0.09)
    torch.testing.assert_close(bnn.net.weight.T, mean, rtol=1e-7, atol=1e-9)
    precision = prior.diagonal() + ((x * (y - x @ mean) / 0.09) ** 2).sum(0)
    torch.testing.assert_close(bnn.net.posterior.weight_log_std.exp().squeeze(0), precision.rsqrt(), rtol=1e-7, atol=0)


def test_a_weight_of_two_is_two_copies() -> None:
    x, y = (v.float() for v in _data())
    weights = torch.tensor([2.0, 0.0, 1.0, 1.0, 2.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    rows = torch.repeat_interleave(torch.arange(12), weights.long())
    results = []
    for data in (Weighted((x, y), weights), (x[rows], y[rows])):
        torch.manual_seed(1)
        bnn = bayesify(nn.Linear(3, 1), VOGN(hessian_rate=0.2))
        fit(bnn, data, Gaussian(std=0.5), epochs=3, batch_size=12, learning_rate=0.1, accelerator="cpu")
        results.append(bnn.state_dict())
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_accumulated_batches_are_averaged() -> None:
    x, y = _data()
    results = []
    for parts in ([slice(0, 12)], [slice(0, 6), slice(6, 12)]):
        torch.manual_seed(1)
        bnn = bayesify(nn.Linear(3, 1).double(), VOGN(hessian_rate=0.2))
        optimizer = bnn.optimizer(learning_rate=0.1)
        for part in parts:
            torch.manual_seed(5)
            draws = bnn(x[part])
            (-elbo(draws, _log_prob(draws.outputs, y[part]), n=12) / len(parts)).backward()
        optimizer.step()
        results.append(bnn.state_dict())
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


class Reading(nn.Module):
    """Computes with the weight of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.layer.weight.T


class Pooled(nn.Module):
    """A layer after the mean of all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.mean(0, keepdim=True)) + x[:, :1]


@pytest.mark.parametrize("net", [Reading(), Pooled()])
def test_networks_without_gradients_of_single_examples_are_refused(net: nn.Module) -> None:
    bnn = bayesify(net, VOGN())
    with pytest.raises(ConfigurationError, match="single examples"):
        fit(bnn, (torch.randn(8, 3), torch.randn(8, 1)), Gaussian(), epochs=1, accelerator="cpu")


class Mixed(nn.Module):
    """Rows affect each other, with as many rows in every layer as in the batch, as in a graph network."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layer(x).tanh()
        return self.last(hidden + hidden.mean(0, keepdim=True))


@pytest.mark.parametrize("method", [VOGN(), NoisyKFAC(), SLANG()], ids=["VOGN", "NoisyKFAC", "SLANG"])
def test_networks_whose_rows_affect_each_other_are_refused(method) -> None:
    """The gradient at a row of a layer is that of several examples, and its square not a sum of theirs."""
    data = torch.randn(8, 3), torch.randn(8, 1)
    for fold in (None, False):
        with pytest.raises(ConfigurationError, match=r"no gradients of single examples, .* because the rows of a batch affect"):
            fit(bayesify(Mixed(), method, fold=fold), data, Gaussian(learn=True), epochs=1, accelerator="cpu")
    fit(bayesify(Mixed(), IVON()), data, Gaussian(learn=True), epochs=1, accelerator="cpu")
    fit(bayesify(Mixed(), method, fold=True), data, Gaussian(learn=True), epochs=1, accelerator="cpu")  # the user's promise


@pytest.mark.parametrize("method", [VOGN(), NoisyKFAC(), SLANG()], ids=["VOGN", "NoisyKFAC", "SLANG"])
def test_gradients_of_single_examples_are_approximate_with_batch_statistics(method) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    bnn, data = bayesify(net, {"0": method, "2": method}), (torch.randn(8, 3), torch.randn(8, 1))
    with pytest.warns(BayesifyWarning, match="gradients of single examples are approximate"):
        fit(bnn, data, Gaussian(learn=True), epochs=1, accelerator="cpu")


def test_gradients_of_single_examples_are_exact_with_statistics_of_a_row() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2), nn.Flatten(), nn.Linear(4, 1))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*examples are approximate", BayesifyWarning)
        fit(bayesify(net, VOGN()), (torch.randn(8, 3), torch.randn(8, 1)), Gaussian(learn=True), epochs=1, accelerator="cpu")


@pytest.mark.parametrize("method", [VOGN(), NoisyKFAC(), SLANG()], ids=["VOGN", "NoisyKFAC", "SLANG"])
def test_the_loss_of_some_rows_is_refused(method) -> None:
    """Five of ten rows would be taken for five examples of two positions."""
    bnn = bayesify(nn.Linear(3, 1), method).train()
    bnn.optimizer(Gaussian())
    with pytest.raises(ConfigurationError, match="observes every example of a batch"):
        bnn(torch.randn(10, 3)).rows(slice(5))


def test_methods_can_be_mixed_and_priors_updated() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
    bnn = bayesify(net, {"0": VOGN(prior="sequential"), "3": IVON(prior="sequential")})
    x, y = (v.float() for v in _data())
    history = fit(bnn, (x, y), Gaussian(learn=True), epochs=100, learning_rate=0.05, batch_size=6, accelerator="cpu")
    assert history.loss[-1] < history.loss[0]
    update_prior(bnn)
    assert bnn.kl() < 1e-5
    assert isinstance(bnn.net[0].posterior.remark(), str)


def test_normalization_layers_stay_deterministic() -> None:
    bnn = bayesify(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)), VOGN())
    assert [name for name, _ in bnn.random_layers()] == ["0"]


def test_bad_damping_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="damping must be"):
        VOGN(damping=-1.0)
