"""Extreme data and settings, for every method: a finite prediction, or one error of ours that says what to change."""

import math
import warnings
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bayesify import HMC, SGHMC, SGLD, Bayesian, DeepEnsemble, Gaussian, Method, RepulsiveEnsemble, bayesify, predict
from bayesify import _public as package
from bayesify.errors import BayesifyError, BayesifyWarning, DataError
from bayesify.estimators import BayesianRegressor
from bayesify.train import fit

pytestmark = pytest.mark.filterwarnings("ignore::bayesify.errors.BayesifyWarning", "ignore:training 0 failed")

_SHORT: dict[type[Method], dict[str, Any]] = {
    HMC: {"draws": 4, "chains": 2, "warmup": 4, "max_tree_depth": 3},
    SGLD: {"draws": 4, "chains": 2, "burn_in": 10, "thinning": 2},
    SGHMC: {"draws": 4, "chains": 2, "burn_in": 10, "thinning": 2},
    DeepEnsemble: {"members": 2},
    RepulsiveEnsemble: {"members": 2},
}
_ADAPTERS = ("BLoB", "ScalaBL")  # of networks with low-rank adapters
METHODS = [
    kind(**_SHORT.get(kind, {}))
    for kind in (getattr(package, name) for name in package.__all__ if name not in _ADAPTERS)
    if isinstance(kind, type) and issubclass(kind, Method) and kind is not Method
]
X = torch.randn(24, 3, generator=torch.Generator().manual_seed(1))
Y = X.sum(1)


def _spreads(value: float) -> Callable[[Bayesian], None]:
    """Set all logarithms of spreads to the value."""

    def change(bnn: Bayesian) -> None:
        with torch.no_grad():
            for name, parameter in bnn.named_parameters():
                if name.endswith(("log_std", "log_alpha", "log_diagonal")):
                    parameter.fill_(value)

    return change


EXTREMES: dict[str, dict[str, Any]] = {
    "inputs of 1e-30": {"x": 1e-30 * X},
    "inputs of 1e10": {"x": 1e10 * X},
    "inputs of 1e30": {"x": 1e30 * X},
    "constant inputs": {"x": torch.ones(24, 3)},
    "inputs of zero": {"x": torch.zeros(24, 3)},
    "half precision": {"x": X.half()},
    "bfloat16": {"x": X.bfloat16()},
    "double precision": {"x": X.double(), "y": Y.double()},
    "one row": {"x": X[:1], "y": Y[:1]},
    "targets of 1e-150": {"y": 1e-150 * Y.double()},
    "targets of 1e30": {"y": 1e30 * Y},
    "targets of 1e150": {"y": 1e150 * Y.double()},
    "targets of 1e-150 in double": {"x": X.double(), "y": 1e-150 * Y.double(), "double": True},
    "targets of 1e150 in double": {"x": X.double(), "y": 1e150 * Y.double(), "double": True},
    "learning rate": {"learning_rate": 1e3},
    "narrow posteriors": {"change": _spreads(-60.0)},
    "no spread": {"change": _spreads(-200.0)},
    "wide posteriors": {"change": _spreads(30.0)},
    "too wide posteriors": {"change": _spreads(43.0)},
}
HARMLESS = ("inputs of 1e-30", "constant inputs", "inputs of zero", "half precision", "bfloat16", "double precision", "one row")

# Beside the harmless ones that differ, those that overflow or underflow at different places.
EXTENDED = (
    *("inputs of 1e-30", "constant inputs", "half precision", "double precision", "one row"),
    *("inputs of 1e30", "targets of 1e150", "learning rate", "no spread"),
)


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))


@pytest.mark.default(extended=[f"*-{extreme}" for extreme in EXTENDED])
@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_training_and_prediction(method: Method, extreme: str) -> None:
    settings = EXTREMES[extreme]
    x, y, double = settings.get("x", X), settings.get("y", Y), settings.get("double", False)
    torch.manual_seed(0)
    nets = [_net().double() if double else _net() for _ in range(2)]
    likelihood = Gaussian(std=0.1).double() if double else Gaussian(std=0.1)
    bnn = bayesify(nets if isinstance(method, DeepEnsemble | RepulsiveEnsemble) else nets[0], method)
    settings.get("change", lambda _: None)(bnn)
    refusal, history, found = "", cast(Any, None), cast(Any, None)
    try:
        history = fit(
            bnn, (x, y), likelihood, epochs=2, batch_size=8, learning_rate=settings.get("learning_rate", 0.01), progress=False
        )
        found = predict(bnn, x, likelihood, samples=8, progress=False)
    except BayesifyError as error:
        refusal = str(error)
    if refusal:
        assert extreme not in HARMLESS, refusal
        assert any(way in refusal for way in ("tandardize", "lower", "unit", "training diverged")), refusal
        return
    assert all(map(math.isfinite, history.loss))
    assert found.mean.isfinite().all()
    assert found.variance.isfinite().all()
    assert (found.variance > 0).all()
    assert all(value.isfinite().all() for value in bnn.state_dict().values())  # or the model cannot be loaded


