"""Networks that draw random numbers themselves: what they are told, and how they are compared."""

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify import VIFO, Bayesian, BayesifyWarning, Categorical, DeepEnsemble, MeanField, Method, bayesify, predict
from bayesify.core.noise_free import NoiseFree

INPUT = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Between(nn.Module):
    """Does something to its hidden units."""

    def __init__(self, function: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(4, 8), nn.Linear(8, 3), function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self, self.first(x)))


def _root(function: Callable[[nn.Module, Tensor], Tensor], method: Method) -> Bayesian:
    torch.manual_seed(0)
    return bayesify(Between(function).double(), method)


def _seeded(net: nn.Module, h: Tensor) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return h + torch.randn_like(h)


METHODS = [MeanField(), VIFO(), DeepEnsemble(members=2), DeepEnsemble(members=2, base=MeanField())]
NOISE = {
    "dropout": lambda net, h: F.dropout(h),
    "latent variable": lambda net, h: h + torch.randn_like(h),
    "hidden units": lambda net, h: torch.cat([h[:, torch.randint(0, 8, (5,))], h[:, torch.randperm(8)[:3]]], 1),
}
NO_NOISE = {
    "dropout in training": lambda net, h: F.dropout(h, training=net.training),
    "unused": lambda net, h: h if torch.rand(()) < 2 else -h,
    "small": lambda net, h: h + 1e-4 * torch.randn_like(h),
    "seeded": _seeded,
}


@pytest.mark.parametrize("method", METHODS, ids=repr)
@pytest.mark.parametrize("name", NOISE)
def test_noise_in_eval_mode_is_told_once_before_it_is_taken_for_epistemic_uncertainty(name, method, recwarn):
    bnn = _root(NOISE[name], method)
    bnn(INPUT, samples=2)
    assert not recwarn, "in training it is usual"
    for _ in range(2):
        p = predict(bnn, INPUT, Categorical(), samples=4)
    assert p.probs.shape == (6, 3)
    assert [w.category for w in recwarn] == [BayesifyWarning]
    assert "draws random numbers in eval mode" in str(recwarn[0].message)
    assert bnn.findings == [str(recwarn[0].message)], "also of an ensemble"


@pytest.mark.parametrize("method", METHODS, ids=repr)
@pytest.mark.parametrize("name", NO_NOISE)
def test_noise_without_an_effect_in_eval_mode_is_not_told(name, method, recwarn):
    bnn = _root(NO_NOISE[name], method)
    bnn(INPUT, samples=2)
    predict(bnn, INPUT, Categorical(), samples=4)
    assert not [w for w in recwarn if "eval mode" in str(w.message)]


def test_noise_of_python_is_told_and_its_generator_goes_on_as_without_the_examination(recwarn):
    bnn = _root(lambda net, h: h * random.random(), MeanField()).eval()
    random.seed(5)
    for _ in range(2):
        bnn(INPUT)
    following = random.random()
    random.seed(5)
    assert following == [random.random() for _ in range(3)][2], "a pass draws one number"
    assert sum("draws random numbers in eval mode" in str(w.message) for w in recwarn) == 1


def test_networks_that_choose_units_at_random_are_compared_without_that():
    """Integers and permutations are constants in comparisons; otherwise, the network would seem to remember something."""
    bnn = _root(NOISE["hidden units"], MeanField())
    bnn(INPUT, samples=2)
    assert not bnn.findings


def test_random_states_go_on_as_without_the_examination():
    bnn = _root(NOISE["latent variable"], MeanField()).eval()
    states = []
    for _ in range(2):
        bnn.forget_verdicts()
        torch.manual_seed(5)
        outputs = bnn(INPUT).outputs
        states.append((outputs.detach(), torch.get_rng_state()))
        torch.manual_seed(5)
        torch.testing.assert_close(bnn(INPUT).outputs, outputs)
    assert torch.equal(states[0][1], states[1][1])


@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        (lambda: torch.randint(3, 9, (4,)), 3),
        (lambda: torch.randint(9, (4,)), 0),
        (lambda: torch.randint_like(torch.zeros(4), 9), 0),
        (lambda: torch.randint_like(torch.zeros(4), 3, 9), 3),
        (lambda: torch.empty(4).random_(), 0),
        (lambda: torch.empty(4).random_(9), 0),
        (lambda: torch.empty(4).random_(3, 9), 3),
        (lambda: torch.multinomial(torch.ones(5), 4), 0),
        (lambda: torch.poisson(torch.full((4,), 3.0)), 1),
        (lambda: torch.empty(4).cauchy_(), 1),
        (lambda: torch.distributions.Gamma(torch.full((4,), 2.0), 1.0).sample(), 1),
    ],
)
def test_draws_are_constants_without_noise(draw, expected):
    with NoiseFree() as noise_free:
        drawn = draw()
    assert noise_free.replaced
    assert (drawn == expected).all()


def test_permutations_reverse_the_order_without_noise():
    with NoiseFree() as noise_free:
        assert torch.randperm(5).tolist() == [4, 3, 2, 1, 0]
    assert noise_free.replaced


def _shuffled(net: nn.Module, h: Tensor) -> Tensor:
    """Layers get the rows in another order, and the outputs have the order of the inputs."""
    order = torch.randperm(len(h))
    return net.middle(h[order])[order.argsort()]


def _sampled(net: nn.Module, h: Tensor) -> Tensor:
    """A latent variable whose scale depends on the other rows."""
    return h + torch.randn_like(h) * (h - h.mean(0))


@pytest.mark.filterwarnings("ignore:the network (draws random numbers|does not use)")
@pytest.mark.parametrize("function", [_shuffled, _sampled])
def test_noise_that_mixes_rows_keeps_draws_apart(function):
    net = Between(function).double()
    net.middle = nn.Linear(8, 8).double()
    with pytest.warns(BayesifyWarning, match="every draw takes a separate pass, .* the rows of a batch affect each other"):
        bayesify(net, MeanField()).eval()(INPUT, samples=2)
