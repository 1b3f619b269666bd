"""VIFO: outputs, regularizers and expected likelihoods against independent references, in every layout, trained and undone."""

import copy
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal

from bayesify import VIFO, MeanField, bayesify, elbo, fit, predict, summary, unbayesify
from bayesify.core.switches import observer
from bayesify.errors import ConfigurationError
from bayesify.functional import vifo_mean_all, vifo_mean_variance
from bayesify.likelihoods import Categorical, Gaussian, HeteroscedasticGaussian
from bayesify.train import Training, fit_many

F64 = torch.float64


def mlp(outputs: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs)).double()


def noisy(method: VIFO, net: nn.Module | None = None) -> Any:
    """A VIFO network whose uncertainty depends on the input."""
    bnn = bayesify(net or mlp(), method).double()
    with torch.no_grad():
        for parameter in bnn.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return bnn


@pytest.mark.parametrize("link", ["softplus", "exp"])
@pytest.mark.parametrize("coherent", [False, True])
def test_outputs_are_normal_with_the_moments_of_the_two_halves(link: str, coherent: bool) -> None:
    bnn, x = noisy(VIFO(link=link)), torch.randn(5, 4, dtype=F64)
    features = torch.tanh(x @ bnn.net[0].weight.T + bnn.net[0].bias)
    head = bnn.net[2]
    mean = features @ head.weight.T + head.bias
    raw = features @ head.posterior.weight.T + head.posterior.bias
    std = 1e-6 + (raw.exp() if link == "exp" else raw.exp().log1p())
    n = 20_000
    outputs = bnn(x, samples=n, coherent=coherent).outputs.detach()
    assert ((outputs.mean(0) - mean).abs() < 5 * std / math.sqrt(n)).all()
    assert ((outputs.std(0) / std - 1).abs() < 5 / math.sqrt(2 * n)).all()
    exact = bnn.normal_outputs(x)
    torch.testing.assert_close((exact.mean, exact.std), (mean, std))
    correlation = torch.corrcoef(outputs[:, :2, 0].T)[0, 1]
    assert abs(correlation - float(coherent)) < 0.05


class TiedLanguageModel(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embedding(ids)))


@pytest.mark.parametrize("separate_std", [False, True])
def test_a_tied_head_stays_tied_and_is_the_head_of_the_means(separate_std: bool) -> None:
    net, ids = TiedLanguageModel().double(), torch.tensor([[0, 3, 6], [1, 1, 2]])
    weight = net.embedding.weight.detach().clone()
    bnn = bayesify(net, VIFO(separate_std=separate_std, initial_std=0.3))
    exact = bnn.normal_outputs(ids)
    torch.testing.assert_close(exact.mean, torch.tanh(weight[ids]) @ weight.T)
    torch.testing.assert_close(exact.std, torch.full_like(exact.mean, 0.3))
    exact.mean.sum().backward()
    (gradient,) = torch.autograd.grad((torch.tanh(weight.requires_grad_()[ids]) @ weight.T).sum(), weight)
    torch.testing.assert_close(net.embedding.weight.grad, gradient)
    plain = unbayesify(bnn)
    assert plain.head.weight is plain.embedding.weight


def test_a_frozen_head_is_the_head_of_the_means_and_the_standard_deviations_are_trained() -> None:
    net, x = mlp(), torch.randn(6, 4, dtype=F64)
    net[2].requires_grad_(False)
    bnn = bayesify(net, VIFO())
    exact = bnn.normal_outputs(x)
    exact.std.sum().backward()
    assert not bnn.net[2].weight.requires_grad
    assert (bnn.net[2].posterior.weight.grad != 0).any()


