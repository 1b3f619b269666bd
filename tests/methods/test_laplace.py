"""Laplace approximations against dense algebra: exact posteriors of linear models, dense curvature, evidence, Jacobians."""

import math
import sys

import pytest
import scipy.optimize
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal
from torch.func import functional_call, hessian, jacrev

from bayesify import (
    BayesifyWarning,
    Bernoulli,
    Categorical,
    ConfigurationError,
    DataError,
    DeepEnsemble,
    Gaussian,
    HeteroscedasticGaussian,
    Laplace,
    MissingDependencyError,
    NothingRandomError,
    bayesify,
    fit,
    predict,
    summary,
)

STRUCTURES = ("diagonal", "kronecker", "full")
STD, PRIOR = 0.4, 0.7
try:
    import laplace
except ImportError:
    laplace = None
needs_laplace = pytest.mark.skipif(laplace is None, reason="needs bayesify[laplace]")


def mlp(outputs: int = 1, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, outputs, bias=bias)).double()


def data(outputs: int = 1, n: int = 30) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    noise = STD * torch.randn(n, outputs, generator=generator, dtype=torch.float64)
    return x, x.sum(1, keepdim=True).sin() + noise


def completed(net: nn.Module, method, x: Tensor, y: Tensor, likelihood, **options):
    bnn = bayesify(net, method).eval()
    bnn.complete([(x[:7], y[:7]), (x[7:], y[7:])], likelihood, **options)
    return bnn


def plain(bnn) -> dict[str, Tensor]:
    """The trained weights by name."""
    return {name: p.detach() for name, p in bnn.net.named_parameters() if "posterior" not in name}


def jacobian(net: nn.Module, weights: dict[str, Tensor], x: Tensor, names: list[str]) -> Tensor:
    """Jacobian (B, K, P) of the outputs in the weights `names`, by torch.func."""
    fixed = {name: w for name, w in weights.items() if name not in names}
    chosen = {name: weights[name] for name in names}
    jac = jacrev(lambda some: functional_call(net, {**fixed, **some}, x))(chosen)
    return torch.cat([jac[name].flatten(2) for name in names], 2)


def covariance(bnn, draws: int = 0) -> Tensor:
    """Dense covariance of the weights of all layers, from the buffers."""
    blocks, rows = [], []
    for _, layer in bnn.random_layers():
        p = layer.posterior
        if bnn.report[-1].method.structure == "full":
            rows.append(p.scale)
        elif bnn.report[-1].method.structure == "diagonal":
            blocks.append(p.std.square().diag())
        else:
            vectors = torch.kron(p.output_vectors, p.input_vectors)
            blocks.append(vectors * p.std.flatten().square() @ vectors.T)
            if layer.bias_shape is not None:
                blocks.append(p.bias_vectors * p.bias_std.square() @ p.bias_vectors.T)
    return torch.cat(rows) @ torch.cat(rows).T if rows else torch.block_diag(*blocks)


def gauss_newton(x: Tensor, outputs: Tensor, jac: Tensor, likelihood) -> Tensor:
    """Sum over rows of J' Lambda J, with Lambda the autograd Hessian of the negative log likelihood in the outputs."""
    y = torch.zeros(1, dtype=torch.long) if isinstance(likelihood, Categorical) else torch.zeros(1, outputs.shape[1]).double()
    total = torch.zeros(jac.shape[2], jac.shape[2], dtype=torch.float64)
    for f, j in zip(outputs, jac, strict=True):
        curvature = hessian(lambda f: -likelihood.log_prob(f.view(1, 1, -1), y).sum())(f)
        total += j.T @ curvature @ j
    return total


