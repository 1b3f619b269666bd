"""HMC, SGLD and SG-HMC against known distributions: conjugate models, quadrature, stationary covariances of the updates."""

import math
import warnings
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal

from bayesify import (
    HMC,
    SGHMC,
    SGLD,
    BayesifyWarning,
    Categorical,
    ConfigurationError,
    DeepEnsemble,
    DivergenceError,
    EvidentialGaussian,
    Gaussian,
    MeanField,
    bayesify,
    fit,
    predict,
    summary,
    unbayesify,
)
from bayesify.methods._weight_density import WeightDensity
from bayesify.progress import ProgressBar
from bayesify.train import Training, Weighted, fit_many

pytestmark = pytest.mark.filterwarnings("ignore:the chains have not mixed")  # they are short
STD, PRIOR = 0.4, 0.7


def line(n: int = 30) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64) @ torch.tensor([[1.0, 0.6], [0.0, 0.5]]).double()
    return x, x @ torch.tensor([[1.0], [-0.5]]).double() + 0.3 + STD * torch.randn(n, 1, generator=generator, dtype=torch.float64)


def exact(x: Tensor, y: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Mean and covariance of weights and bias in the conjugate linear model."""
    features = torch.cat([x, torch.ones(len(x), 1)], 1).double()
    covariance = (scale * features.T @ features / STD**2 + torch.eye(3).double() / PRIOR**2).inverse()
    return covariance @ features.T @ y.double().squeeze(1) * scale / STD**2, covariance


def at_the_mode(method: HMC | SGLD, x: Tensor, y: Tensor, scale: float = 1.0):
    """A linear model whose trained weights are the exact mean."""
    net = nn.Linear(2, 1).double()
    mean = exact(x, y, scale)[0]
    with torch.no_grad():
        net.weight.copy_(mean[:2].unsqueeze(0))
        net.bias.copy_(mean[2:])
    return bayesify(net, method)


def whitened(draws: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """Draws (K, P) that have mean 0 and covariance I if they come from this normal distribution."""
    return torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), (draws.double() - mean).T, upper=False).T


def check_moments(draws: Tensor, mean: Tensor, covariance: Tensor, tolerance: float) -> None:
    z = whitened(draws, mean, covariance)
    assert z.mean(0).abs().max() < tolerance
    assert (z.T.cov() - torch.eye(len(mean))).abs().max() < 2 * tolerance


class TestConjugate:
    """500 chains side by side, 4 draws of each: errors of moments of about 1 / sqrt(2,000)."""

    @pytest.mark.parametrize("scale", [1.0, 3.0])
    def test_sgld_has_the_stationary_covariance_of_its_update(self, scale: float):
        """With full batches it is T H^-1 (I - r H / 2N)^-1, where H is the curvature of U; here 1.6 times the posterior's."""
        x, y = line()
        mean, covariance = exact(x, y, scale)
        n = scale * len(x)
        highest = float(torch.linalg.eigvalsh(covariance.inverse()).max())
        rate, temperature = 0.75 * n / highest, 0.5
        method = SGLD(prior_std=PRIOR, step_size=rate, draws=4, chains=500, burn_in=100, thinning=40, temperature=temperature)
        bnn = at_the_mode(method, x, y, scale)
        bnn.complete([(x, y)], Gaussian(std=STD), scale=scale)
        step = torch.eye(3).double() - rate / (2 * n) * covariance.inverse()
        check_moments(bnn.net.posterior.draws, mean, temperature * covariance @ step.inverse(), 0.08)

    def test_sghmc_has_the_stationary_covariance_of_its_update(self):
        """The covariance C of (theta, v) solves C = A C A' + Q, a linear system in the elements of C."""
        x, y = line()
        mean, covariance = exact(x, y)
        friction, rate, n = 0.3, 0.02, len(x)
        bnn = at_the_mode(
            SGHMC(prior_std=PRIOR, step_size=rate, friction=friction, draws=4, chains=500, burn_in=200, thinning=40), x, y
        )
        bnn.complete([(x, y)], Gaussian(std=STD))
        one, kick = torch.eye(3).double(), -rate / n * covariance.inverse()
        a = torch.cat([torch.cat([one + kick, (1 - friction) * one], 1), torch.cat([kick, (1 - friction) * one], 1)])
        q = 2 * friction * rate / n * torch.ones(2, 2).double().kron(one)
        c = torch.linalg.solve(torch.eye(36).double() - torch.kron(a, a), q.flatten()).view(6, 6)
        check_moments(bnn.net.posterior.draws, mean, c[:3, :3], 0.08)
        assert (whitened(bnn.net.posterior.draws, mean, covariance).T.cov() - one).abs().max() < 0.3  # and is near the posterior

    def test_minibatches_are_unbiased(self):
        x, y = line()
        mean, covariance = exact(x, y)
        bnn = at_the_mode(SGLD(prior_std=PRIOR, step_size=2e-3, draws=4, chains=400, burn_in=1200, thinning=100), x, y)
        batches = [(x[i::3], y[i::3]) for i in range(3)]
        bnn.complete(batches, Gaussian(std=STD))
        check_moments(bnn.net.posterior.draws, mean, covariance, 0.1)

    @pytest.mark.parametrize(
        "method",
        [
            SGHMC(prior_std=PRIOR, step_size=2e-3, draws=4, chains=500, burn_in=300, thinning=60),
            HMC(prior_std=PRIOR, draws=100, chains=2, warmup=40, max_tree_depth=3),
        ],
        ids=["SGHMC", "HMC"],
    )
    @pytest.mark.parametrize("frozen", ["weight", "bias"])
    def test_a_frozen_half_of_a_layer_is_a_constant(self, method: HMC | SGLD, frozen: str):
        """The others come from the normal distribution that is conditional on its value."""
        if isinstance(method, HMC):
            pytest.importorskip("pyro")
        x, y = line()
        bnn = at_the_mode(method, x, y)
        with torch.no_grad():
            kept = getattr(bnn.net, frozen).requires_grad_(False).add_(0.2).clone()
        bnn.complete([(x, y)], Gaussian(std=STD))
        weights = bnn.net.posterior.draws.split([2, 1], 1)
        of = 0 if frozen == "weight" else 1
        assert (weights[of] == kept.flatten()).all()
        known, others = (slice(2), slice(2, 3)) if frozen == "weight" else (slice(2, 3), slice(2))
        mean, precision = exact(x, y)[0], exact(x, y)[1].inverse()
        covariance = precision[others, others].inverse()
        center = mean[others] - covariance @ precision[others, known] @ (kept.flatten() - mean[known])
        check_moments(weights[1 - of], center, covariance, 0.25 if isinstance(method, HMC) else 0.12)

    @pytest.mark.parametrize("name", ["", "net"])
    def test_a_frozen_layer_that_a_pattern_names_is_sampled(self, name: str):
        x, y = line()
        net = nn.Linear(2, 1).double().requires_grad_(False)
        method = SGLD(prior_std=PRIOR, draws=4, chains=20, burn_in=10, thinning=5)
        bnn = bayesify(net, {"": method}) if not name else bayesify(nn.Sequential(net), {"0": method})
        bnn.complete([(x, y)], Gaussian(std=STD))
        layer = next(layer for _, layer in bnn.random_layers())
        assert (layer.posterior.draws.std(0) > 0).all()

    def test_hmc(self):
        pytest.importorskip("pyro")
        x, y = line()
        bnn = at_the_mode(HMC(prior_std=PRIOR, draws=120, chains=2, warmup=40, max_tree_depth=3), x, y)
        bnn.complete([(x[:10], y[:10]), (x[10:], y[10:])], Gaussian(std=STD))
        posterior = bnn.net.posterior
        assert posterior.draws.shape == (240, 3)
        check_moments(posterior.draws, *exact(x, y), tolerance=0.25)
        r_hat, size = posterior.diagnostics.tolist()
        assert r_hat < 1.1
        assert 40 < size < 1000
        assert "240 draws; of the network's outputs, R-hat is at most 1." in summary(bnn).layers[0].remark


def logistic_moments(x: Tensor, y: Tensor, prior_std: float) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the two weights of a softmax over (0, w x), by quadrature on a grid."""
    grid = torch.linspace(-6 * prior_std, 6 * prior_std, 601, dtype=torch.float64)
    w = torch.cartesian_prod(grid, grid)
    logits = w @ x.double().T
    log_density = (logits * y - nn.functional.softplus(logits)).sum(1) + Normal(0.0, prior_std).log_prob(w).sum(1)
    p = (log_density - log_density.logsumexp(0)).exp().unsqueeze(1)
    mean = (p * w).sum(0)
    return mean, (p * w).T @ w - mean.outer(mean)


class OneLogit(nn.Module):
    """Softmax over (0, w x): logistic regression as a categorical model."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        logit = self.layer(x)
        return torch.cat([torch.zeros_like(logit), logit], -1)


@pytest.mark.parametrize("name", ["HMC", "SGHMC"])
def test_logistic_regression_against_quadrature(name: str):
    """Six rows, so that the posterior is skewed: it differs from a normal approximation at the mode."""
    x = torch.tensor([[1.0, 0.2], [0.8, 0.9], [1.2, -0.4], [-0.3, 1.0], [0.5, 0.5], [1.5, 0.1]], dtype=torch.float64)
    y = torch.tensor([1, 1, 1, 1, 1, 0])
    mean, covariance = logistic_moments(x, y, 1.5)
    bnn = bayesify(OneLogit().double(), {"HMC": _hmc, "SGHMC": _sghmc}[name]())
    bnn.complete([(x, y)], Categorical())
    check_moments(bnn.net.layer.posterior.draws, mean, covariance, 0.25 if name == "HMC" else 0.1)


def _hmc() -> HMC:
    pytest.importorskip("pyro")
    return HMC(prior_std=1.5, draws=120, chains=2, warmup=40, max_tree_depth=3)


def _sghmc() -> SGHMC:
    return SGHMC(prior_std=1.5, step_size=0.01, friction=0.1, draws=4, chains=500, burn_in=300, thinning=80)


def test_density_is_the_joint_log_probability():
    """Differences of the energy between two weights, against torch.distributions; weights of examples and scale included."""
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    bnn, (x, y) = bayesify(net, SGLD(prior_std=PRIOR)), line(8)
    weights = torch.linspace(0.5, 2, 8).double()
    density = WeightDensity(bnn, ["0", "2"], Gaussian(std=STD), 1.5, PRIOR)

    def reference(vector: Tensor) -> Tensor:
        hidden = torch.tanh(x @ vector[:6].view(3, 2).T + vector[6:9])
        f = hidden @ vector[9:12] + vector[12]
        log_likelihood = (weights * Normal(f, STD).log_prob(y.squeeze(1))).sum()
        return -1.5 * log_likelihood - Normal(0.0, PRIOR).log_prob(vector).sum()

    u = [density.start, torch.linspace(-1, 1, 13).double()]
    energy = [density.prior_energy(v) - density.log_likelihood(v, *density.moved((x, y, weights))) for v in u]
    torch.testing.assert_close(energy[1] - energy[0], reference(u[1]) - reference(u[0]))


FAST = SGLD(prior_std=PRIOR, draws=4, chains=3, burn_in=5, thinning=2)


def mlp() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))


