"""Networks that set parameters in a pass: initialization from the first batch must be that of the user's batch."""

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn

from bayesify import SWAG, VIFO, MeanField, Method, bayesify, predict
from bayesify.errors import BayesifyWarning, ConfigurationError, PassError
from bayesify.likelihoods import Gaussian


class ActNorm(nn.Module):
    """Scales features to unit variance in its first batch."""

    def __init__(self, features: int, in_training: bool = False) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))
        self.is_initialized, self.in_training = False, in_training

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_initialized and (self.training or not self.in_training):
            self.scale.data, self.shift.data = 1 / x.detach().std(0), -(x.detach() / x.detach().std(0)).mean(0)
            self.is_initialized = True
        return self.scale * x + self.shift


class MovingShift(nn.Module):
    """Subtracts a moving average, which it updates in every pass in training mode."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(features), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.data.lerp_(x.detach().mean(0), 0.1)
        return x - self.mean


def _net(middle: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), middle, nn.ReLU(), nn.Linear(4, 2))


def _x(rows: int = 32) -> Tensor:
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("samples", [1, 2])
def test_a_network_that_would_be_initialized_from_a_test_is_refused(samples: int) -> None:
    bnn = bayesify(_net(ActNorm(4)), MeanField()).eval()
    with pytest.raises(PassError, match=r"sets '1\.scale', '1\.shift' in its first pass.*call it once with a batch"):
        bnn(_x(), samples=samples)


@pytest.mark.parametrize("method", [MeanField(), VIFO(), SWAG()])
@pytest.mark.filterwarnings("ignore:no snapshot")
@pytest.mark.parametrize("rows", [32, 30_000])  # many are worth a test of replay
def test_prediction_refuses_it_too(method: Method, rows: int) -> None:
    bnn = bayesify(_net(ActNorm(4)), method)
    with pytest.raises(PassError, match="in its first pass"):
        predict(bnn, _x(rows), Gaussian(), samples=2, progress=False)


def test_a_network_that_was_called_before_keeps_its_initialization() -> None:
    net = _net(ActNorm(4))
    net(_x())
    expected = copy.deepcopy(net.state_dict())
    bnn = bayesify(net, MeanField()).eval()
    bnn(_x(), samples=2)
    for name in ("scale", "shift"):
        torch.testing.assert_close(dict(bnn.net.named_parameters())[f"1.{name}"], expected[f"1.{name}"], rtol=0, atol=0)


@pytest.mark.parametrize("method", [MeanField(), VIFO()])
def test_initialization_in_training_mode_sees_the_whole_batch(method: Method) -> None:
    """One draw needs no test in training mode: the first batch is that of the user."""
    bnn = bayesify(_net(ActNorm(4, in_training=True)), method).train()
    inputs: list[Tensor] = []
    norm = bnn.net.get_submodule("1")
    assert isinstance(norm, ActNorm)
    handle = norm.register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach()) if norm.training else None)
    bnn(_x(), samples=1)
    handle.remove()
    torch.testing.assert_close(norm.scale, 1 / inputs[0].std(0))
    assert len(inputs[0]) == 32
    scale = norm.scale.detach().clone()
    bnn(_x(), samples=1)
    torch.testing.assert_close(norm.scale, scale, rtol=0, atol=0)


class LogInTraining(nn.Module):
    """Returns logarithms of probabilities in training mode."""

    def forward(self, x: Tensor) -> Tensor:
        return x.log_softmax(1) if self.training else x


def test_vifo_tests_such_a_network_in_training_mode_after_the_first_batch() -> None:
    bnn = bayesify(nn.Sequential(*_net(ActNorm(4, in_training=True)), LogInTraining()), VIFO()).train()
    bnn(_x())
    with pytest.raises(ConfigurationError, match="something follows the layer"):
        bnn(_x())


def test_vifo_undoes_updates_of_its_tests() -> None:
    bnn = bayesify(_net(MovingShift(4)), VIFO()).train()
    shift = bnn.net.get_submodule("1")
    assert isinstance(shift, MovingShift)
    bnn(_x())
    before, seen = shift.mean.clone(), list[Tensor]()
    shift.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    bnn(_x())
    assert len(seen) > 1
    torch.testing.assert_close(shift.mean, before.lerp(seen[-1].mean(0), 0.1))


def test_initialization_in_training_mode_from_a_test_of_several_draws_is_refused() -> None:
    bnn = bayesify(_net(ActNorm(4, in_training=True)), MeanField()).train()
    with pytest.raises(PassError, match=r"sets '1\.scale', '1\.shift' in its first pass"):
        bnn(_x(), samples=2)


def test_updates_in_every_pass_are_undone_after_tests() -> None:
    bnn = bayesify(_net(MovingShift(4)), MeanField()).train()
    shift = bnn.net.get_submodule("1")
    assert isinstance(shift, MovingShift)
    seen: list[Tensor] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BayesifyWarning)  # of separate passes: a moving average mixes rows
        handle = shift.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
        bnn(_x(), samples=2)
        before = shift.mean.clone()
        seen.clear()
        bnn(_x(), samples=2)
        handle.remove()
    assert len(seen) == 2  # no test at a known size
    expected = before
    for x in seen:
        expected = torch.lerp(expected, x.mean(0), 0.1)
    torch.testing.assert_close(shift.mean.data, expected)
    assert float(before.abs().max()) > 0


def test_the_first_call_updates_as_often_as_it_has_draws() -> None:
    bnn = bayesify(_net(MovingShift(4)), MeanField(initial_std=1e-6)).train()
    shift = bnn.net.get_submodule("1")
    assert isinstance(shift, MovingShift)
    expected = 1 - 0.9**2  # of the mean of the batch, after two updates
    with torch.no_grad():
        mean = _net(nn.Identity())[:1](_x()).mean(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BayesifyWarning)
        bnn(_x(), samples=2)
    torch.testing.assert_close(shift.mean.data, expected * mean, rtol=1e-3, atol=1e-4)
