"""Networks with quantized weights, which are tensors of another type, as those of torchao."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayesify import EMP, VSD, WHVI, ConfigurationError, DeepEnsemble, Deterministic, Gaussian, MeanField, Method, bayesify, predict
from bayesify.train import Training, fit, fit_many


class Int8(Tensor):
    """A matrix of 8-bit integers with one scale, which computes nothing but a linear layer."""

    values: Tensor
    scale: Tensor

    @staticmethod
    def __new__(cls, values: Tensor, scale: Tensor) -> "Int8":
        return Tensor._make_wrapper_subclass(cls, values.shape, dtype=scale.dtype, device=values.device)

    def __init__(self, values: Tensor, scale: Tensor) -> None:
        self.values, self.scale = values, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["values", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, Tensor], *_: Any) -> "Int8":
        return cls(inner["values"], inner["scale"])

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            x, weight, bias = args
            return F.linear(x, weight.values.to(x) * weight.scale.to(x), bias)
        return super().__torch_function__(func, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default, torch.ops.aten._to_copy.default):
            weight = args[0]
            return cls(func(weight.values), weight.scale.to(dtype=(kwargs or {}).get("dtype")))
        raise NotImplementedError(f"{func} of a quantized weight")


def _net() -> nn.Sequential:
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    scale = net[0].weight.detach().abs().max() / 127
    values = (net[0].weight.detach() / scale).round().to(torch.int8)
    net[0].weight = nn.Parameter(Int8(values, scale), requires_grad=False)
    return net


def _data() -> tuple[Tensor, Tensor]:
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    return x, x[:, :2].sin()


@pytest.mark.parametrize("method", [MeanField(), VSD(p=0.3), WHVI(), EMP(where="*")], ids=lambda method: type(method).__name__)
@pytest.mark.filterwarnings("ignore:.*stay deterministic")
def test_quantized_layers_stay_and_the_others_train(method: Method) -> None:
    torch.manual_seed(0)
    net, (x, y) = _net(), _data()
    before = net[0].weight.values.clone()
    bnn = bayesify(net, method)
    assert next(report.reason for report in bnn.report) == "its weight is quantized or otherwise not an ordinary tensor (Int8)"
    history = fit(bnn, (x, y), Gaussian(std=0.5), epochs=20, learning_rate=0.03, beta=0.01, accelerator="cpu", progress=False)
    assert history.nll[-1] < history.nll[0]
    assert torch.equal(bnn.net[0].weight.values, before)
    functions = torch.stack([bnn.function(seed)(x).detach() for seed in range(500)])
    p = predict(bnn.eval(), x, Gaussian(std=1e-4), samples=500, seed=0, progress=False)
    # five standard errors of differences: sqrt(2 / 500) and sqrt(1 / 500) of a standard deviation
    std = functions.std(0)
    torch.testing.assert_close(p.mean, functions.mean(0), rtol=0, atol=float(0.32 * std.max()))
    torch.testing.assert_close(p.std, std, rtol=0.23, atol=2e-4)
    assert float(std.min()) > 2e-3


def test_a_pattern_that_names_one_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"its weight is quantized or otherwise not an ordinary tensor \(Int8\)"):
        bayesify(_net(), {"0": MeanField()})


@pytest.mark.filterwarnings("ignore:.*stay deterministic")
def test_members_of_an_ensemble_train_one_after_another() -> None:
    nets = [_net(), _net()]
    bnn = bayesify(nets, DeepEnsemble(members=2))
    history = fit(bnn, _data(), Gaussian(std=0.5), epochs=20, learning_rate=0.03, accelerator="cpu", progress=False)
    assert history.nll[-1] < history.nll[0]
    trainings = [Training(bnn=bayesify(_net(), {"2": Deterministic()}), data=_data(), likelihood=Gaussian()) for _ in range(2)]
    with pytest.raises(ConfigurationError, match=r"cannot be trained together: some weights are quantized"):
        fit_many(trainings, epochs=1, accelerator="cpu", together=True, progress=False)


@pytest.mark.parametrize("method", [MeanField(), EMP()], ids=lambda method: type(method).__name__)
@pytest.mark.filterwarnings("ignore:.*stay deterministic")
def test_they_can_be_converted_while_they_are_observed(method: Method) -> None:
    """PyTorch exchanges tensors of other types when a module is converted, which weak references to them prevent."""
    bnn, (x, _) = bayesify(_net(), method), _data()
    bnn.to(torch.float64)
    optimizer = torch.optim.AdamW(bnn.parameters())
    for _ in range(3):
        bnn.train()(x.double()).outputs.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert bnn.to(torch.float32)(x, samples=2).outputs.dtype == torch.float32


@pytest.mark.filterwarnings("ignore::bayesify.BayesifyWarning")
def test_any_network_can_be_converted_by_exchange() -> None:
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        bnn = bayesify(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)), MeanField())
        for dtype in (torch.float64, torch.float32):
            bnn.to(dtype).train()(_data()[0].to(dtype)).outputs.sum().backward()
            bnn.zero_grad()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