def test_pretrained_weights_stay_and_start_with_the_initial_std() -> None:
    net, x = mlp(), torch.randn(6, 4, dtype=F64)
    expected = net(x)
    for method in (VIFO(initial_std=0.2), VIFO(initial_std=0.2, link="exp"), VIFO(initial_std=0.2, separate_std=True)):
        outputs = bayesify(copy.deepcopy(net), method).normal_outputs(x)
        torch.testing.assert_close(outputs.mean, expected)
        torch.testing.assert_close(outputs.std, torch.full_like(expected, 0.2), atol=1e-6, rtol=1e-6)
    bnn = bayesify(copy.deepcopy(net), VIFO(head="2"))
    assert bnn.net.load_state_dict(net.state_dict(), strict=False).unexpected_keys == []
    torch.testing.assert_close(unbayesify(bnn)(x), expected)
    assert "second" in str(summary(bayesify(net, VIFO(separate_std=True))))


def test_the_local_kl_is_the_regularizer_and_the_kl_is_zero() -> None:
    bnn, x = noisy(VIFO(regularizer="mean-variance", a=0.7, b=0.2, delta=0.3)), torch.randn(5, 4, dtype=F64)
    outputs, draws = bnn.normal_outputs(x), bnn(x, samples=2)
    torch.testing.assert_close(draws.local_kl, vifo_mean_variance(outputs.mean, outputs.std, 0.7, 0.2, 0.3))
    torch.testing.assert_close(bnn.regularizer(x), draws.local_kl)
    assert draws.kl == 0
    assert (bnn.local_beta, bnn.auxiliary_beta) == (0.1, 0.0)


