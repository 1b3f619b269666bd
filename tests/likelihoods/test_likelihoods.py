"""Likelihoods against torch.distributions and scipy, their gradients, their errors, compilation and saving."""

import copy
import math
import warnings

import numpy as np
import pytest
import scipy.stats
import torch
import torch.nn.functional as F
from torch import distributions as D
from torch import nn

from bayesify import MeanField, bayesify, fit
from bayesify.errors import BayesifyWarning
from bayesify.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    GaussianMixture,
    HeteroscedasticGaussian,
    Likelihood,
    Ordinal,
    Poisson,
)

S, B, K = 3, 5, 4
CASES = {
    "categorical": (Categorical(), (S, B, K), torch.randint(0, K, (B,))),
    "tokens": (Categorical(), (S, B, 7, K), torch.randint(0, K, (B, 7))),
    "bernoulli": (Bernoulli(), (S, B, 1), torch.randint(0, 2, (B,))),
    "labels": (Bernoulli(), (S, B, 6), torch.randint(0, 2, (B, 6))),
    "gaussian": (Gaussian(std=0.3), (S, B), torch.randn(B)),
    "gaussians": (Gaussian(std=[0.3, 2.0], learn=True), (S, B, 2), torch.randn(B, 2)),
    "heteroscedastic": (HeteroscedasticGaussian(), (S, B, 4), torch.randn(B, 2)),
    "mixture": (GaussianMixture(components=3), (S, B, 9), torch.randn(B)),
    "mixture of pairs": (GaussianMixture(components=2), (S, B, 10), torch.randn(B, 2)),
}
each = pytest.mark.parametrize("case", CASES)


def test_categorical_matches_torch_distributions():
    logits, y = torch.randn(S, B, K, dtype=torch.float64), torch.randint(0, K, (B,))
    torch.testing.assert_close(Categorical().log_prob(logits, y), D.Categorical(logits=logits).log_prob(y))


def test_tokens_are_summed_and_ignored_ones_count_for_nothing():
    logits, y = torch.randn(S, B, 7, K, dtype=torch.float64), torch.randint(0, K, (B, 7))
    y[:, 5:] = -100
    expected = D.Categorical(logits=logits[:, :, :5]).log_prob(y[:, :5]).sum(-1)
    torch.testing.assert_close(Categorical().log_prob(logits, y), expected)


