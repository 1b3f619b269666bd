"""Networks that differentiate in `forward`: forces as derivatives of an energy."""

import pytest
import torch
from torch import Tensor, nn

from bayesify import (
    EMP,
    HMC,
    VIFO,
    VSD,
    WHVI,
    ConfigurationError,
    DeepEnsemble,
    Gaussian,
    Laplace,
    MeanField,
    Method,
    VariationalDropout,
    bayesify,
    predict,
)
from bayesify.train import Training, fit, fit_many

METHODS = [MeanField(initial_std=0.5), VariationalDropout(p=0.3), VSD(p=0.3), WHVI(initial_std=0.3), EMP(spread=0.5)]


class Forces(nn.Module):
    """The gradient (B, 3) of an energy, as interatomic potentials return it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 16), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        energy = self.last(torch.tanh(self.first(x))).sum()
        return torch.autograd.grad(energy, x, create_graph=self.training)[0]


def _data(rows: int = 4) -> tuple[Tensor, Tensor]:
    x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(0))
    return x, x.cos()


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
@pytest.mark.filterwarnings("ignore::bayesify.BayesifyWarning")
@pytest.mark.default("MeanField", "EMP", extended=["VariationalDropout"])
def test_predictions_have_the_moments_of_drawn_functions(method: Method) -> None:
    torch.manual_seed(1)
    bnn, (x, _) = bayesify(Forces(), method).eval(), _data()
    p = predict(bnn, x, Gaussian(std=1e-4), samples=2000, seed=0, progress=False)
    functions = torch.stack([bnn.function(seed)(x) for seed in range(2000)])
    std = functions.std(0)
    torch.testing.assert_close(p.mean, functions.mean(0), rtol=0, atol=float(0.16 * std.max()))  # five standard errors
    torch.testing.assert_close(p.std, std, rtol=0.12, atol=0)


def test_calls_without_gradients_have_none_and_depend_on_the_seed_alone() -> None:
    bnn, (x, _) = bayesify(Forces(), {"last": MeanField()}).eval(), _data()
    outputs = []
    for _ in range(3):
        torch.manual_seed(2)
        with torch.no_grad():
            draws = bnn(x, samples=1)
        assert not draws.outputs.requires_grad
        assert not draws.kl.requires_grad
        outputs.append(draws.outputs)
    torch.manual_seed(2)
    outputs.append(bnn(x, samples=1).outputs)
    assert all(torch.equal(each, outputs[0]) for each in outputs)


@pytest.mark.default("MeanField", "EMP", "DeepEnsemble")
@pytest.mark.parametrize("method", [*METHODS, DeepEnsemble(members=2)], ids=lambda method: type(method).__name__)
@pytest.mark.filterwarnings("ignore::bayesify.BayesifyWarning")
def test_they_train_and_validate(method: Method) -> None:
    torch.manual_seed(1)
    data = _data(40)
    bnn = bayesify([Forces(), Forces()] if isinstance(method, DeepEnsemble) else Forces(), method)
    settings = {"epochs": 12, "batch_size": 10, "learning_rate": 0.02, "accelerator": "cpu", "progress": False}
    history = fit(bnn, data, Gaussian(std=0.5), validation=data, beta=0.1, **settings)
    assert min(history.validation_nll) < history.validation_nll[0]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (Laplace(), "differentiates in its forward pass.*use a method that draws"),
        (HMC(), "differentiates in its forward pass.*use a method that draws"),
        (VIFO(), "something follows the layer 'last'"),
        (VIFO(separate_std=True), "something follows the layer 'last'"),
    ],
    ids=["Laplace", "HMC", "VIFO", "VIFO, two networks"],
)
def test_what_cannot_serve_them_says_so_before_training(method: Method, message: str) -> None:
    for kind, package in ((Laplace, "laplace"), (HMC, "pyro")):
        if isinstance(method, kind):
            pytest.importorskip(package)
    bnn, epochs = bayesify(Forces(), method), []
    with pytest.raises(ConfigurationError, match=message):
        fit(bnn, _data(40), Gaussian(), epochs=1, batch_size=5, accelerator="cpu", progress=False, loggers=[epochs.append])
    assert not epochs


@pytest.mark.parametrize("together", [None, False])
def test_of_many_models_one_says_so_before_any_is_trained(together: bool | None) -> None:
    pytest.importorskip("laplace")
    bnns = [bayesify(nn.Linear(3, 3), MeanField()), *(bayesify(Forces(), Laplace()) for _ in range(2))]
    trainings = [Training(bnn=bnn, data=_data(40), likelihood=Gaussian()) for bnn in bnns]
    before = [{name: value.clone() for name, value in training.bnn.state_dict().items()} for training in trainings]
    with pytest.raises(ConfigurationError, match="differentiates in its forward pass"):
        fit_many(trainings, epochs=1, batch_size=5, accelerator="cpu", together=together, progress=False)
    for training, state in zip(trainings, before, strict=True):
        assert all(torch.equal(value, state[name]) for name, value in training.bnn.state_dict().items())


def test_other_errors_are_those_of_the_network() -> None:
    bnn = bayesify(nn.Linear(3, 1), MeanField())
    with torch.no_grad(), pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        bnn(torch.randn(4, 2))
    assert bnn.differentiation.needed is None