def trained(method=FAST, epochs: int = 3, **options):
    bnn = bayesify(mlp(), method)
    x, y = (z.float() for z in line())
    fit(bnn, (x, y), Gaussian(std=STD), epochs=epochs, batch_size=10, accelerator="cpu", progress=False, **options)
    return bnn, x


class TestUse:
    def test_fit_samples_and_equal_seeds_give_equal_draws(self):
        (bnn, x), (again, _) = trained(), trained()
        assert bnn.net[0].posterior.draws.shape == (12, 12)
        assert torch.equal(bnn.net[2].posterior.draws, again.net[2].posterior.draws)
        other, _ = trained(seed=1)
        assert not torch.equal(bnn.net[2].posterior.draws, other.net[2].posterior.draws)
        assert (predict(bnn, x, Gaussian(std=STD), samples=12).epistemic > 0).all()

    def test_draws_of_all_layers_belong_together(self):
        bnn, x = trained()
        stored = torch.cat([bnn.net[0].posterior.draws, bnn.net[2].posterior.draws], 1)
        for seed in range(5):
            drawn = torch.cat([p.detach().flatten() for p in bnn.sample_network(seed).parameters()])
            assert (stored == drawn).all(1).any()
        outputs = bnn.eval()(x, samples=12, coherent=True).outputs
        expected = {round(float(bnn.sample_network(seed)(x).detach().sum()), 3) for seed in range(100)}
        assert {round(float(y.detach().sum()), 3) for y in outputs} == expected
        assert len(expected) == 12  # one pass with as many draws as there are uses each once
        assert summary(bnn).layers[0].remark.startswith("12 draws; of the network's outputs, R-hat is at most ")

    def test_training_uses_the_point_estimate_and_drops_the_draws(self):
        bnn, x = trained()
        plain = mlp()
        plain.load_state_dict({k: v for k, v in bnn.net.state_dict().items() if "posterior" not in k})
        torch.testing.assert_close(bnn.train()(x).outputs[0], plain(x))
        fit(bnn, (x, x[:, :1]), Gaussian(std=STD), epochs=1, accelerator="cpu", progress=False)
        again = bayesify(mlp(), FAST)
        again.load_state_dict(bnn.state_dict())
        torch.testing.assert_close(again.net[0].posterior.draws, bnn.net[0].posterior.draws)
        mean = again.net[0].posterior.draws.mean(0)
        torch.testing.assert_close(torch.cat([p.detach().flatten() for p in unbayesify(bnn)[0].parameters()]), mean)

    def test_saving_loading_and_half_precision(self):
        bnn, x = trained()
        fresh = bayesify(mlp(), FAST)
        fresh.load_state_dict(bnn.state_dict())
        predictions = [predict(b, x, Gaussian(std=STD), samples=20, seed=3).mean for b in (bnn, fresh)]
        assert torch.equal(*predictions)
        assert fresh.to(torch.bfloat16).net[0].posterior.draws.dtype == torch.float32
        fresh.net.load_state_dict(mlp().state_dict(), strict=False)
        assert not fresh.net[0].posterior.is_complete

    def test_ensembles_and_models_trained_together(self):
        x, y = (z.float() for z in line())
        likelihood = partial(Gaussian, std=STD)
        alone = [bayesify(mlp(), FAST) for _ in range(2)]
        for k, bnn in enumerate(alone):
            fit(bnn, (x, y), likelihood(), epochs=3, batch_size=10, seed=k, accelerator="cpu", progress=False)
        together = [bayesify(mlp(), FAST) for _ in range(2)]
        trainings = [Training(bnn=b, data=(x, y), likelihood=likelihood(), seed=k) for k, b in enumerate(together)]
        fit_many(trainings, epochs=3, batch_size=10, accelerator="cpu", together=True, progress=False)
        for one, other in zip(alone, together, strict=True):
            torch.testing.assert_close(one.net[2].posterior.draws, other.net[2].posterior.draws, rtol=1e-3, atol=1e-4)
        ensemble, _ = trained(DeepEnsemble(members=2, base=FAST))
        assert all(member.net[0].posterior.is_complete for member in ensemble.members)

    def test_weights_of_examples_and_n_scale_the_likelihood(self):
        """Chains with equal noise: weights of 2 and n = 2N are the same posterior."""
        x, y = (z.float() for z in line())
        options = {"epochs": 1, "batch_size": 30, "learning_rate": 1e-12, "accelerator": "cpu", "progress": False}
        runs = []
        for data, n in (((x, y), 60), (Weighted((x, y), torch.full((30,), 2.0)), 30)):
            method = SGLD(prior_std=PRIOR, step_size=0.01 if n == 60 else 0.005, draws=4, burn_in=5, chains=2)
            bnn = bayesify(mlp(), method)
            fit(bnn, data, Gaussian(std=STD), n=n, **options)
            runs.append(bnn.net[0].posterior.draws)
        torch.testing.assert_close(*runs, rtol=1e-3, atol=1e-3)

    def test_only_named_layers_and_other_methods_at_their_means(self):
        net = mlp()
        bnn = bayesify(net, {"0": MeanField(), "2": FAST})
        x, y = (z.float() for z in line())
        bnn.complete([(x, y)], Gaussian(std=STD))
        assert bnn.net[2].posterior.draws.shape == (12, 5)

    @pytest.mark.parametrize("method", [FAST, SGLD(draws=4, burn_in=7, thinning=2), HMC(draws=4, chains=2, warmup=3)])
    def test_progress_ends_at_one(self, method, monkeypatch: pytest.MonkeyPatch):
        if isinstance(method, HMC):
            pytest.importorskip("pyro")
        bars = []

        class Bar(ProgressBar):
            def __init__(self, *arguments, **options):
                super().__init__(*arguments, **options)
                bars.append(self)

        monkeypatch.setattr("bayesify.core.completion.ProgressBar", Bar)
        x, y = (z.float() for z in line())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BayesifyWarning)  # so few steps do not mix
            bayesify(nn.Linear(2, 1), method).complete([(x, y)], Gaussian(std=STD), progress=False)
        assert [bar.text for bar in bars] == [type(method).__name__]
        assert bars[0].done == pytest.approx(1)