@needs_laplace
class TestAgainstDenseAlgebra:
    @pytest.mark.parametrize("scale", [1.0, 2.5])
    def test_linear_regression_is_exact(self, scale: float):
        """Mean, covariance, evidence and predictions of the conjugate model, of a network trained to its mode."""
        x, y = data(n=20)
        features = torch.cat([x, torch.ones(20, 1)], 1).double()
        precision = scale * features.T @ features / STD**2 + torch.eye(3).double() / PRIOR**2
        mean = torch.linalg.solve(precision, scale * features.T @ y.squeeze(1) / STD**2)
        net = nn.Linear(2, 1).double()
        net.load_state_dict({"weight": mean[None, :2], "bias": mean[2:]})
        method = Laplace(structure="full", prior_std=PRIOR, tune_prior=False)
        bnn = completed(net, method, x, y, Gaussian(std=STD), scale=scale)
        torch.testing.assert_close(covariance(bnn), precision.inverse(), rtol=1e-5, atol=1e-7)
        if scale == 1:
            marginal = STD**2 * torch.eye(20).double() + PRIOR**2 * features @ features.T
            evidence = MultivariateNormal(torch.zeros(20).double(), marginal).log_prob(y.squeeze(1))
        else:  # the density of 2.5 copies of the data: p^2.5 integrated over the prior, by completing the square
            residuals = y.squeeze(1) - features @ mean
            energy = scale * (0.5 * residuals.square().sum() / STD**2 + 20 * math.log(STD * math.sqrt(2 * math.pi)))
            prior = 0.5 * mean.square().sum() / PRIOR**2 + 3 * math.log(PRIOR)
            evidence = -energy - prior - 0.5 * torch.logdet(precision)
        assert bnn.net.posterior.evidence[1] == pytest.approx(float(evidence), rel=1e-5)
        new = torch.randn(5, 2, dtype=torch.float64)
        p = predict(bnn, new, Gaussian(std=STD), samples=3000, seed=0)
        at = torch.cat([new, torch.ones(5, 1)], 1)
        torch.testing.assert_close(p.mean, at @ mean, atol=0.02, rtol=0)
        torch.testing.assert_close(p.epistemic, ((at @ precision.inverse()) * at).sum(1), rtol=0.1, atol=0)

    @pytest.mark.parametrize("layers", ["last", "all", "first, by a pattern"])
    @pytest.mark.parametrize("structure", ["diagonal", "full"])
    @pytest.mark.parametrize("likelihood", [Gaussian(std=[0.4, 0.9, 0.2]), Categorical(temperature=1.7)], ids=["normal", "classes"])
    def test_curvature(self, layers: str, structure: str, likelihood):
        x, y = data(3)
        y = y.argmax(1) if isinstance(likelihood, Categorical) else y
        options = {"structure": structure, "prior_std": PRIOR, "tune_prior": False}
        method = {"0": Laplace(**options)} if layers.startswith("first") else Laplace(layers=layers, **options)
        bnn = completed(mlp(3), method, x, y, likelihood)
        names = [f"{name}.{part}" for name, _ in bnn.random_layers() for part in ("weight", "bias")]
        jac = jacobian(mlp(3), plain(bnn), x, names)
        precision = gauss_newton(x, mlp(3)(x).detach(), jac, likelihood) + torch.eye(jac.shape[2]).double() / PRIOR**2
        expected = precision.inverse() if structure == "full" else (1 / precision.diag()).diag()
        torch.testing.assert_close(covariance_of(bnn, structure), expected, rtol=1e-4, atol=1e-6)

    def test_gauss_newton_is_the_hessian_of_logistic_regression(self):
        """The second derivatives of the log likelihood in the weights, by autograd, without Jacobians."""
        x, y = data(3)
        net, labels = nn.Linear(2, 3).double(), y.argmax(1)
        bnn = completed(net, Laplace(structure="full", prior_std=PRIOR, tune_prior=False), x, labels, Categorical())

        def loss(vector: Tensor) -> Tensor:
            logits = x @ vector[:6].view(3, 2).T + vector[6:]
            return nn.functional.cross_entropy(logits, labels, reduction="sum") + 0.5 * vector.square().sum() / PRIOR**2

        vector = torch.cat([p.flatten() for p in plain(bnn).values()])
        torch.testing.assert_close(covariance(bnn), hessian(loss)(vector).inverse(), rtol=1e-4, atol=1e-6)

    def test_kronecker_factors_are_exact_for_one_layer_and_normal_noise(self):
        x, y = data(3)
        bnn = completed(mlp(3, bias=False), Laplace(prior_std=PRIOR, tune_prior=False), x, y, Gaussian(std=STD))
        hidden = mlp(3)[:2](x).detach()
        precision = torch.kron(torch.eye(3).double(), hidden.T @ hidden) / STD**2 + torch.eye(12).double() / PRIOR**2
        torch.testing.assert_close(covariance(bnn), precision.inverse(), rtol=1e-4, atol=1e-6)

    def test_kronecker_factors_of_a_categorical_model(self):
        """K-FAC: the mean of h h' over rows, times the sum over rows of the outputs' curvature; a bias sees the latter alone."""
        x, y = data(3)
        bnn = completed(mlp(3), Laplace(prior_std=PRIOR, tune_prior=False), x, y.argmax(1), Categorical())
        hidden, p = mlp(3)[:2](x).detach(), mlp(3)(x).detach().softmax(1)
        curvature = p.sum(0).diag() - p.T @ p
        weight = torch.kron(curvature, hidden.T @ hidden / len(x)) + torch.eye(12).double() / PRIOR**2
        bias = curvature + torch.eye(3).double() / PRIOR**2
        torch.testing.assert_close(covariance(bnn), torch.block_diag(weight.inverse(), bias.inverse()), rtol=1e-4, atol=1e-6)

    @pytest.mark.parametrize("structure", STRUCTURES)
    def test_the_prior_maximizes_the_marginal_likelihood(self, structure: str):
        x, y = data()
        reports = {}
        for prior_std in (None, *torch.logspace(-1, 1, 31).tolist()):
            method = Laplace(structure=structure, layers="all", prior_std=prior_std or 1.0, tune_prior=prior_std is None)
            reports[prior_std] = completed(mlp(), method, x, y, Gaussian(std=STD)).net[0].posterior.evidence.tolist()
        tuned, evidence = reports.pop(None)
        best = max(reports, key=lambda prior_std: reports[prior_std][1])
        assert tuned == pytest.approx(best, rel=0.2)  # the step of the grid is 17 %
        assert evidence > reports[best][1] - 0.05
        assert reports[best][0] == pytest.approx(best)

    @pytest.mark.parametrize("structure", STRUCTURES)
    @pytest.mark.parametrize("prior_std", [0.02, 1.0, 30.0])
    @pytest.mark.parametrize("weights", [(120.0, -80, 60, 0, 0, 0), (10.0, -4, 7, 1, 0, 0), (0.01, 0, 0.02, 0, 0, 0), (0.004,) * 6])
    def test_the_prior_is_the_best_of_any_scale(self, weights, prior_std: float, structure: str):
        """Against the evidence of a linear model by dense algebra, maximized by scipy; the last columns never vary."""
        weights = torch.tensor(weights, dtype=torch.float64)
        x, noise = torch.randn(61, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64).split([60, 1])
        x[:, 3:] = 0
        y = (x @ weights + 0.1 * noise[0, 0]).unsqueeze(1)
        net = nn.Linear(6, 1, bias=False).double()
        net.load_state_dict({"weight": weights.unsqueeze(0)})
        bnn = completed(net, Laplace(structure=structure, prior_std=prior_std), x, y, Gaussian(std=0.1))
        curvature = x.T @ x / 0.01 if structure != "diagonal" else (x.square().sum(0) / 0.01).diag()
        fit_of_data = Gaussian(std=0.1).log_prob((x @ weights).view(1, -1, 1), y).sum()

        def evidence(log_std: float) -> float:
            precision = math.exp(-2 * log_std)
            determinant = torch.logdet(curvature + precision * torch.eye(6).double()) + 12 * log_std
            return float(fit_of_data - 0.5 * (precision * weights.square().sum() + determinant))

        best = scipy.optimize.minimize_scalar(lambda log_std: -evidence(log_std), bounds=(-8, 8), method="bounded").x
        tuned, found = bnn.net.posterior.evidence.tolist()
        assert tuned == pytest.approx(math.exp(best), rel=2e-3)
        assert found == pytest.approx(evidence(best), abs=1e-3)

    def test_a_prior_without_optimum_ends_at_the_bound(self):
        x, y = data()
        net = nn.Linear(2, 1, bias=False).double()
        nn.init.zeros_(net.weight)
        bnn = completed(net, Laplace(prior_std=PRIOR), x, y, Gaussian(std=STD))
        assert bnn.net.posterior.evidence[0].item() == pytest.approx(PRIOR / 1e4, rel=1e-2)