class Tokens(nn.Module):
    """Per-token classes after pooling and a transpose, behind the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv1d(2, 3, 1)

    def forward(self, x: Tensor) -> Tensor:  # (B, 2, T) -> (B, T / 2, 3)
        return nn.functional.avg_pool1d(self.head(x), 2).transpose(1, 2)


def test_what_follows_the_last_layer_treats_both_halves_alike() -> None:
    bnn, x = noisy(VIFO(), Tokens().double()), torch.randn(4, 2, 6, dtype=F64)
    raw = copy.deepcopy(bnn.net)
    with torch.no_grad():
        raw.head.weight.copy_(raw.head.posterior.weight)
        raw.head.bias.copy_(raw.head.posterior.bias)
    outputs = bnn.normal_outputs(x)
    torch.testing.assert_close(outputs.mean, unbayesify(copy.deepcopy(bnn))(x))
    torch.testing.assert_close(outputs.std, 1e-6 + nn.functional.softplus(raw(x)))
    assert bnn(x, samples=3).outputs.shape == (3, 4, 3, 3)
    y = torch.randint(0, 3, (4, 3))
    assert elbo(bnn(x), Categorical().log_prob(bnn(x).outputs, y), n=4).isfinite()


def test_a_batch_in_another_dimension() -> None:
    bnn = bayesify(nn.Linear(2, 3), VIFO(), batch_dim=1)
    draws = bnn(torch.randn(7, 5, 2), samples=4)  # (T, B, I)
    assert draws.outputs.shape == (4, 5, 7, 3)
    assert draws.local_kl.shape == (5,)


class After(nn.Module):
    """A convolution as last layer, and anything after it."""

    def __init__(self, after: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.body, self.head, self.after = nn.Conv1d(2, 4, 1), nn.Conv1d(4, 3, 1), after
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:  # (B, 2, T)
        h = torch.tanh(self.body(x))
        return self.after(self, h)


REFUSED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "softmax": lambda net, h: net.head(h).softmax(1),
    "log softmax": lambda net, h: net.head(h).log_softmax(1),
    "batch normalization": lambda net, h: net.norm(net.head(h)),
    "layer normalization": lambda net, h: nn.functional.layer_norm(net.head(h), (6,)),
    "a skip connection": lambda net, h: net.head(h) + h[:, :3],
    "a constant": lambda net, h: net.head(h) + 1,
    "a rectifier and more": lambda net, h: 1 - torch.relu(net.head(h)),
    "a sigmoid": lambda net, h: torch.sigmoid(net.head(h)),
    "a rectifier": lambda net, h: torch.relu(net.head(h)),
    "a leaky rectifier": lambda net, h: nn.functional.leaky_relu(net.head(h), 0.5),
    "an upper bound": lambda net, h: net.head(h).clamp(max=0),
    "an absolute value": lambda net, h: net.head(h).abs(),
    "the largest value": lambda net, h: net.head(h).amax(2),
    "the median": lambda net, h: net.head(h)[..., :5].median(2).values,
    "another sign": lambda net, h: -net.head(h),
    "a factor": lambda net, h: 3 * net.head(h),
    "a factor at some positions": lambda net, h: net.head(h) * torch.tensor([1.0, 1, 2, 0, 0, 1], dtype=h.dtype),
    "centering": lambda net, h: net.head(h) - net.head(h).mean(1, keepdim=True),
    "a sum of positions": lambda net, h: net.head(h).sum(2),
    "a sum of outputs": lambda net, h: net.head(h).sum(1, keepdim=True),
    "a logarithm": lambda net, h: net.head(h).log(),
    "classes": lambda net, h: net.head(h).argmax(1, keepdim=True),
    "a factor and padding": lambda net, h: nn.functional.pad(3 * net.head(h), (0, 2)),
}
PADDED = torch.tensor([False, False, False, False, True, True])
ACCEPTED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "nothing": lambda net, h: net.head(h),
    "batch normalization before": lambda net, h: net.head(torch.cat([net.norm(h[:, :3]), h[:, 3:]], 1)),
    "mean": lambda net, h: net.head(h).mean(2),
    "average pooling": lambda net, h: nn.functional.adaptive_avg_pool1d(net.head(h), 2).flatten(1),
    "classes last": lambda net, h: net.head(h).transpose(1, 2),
    "reshaping": lambda net, h: net.head(h).reshape(len(net.head(h)), -1),
    "the first position": lambda net, h: net.head(h)[..., 0],
    "interpolation": lambda net, h: nn.functional.interpolate(net.head(h), size=12),
    "mean of the outputs": lambda net, h: net.head(h).mean(1, keepdim=True),
    "weighted mean": lambda net, h: (net.head(h) * torch.arange(6, dtype=h.dtype).softmax(0)).sum(2),
    "mean without padding": lambda net, h: net.head(h).masked_fill(PADDED, 0).sum(2) / (~PADDED).sum(),
}
FILLED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "zeros at padding": lambda net, h: net.head(h).masked_fill(PADDED, 0),
    "infinities at padding": lambda net, h: net.head(h).masked_fill(PADDED, -math.inf),
    "more positions": lambda net, h: nn.functional.pad(net.head(h), (0, 2)),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_what_does_more_than_reshape_or_average_is_refused(name: str, separate: bool, training: bool) -> None:
    torch.manual_seed(1)
    bnn = bayesify(After(REFUSED[name]).double().train(training), VIFO(separate_std=separate, head="head"))
    before = copy.deepcopy(bnn.state_dict())
    for ask in (bnn, bnn.normal_outputs, bnn.regularizer, bnn.function(0)):
        with pytest.raises(ValueError, match=r"something follows the layer .* that .*return its logits.*VIFO\(head=...\)"):
            ask(torch.randn(4, 2, 6, dtype=F64))
    for key, value in bnn.state_dict().items():
        assert torch.equal(value, before[key]), f"{key} has changed"


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ACCEPTED)
def test_what_reshapes_or_averages_is_not(name: str, training: bool) -> None:
    torch.manual_seed(1)
    plain, x = After(ACCEPTED[name]).double().train(training), torch.randn(4, 2, 6, dtype=F64)
    bnn = bayesify(copy.deepcopy(plain), VIFO(initial_std=0.3, head="head"))
    expected = plain(x)
    outputs = bnn.normal_outputs(x)
    torch.testing.assert_close(outputs.mean, expected)
    torch.testing.assert_close(outputs.std, torch.full_like(expected, 0.3))
    assert bnn(x, samples=3).outputs.shape == (3, *expected.shape)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", FILLED)
def test_places_that_are_filled_decide_nothing(name: str, training: bool) -> None:
    plain, x = After(FILLED[name]).double().train(training), torch.randn(4, 2, 6, dtype=F64)
    outputs = bayesify(copy.deepcopy(plain), VIFO(initial_std=0.3, head="head")).normal_outputs(x)
    torch.testing.assert_close(outputs.mean, plain(x))
    torch.testing.assert_close(outputs.std[..., :4], torch.full_like(outputs.std[..., :4], 0.3))


@pytest.mark.parametrize("scale", [0.0, 1e-3, 1e3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wrong", [False, True])
def test_the_test_depends_on_no_scale(scale: float, dtype: torch.dtype, wrong: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(2, 3, 1), nn.ReLU() if wrong else nn.AvgPool1d(3)).to(dtype)
    with torch.no_grad():
        net[0].weight.mul_(scale), net[0].bias.mul_(scale)
    bnn, x = bayesify(net, VIFO()).eval(), torch.randn(5, 2, 6, dtype=dtype)
    if not wrong:
        assert bnn(x).outputs.isfinite().all()
        return
    with pytest.raises(ConfigurationError, match="something follows"):
        bnn(x)


class Choosing(nn.Module):
    """A classifier whose outputs depend on the call, with noise of its own and a count of its passes in training."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.dropout, self.log_in_training = nn.Dropout(0.4), False
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: Tensor, probabilities: bool = False, like: str = "") -> Tensor:
        if self.training:
            self.passes += 1
        factor = 1 + random.random() if self.training else 1.0
        y = self.dropout(self.head(factor * self.dropout(torch.tanh(self.norm(self.body(x))))))
        if self.log_in_training and self.training:
            return y.log_softmax(-1)
        return y.softmax(-1) if probabilities or like == "probabilities" else y