class TestRefused:
    def test_predictions_before_sampling_warn(self):
        bnn = bayesify(mlp(), FAST)
        with pytest.warns(BayesifyWarning, match="no posterior was made after training"):
            predict(bnn, torch.zeros(2, 2), Gaussian(std=1.0), samples=2)

    def test_chains_that_have_not_mixed_warn(self):
        x, y = line()
        bnn = at_the_mode(SGLD(prior_std=PRIOR, step_size=1e-7, draws=10, chains=2, burn_in=0, thinning=1), x, y)
        with pytest.warns(BayesifyWarning, match=r"the chains have not mixed: R-hat .* up to"):
            bnn.complete([(x, y)], Gaussian(std=STD))

    def test_divergence(self):
        x, y = line()
        bnn = at_the_mode(SGLD(step_size=100.0, burn_in=0, draws=4), x, y)
        with pytest.raises(DivergenceError, match="the chains diverged; lower step_size=100 of SGLD"):
            bnn.complete([(x, y)], Gaussian(std=STD))

    def test_a_likelihood_with_a_penalty(self):
        with pytest.raises(ConfigurationError, match="EvidentialGaussian trains with a penalty"):
            bayesify(nn.Linear(2, 4), FAST).complete([line()], EvidentialGaussian())

    def test_other_methods(self):
        with pytest.raises(ConfigurationError, match="no posterior of this network is made after training; use Laplace"):
            bayesify(mlp(), MeanField()).complete([line()], Gaussian())

    def test_no_prior(self):
        with pytest.raises(ConfigurationError, match="beta is 0 at the end of training"):
            trained(beta=0.0)

    @pytest.mark.parametrize(
        ("method", "fields"),
        [
            (SGLD, {"step_size": 0.0}),
            (SGLD, {"temperature": -1.0}),
            (SGLD, {"prior_std": math.inf}),
            (SGLD, {"draws": 3}),
            (SGLD, {"chains": 0}),
            (SGHMC, {"friction": 0.0}),
            (SGHMC, {"friction": 1.5}),
            (HMC, {"target_accept": 1.0}),
            (HMC, {"warmup": 0}),
            (HMC, {"spread": 0.0}),
        ],
    )
    def test_fields(self, method, fields: dict[str, float]):
        with pytest.raises(ConfigurationError, match=next(iter(fields))):
            method(**fields)
