"""Networks with complex parameters, which stay as they are while other layers become random."""

import math

import pytest
import torch
from torch import Tensor, nn

from bayesify import (
    EMP,
    HMC,
    SGLD,
    SWAG,
    VIFO,
    Categorical,
    DeepEnsemble,
    Gaussian,
    Laplace,
    MeanField,
    RepulsiveEnsemble,
    bayesify,
    predict,
)
from bayesify.core.initialization import looks_initialized
from bayesify.methods._weight_density import WeightDensity
from bayesify.train import fit

X = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True).expand(-1, 2).contiguous()


class Phases(nn.Module):
    """Real outputs of a complex layer and a real one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 20, dtype=torch.complex64), nn.Linear(20, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x.to(self.first.weight.dtype)).abs())


@pytest.mark.filterwarnings("ignore::bayesify.errors.BayesifyWarning")
@pytest.mark.parametrize(
    "method",
    [
        MeanField(),
        EMP(),
        VIFO(),
        SWAG(),
        SGLD(burn_in=2, draws=4, thinning=1),
        HMC(draws=4, warmup=2, chains=1),
        Laplace(),
        DeepEnsemble(members=2),
        RepulsiveEnsemble(members=2),
        RepulsiveEnsemble(members=2, space="function"),
    ],
    ids=lambda method: type(method).__name__,
)
def test_training_and_prediction(method):
    pytest.importorskip("laplace")
    pytest.importorskip("pyro")
    torch.manual_seed(0)
    bnn, likelihood = bayesify(Phases(), method), Gaussian()
    before = {name: p.detach().clone() for name, p in bnn.named_parameters() if p.is_complex()}
    assert before
    fit(bnn, (X, Y), likelihood, epochs=2, batch_size=20, accelerator="cpu", progress=False)
    assert all(not torch.equal(p.detach().imag, before[name].imag) for name, p in bnn.named_parameters() if name in before)
    assert predict(bnn, X, likelihood, samples=2, seed=0, progress=False).mean.shape == (20, 2)


def test_the_prior_of_an_ensemble_has_both_parts_of_a_complex_weight():
    bnn = bayesify(Phases(), RepulsiveEnsemble(members=2, prior_std=0.5, space="weight"))
    bnn.eval()  # the prior alone
    squares = [sum((p.detach().abs() ** 2).sum() for p in member.parameters()) for member in bnn.members]
    torch.testing.assert_close(bnn.kl().detach(), torch.stack(squares).mean() / (2 * 0.5**2))


def test_densities_in_double_precision_keep_imaginary_parts():
    torch.manual_seed(0)
    net = Phases()
    hidden = X.to(torch.complex128) @ net.first.weight.to(torch.complex128).mT + net.first.bias.to(torch.complex128)
    expected = hidden.abs() @ net.last.weight.double().mT + net.last.bias.double()
    bnn = bayesify(net, HMC())
    names = [name for name, _ in bnn.random_layers()]
    density = WeightDensity(bnn, names, Gaussian(), 1.0, 1.0, torch.float64)
    assert density.net.first.weight.dtype == torch.complex128
    torch.testing.assert_close(density.trial(X.double()), expected.detach())


@pytest.mark.parametrize("make", [nn.Linear, nn.Embedding])
def test_initial_weights_are_recognized(make):
    torch.manual_seed(0)
    layer = make(30, 30, dtype=torch.complex64)
    assert looks_initialized(type(layer), layer.weight.detach())
    assert not looks_initialized(type(layer), layer.weight.detach() * math.sqrt(2))


class Fixed(nn.Module):
    """Single precision, whatever that of its weights is."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.layer, self.shape = nn.Linear(3, 2), shape

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.float()).view(-1, *self.shape)


@pytest.mark.parametrize(
    ("method", "net", "likelihood", "message"),
    [
        (Laplace(), Fixed(2), Gaussian(), "computed in torch.float64, but the network fails in it"),
        (HMC(), Fixed(2), Gaussian(), "computed in torch.float64, but the network fails in it"),
        (Laplace(), nn.Sequential(nn.Linear(3, 2), nn.Unflatten(1, (1, 2))), Categorical(), "one vector per example"),
    ],
)
def test_what_cannot_be_done_after_training_is_an_error_before_it(method, net, likelihood, message):
    pytest.importorskip("laplace")
    pytest.importorskip("pyro")
    bnn, epochs = bayesify(net, method), []
    before = [p.detach().clone() for p in bnn.parameters()]
    y = torch.zeros(20, 1, dtype=torch.long) if isinstance(likelihood, Categorical) else Y
    with pytest.raises(ValueError, match=message):
        fit(bnn, (X, y), likelihood, epochs=2, accelerator="cpu", progress=False, loggers=[epochs.append])
    assert not epochs
    assert all(torch.equal(p.detach(), value) for p, value in zip(bnn.parameters(), before, strict=True))
