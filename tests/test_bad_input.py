"""Bad input of the Python API: an error that names the argument and the way out, never a wrong number or a message of PyTorch."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from bayesify import BayesifyWarning, Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, MeanField, bayesify, elbo, predict
from bayesify.core.outputs import Draws
from bayesify.errors import ConfigurationError, DataError, DivergenceError
from bayesify.estimators import BayesianClassifier, BayesianRegressor
from bayesify.likelihoods import Poisson
from bayesify.methods import HMC, VSD, ConcreteDropout
from bayesify.metrics import accuracy, brier, coverage, interval_width, nll, ood_metrics, rmse
from bayesify.objectives import LinearWarmup
from bayesify.predictive import CountPredictive, GaussianPredictive, StudentTPredictive
from bayesify.train import fit

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    "make",
    [
        lambda: MeanField(delta="0.1"),
        lambda: MeanField(mixture_weight=None),
        lambda: HMC(target_accept="0.8"),
        lambda: VSD(p=[0.1]),
        lambda: ConcreteDropout(p="0.1"),
        lambda: LinearWarmup(fraction="0.5"),
        lambda: CountPredictive(torch.ones(1, 2)).quantile("0.5"),
        lambda: Poisson(scale=torch.ones(2)),
    ],
)
def test_arguments_that_are_no_numbers(make):
    with pytest.raises(ConfigurationError, match=r"must be a number .*got "):
        make()


def draws(batch=3):
    return Draws(outputs=torch.zeros(2, batch, 1), kl=torch.tensor(30.0), local_kl=torch.zeros(batch))


class TestELBO:
    @pytest.mark.parametrize(
        ("arguments", "match"),
        [
            ({"n": INF}, "n must be the number of training examples, a finite number above 0, got inf"),
            ({"n": NAN}, "n must be .* got nan"),
            ({"n": 0}, "n must be .* got 0"),
            ({"n": True}, "n must be .* got True"),
            ({"n": 10, "beta": -1.0}, r"beta must be a finite number of at least 0, got -1\.0"),
            ({"n": 10, "beta": NAN}, "beta must be .* got nan"),
            ({"n": 10, "local_beta": INF}, "local_beta must be .* got inf"),
        ],
    )
    def test_numbers(self, arguments, match):
        with pytest.raises(ConfigurationError, match=match):
            elbo(draws(), torch.zeros(2, 3), **arguments)

    def test_types(self):
        with pytest.raises(DataError, match=r"log_prob must be floating point, got torch\.int64"):
            elbo(draws(), torch.zeros(2, 3, dtype=torch.int64), n=10)
        with pytest.raises(DataError, match=r"log_prob must have shape \(S, B\) = \(2, 3\), got \(3,\)"):
            elbo(draws(), torch.zeros(3), n=10)

    def test_n_below_the_batch_is_a_warning(self):
        with pytest.warns(BayesifyWarning, match="n=2 is smaller than the batch of 3 examples"):
            elbo(draws(), torch.zeros(2, 3), n=2)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            elbo(draws(), torch.zeros(2, 3), n=3)

    def test_compiled_and_vectorized(self):
        def loss(log_prob):
            return elbo(draws(), log_prob, n=10, beta=0.5)

        x = torch.randn(4, 2, 3)
        expected = torch.stack([loss(each) for each in x])
        torch.testing.assert_close(torch.vmap(loss)(x), expected)
        torch.testing.assert_close(torch.compile(loss, fullgraph=True, backend="eager")(x[0]), expected[0])


class TestLikelihoods:
    @pytest.mark.parametrize(
        ("likelihood", "outputs", "y", "match"),
        [
            (Bernoulli, (2, 3), [0, 1, 2], "y must have zeros and ones only, got 2"),
            (Bernoulli, (2, 3), [-1, 1, 1], "y must have zeros and ones only, got -1"),
            (Bernoulli, (2, 3), [0.0, NAN, 1.0], "y must have zeros and ones only, got nan"),
            (Categorical, (2, 3, 4), [0, 1, 4], r"class labels from 0 to 3, .* got 4"),
            (Categorical, (2, 3, 4), [0, 1, -1], r"class labels from 0 to 3, .* got -1"),
            (Gaussian, (2, 3), [0.0, NAN, 1.0], "y must be finite"),
            (HeteroscedasticGaussian, (2, 3, 2), [0.0, INF, 1.0], "y must be finite"),
        ],
    )
    def test_values_of_the_first_batch(self, likelihood, outputs, y, match):
        with pytest.raises(DataError, match=match):
            likelihood().log_prob(torch.zeros(outputs), torch.tensor(y))

    def test_later_batches_are_not_looked_at(self, monkeypatch):
        likelihood = Bernoulli()
        likelihood.log_prob(torch.zeros(2, 3), torch.tensor([0, 1, 1]))
        monkeypatch.setattr(Bernoulli, "check_values", lambda *arguments: pytest.fail("values are looked at again"))
        likelihood.log_prob(torch.zeros(2, 3), torch.tensor([0, 1, 1]))

    @pytest.mark.parametrize("class_dim", [-1, 1])
    def test_labels_of_later_batches(self, class_dim):
        """The message is not PyTorch's, about an index."""
        likelihood, outputs = Categorical(class_dim=class_dim), torch.zeros(2, 3, 4, 4)
        likelihood.log_prob(outputs, torch.zeros(3, 4, dtype=torch.long))
        with pytest.raises(DataError, match=r"class labels from 0 to 3, .* got 7"):
            likelihood.log_prob(outputs, torch.full((3, 4), 7))

    def test_compiled_vectorized_exported_and_without_values(self):
        y = torch.tensor([0, 1, 3])
        x = torch.randn(5, 2, 3, 4)
        expected = torch.stack([Categorical().log_prob(each, y) for each in x])
        torch.testing.assert_close(torch.vmap(lambda each: Categorical().log_prob(each, y))(x), expected)
        fresh = Categorical()
        torch.testing.assert_close(torch.compile(fresh, fullgraph=True, backend="eager")(x[0], y), expected[0])
        exported = torch.export.export(Categorical(), (x[0], y)).module()
        torch.testing.assert_close(exported(x[0], y), expected[0])
        assert Categorical().log_prob(x[0].to("meta"), y.to("meta")).shape == (2, 3)
        one = x[0]
        with torch._subclasses.FakeTensorMode() as mode:
            assert Categorical().log_prob(mode.from_tensor(one), mode.from_tensor(y)).shape == (2, 3)

    def test_complex_targets(self):
        with pytest.raises(DataError, match=r"y must have real values, got torch\.complex64"):
            Gaussian().log_prob(torch.zeros(2, 3), torch.zeros(3, dtype=torch.complex64))

    def test_a_missing_dimension_of_the_targets_is_no_broadcast(self):
        outputs, y = torch.randn(2, 12, 1), torch.randn(12)
        expected = torch.distributions.Normal(outputs.squeeze(-1), 1.0).log_prob(y)
        torch.testing.assert_close(Gaussian().log_prob(outputs, y), expected)

    def test_std_as_a_tensor(self):
        with pytest.raises(
            ConfigurationError, match=r"std must be a number or one per output, got a tensor \(2,\); use std.tolist\(\)"
        ):
            Gaussian(std=torch.ones(2))