@pytest.mark.parametrize("keywords", [{"probabilities": True}, {"like": "probabilities"}])
def test_every_kind_of_call_is_tested(keywords: dict[str, Any]) -> None:
    bnn, x = bayesify(Choosing(), VIFO()).eval(), torch.randn(5, 4)
    for _ in range(2):
        bnn(x)
        for ask in (bnn, bnn.normal_outputs, bnn.regularizer, bnn.function(0)):
            with pytest.raises(ConfigurationError, match="something follows the layer 'head'"):
                ask(x, **keywords)


def test_training_mode_is_tested_too() -> None:
    bnn, x = bayesify(Choosing(), VIFO()).eval(), torch.randn(5, 4)
    bnn.net.log_in_training = True
    bnn(x)
    with pytest.raises(ConfigurationError, match="something follows the layer 'head'"):
        bnn.train()(x)
    bnn.eval()(x)


def test_the_test_changes_no_state() -> None:
    new, x = bayesify(Choosing(), VIFO()).train(), torch.randn(5, 4)
    known, states = copy.deepcopy(new), []
    known(x)
    known.load_state_dict(new.state_dict())
    for bnn in (new, known):
        torch.manual_seed(3)
        random.seed(3)
        states.append({"outputs": bnn(x).outputs, **bnn.state_dict(), "noise": torch.get_rng_state()})
        states[-1]["next number"] = torch.tensor(random.random())
    torch.testing.assert_close(*states, rtol=0, atol=0)
    assert new.net.passes == 1


def test_known_kinds_are_not_tested_again() -> None:
    bnn, x, passes = bayesify(Choosing(), VIFO()), torch.randn(5, 4), []
    bnn.train()(x), bnn.eval()(x), bnn(x, like="logits")
    bnn.net.register_forward_hook(observer(lambda *_: passes.append(1)))
    bnn.train()(x), bnn.eval()(x[:3]), bnn(x, like="logits"), bnn.train()(x[:2])
    assert len(passes) == 4
    for i in range(100):  # ever new kinds
        bnn(x, like=str(i))
    passes.clear()
    bnn(x, like="another")
    assert len(passes) == 1


