"""SNGP and SpectralNorm: kernel, precisions and predictions against dense algebra, norms against singular values."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import hessian

from bayesify import (
    SNGP,
    BayesifyWarning,
    Bernoulli,
    Categorical,
    ConfigurationError,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    MeanField,
    PassError,
    Poisson,
    SpectralNorm,
    bayesify,
    fit,
    predict,
    summary,
    unbayesify,
)
from bayesify.core.model import Bayesian
from bayesify.methods.sngp import RandomFeaturePosterior

F64 = torch.float64


def mlp(outputs: int = 2, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, outputs, bias=bias)).double()


def head(bnn: Bayesian) -> RandomFeaturePosterior:
    posterior = dict(bnn.random_layers())["2"].posterior
    assert isinstance(posterior, RandomFeaturePosterior)
    return posterior


def network(outputs: int = 2, bias: bool = True, **fields: float) -> Bayesian:
    """An SNGP with weights other than zero."""
    bnn = bayesify(mlp(outputs, bias), SNGP(features=7, **{"length_scale": 0.8, "prior_std": 1.3, **fields}))
    torch.manual_seed(1)
    nn.init.normal_(head(bnn).weight)
    return bnn


def hidden(bnn: Bayesian, x: Tensor) -> Tensor:
    """Outputs of the hidden layer with a bounded weight, by singular values."""
    layer = bnn.net.get_submodule("0")
    u, s, vh = torch.linalg.svd(layer._parameters["weight"], full_matrices=False)
    assert isinstance(layer.bias, Tensor)
    return torch.tanh(x @ (u * s * min(1, 0.95 / float(s[0].detach())) @ vh).T + layer.bias)


def feature(bnn: Bayesian, h: Tensor) -> Tensor:
    """sqrt(2 / D) cos(Omega h + gamma), one feature at a time."""
    posterior, rows = head(bnn), []
    for row in h.detach():
        angles = [float(w @ row + b) for w, b in zip(posterior.frequencies, posterior.phases, strict=True)]
        rows.append([math.sqrt(2 / len(angles)) * math.cos(angle) for angle in angles])
    return torch.tensor(rows, dtype=F64)


class TestKernel:
    @pytest.mark.parametrize("length_scale", [0.5, 2.0])
    def test_random_features_approximate_the_rbf_kernel(self, length_scale: float) -> None:
        torch.manual_seed(0)
        bnn = bayesify(mlp(), SNGP(features=200_000, length_scale=length_scale))
        h = torch.randn(6, 5, dtype=F64)
        phi = head(bnn).features(h)
        expected = torch.exp(-(torch.cdist(h, h) ** 2) / (2 * length_scale**2))
        error = 5 / math.sqrt(200_000)  # a term 2 cos cos has a variance of at most 1
        torch.testing.assert_close(phi @ phi.T, expected, rtol=0, atol=error)
        assert 0.05 < expected[0, 1:].max() < 0.95 or length_scale == 0.5

    def test_outputs_while_training_are_those_of_the_features(self) -> None:
        bnn, x = network(), torch.randn(4, 3, dtype=F64)
        bias = bnn.net.get_submodule("2").bias
        assert isinstance(bias, Tensor)
        expected = feature(bnn, hidden(bnn, x)) @ head(bnn).weight.T + bias
        for coherent in (False, True):
            torch.testing.assert_close(bnn.eval()(x, samples=2, coherent=coherent).outputs, expected.expand(2, 4, 2))


class TestRegression:
    @pytest.mark.parametrize("bias", [True, False])
    def test_predictions_are_those_of_a_gaussian_process(self, bias: bool) -> None:
        """Mean and covariance of functions by the kernel matrix of the data, not by weights."""
        bnn, likelihood = network(bias=bias), Gaussian(std=[0.3, 0.7])
        x, y, new = torch.randn(20, 3, dtype=F64), torch.randn(20, 2, dtype=F64), torch.randn(4, 3, dtype=F64)
        bnn.eval().complete([(x[:8], y[:8]), (x[8:], y[8:])], likelihood)
        phi, phi_new = feature(bnn, hidden(bnn, x)), feature(bnn, hidden(bnn, new))
        offset = bnn.net.get_submodule("2").bias if bias else torch.zeros(2, dtype=F64)
        assert isinstance(offset, Tensor)
        draws = bnn(new, samples=40_000).outputs.detach()
        for k, std in enumerate((0.3, 0.7)):
            gram, cross = 1.3**2 * phi @ phi.T + std**2 * torch.eye(20), 1.3**2 * phi_new @ phi.T
            mean = offset[k] + cross @ torch.linalg.solve(gram, y[:, k] - offset[k])
            covariance = 1.3**2 * phi_new @ phi_new.T - cross @ torch.linalg.solve(gram, cross.T)
            root = head(bnn).root[k]
            torch.testing.assert_close(phi_new @ root @ root.T @ phi_new.T, covariance)
            torch.testing.assert_close(phi_new @ head(bnn).center[k] + offset[k], mean)
            of_draws = draws[..., k].T.cov()
            torch.testing.assert_close(of_draws, covariance, rtol=0, atol=0.05 * float(covariance.diagonal().max()))
            torch.testing.assert_close(draws[..., k].mean(0), mean, rtol=0, atol=0.03 * float(covariance.diagonal().max().sqrt()))

    def test_scale_and_weights_of_examples_count_as_repeated_rows(self) -> None:
        x, y, likelihood = torch.randn(6, 3, dtype=F64), torch.randn(6, 2, dtype=F64), Gaussian(std=0.3)
        one, other = network(), network()
        repeats = torch.tensor([1, 2, 3, 1, 0, 2])
        one.complete([(x, y, repeats.double())], likelihood, scale=2.0)
        repeated = torch.arange(6).repeat_interleave(2 * repeats)
        other.complete([(x[repeated], y[repeated])], likelihood)
        torch.testing.assert_close(head(one).root, head(other).root)
        torch.testing.assert_close(head(one).center, head(other).center)

    def test_sequences_have_a_row_per_position(self) -> None:
        x, y, likelihood = torch.randn(4, 6, 3, dtype=F64), torch.randn(4, 6, 2, dtype=F64), Gaussian(std=0.3)
        one, other = network(), network()
        one.complete([(x, y, torch.tensor([1.0, 2.0, 1.0, 1.0]))], likelihood)
        x, y = torch.cat([x, x[1:2]]), torch.cat([y, y[1:2]])
        other.complete([(x.flatten(0, 1), y.flatten(0, 1))], likelihood)
        torch.testing.assert_close(head(one).root, head(other).root)


@pytest.mark.parametrize(
    ("likelihood", "outputs", "targets"),
    [
        (Categorical(), 3, lambda: torch.randint(3, (9,))),
        (Categorical(temperature=2.0, ignore_index=1), 3, lambda: torch.randint(3, (9,))),
        (Bernoulli(), 1, lambda: torch.randint(2, (9,))),
        (Bernoulli(), 2, lambda: torch.randint(2, (9, 2))),
        (Poisson(scale=3.0), 1, lambda: torch.randint(5, (9,))),
        (Gaussian(std=0.4), 2, lambda: torch.randn(9, 2, dtype=F64)),
    ],
    ids=["categorical", "tempered, ignored", "Bernoulli", "labels", "Poisson", "Gaussian"],
)
def test_precisions_are_second_derivatives_of_the_log_likelihood(
    likelihood: Likelihood, outputs: int, targets: Callable[[], Tensor]
) -> None:
    """The blocks of the Hessian of the negative log posterior in the weights of each output, by automatic differentiation."""
    bnn, x = network(outputs), torch.randn(9, 3, dtype=F64)
    y = targets()
    bnn.complete([(x[:4], y[:4]), (x[4:], y[4:])], likelihood)
    phi, posterior = feature(bnn, hidden(bnn, x)), head(bnn)
    bias = bnn.net.get_submodule("2").bias
    assert isinstance(bias, Tensor)

    def energy(weight: Tensor) -> Tensor:
        return -likelihood.log_prob((phi @ weight.T + bias.detach()).unsqueeze(0), y).sum() + 0.5 * (weight / 1.3).square().sum()

    full = hessian(energy, posterior.weight.detach())
    assert isinstance(full, Tensor)
    for k in range(outputs):
        torch.testing.assert_close(posterior.root[k] @ posterior.root[k].T, torch.linalg.inv(full[k, :, k]))
    if not isinstance(likelihood, Gaussian):
        assert torch.equal(posterior.center, posterior.weight)


def test_fit_makes_uncertainty_grow_with_the_distance_to_the_data() -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 2)
    y = (x[:, 0] > 0).long()
    bnn = bayesify(
        nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2)), SNGP(features=256, length_scale=0.5, prior_std=3.0)
    )
    fit(bnn, (x, y), Categorical(), epochs=30, learning_rate=0.01, accelerator="cpu")
    near, far = (predict(bnn, at, Categorical(), samples=200, seed=0) for at in (x, torch.tensor([[8.0, 30.0], [9.0, -30.0]])))
    assert ((near.mean.argmax(1) == y).float().mean()) > 0.9
    assert far.mutual_information.min() > 2 * near.mutual_information.mean()


def test_other_layers_and_further_training() -> None:
    bnn = bayesify(mlp(), {"0": MeanField(initial_std=0.5), "2": SNGP(features=7)})
    x, y = torch.randn(5, 3, dtype=F64), torch.randn(5, 2, dtype=F64)
    with pytest.warns(BayesifyWarning, match="no posterior was made after training"):
        predict(bnn, x, Gaussian())
    states = []
    for seed in (0, 1):  # with the mean of the mean-field layer: no draw matters
        bnn.complete([(x, y)], Gaussian(), seed=seed)
        states.append(head(bnn).root.clone())
    assert torch.equal(*states)
    trained = bnn.train()(x, samples=2, coherent=True).outputs
    assert trained.requires_grad
    bnn.forget()
    assert not head(bnn).is_complete
    assert "random features" in str(summary(bnn))


class TestRefusals:
    def test_there_is_no_plain_network(self) -> None:
        bnn = network()
        before = bnn(torch.zeros(1, 3, dtype=F64)).outputs
        with pytest.raises(ConfigurationError, match="no plain layer computes what 2 does, a Gaussian process"):
            unbayesify(bnn)
        torch.testing.assert_close(bnn(torch.zeros(1, 3, dtype=F64)).outputs, before)
        with pytest.raises(ConfigurationError, match=r"bnn\.function"):
            bnn.sample_network(0)

    def test_networks_that_read_the_weight(self) -> None:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(3, 2)

            def forward(self, x: Tensor) -> Tensor:
                return x @ self.layer.weight.T

        for features in (3, 5):
            with pytest.raises(PassError, match="computes with the weight of a layer that is a Gaussian process"):
                bayesify(Net(), SNGP(features=features))(torch.zeros(4, 3))

    @pytest.mark.parametrize("likelihood", [HeteroscedasticGaussian()])
    def test_other_likelihoods_before_training(self, likelihood: Likelihood) -> None:
        with pytest.raises(ConfigurationError, match="knows the likelihoods Gaussian, Categorical, Bernoulli, Poisson, got Hetero"):
            fit(network(), (torch.randn(8, 3, dtype=F64), torch.randn(8, dtype=F64)), likelihood, epochs=1)

    def test_operations_after_the_last_layer(self) -> None:
        bnn = bayesify(nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2), nn.Softmax(-1)).double(), SNGP(features=3))
        with pytest.raises(ConfigurationError, match="outputs of the network must be those of '1'"):
            bnn.complete([(torch.randn(4, 3, dtype=F64), torch.randn(4, 2, dtype=F64))], Gaussian())

    def test_two_layers(self) -> None:
        bnn = bayesify(mlp(), {"0": SNGP(features=3), "2": SNGP(features=3)})
        with pytest.raises(ConfigurationError, match="makes one layer a Gaussian process, got 2: 0, 2"):
            bnn.complete([(torch.randn(4, 3, dtype=F64), torch.randn(4, 2, dtype=F64))], Gaussian())

    @pytest.mark.parametrize("field", ["length_scale", "prior_std", "max_norm"])
    def test_fields(self, field: str) -> None:
        with pytest.raises(ConfigurationError, match=field):
            SNGP.from_dict({"method": "SNGP", field: 0.0})


class TestSpectralNorm:
    @pytest.mark.parametrize(
        "layer",
        [nn.Linear(6, 4), nn.Conv2d(2, 5, 3), nn.ConvTranspose1d(3, 4, 2), nn.Linear(1, 1)],
        ids=["Linear", "Conv2d", "ConvTranspose1d", "one weight"],
    )
    @pytest.mark.parametrize("factor", [0.1, 5.0], ids=["below", "above"])
    def test_norms_by_singular_values(self, layer: nn.Module, factor: float) -> None:
        torch.manual_seed(0)
        weight = factor * torch.randn(layer.get_parameter("weight").shape, dtype=F64)
        net = nn.Sequential(layer).double()
        bnn = bayesify(net, SpectralNorm(max_norm=0.8))
        net.load_state_dict({"0.weight": weight, "0.bias": torch.zeros_like(layer.get_parameter("bias"))})
        matrix = weight.transpose(0, 1) if isinstance(layer, nn.ConvTranspose1d) else weight
        norm = torch.linalg.svdvals(matrix.flatten(1))[0]
        expected = weight * min(1.0, 0.8 / float(norm))
        torch.testing.assert_close(unbayesify(bnn).get_parameter("0.weight").detach(), expected, rtol=1e-4, atol=1e-8)

    def test_norms_stay_bounded_in_training(self) -> None:
        torch.manual_seed(0)
        x = torch.randn(64, 4)
        bnn = bayesify(nn.Sequential(nn.Linear(4, 30), nn.ReLU(), nn.Linear(30, 1)), SpectralNorm(max_norm=0.7))
        fit(bnn, (x, 20 * x[:, :1]), Gaussian(std=0.5), epochs=60, learning_rate=0.02, accelerator="cpu")
        assert all(torch.linalg.svdvals(p)[0] > 1.0 for name, p in bnn.named_parameters() if "weight" in name)
        net = unbayesify(bnn)
        for i in (0, 2):
            torch.testing.assert_close(
                torch.linalg.svdvals(net.get_parameter(f"{i}.weight"))[0], torch.tensor(0.7), rtol=1e-2, atol=0
            )

    def test_a_weight_of_zero(self) -> None:
        layer = nn.Linear(3, 2)
        nn.init.zeros_(layer.weight)
        bnn = bayesify(layer, SpectralNorm()).train()
        for _ in range(3):
            bnn(torch.randn(4, 3)).outputs.sum().backward()
        gradient = bnn.net.get_parameter("weight").grad
        assert gradient is not None
        assert gradient.isfinite().all()
        nn.init.constant_(bnn.net.get_parameter("weight"), 3.0)
        for _ in range(3):
            bnn(torch.randn(4, 3))
        assert torch.linalg.svdvals(unbayesify(bnn).get_parameter("weight"))[0] < 0.951