def test_classes_of_segmentation_maps_are_in_dimension_one():
    torch.manual_seed(0)
    logits, y = torch.randn(2, 3, 4, 5, 6), torch.randint(0, 4, (3, 5, 6))
    y[0, :2] = -100
    likelihood = Categorical(class_dim=1)
    expected = torch.stack([-F.cross_entropy(draw, y, reduction="none").flatten(1).sum(1) for draw in logits])
    torch.testing.assert_close(likelihood.log_prob(logits, y), expected)
    predictive = likelihood.predictive(logits)
    torch.testing.assert_close(predictive.probs, logits.softmax(2).mean(0).movedim(1, -1))
    mixed = F.nll_loss(logits.softmax(2).mean(0).log(), y, reduction="none").flatten(1).sum(1)
    torch.testing.assert_close(predictive.log_prob(y), -mixed)
    assert Likelihood.from_dict(likelihood.to_dict()).class_dim == 1
    for call, message in (
        (lambda: Categorical(class_dim=0), "class_dim must be a whole number of at least 1"),
        (lambda: Categorical(class_dim=1).log_prob(torch.zeros(2, 3, 1, 4), y), "at least 2 classes in dimension 1.*class_dim=1"),
        (lambda: Categorical(class_dim=3).log_prob(torch.zeros(2, 3, 4), y), "with class_dim=3"),
        (lambda: Categorical().log_prob(logits, y), r"\(3, 5, 6\)"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize(
    ("outputs", "targets"), [((S, B), (B,)), ((S, B, 1), (B,)), ((S, B, 1), (B, 1)), ((S, B), (B, 1)), ((S, B, 6), (B, 6))]
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bool, torch.int64])
def test_bernoulli_matches_scipy(outputs, targets, dtype):
    logits, y = torch.randn(outputs, dtype=torch.float64), torch.randint(0, 2, targets).to(dtype)
    p = torch.sigmoid(logits).reshape(S, B, -1).numpy()
    expected = scipy.stats.bernoulli.logpmf(y.reshape(B, -1).numpy().astype(int), p).sum(-1)
    np.testing.assert_allclose(Bernoulli().log_prob(logits, y), expected, rtol=1e-10)


def test_bernoulli_is_exact_in_the_tails():
    assert Bernoulli().log_prob(torch.tensor([[-200.0, 200.0]]), torch.tensor([1, 0])).tolist() == [[-200.0, -200.0]]


@pytest.mark.parametrize(("outputs", "targets"), [((S, B), (B,)), ((S, B, 1), (B,)), ((S, B, 1), (B, 1)), ((S, B, 3), (B, 3))])
def test_gaussian_matches_scipy(outputs, targets):
    means, y = torch.randn(outputs, dtype=torch.float64), torch.randn(targets, dtype=torch.float64)
    log_prob = Gaussian(std=0.25).log_prob(means, y)  # a quarter is exact in float32, the dtype of the module's own state
    expected = scipy.stats.norm.logpdf(y.reshape(B, -1).numpy(), means.reshape(S, B, -1).numpy(), 0.25).sum(-1)
    np.testing.assert_allclose(log_prob, expected, rtol=1e-6)


def test_gaussian_with_one_std_per_output():
    means, y, std = torch.randn(S, B, 2), torch.randn(B, 2), torch.tensor([0.5, 4.0])
    torch.testing.assert_close(Gaussian(std=[0.5, 4.0]).log_prob(means, y), D.Normal(means, std).log_prob(y).sum(-1))
    p = Gaussian(std=[0.5, 4.0]).predictive(means)
    torch.testing.assert_close(p.aleatoric, std.square().expand(B, 2))


def test_learned_noise_finds_the_maximum_likelihood_std():
    y = 3 * torch.randn(400, dtype=torch.float64)
    likelihood = Gaussian(std=1.0, learn=True).double()
    optimizer = torch.optim.LBFGS(likelihood.parameters(), max_iter=50, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        value = -likelihood(torch.zeros(1, 400, dtype=torch.float64), y).mean()
        value.backward()
        return value

    optimizer.step(loss)
    torch.testing.assert_close(likelihood.std, y.square().mean().sqrt(), rtol=1e-4, atol=0)


def test_heteroscedastic_matches_scipy():
    outputs, y = torch.randn(S, B, 4, dtype=torch.float64), torch.randn(B, 2, dtype=torch.float64)
    expected = scipy.stats.norm.logpdf(y.numpy(), outputs[..., :2].numpy(), np.exp(outputs[..., 2:].numpy()) ** 0.5).sum(-1)
    np.testing.assert_allclose(HeteroscedasticGaussian().log_prob(outputs, y), expected, rtol=1e-10)
    aleatoric = HeteroscedasticGaussian().predictive(outputs).aleatoric
    torch.testing.assert_close(aleatoric, outputs[..., 2:].exp().mean(0))


@pytest.mark.parametrize(("log_variance", "residual", "std"), [(-200.0, 1.0, 1e-4), (200.0, 1.0, 1e4)])
def test_heteroscedastic_bounds_keep_the_gradient_that_leads_back(log_variance, residual, std):
    outputs = torch.tensor([[[0.0, log_variance]]], requires_grad=True)
    log_prob = HeteroscedasticGaussian().log_prob(outputs, torch.tensor([residual]))
    np.testing.assert_allclose(log_prob.item(), scipy.stats.norm.logpdf(residual, 0, std), rtol=1e-4)
    (-log_prob.sum()).backward()
    assert outputs.grad is not None
    assert outputs.grad.isfinite().all()
    assert outputs.grad[0, 0, 1] * log_variance > 0  # descent moves the log variance toward 0


def test_heteroscedastic_bounds_drop_the_gradient_that_leads_further_out():
    outputs = torch.tensor([[[0.0, -200.0]]], requires_grad=True)
    (-HeteroscedasticGaussian().log_prob(outputs, torch.zeros(1))).sum().backward()  # an exact fit wants ever less noise
    assert outputs.grad is not None
    assert outputs.grad[0, 0, 1] == 0


@pytest.mark.parametrize("outputs", [1, 3])
def test_mixture_matches_torch_distributions(outputs):
    m = 4
    logits = torch.randn(S, B, m, dtype=torch.float64)
    means, log_variances = torch.randn(2, S, B, m, outputs, dtype=torch.float64)
    components = D.Independent(D.Normal(means, (0.5 * log_variances).exp()), 1)
    expected = D.MixtureSameFamily(D.Categorical(logits=logits), components)
    y = torch.randn(B, outputs, dtype=torch.float64)
    likelihood = GaussianMixture(components=m)
    everything = torch.cat([logits, means.flatten(2), log_variances.flatten(2)], -1)
    torch.testing.assert_close(likelihood.log_prob(everything, y), expected.log_prob(y))
    p = likelihood.predictive(everything)
    torch.testing.assert_close(p.log_prob(y), expected.log_prob(y).logsumexp(0) - math.log(S))
    torch.testing.assert_close(p.mean, expected.mean.mean(0).reshape(p.mean.shape))
    torch.testing.assert_close(p.aleatoric, expected.variance.mean(0).reshape(p.mean.shape))
    torch.testing.assert_close(p.epistemic, expected.mean.var(0, correction=0).reshape(p.mean.shape))


def test_mixture_bounds_its_components():
    outputs = torch.zeros(1, 1, 3, dtype=torch.float64)
    outputs[..., 2] = -100
    narrow = GaussianMixture(components=1, min_std=0.1, max_std=2.0)
    torch.testing.assert_close(narrow.predictive(outputs).std, torch.tensor([0.1], dtype=torch.float64))
    torch.testing.assert_close(narrow.predictive(-outputs).std, torch.tensor([2.0], dtype=torch.float64))


def test_mixture_learns_a_skewed_distribution():
    y = torch.from_numpy(np.random.default_rng(0).gamma(1.5, size=4000))
    likelihood = GaussianMixture(components=4, min_std=0.05)
    outputs = torch.randn(12, dtype=torch.float64).mul_(0.5).requires_grad_()
    optimizer = torch.optim.Adam([outputs], lr=0.05)
    for _ in range(600):
        optimizer.zero_grad()
        loss = -likelihood.log_prob(outputs.expand(1, len(y), 12), y).mean()
        loss.backward()
        optimizer.step()
    entropy = scipy.stats.gamma.entropy(1.5)
    assert loss.item() < entropy + 0.05
    assert loss.item() < scipy.stats.norm.entropy(scale=y.std().item()) - 0.15


@each
def test_gradients(case):
    likelihood, shape, y = CASES[case]
    likelihood = copy.deepcopy(likelihood).double()
    outputs = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    target = y.double() if y.is_floating_point() else y
    assert torch.autograd.gradcheck(lambda o: likelihood.log_prob(o, target), (outputs,))


@pytest.mark.default("mixture", "categorical", "gaussian", "tokens")
@each
@pytest.mark.filterwarnings("ignore")
def test_compiles_in_one_graph_with_gradients(case):
    likelihood, shape, y = CASES[case]
    outputs = torch.randn(shape, requires_grad=True)
    compiled = torch.compile(likelihood.log_prob, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(outputs, y), likelihood.log_prob(outputs, y))
    (gradient,) = torch.autograd.grad(compiled(outputs, y).sum(), outputs)
    (expected,) = torch.autograd.grad(likelihood.log_prob(outputs, y).sum(), outputs)
    torch.testing.assert_close(gradient, expected)


@each
def test_half_precision_outputs_are_computed_in_float32(case):
    likelihood, shape, y = CASES[case]
    outputs = torch.randn(shape).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        log_prob = likelihood.log_prob(outputs, y)
    assert log_prob.shape == (S, B)
    torch.testing.assert_close(log_prob, likelihood.log_prob(outputs.float(), y))
    assert likelihood.predictive(outputs).mean.dtype == torch.float32


@each
def test_saves_and_loads(case):
    likelihood, shape, y = CASES[case]
    loaded = Likelihood.from_dict(likelihood.to_dict())
    loaded.load_state_dict(likelihood.state_dict())
    outputs = torch.randn(shape)
    torch.testing.assert_close(loaded.log_prob(outputs, y), likelihood.log_prob(outputs, y))
    assert repr(loaded) == repr(likelihood)


@each
def test_predictive_agrees_with_log_prob_for_one_draw(case):
    likelihood, shape, y = CASES[case]
    outputs = torch.randn(1, *shape[1:])
    torch.testing.assert_close(likelihood.predictive(outputs).log_prob(y), likelihood.log_prob(outputs, y)[0])


@each
def test_check_targets_accepts_what_fits(case):
    likelihood, shape, y = CASES[case]
    likelihood.check_targets(y)
    likelihood.check_targets(y, torch.randn(shape))


@pytest.mark.parametrize(
    ("likelihood", "outputs", "targets"),
    [
        (Gaussian(), (S, B), (1,)),
        (Gaussian(), (S, B, 1), (B, B)),
        (Gaussian(), (S, B, 2), (B,)),
        (Gaussian(), (S, B, 5), (5,)),
        (Bernoulli(), (S, B, 1), (1, B)),
        (HeteroscedasticGaussian(), (S, B, 4), (B,)),
        (GaussianMixture(components=2), (S, B, 10), (B,)),
        (Categorical(), (S, B, K), (B, K)),
        (Categorical(), (S, B, K, 7), (B, 7)),
    ],
)
def test_nothing_is_broadcast(likelihood, outputs, targets):
    with pytest.raises(ValueError, match=r"y has shape .* but the outputs require"):
        likelihood.log_prob(torch.zeros(outputs), torch.zeros(targets, dtype=torch.long))


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda: Categorical().check_targets(torch.tensor([0, 4]), torch.zeros(1, 2, 4)), ValueError, "from 0 to 3, .* got 4"),
        (lambda: Categorical().check_targets(torch.tensor([0, -1])), ValueError, "of at least 0, got -1"),
        (lambda: Categorical().check_targets(torch.tensor([0.0, 1.0])), TypeError, r"integer class labels.*y\.long\(\)"),
        (lambda: Categorical().log_prob(torch.zeros(1, 2, 4), torch.zeros(2)), TypeError, "integer class labels"),
        (lambda: Categorical().check_targets([0, 1]), TypeError, "torch.as_tensor"),
        (lambda: Categorical().log_prob(torch.zeros(1, 2, 1), torch.tensor([0, 0])), ValueError, "Bernoulli"),
        (lambda: Categorical().log_prob(torch.zeros(2, 3), torch.tensor([0, 0])), ValueError, r"draws \(S, B, K\)"),
        (lambda: Bernoulli().check_targets(torch.tensor([0.0, 0.5])), ValueError, "zeros and ones only, got 0.5"),
        (lambda: Bernoulli().check_targets(torch.tensor([math.nan])), ValueError, "zeros and ones only, got nan"),
        (lambda: Gaussian().check_targets(torch.tensor([math.nan, 1.0])), ValueError, "finite, got 1 NaN or infinite of 2"),
        (lambda: HeteroscedasticGaussian().check_targets(torch.tensor([math.inf])), ValueError, "finite"),
        (lambda: Gaussian(std=0.0), ValueError, "std must be a finite number above 0, got 0.0"),
        (lambda: Gaussian(std=[]), ValueError, "one per output"),
        (lambda: Gaussian(std=[1.0, 2.0]).check_outputs(torch.zeros(S, 2)), ValueError, "std has 2 values"),
        (lambda: HeteroscedasticGaussian(min_std=2.0, max_std=1.0), ValueError, "min_std must be below max_std"),
        (lambda: HeteroscedasticGaussian().check_outputs(torch.zeros(1, 2, 3)), ValueError, "a mean and a log variance"),
        (
            lambda: Gaussian().predictive(torch.tensor([[math.nan, 0.0]])),
            ValueError,
            "NaN or infinity in 1 of 2 values, 1 of 1 draws",
        ),
        (lambda: Gaussian().predictive(torch.tensor([[-math.inf]])), ValueError, "NaN or infinity"),
        (lambda: Categorical().predictive(torch.tensor([[[math.inf, 0.0]]])), ValueError, "NaN or infinity"),
        (lambda: Likelihood.from_dict({"likelihood": "Weibull"}), ValueError, "unknown likelihood 'Weibull'; known .*Bernoulli"),
        (lambda: Likelihood.from_dict({"likelihood": "Gaussian", "sd": 1}), ValueError, "no field 'sd'; .*std, learn"),
    ],
)
def test_errors(act, error, message):
    with pytest.raises(error, match=message):
        act()