class Transposing(nn.Module):
    """Maps whose outputs are in a dimension that the caller chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv1d(2, 3, 1)

    def forward(self, x: Tensor, last: bool) -> Tensor:
        return self.head(x).transpose(1, 2) if last else self.head(x)


def test_each_kind_has_a_dimension_of_the_outputs() -> None:
    bnn, x = noisy(VIFO(), Transposing()), torch.randn(4, 2, 5, dtype=F64)
    for _ in range(2):
        torch.testing.assert_close(bnn(x, last=True).local_kl, bnn(x, last=False).local_kl)
        torch.testing.assert_close(bnn.function(1)(x, last=True), bnn.function(1)(x, last=False).transpose(1, 2))


class Flattening(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, 2)
        return self.head(x.flatten(0, 1)).view(x.shape[0], x.shape[1], -1)


def test_a_net_that_counts_its_rows_is_told_so() -> None:
    x = torch.randn(4, 5, 2)
    with pytest.raises(ValueError, match=r"4 rows in dimension 0 for 4 examples; .* the 8 rows.*VIFO\(separate_std=True\)"):
        bayesify(Flattening(), VIFO())(x)
    assert bayesify(Flattening(), VIFO(separate_std=True))(x, samples=2).outputs.shape == (2, 4, 5, 3)


def _in_parts(net: Any, x: Tensor, size: int) -> Tensor:
    return torch.cat([net.head(part) for part in x.split(size)])


def _of_pairs(net: Any, x: Tensor) -> Tensor:
    first, second = x.chunk(2)
    return torch.cat([net.head(first + second), net.head(first - second)])


def _of_two_views(net: Any, x: Tensor) -> Tensor:
    y = net.head(torch.cat([x, -x]))
    return 0.25 * y[: len(x)] + 0.75 * y[len(x) :]


@pytest.mark.parametrize(
    ("function", "rows", "message"),
    [
        (lambda net, x: _in_parts(net, x, 2), 6, "the number or the order of the rows"),
        (lambda net, x: _in_parts(net, x, 4), 6, "on parts of its batch"),  # of more rows than are compared
        (_of_pairs, 6, "the number or the order of the rows"),
        (_of_two_views, 6, "the number or the order of the rows"),
        (lambda net, x: net.head(x.flip(0)).flip(0), 6, "the number or the order of the rows"),
        (lambda net, x: net.head(x).view(3, -1)[:, :3], 3, "it must keep the 6 rows of its last layer"),
    ],
)
def test_a_net_that_would_mix_means_and_standard_deviations_is_refused(function: Any, rows: int, message: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return function(self, x)

    torch.manual_seed(0)
    plain, x = Net().double(), torch.randn(rows, 2, dtype=F64)
    with pytest.raises(ConfigurationError, match=rf"{message}.*VIFO\(separate_std=True\)"):
        bayesify(copy.deepcopy(plain), VIFO())(x)
    bnn = bayesify(copy.deepcopy(plain), VIFO(separate_std=True))  # the way out
    torch.testing.assert_close(bnn.normal_outputs(x).mean, plain(x))


@pytest.mark.parametrize("separate", [False, True])
def test_a_net_that_accepts_whole_batches_alone(separate: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.table = nn.Linear(2, 3), torch.randn(6, 2, dtype=F64)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x + self.table)

    plain, x = Net().double(), torch.randn(6, 2, dtype=F64)
    outputs = bayesify(copy.deepcopy(plain), VIFO(separate_std=separate)).normal_outputs(x)
    torch.testing.assert_close(outputs.mean, plain(x))


def test_bad_arguments() -> None:
    for fields, message in [
        ({"regularizer": "max"}, "regularizer must be one of 'naive', 'mean'"),
        ({"eta_aux": -1.0}, "eta_aux must be a finite number of at least 0, got -1.0"),
        ({"delta": 1.0}, "delta must be a number in"),
        ({"prior_std": 0.0}, "prior_std must be a finite number above 0"),
        ({"momentum": 2.0}, "momentum must be a number in"),
        ({"initial_std": 1e-7}, "initial_std must be above"),
    ]:
        with pytest.raises(ValueError, match=message):
            VIFO(**fields)
    with pytest.raises(ValueError, match="head must name a linear layer or convolution, got '3'; there are '0', '2'"):
        bayesify(mlp(), VIFO(head="3"))
    with pytest.raises(ValueError, match="makes its last layer random, got 2 random layers"):
        bayesify(mlp(), {"0": MeanField(), "2": VIFO()})
    with pytest.raises(TypeError, match="has no per-example KL"):
        bayesify(mlp(), MeanField()).regularizer(torch.zeros(1, 4))


def quadrature(y: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """E log N(y | m, exp(l)) over independent normal m and l, by Gauss-Hermite quadrature."""
    nodes, weights = (torch.tensor(v, dtype=F64) for v in np.polynomial.hermite_e.hermegauss(60))
    weights = weights / weights.sum()
    (m, v), (s, r) = mean.unbind(-1), std.unbind(-1)
    means, logs = m[:, None, None] + s[:, None, None] * nodes[:, None], v[:, None, None] + r[:, None, None] * nodes
    log_prob = Normal(means, (0.5 * logs).exp()).log_prob(y[:, None, None])
    return (log_prob * weights[:, None] * weights).sum((1, 2))


def test_the_expected_log_likelihood_needs_no_draws() -> None:
    y, mean, std = torch.randn(5, dtype=F64), torch.randn(5, 2, dtype=F64), 0.1 + 0.7 * torch.rand(5, 2, dtype=F64)
    torch.testing.assert_close(HeteroscedasticGaussian().expected_log_prob(mean, std, y), quadrature(y, mean, std))
    fixed = torch.stack([mean[:, 0], torch.full((5,), 2 * math.log(0.3), dtype=F64)], 1)
    certain = torch.stack([std[:, 0], torch.zeros(5, dtype=F64)], 1)
    ours = Gaussian(std=0.3).double().expected_log_prob(mean[:, :1], std[:, :1], y)
    torch.testing.assert_close(ours, quadrature(y, fixed, certain), atol=1e-6, rtol=1e-6)
    # several targets: means first, then log variances
    both = HeteroscedasticGaussian().expected_log_prob(
        torch.cat([mean, mean], 1)[:, [0, 2, 1, 3]], std[:, [0, 0, 1, 1]], y[:, None].expand(5, 2)
    )
    torch.testing.assert_close(both, 2 * quadrature(y, mean, std))
    with pytest.raises(NotImplementedError, match="Categorical has no closed form"):
        Categorical().expected_log_prob(mean, std, torch.zeros(5, dtype=torch.long))
    assert HeteroscedasticGaussian().expected_log_prob(mean.float(), 100 * std.float(), y.float()).isfinite().all()


def test_the_predictive_variance_of_regression() -> None:
    bnn, x = noisy(VIFO(), mlp(2)), torch.randn(3, 4, dtype=F64)
    (mean, std), n = bnn.normal_outputs(x)[:2], 100_000
    expected = std[:, 0] ** 2 + torch.exp(mean[:, 1] + std[:, 1] ** 2 / 2)
    variance = predict(bnn, x, HeteroscedasticGaussian(), samples=n, seed=0).variance
    torch.testing.assert_close(variance, expected.detach(), rtol=0.05, atol=0)


def test_prediction_takes_one_pass() -> None:
    bnn, passes, x = noisy(VIFO()), [], torch.randn(1000, 4, dtype=F64)
    bnn(x[:1])  # the first pass looks at the net
    bnn.net.register_forward_hook(observer(lambda *_: passes.append(1)))
    predict(bnn, x, Categorical(), samples=50, seed=0)
    assert len(passes) == 1


def test_averages_run_over_the_training_data_alone() -> None:
    bnn, batches = noisy(VIFO(regularizer="mean-all", momentum=0.2)), torch.randn(7, 9, 4, dtype=F64)
    rows = []
    for k, x in enumerate(batches):
        bnn.train()
        local_kl = bnn(x).local_kl
        outputs = bnn.eval().normal_outputs(x)
        rows.append(torch.stack([outputs.mean, outputs.mean**2, outputs.std**2]).mean(1).detach())
        if k < 5:  # plain averages first, then 0.2 of every batch
            torch.testing.assert_close(bnn.averages, torch.stack(rows).mean(0))
        bnn.train().regularizer(x)
    expected = 0.8 * (0.8 * torch.stack(rows[:5]).mean(0) + 0.2 * rows[5]) + 0.2 * rows[6]
    torch.testing.assert_close(bnn.averages, expected)
    torch.testing.assert_close(local_kl, vifo_mean_all(outputs.mean, outputs.std, expected[0]))
    with pytest.raises(ValueError, match="averages over the 4 outputs of the last layer"):
        bayesify(nn.Sequential(nn.Linear(2, 4), nn.Unflatten(1, (2, 2))), VIFO(regularizer="mean-all")).train()(torch.zeros(2, 2))


class ClassesLast(nn.Module):
    """A segmentation network whose maps are (B, H, W, K) instead of (B, K, H, W)."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).movedim(1, -1)