def covariance_of(bnn, structure: str) -> Tensor:
    layers = [layer.posterior for _, layer in bnn.random_layers()]
    if structure == "diagonal":
        return torch.cat([p.std for p in layers]).square().diag()
    return torch.cat([p.scale for p in layers]) @ torch.cat([p.scale for p in layers]).T


@needs_laplace
class TestPredictions:
    @pytest.mark.parametrize("structure", STRUCTURES)
    def test_draws_have_the_stored_covariance(self, structure: str):
        bnn = completed(mlp(), Laplace(structure=structure, layers="all"), *data(), Gaussian(std=STD))
        drawn = bnn.passes.draw([layer for _, layer in bnn.random_layers()], 20000)
        draws = torch.cat([part.flatten(1) for weights in drawn.values() for part in weights], 1).double()
        exact = covariance(bnn)
        root = torch.linalg.cholesky(exact + 1e-12 * torch.eye(len(exact)).double())
        z = torch.linalg.solve_triangular(root, (draws - torch.cat([p.flatten() for p in plain(bnn).values()])).T, upper=False)
        torch.testing.assert_close(z.cov(), torch.eye(len(z)).double(), atol=0.06, rtol=0)
        assert z.mean(1).abs().max() < 0.04

    @pytest.mark.parametrize("structure", STRUCTURES)
    def test_linearized_predictions_have_the_variance_of_the_jacobians(self, structure: str):
        x, y = data(2)
        bnn = completed(mlp(2), Laplace(structure=structure, layers="all"), x, y, Gaussian(std=STD))
        names = [f"{name}.{part}" for name in ("0", "2") for part in ("weight", "bias")]
        jac = jacobian(mlp(2), plain(bnn), x, names)
        variance = torch.einsum("bkp,pq,bkq->bk", jac, covariance(bnn), jac)
        p = predict(bnn, x, Gaussian(std=STD), samples=1500, seed=0)
        torch.testing.assert_close(p.epistemic, variance, rtol=0.2, atol=0)
        assert ((p.mean - mlp(2)(x)).abs() < 4 * (variance / 1500).sqrt()).all()  # with the trained weights

    def test_a_linearized_draw_is_linear_in_the_weights(self):
        x, y = data()
        bnn = completed(mlp(), Laplace(structure="full", layers="all"), x, y, Gaussian(std=STD))
        weights = bnn._weights(3)
        change = torch.cat([
            (drawn.squeeze(0) - own).flatten() for layer, parts in weights.items()
            for drawn, own in zip(parts, (layer._parameters["weight"], layer._parameters["bias"]), strict=True)
        ])  # fmt: skip
        names = [f"{name}.{part}" for name in ("0", "2") for part in ("weight", "bias")]
        expected = mlp()(x) + jacobian(mlp(), plain(bnn), x, names) @ change
        torch.testing.assert_close(bnn.function(3)(x), expected, rtol=1e-5, atol=1e-6)
        with pytest.raises(NotImplementedError, match="draws of a linearized network are functions"):
            bnn.sample_network(3)
        with pytest.raises(NotImplementedError, match="functions, not networks"), bnn.drawn(3):
            pass

    def test_sampled_weights(self):
        x, y = data()
        method = Laplace(structure="full", layers="all", linearized=False)
        bnn = completed(mlp(), method, x, y, Gaussian(std=STD))
        torch.testing.assert_close(bnn.function(3)(x), bnn.sample_network(3)(x))
        assert (predict(bnn, x, Gaussian(std=STD), samples=50, seed=0).epistemic > 0).all()

    def test_training_mode_and_batches(self):
        x, y = data()
        bnn = completed(mlp(), Laplace(layers="all"), x, y, Gaussian(std=STD))
        torch.testing.assert_close(bnn.train()(x).outputs[0], mlp()(x))
        bnn.eval()
        one, parts = (predict(bnn, x, Gaussian(std=STD), samples=10, chunk=5, seed=0, coherent=True, batch_size=b) for b in (30, 7))
        torch.testing.assert_close(one.mean, parts.mean)