def test_a_class_that_cannot_be_is_allowed():
    p = Categorical().predictive(torch.tensor([[[0.0, -math.inf]], [[0.0, -math.inf]]]))
    assert p.probs.tolist() == [[1.0, 0.0]]
    assert p.entropy.tolist() == [0.0]
    assert p.mix(p).probs.tolist() == [[1.0, 0.0]]


SAMPLED = {
    "gaussian": (Gaussian(std=0.5), (2, 3, 1)),
    "categorical": (Categorical(), (2, 3, 4)),
    "bernoulli": (Bernoulli(), (2, 3, 2)),
    "poisson": (Poisson(), (2, 3, 1)),
    "ordinal": (Ordinal(4), (2, 3)),
}


@pytest.mark.parametrize("name", SAMPLED)
def test_sampled_targets_have_the_distribution_of_log_prob(name):
    """At targets from the model, the score has mean zero, and the mean of its square is minus that of the Hessian."""
    torch.manual_seed(0)
    likelihood, shape = SAMPLED[name]
    likelihood, n = copy.deepcopy(likelihood).double(), 20_000
    outputs = torch.randn(shape, dtype=torch.float64).repeat_interleave(n, 1).requires_grad_()
    targets = likelihood.sample(outputs)
    log_prob = torch.cat([likelihood.log_prob(outputs[s : s + 1], targets[s]) for s in range(2)])
    (score,) = torch.autograd.grad(log_prob.sum(), outputs, create_graph=True)
    (hessian_rows,) = torch.autograd.grad(score.sum(), outputs)  # summed over the outputs of an example
    score = score.detach().reshape(2, 3, n, -1)
    for values in (score, score * score.sum(-1, keepdim=True) + hessian_rows.reshape(score.shape)):
        assert (values.mean(2).abs() < 5 * values.std(2) / math.sqrt(n) + 1e-9).all()