def test_predictions_convert_inputs_as_training_does() -> None:
    torch.manual_seed(0)
    bnn, likelihood = bayesify(_net(), package.MeanField()), Gaussian(std=0.1)
    expected = predict(bnn, X, likelihood, samples=4, seed=0)
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        found = predict(bnn, X.to(dtype), likelihood, samples=4, seed=0)
        same = predict(bnn, X.to(dtype).float(), likelihood, samples=4, seed=0)
        assert found.mean.dtype == torch.float32
        torch.testing.assert_close(found.mean, same.mean, rtol=0, atol=0)
    torch.testing.assert_close(predict(bnn, X.double(), likelihood, samples=4, seed=0).mean, expected.mean, rtol=0, atol=0)
    with pytest.raises(DataError, match=r"inputs has 72 values beyond the range of torch.float32.*bnn.double\(\)"):
        predict(bnn, 1e150 * X.double().sign(), likelihood, samples=4)


@pytest.mark.parametrize(("name", "x", "y"), [("inputs", 1e150 * X.double(), Y), ("y", X, 1e150 * Y.double())])
def test_data_that_the_dtype_of_the_network_cannot_represent(name: str, x: Tensor, y: Tensor) -> None:
    with pytest.raises(DataError, match=rf"{name} has .* values beyond the range of torch.float32.*standardize {name}"):
        fit(bayesify(_net(), package.MeanField()), (x, y), Gaussian(std=0.1), epochs=1, progress=False)


def test_quantized_parameters_do_not_choose_the_dtype_of_inputs() -> None:
    net = _net()
    net.register_parameter("packed", nn.Parameter(torch.zeros(2, dtype=torch.uint8), requires_grad=False))
    bnn = bayesify(net, package.MeanField())
    assert next(bnn.parameters()).dtype == torch.uint8
    history = fit(bnn, (X, Y), Gaussian(std=0.1), epochs=1, progress=False)
    assert math.isfinite(history.loss[0])
    predict(bnn, X, Gaussian(std=0.1), samples=2)


TABLE = np.random.default_rng(0).normal(size=(40, 3))
TARGET = TABLE.sum(1)


@pytest.mark.default(extended=["None-scales3", "MeanField-*", "VIFO-*"])
@pytest.mark.parametrize("scales", [(1e-30, 1.0), (1e30, 1.0), (1.0, 1e-149), (1.0, 1e149), (1e-140, 1e140)])
@pytest.mark.parametrize("method", [None, "MeanField", "VIFO", "WHVI", "EMP", "MCDropout", "VSD"])
def test_estimators_do_not_depend_on_units(method: str | None, scales: tuple[float, float]) -> None:
    by_inputs, by_target = scales
    options: dict[str, Any] = {"epochs": 20, "random_state": 0, "progress": False} | ({} if method is None else {"method": method})
    mean, std = BayesianRegressor(**options).fit(TABLE, TARGET).predict(TABLE, return_std=True)
    scaled = BayesianRegressor(**options).fit(by_inputs * TABLE, by_target * TARGET)
    found, spread = scaled.predict(by_inputs * TABLE, return_std=True)
    np.testing.assert_allclose(found / by_target, mean, rtol=0.02, atol=0.02 * np.abs(mean).max())
    np.testing.assert_allclose(spread / by_target, std, rtol=0.05)


def test_ranges_whose_squares_vanish() -> None:
    with pytest.raises(DataError, match=r"y must vary by at least 1e-150, got 7.*e-300; rescale it"):
        BayesianRegressor(epochs=1, progress=False).fit(TABLE, 1e-300 * TARGET)
    table = TABLE * [1.0, 1e-300, 1.0]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        BayesianRegressor(epochs=1, progress=False, method="MeanField").fit(table, TARGET)
    messages = [str(w.message) for w in caught if not issubclass(w.category, BayesifyWarning)]
    assert any(m.startswith("column 'x1' is not used: its values differ by less than 1e-150") for m in messages)
    assert not any(issubclass(w.category, RuntimeWarning) for w in caught)