class TestPredictives:
    @pytest.mark.parametrize("std", [-1.0, 0.0, NAN])
    def test_spread(self, std):
        one = torch.ones(1, 2)
        with pytest.raises(DataError, match="stds must be above 0 and not NaN"):
            GaussianPredictive(one, torch.tensor(std))
        with pytest.raises(DataError, match="scales must be above 0 and not NaN"):
            StudentTPredictive(one, std * one, 3 * one, one)

    @pytest.mark.parametrize("mean", [-1.0, NAN])
    def test_means_of_counts(self, mean):
        with pytest.raises(DataError, match="means of counts must be at least 0 and not NaN"):
            CountPredictive(torch.full((1, 2), mean))


class TestMetrics:
    def test_trailing_dimensions_are_no_broadcast(self):
        mean, y = torch.randn(4, 1), torch.randn(4)
        expected = (mean.squeeze(1) - y).square().mean().sqrt()
        torch.testing.assert_close(rmse(mean, y), expected)
        torch.testing.assert_close(rmse(mean.squeeze(1), y.unsqueeze(1)), expected)
        assert coverage(mean - 9, mean + 9, y) == 1
        with pytest.raises(DataError, match=r"lower and upper must have the same shape, got \(4, 1\) and \(4,\)"):
            coverage(mean, mean.squeeze(1), y)
        with pytest.raises(DataError, match="the same shape"):
            interval_width(mean, mean.squeeze(1))

    @pytest.mark.parametrize("bad", [NAN, INF])
    def test_values(self, bad):
        good, wrong = torch.zeros(2), torch.tensor([0.0, bad])
        for pair in ((wrong, good), (good, wrong)):
            with pytest.raises(DataError, match=r"(mean|y) must be finite, got 1 NaN or infinite of 2 values"):
                rmse(*pair)
        with pytest.raises(DataError, match="y must be finite"):
            coverage(good, good, wrong)

    def test_intervals(self):
        for lower in (torch.ones(2), torch.tensor([NAN, 0.0])):
            for metric in (
                lambda low: coverage(low, torch.zeros(2), torch.zeros(2)),
                lambda low: interval_width(low, torch.zeros(2)),
            ):
                with pytest.raises(DataError, match="lower must not be above upper, and neither NaN"):
                    metric(lower)

    @pytest.mark.parametrize("metric", [accuracy, brier, nll])
    def test_probabilities(self, metric):
        y = torch.tensor([0, 1])
        with pytest.raises(DataError, match=r"probs must sum to 1 in every row, got sums that differ by up to 0\.5"):
            metric(torch.tensor([[0.5, 0.5], [0.5, 0.0]]), y)
        with pytest.raises(DataError, match=r"probs must be in \[0, 1\] and not NaN"):
            metric(torch.tensor([[0.5, 0.5], [0.5, NAN]]), y)
        metric(torch.tensor([[0.3, 0.3, 0.4], [0.1, 0.7, 0.2]]).bfloat16(), y)

    def test_scores(self):
        with pytest.raises(DataError, match="score_out must have at least one score and no NaN"):
            ood_metrics(torch.zeros(2), torch.tensor([NAN]))