@pytest.mark.parametrize("accumulate", [1, 60])
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("make", [lambda: Gaussian(learn=True), lambda: Ordinal(4)])
def test_an_optimizer_without_the_parameters_is_noticed_once(make, given, accumulate):
    likelihood, outputs = make(), nn.Parameter(torch.zeros(1, 6, 1))
    y = torch.tensor([0, 1, 2, 3, 0, 1]).unsqueeze(1)
    y = y.float() if isinstance(likelihood, Gaussian) else y
    optimizer = torch.optim.SGD([outputs, *(likelihood.parameters() if given else [])], lr=1e-3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BayesifyWarning)
        for i in range(240):
            (-likelihood.log_prob(outputs, y).sum()).backward()
            if i % accumulate == accumulate - 1:
                optimizer.step()
                optimizer.zero_grad()
    expected = [] if given else ["give likelihood.parameters() to the optimizer"]
    assert [str(w.message).rpartition(": ")[2] for w in caught] == expected


def test_evaluation_with_gradients_left_over_from_training_says_nothing():
    likelihood, outputs, y = Gaussian(learn=True), nn.Parameter(torch.zeros(1, 6, 1)), torch.randn(6, 1)
    optimizer = torch.optim.SGD(likelihood.parameters(), lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        (-likelihood.log_prob(outputs, y).sum()).backward()
        optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayesifyWarning)
        for _ in range(150):
            likelihood.log_prob(outputs, y)