@pytest.mark.parametrize("size", [3, 5], ids=["H = W = K", "H = W = 5"])
@pytest.mark.parametrize("regularizer", ["mean", "mean-variance", "empirical-bayes", "mean-all"])
def test_the_classes_of_segmentation_maps_may_be_in_any_dimension(regularizer: Any, size: int) -> None:
    net, x = nn.Conv2d(2, 3, 3, padding=1).double(), torch.randn(4, 2, size, size, dtype=F64)
    first = noisy(VIFO(regularizer=regularizer), copy.deepcopy(net))
    last = bayesify(ClassesLast(copy.deepcopy(net)), VIFO(regularizer=regularizer)).double()
    last.net.net.load_state_dict(first.net.state_dict())
    first.train(), last.train()
    maps, expected = first(x, samples=2, coherent=True), last(x, samples=2, coherent=True)
    torch.testing.assert_close(maps.local_kl, expected.local_kl)
    torch.testing.assert_close(first.normal_outputs(x).std.movedim(1, -1), last.normal_outputs(x).std)
    exact = first.eval().normal_outputs(x)
    noise = ((first(x, coherent=True).outputs[0] - exact.mean) / exact.std).movedim(1, -1)
    torch.testing.assert_close(noise, noise[0, 0, 0].expand_as(noise))
    torch.testing.assert_close(first.function(3)(x).movedim(1, -1), last.function(3)(x))