class TestNetworks:
    def test_weights(self):
        net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
        net[1].weight.data[0, 0] = NAN
        with pytest.raises(ConfigurationError, match=r"weight of a Linear \(1, 3\) has 1 NaN or infinite values"):
            bayesify(net, MeanField())
        assert type(net[0]) is nn.Linear  # as before

    def test_weights_of_inference_mode(self):
        with torch.inference_mode():
            net = nn.Linear(3, 1)
        with pytest.raises(ConfigurationError, match=r"weight of a Linear \(1, 3\) was made in torch.inference_mode"):
            bayesify(net, MeanField())

    def test_without_values(self):
        net = bayesify(nn.Linear(2, 1, device="meta"), MeanField())
        with pytest.raises(ConfigurationError, match="parameters on the meta device"):
            predict(net, torch.zeros(3, 2), Gaussian())
        with pytest.raises(ConfigurationError, match="parameters on the meta device"):
            fit(net, (torch.zeros(3, 2), torch.zeros(3)), Gaussian())
        with pytest.raises(DataError, match=r"inputs must have values, got a tensor \(3, 2\) on the meta device"):
            predict(bayesify(nn.Linear(2, 1), MeanField()), torch.zeros(3, 2, device="meta"), Gaussian())

    def test_predict(self):
        x, y = torch.zeros(3, 2), torch.zeros(3)
        with pytest.raises(TypeError, match=r"bnn is a plain Linear; make it Bayesian first: bayesify\(net, MeanField\(\)\)"):
            predict(nn.Linear(2, 1), x, Gaussian())
        with pytest.raises(
            DataError, match=r"inputs is a tuple of 2, .* takes 1 \(input\); leave the targets out, or .*\[\(x, y\)\]"
        ):
            predict(bayesify(nn.Linear(2, 1), MeanField()), (x, y), Gaussian())