def _outputs(last: nn.Module, classes: int) -> torch.Tensor:
    return bayesify(nn.Sequential(nn.Linear(4, classes), last), MeanField())(torch.randn(6, 4), samples=3).outputs


MISREAD = {
    "softmax": (Categorical, nn.Softmax(-1), 3, "leave out the softmax"),
    "softmax, two classes": (Categorical, nn.Softmax(-1), 2, "leave out the softmax"),
    "sigmoid": (Bernoulli, nn.Sigmoid(), 1, "leave out the sigmoid"),
    "sigmoid, without a dimension": (Bernoulli, nn.Sequential(nn.Sigmoid(), nn.Flatten(0)), 1, "leave out the sigmoid"),
    "sigmoid, labels": (Bernoulli, nn.Sigmoid(), 3, "leave out the sigmoid"),
}


@pytest.mark.parametrize("name", MISREAD)
def test_probabilities_in_place_of_logits_are_noticed_once(name):
    make, last, classes, text = MISREAD[name]
    likelihood, outputs = make(), _outputs(last, classes)
    y = torch.zeros(likelihood.target_shape(outputs), dtype=torch.long)
    with pytest.warns(BayesifyWarning, match=text):
        likelihood.log_prob(outputs, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayesifyWarning)
        likelihood.log_prob(outputs, y)
        likelihood.predictive(outputs)


def test_probabilities_of_classes_are_noticed_in_predictions():
    with pytest.warns(BayesifyWarning, match="leave out the softmax"):
        Categorical(class_dim=1).predictive(torch.rand(2, 3, 4, 5, 5).softmax(2))