def test_auxiliary_inputs_leave_running_statistics_alone() -> None:
    bnn = bayesify(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)), VIFO(eta_aux=0.5)).train()
    before = copy.deepcopy(bnn.state_dict())
    bnn.regularizer(torch.randn(6, 4)).mean().backward()
    for name, value in bnn.state_dict().items():
        torch.testing.assert_close(value, before[name])
    assert all(module.training for module in bnn.modules())
    assert bnn.net[0].weight.grad is not None


def curve(n: int = 40) -> tuple[Tensor, Tensor]:
    x = torch.linspace(-1, 1, n)[:, None]
    x = torch.where(x > 0, x + 1, x - 1)
    return x, torch.sin(x).squeeze(1)


def test_auxiliary_training_raises_the_uncertainty_away_from_the_data() -> None:
    stds = {}
    for eta_aux in (0.0, 1.0):
        torch.manual_seed(0)
        bnn = bayesify(nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1)), VIFO(eta_aux=eta_aux))
        fit(bnn, curve(), Gaussian(std=0.1), epochs=60, batch_size=20, learning_rate=0.02, accelerator="cpu", progress=False)
        stds[eta_aux] = bnn.normal_outputs(torch.tensor([[0.0], [-3.5], [3.5]])).std.mean()
    assert stds[1.0] > 2 * stds[0.0]


