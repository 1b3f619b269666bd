"""Local noise is the same with and without gradients: in predictions as in training, and in both runs of a checkpoint."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from bayesify import ELRG, MNF, VMG, MeanField, Method, VariationalDropout, bayesify

CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Conv2d": (lambda: nn.Conv2d(3, 4, 3), (4, 3, 8, 8)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(3, 4, 2), (4, 3, 20)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(3), (4, 3, 8, 8)),
    "Linear": (lambda: nn.Linear(3, 4), (4, 20, 3)),
    "LayerNorm": (lambda: nn.LayerNorm(3), (4, 20, 3)),
}
COMBINATIONS = [
    pytest.param(name, method, id=f"{name}-{type(method).__name__}")
    for name in CASES
    for method in (MeanField(initial_std=1.0), ELRG(), MNF(), VMG(), VariationalDropout(noise="weight"))
    if "Norm" not in name or isinstance(method, MeanField | ELRG)  # the others are for layers that sum over inputs
]


@pytest.mark.parametrize(("name", "method"), COMBINATIONS)
def test_outputs_are_those_of_training(name: str, method: Method) -> None:
    """A network that is trained for noise of every position is underconfident with drawn weights, which positions share."""
    make, shape = CASES[name]
    torch.manual_seed(0)
    bnn, x = bayesify(make().double(), method).eval(), torch.randn(shape, dtype=torch.float64)
    outputs = []
    for with_gradients in (True, False, True):  # the first pass examines the network
        torch.manual_seed(1)
        with torch.set_grad_enabled(with_gradients):
            outputs.append(bnn(x, samples=3).outputs.detach())
    torch.testing.assert_close(outputs[1], outputs[2])
    assert not torch.allclose(outputs[1][0], outputs[1][1], rtol=1e-3), "draws differ"