@needs_laplace
class TestUse:
    def test_fit_saving_and_loading_without_the_library(self, monkeypatch: pytest.MonkeyPatch):
        x, y = (z.float() for z in data())
        method = Laplace(structure="full", layers="all")
        bnn = bayesify(mlp().float(), method)
        fit(bnn, (x, y), Gaussian(std=STD), epochs=3, accelerator="cpu", progress=False, validation=(x, y))
        assert "prior std" in summary(bnn).layers[0].remark
        assert "log marginal likelihood -" in summary(bnn).layers[0].remark
        expected = predict(bnn, x, Gaussian(std=STD), samples=20, seed=0)
        state = bnn.state_dict()
        for name in [name for name in sys.modules if name.partition(".")[0] in ("laplace", "curvlinops")]:
            monkeypatch.delitem(sys.modules, name)
        _hide_laplace(monkeypatch)
        again = bayesify(mlp().float(), method)
        again.load_state_dict(state)
        assert torch.equal(predict(again, x, Gaussian(std=STD), samples=20, seed=0).mean, expected.mean)

    def test_ensembles(self):
        x, y = (z.float() for z in data())
        nets = [nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)) for _ in range(2)]
        bnn = bayesify(nets, DeepEnsemble(members=2, base=Laplace()))
        fit(bnn, (x, y), Gaussian(std=STD), epochs=2, accelerator="cpu", progress=False)
        assert (predict(bnn, x, Gaussian(std=STD), samples=20, seed=0).epistemic > 0).all()

    @pytest.mark.parametrize("structure", STRUCTURES)
    def test_convolutions(self, structure: str):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3))
        x, y = torch.randn(20, 1, 5, 5), torch.randint(3, (20,))
        method = Laplace(structure=structure)
        bnn = bayesify(net, {"0": method, "4": method}).eval()
        bnn.complete([(x, y)], Categorical(ignore_index=2))
        assert (predict(bnn, x, Categorical(), samples=20, seed=0).mutual_information > 0).all()


