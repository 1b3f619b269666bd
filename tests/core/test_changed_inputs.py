"""Networks that change their inputs: tensors are copied where several passes get them, other objects are refused."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from bayesify import VIFO, Bayesian, DeepEnsemble, Deterministic, MeanField, bayesify, predict
from bayesify.core.method import Method
from bayesify.errors import BayesifyWarning, PassError
from bayesify.likelihoods import Gaussian
from bayesify.testing.trial import captured_weights


class Shifting(nn.Module):
    """Adds one to its input, in place."""

    def __init__(self, mixes: bool = False) -> None:
        super().__init__()
        self.layer, self.mixes = nn.Linear(3, 2), mixes

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x += 1
        if mask is not None:
            mask += 1
            x = x * mask
        y = self.layer(x)
        return y - y.mean(0) if self.mixes else y


class Caching(nn.Module):
    """Appends its input to a cache, and works on all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor, cache: "Cache") -> Tensor:
        cache.values.append(x)
        return self.layer(torch.stack(cache.values).sum(0))


class Cache:
    def __init__(self) -> None:
        self.values = list[Tensor]()


def _batch(rows: int = 5) -> Tensor:
    return torch.randn(rows, 3, dtype=torch.float64)


@pytest.mark.filterwarnings("ignore::bayesify.errors.BayesifyWarning")
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("mixes", [False, True])
def test_draws_of_a_network_that_changes_its_input_are_right(mixes: bool, samples: int, rows: int) -> None:
    net = Shifting(mixes).double()
    bnn = bayesify(copy.deepcopy(net), MeanField())
    inputs = _batch(rows), torch.zeros(1, 3, dtype=torch.float64)
    given = copy.deepcopy(inputs)
    with captured_weights(bnn) as weights:
        draws = bnn(*given, samples=samples, coherent=True).outputs
    expected = torch.stack([functional_call(net, each, copy.deepcopy(inputs)) for each in weights[-samples:]])
    torch.testing.assert_close(draws, expected)


@pytest.mark.filterwarnings("ignore::bayesify.errors.BayesifyWarning")
@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("mixes", [False, True])
@pytest.mark.parametrize("method", [Deterministic(), DeepEnsemble(members=4)], ids=["folded", "ensemble"])
def test_predictions_of_a_network_that_changes_its_input_are_right(method: Method, mixes: bool, chunk: int) -> None:
    net, x = Shifting(mixes).double(), _batch()
    made = [copy.deepcopy(net) for _ in range(4)]
    bnn = bayesify(made if isinstance(method, DeepEnsemble) else made[0], method)
    expected = net(x.clone())
    for _ in range(2):
        prediction = predict(bnn, x, Gaussian(std=1.0), samples=4, chunk=chunk, seed=0, progress=False)
        torch.testing.assert_close(prediction.mean, expected)


def _outputs(bnn: Bayesian, *inputs: Any) -> Tensor:
    moments = bnn.normal_outputs(*inputs)
    assert moments is not None
    return moments.mean


def test_moments_of_a_network_that_changes_its_input_are_right() -> None:
    net, x = Shifting().double(), _batch()
    bnn = bayesify(copy.deepcopy(net), VIFO(separate_std=True))
    expected = net(x.clone())
    for _ in range(2):
        torch.testing.assert_close(_outputs(bnn, x), expected)


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("method", [MeanField(), Deterministic(), VIFO(), DeepEnsemble(members=2)])
def test_a_cache_as_input_is_refused(method: Method, samples: int, recwarn: pytest.WarningsRecorder) -> None:
    bnn = bayesify(Caching().double(), method)
    with pytest.raises(
        PassError, match=r"changes its input, a Cache, .* use bnn.generate\(...\), or `with bnn.drawn\(seed\) as net`"
    ):
        bnn(_batch(), Cache(), samples=samples)
    assert not [w for w in recwarn if issubclass(w.category, BayesifyWarning)]


def test_a_drawn_function_may_have_a_cache() -> None:
    bnn, x, cache = bayesify(Caching().double(), MeanField()), _batch(), Cache()
    f = bnn.function(0)
    torch.testing.assert_close(f(x, cache) * 0 + f(x, cache), f(2 * x, Cache()))