class TestFit:
    DATA = torch.randn(6, 2), torch.randn(6)

    @pytest.mark.parametrize("likelihood", [nn.MSELoss(), Gaussian, "gaussian", None])
    def test_likelihood(self, likelihood):
        with pytest.raises(
            TypeError, match=r"likelihood must be a Likelihood such as Categorical\(\) or Gaussian\(learn=True\), got"
        ):
            fit(bayesify(nn.Linear(2, 1), MeanField()), self.DATA, likelihood)

    def test_devices(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        net = bayesify(nn.Linear(2, 1), MeanField())
        with pytest.raises(ConfigurationError, match="accelerator is 'cuda', but PyTorch has no CUDA device; use 'cpu' or 'auto'"):
            fit(net, self.DATA, Gaussian(), accelerator="cuda")
        for devices in (0, -1, [], True, "two"):
            with pytest.raises(ConfigurationError, match="devices must be a number of at least 1, or a list of GPUs"):
                fit(net, self.DATA, Gaussian(), devices=devices, accelerator="cpu")

    @pytest.mark.parametrize(("rows", "batch_size"), [(1, 8), (6, 1)])
    def test_batch_normalization_of_one_row(self, rows, batch_size):
        net = bayesify(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)), {"0": MeanField()})
        x, y = self.DATA
        with pytest.raises(DataError, match=r"batches of one row, of which batch normalization \(net\.1\) cannot take a variance"):
            fit(net, (x[:rows], y[:rows]), Gaussian(), batch_size=batch_size, epochs=1, accelerator="cpu")

    def test_divergence_names_the_layer(self):
        net = bayesify(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)), MeanField(prior_std=0.1))
        name, log_std = next((n, p) for n, p in net.named_parameters() if "std" in n and n.startswith("net.2"))
        log_std.data.fill_(43.0)
        with pytest.raises(DivergenceError, match=r"NaN or infinite: .*(the KL of 2|net\.2\.)"):
            fit(net, self.DATA, Gaussian(), epochs=1, accelerator="cpu")
        assert name


class TestEstimators:
    X = np.arange(20.0).reshape(-1, 1)

    def test_labels_of_several_kinds(self):
        y = np.array(["a", 1] * 10, dtype=object)
        with pytest.raises(DataError, match="y must have labels of one kind, got 2: text and others"):
            BayesianClassifier(epochs=1).fit(self.X, y)
        with pytest.raises(DataError, match="y must have labels of one kind, got 2: booleans and others"):
            BayesianClassifier(epochs=1).fit(self.X, np.array([True, 1] * 10, dtype=object))
        with pytest.raises(ValueError, match="expects discrete classes on a regression target with continuous values"):
            BayesianClassifier(epochs=1).fit(self.X, np.array([1.5, 2] * 10, dtype=object))

    def test_numbers_in_an_array_of_objects_are_classes(self):
        model = BayesianClassifier(method="Deterministic", epochs=1).fit(self.X, np.array([3, 7] * 10, dtype=object))
        assert model.classes_.tolist() == [3, 7]

    def test_targets_whose_squares_overflow(self):
        with pytest.raises(DataError, match=r"y must be between -1e\+150 and 1e\+150, got 1e\+300; rescale it"):
            BayesianRegressor(epochs=1).fit(self.X, np.linspace(0, 1e300, 20))