@needs_laplace
class TestRefused:
    @pytest.mark.parametrize("likelihood", [HeteroscedasticGaussian(), Bernoulli()])
    def test_likelihoods_before_training(self, likelihood):
        expected = f"laplace-torch knows Gaussian and Categorical likelihoods, got {type(likelihood).__name__}"
        bnn = bayesify(mlp(2), Laplace())
        before = bnn.net[0].weight.clone()
        with pytest.raises(ConfigurationError, match=expected):
            bnn.complete([data(2)], likelihood)
        x, y = data(2)
        y = y.sigmoid().round() if isinstance(likelihood, Bernoulli) else y[:, 0]
        with pytest.raises(ConfigurationError, match=expected):
            fit(bnn, (x, y), likelihood, epochs=1, accelerator="cpu", progress=False)
        assert torch.equal(bnn.net[0].weight, before)

    def test_weights_of_examples(self):
        x, y = data()
        with pytest.raises(ConfigurationError, match="laplace-torch has no weights of examples"):
            bayesify(mlp(), Laplace()).complete([(x, y, torch.ones(30))], Gaussian())

    def test_several_outputs_per_example(self):
        x = torch.randn(4, 5, 2, dtype=torch.float64)
        with pytest.raises(DataError, match=r"outputs \(B, K\), one vector per example, got \(4, 5, 1\)"):
            bayesify(mlp(), Laplace()).complete([(x, x[..., :1])], Gaussian())

    def test_a_set_per_example(self):
        """Also one of as many rows as there are outputs, which would be taken for as many examples of one output."""

        class Pooled(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(2, 4).double()

            def forward(self, x):
                return self.layer(x.mean(0, keepdim=True))

        x, y = torch.randn(4, 2, dtype=torch.float64), torch.randn(1, 4, dtype=torch.float64)
        with pytest.raises(ConfigurationError, match=r"a row of outputs for each row of inputs, got 1 for 4"):
            bayesify(Pooled(), Laplace(), unbatched=["x"]).complete([(x, y)], Gaussian())


def test_fields():
    for fields in ({"layers": "first"}, {"structure": "kron"}, {"prior_std": 0.0}):
        with pytest.raises(ConfigurationError, match=next(iter(fields))):
            Laplace(**fields)


def test_layers_that_a_structure_cannot_serve():
    with pytest.raises(NothingRandomError, match="Laplace leaves LayerNorm as it is"):
        bayesify(nn.LayerNorm(3), Laplace(layers="all"))


def test_predictions_while_training_warn():
    with pytest.warns(BayesifyWarning, match="no posterior was made after training"):
        predict(bayesify(mlp(), Laplace()), torch.zeros(2, 2).double(), Gaussian(), samples=2)


def test_a_missing_library(monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "laplace"]:
        monkeypatch.delitem(sys.modules, name)
    _hide_laplace(monkeypatch)
    with pytest.raises(MissingDependencyError, match=r"the posterior of Laplace\(\) requires laplace-torch.*bayesify\[laplace\]"):
        bayesify(mlp(), Laplace()).complete([data()], Gaussian())


def _hide_laplace(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("laplace", "laplace.curvature", "curvlinops"):
        monkeypatch.setitem(sys.modules, name, None)