@pytest.mark.parametrize("kind", ["tensor", "loader"])
def test_auxiliary_inputs_of_ones_own(kind: str) -> None:
    far = torch.full((7, 1), 50.0)
    given = far if kind == "tensor" else torch.utils.data.DataLoader(torch.utils.data.TensorDataset(far), batch_size=4)
    bnn, seen = bayesify(nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)), VIFO(eta_aux=1.0)), []
    bnn.net.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    settings = {"epochs": 2, "batch_size": 16, "accelerator": "cpu", "progress": False}
    fit(bnn, curve(), Gaussian(std=0.1), auxiliary=given, **settings)
    away = [x for x in seen if (x == 50).all()]
    assert len(away) == 2 * 3  # one batch of them for every one of the data
    training = Training(bnn=bnn, data=curve(), likelihood=Gaussian(std=0.1), auxiliary=given)
    assert len(fit_many([training], **settings)[0]) == 2
    with pytest.raises(ValueError, match=r"regularized there, such as VIFO\(eta_aux=0.1\)"):
        fit(bayesify(nn.Linear(1, 1), VIFO()), curve(), Gaussian(), auxiliary=far, **settings)


def test_uniform_inputs_fill_the_doubled_box() -> None:
    bnn, seen = bayesify(nn.Linear(2, 1), VIFO(eta_aux=1.0)), []
    bnn.net.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    x = torch.rand(200, 2) * torch.tensor([2.0, 0.0]) + torch.tensor([1.0, 5.0])
    x[:2] = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
    fit(bnn, (x, x[:, 0]), Gaussian(), epochs=20, batch_size=200, accelerator="cpu", progress=False)
    drawn = torch.cat([v for v in seen if len(v) == 200][1::2])
    assert (drawn[:, 1] == 5).all()
    assert abs(drawn[:, 0].mean() - 2) < 5 * (4 / math.sqrt(12)) / math.sqrt(4000)
    assert 0 <= drawn[:, 0].min() < 0.02
    assert 3.98 < drawn[:, 0].max() <= 4
    words = bayesify(nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(4, 1)), VIFO(eta_aux=1.0))
    tokens = torch.randint(0, 5, (8, 2))
    with pytest.raises(ValueError, match=r"ranges of floating point inputs, got torch\.int64; pass auxiliary inputs"):
        fit(words, (tokens, torch.zeros(8)), Gaussian(), accelerator="cpu", progress=False)


@pytest.mark.parametrize("method", [VIFO(), VIFO(regularizer="mean-variance", separate_std=True)])
def test_a_batch_without_rows(method: VIFO) -> None:
    bnn = noisy(method)
    for samples in (1, 3):
        draws = bnn(torch.empty(0, 4, dtype=F64), samples=samples)
        assert draws.outputs.shape == (samples, 0, 3)
        assert draws.local_kl.shape == (0,)
        assert bnn(torch.randn(2, 4, dtype=F64), samples=samples).outputs.shape == (samples, 2, 3)


def test_the_linear_case_recovers_inference_over_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Theorem 3.1, with d / 2 for N / 2."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    import vifo_linear as example

    for n, d in ((12, 3), (30, 7)):
        case = example.problem(n, d)
        torch.testing.assert_close(example.output_space(*case), example.weight_space(*case), rtol=1e-6, atol=1e-5)


class Factor(nn.Module):
    """Logits with a learned factor."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.last, self.factor = nn.Linear(4, 3), nn.Parameter(torch.full((3,), value))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x) * self.factor


@pytest.mark.parametrize("value", [1.0, 1.3])
def test_a_learned_factor_is_refused_whatever_its_value_before_training(value: float) -> None:
    net = Factor(value)
    with pytest.raises(ConfigurationError, match="a factor"):
        bayesify(net, VIFO())(torch.randn(5, 4))
    assert net.factor.tolist() == pytest.approx([value] * 3)


def test_a_factor_that_is_set_after_the_first_call_is_refused() -> None:
    class Tempered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.temperature = nn.Linear(4, 3), 1.0

        def forward(self, x: Tensor) -> Tensor:
            return self.last(x) / self.temperature

    net, x = Tempered(), torch.randn(5, 4)
    bnn = bayesify(net, VIFO()).eval()
    bnn(x)
    net.temperature = 1.7
    with pytest.raises(ConfigurationError, match="a factor"):
        bnn(x)
