"""Networks that seed PyTorch's generator, or draw noise from generators of Python and NumPy."""

import random
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bayesify import EMP, SWAG, VIFO, VSD, BatchEnsemble, Deterministic, MCDropout, MeanField, bayesify
from bayesify.core.method import Method
from bayesify.errors import BayesifyWarning, PassError


class Between(nn.Module):
    """Two layers, with a function between them."""

    def __init__(
        self, function: Callable[[Tensor], Tensor], noise_of_last: Callable[[nn.Module, Tensor], Tensor] | None = None
    ) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)
        self.function, self.call = function, noise_of_last or (lambda layer, h: layer(h))

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.last, self.function(self.first(x)))


def _seeding(h: Tensor) -> Tensor:
    """Projects on random directions, always the same ones."""
    torch.manual_seed(3)
    return h @ torch.randn(4, 4, dtype=h.dtype)


def _forking(h: Tensor) -> Tensor:
    with torch.random.fork_rng():
        return _seeding(h)


def _with_own_generator(h: Tensor) -> Tensor:
    return h @ torch.randn(4, 4, dtype=h.dtype, generator=torch.Generator().manual_seed(3))


def _seeded_layer(layer: nn.Module, h: Tensor) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return layer(h)


def _of_python(h: Tensor) -> Tensor:
    """Keeps or drops all of its input, as stochastic depth does."""
    return h * (random.random() > 0.5)


def _of_numpy(h: Tensor) -> Tensor:
    """A mask for each row, as the augmentation of spectrograms has."""
    return h * torch.from_numpy(np.random.rand(len(h), 1) > 0.5)  # noqa: NPY002


METHODS = [MeanField(), MCDropout(), VSD(), EMP(), BatchEnsemble(), SWAG(), VIFO()]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("fold", [None, True, False])
def test_a_network_that_seeds_the_generator_is_refused(method: Method, fold: bool | None) -> None:
    """Its last layer would draw the same noise in every pass."""
    with pytest.raises(PassError, match=r"seeds PyTorch's generator in forward .* a torch.Generator of its own"):
        bayesify(Between(_seeding), method, fold=fold)(torch.randn(5, 3), samples=2)


def test_a_random_layer_in_a_seeded_part_is_refused() -> None:
    with pytest.raises(PassError, match="seeds PyTorch's generator"):
        bayesify(Between(torch.tanh, _seeded_layer), MeanField())(torch.randn(5, 3), samples=2)


def test_a_deterministic_network_may_seed() -> None:
    net = Between(_seeding)
    expected = net(x := torch.randn(5, 3))
    torch.testing.assert_close(bayesify(net, Deterministic())(x, samples=1).outputs[0], expected)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("function", [_forking, _with_own_generator])
def test_seeds_that_leave_the_generator_as_it_is_change_nothing(method: Method, function: Callable[[Tensor], Tensor]) -> None:
    bnn = bayesify(Between(function), method).eval()
    with torch.no_grad():
        for _, layer in bnn.random_layers():
            for parameter in layer.posterior.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    x = torch.randn(5, 3)
    passes = [bnn(x, samples=2).outputs for _ in range(3)]
    if not isinstance(method, SWAG | BatchEnsemble):  # before training, and with its members in order
        assert any(not torch.equal(passes[0], other) for other in passes[1:])


@pytest.mark.parametrize(("function", "folds"), [(_of_python, True), (_of_numpy, False)])
@pytest.mark.parametrize("training", [False, True])
def test_noise_of_other_libraries(function: Callable[[Tensor], Tensor], folds: bool, training: bool) -> None:
    """Draws share a pass if the noise does not depend on the number of rows; otherwise the reason is the true one."""
    net = Between(torch.tanh)
    net.function = lambda h: function(h) if net.training == training else h
    calls = list[int]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BayesifyWarning)
        bnn = bayesify(net, MeanField()).train(training)
        net.register_forward_hook(lambda *_: calls.append(1))
        bnn(torch.randn(5, 3), samples=2)
        calls.clear()
        bnn(torch.randn(5, 3), samples=2)
    assert len(calls) == (1 if folds else 2)
    told = [str(each.message) for each in caught]
    assert sum("noise that is not PyTorch's" in text for text in told) == (0 if folds else 1)
    assert sum("draws random numbers in eval mode" in text for text in told) == (0 if training else 1)
    assert len(told) == (0 if folds else 1) + (0 if training else 1)


def test_examining_a_network_leaves_the_generators_as_they_were() -> None:
    def numbers() -> tuple[float, float]:
        return random.random(), float(np.random.rand())  # noqa: NPY002

    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    first, second = numbers(), numbers()
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    assert numbers() == first
    bayesify(Between(torch.tanh), MeanField()).eval()(torch.randn(5, 3), samples=2)
    assert numbers() == second