@pytest.mark.parametrize(
    ("likelihood", "last", "classes"),
    [
        (Categorical(), nn.Identity(), 3),
        (Categorical(), nn.LogSoftmax(-1), 3),
        (Categorical(), nn.Sigmoid(), 3),  # unusual, but these are no probabilities of classes
        (Bernoulli(), nn.Identity(), 1),
        (Bernoulli(), nn.Tanh(), 1),
        (Bernoulli(), nn.SiLU(), 1),  # a product with a sigmoid
        (Gaussian(), nn.Sigmoid(), 1),
    ],
)
def test_other_outputs_are_not(likelihood, last, classes):
    outputs = _outputs(last, classes)
    y = torch.zeros(likelihood.target_shape(outputs), dtype=torch.float if isinstance(likelihood, Gaussian) else torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayesifyWarning)
        likelihood.log_prob(outputs, y)
        likelihood.predictive(outputs.detach())


def _residuals(std: float | list[float], learn: bool, scale: float, width: int) -> list[str]:
    """Warnings of `fit` on targets of a standard deviation `scale`, most of it noise."""
    torch.manual_seed(0)
    x = torch.randn(64, 3)
    y = (scale * torch.randn(64, width)).squeeze(-1)
    bnn, likelihood = bayesify(nn.Linear(3, width), MeanField()), Gaussian(std=std, learn=learn)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BayesifyWarning)
        fit(bnn, (x, y), likelihood, epochs=4, progress=False)
    texts = [str(warning.message) for warning in caught]
    assert [text for text in texts if "residuals" in text] == bnn.findings
    return texts


@pytest.mark.parametrize("width", [1, 2])
def test_fixed_noise_of_another_unit_is_noticed(width):
    wide = [1.0] * width
    assert _residuals(wide, False, 1.0, width) == []
    [text] = _residuals(wide, False, 0.05, width)
    assert "so that there is nothing to learn" in text
    [text] = _residuals(wide, False, 20.0, width)
    ratio = float(text.split("residuals after training are ")[1].split(" times")[0])
    assert ratio == pytest.approx(20, rel=0.15)
    assert _residuals(wide, True, 0.05, width) == _residuals(wide, True, 20.0, width) == []


class Loss(torch.nn.Module):
    def __init__(self, likelihood: Gaussian) -> None:
        super().__init__()
        self.likelihood = likelihood

    def forward(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.likelihood.log_prob(outputs, y)


def test_residuals_say_nothing_before_training_has_settled():
    y = torch.zeros(4)
    settled = [0.5 * 10.0**2, 0.5 * 9.5**2, 0.5 * 9.2**2, 0.5 * 9.0**2]
    improving = [0.5 * 10.0**2, 0.5 * 8.0**2, 0.5 * 6.0**2, 0.5 * 4.0**2]
    assert Gaussian().misfit(settled, y).startswith("residuals after training are 8.9 times")
    assert Gaussian().misfit(settled[:3], y) == Gaussian().misfit(improving, y) == Gaussian(learn=True).misfit(settled, y) == ""


def test_learned_noise_is_not_taken_for_fixed_where_networks_are_stacked():
    """Their parameters are plain tensors there."""
    likelihood, y = Gaussian(std=100.0, learn=True), torch.randn(20)
    log_std = likelihood.log_std.detach().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = torch.func.functional_call(Loss(likelihood), {"likelihood.log_std": log_std}, (torch.zeros(1, 20), y))
    torch.testing.assert_close(found, torch.distributions.Normal(0.0, 100.0).log_prob(y)[None])


def test_targets_that_do_not_vary_say_nothing_of_the_noise():
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayesifyWarning)
        Gaussian().log_prob(torch.zeros(1, 20), torch.ones(20))
        Gaussian().log_prob(torch.zeros(1, 4), torch.tensor([0.0, 0.01, 0.0, 0.02]))  # too few
        Gaussian().log_prob(torch.zeros(1, 20, 2), torch.randn(20, 2) * torch.tensor([1.0, 1e-3]))  # one output that hardly varies
    with pytest.warns(BayesifyWarning, match="times the standard deviation of the targets"):  # one that does not vary
        Gaussian().log_prob(torch.zeros(1, 20, 2), 0.01 * torch.randn(20, 2) * torch.tensor([1.0, 0.0]))
