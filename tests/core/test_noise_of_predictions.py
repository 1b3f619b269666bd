"""Local noise is the same with and without gradients: in predictions as in training, and in both runs of a checkpoint."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from bayesify import ELRG, EMP, MNF, VIFO, VMG, VSD, WHVI, BatchEnsemble, MCDropout, MeanField, Method, VariationalDropout, bayesify

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


class Noisy(nn.Module):
    """Draws noise of its own between its layers, as much as its batch needs, which hardly changes its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.last(h + 1e-9 * torch.randn_like(h))


@pytest.mark.parametrize(
    "method",
    [MeanField(initial_std=0.5), MCDropout(), VSD(), WHVI(), EMP(), BatchEnsemble(spread=0.5), VIFO()],
    ids=lambda method: type(method).__name__,
)
@pytest.mark.parametrize("fold", [None, False])
def test_coherent_functions_are_the_same_for_all_batches_of_a_network_with_noise(method: Method, fold: bool | None) -> None:
    bnn, x = bayesify(Noisy().double(), method, fold=fold).eval(), torch.randn(7, 3, dtype=torch.float64)
    with torch.no_grad():
        if isinstance(method, VIFO):
            next(layer for _, layer in bnn.random_layers()).posterior.weight.normal_()

    def outputs(rows: Tensor) -> Tensor:
        torch.manual_seed(1)
        with torch.no_grad():
            return bnn(rows, samples=3, coherent=True).outputs

    outputs(x)  # examines the network
    whole = outputs(x)
    for few in (1, 2, 6):
        torch.testing.assert_close(outputs(x[:few]), whole[:, :few], rtol=0, atol=1e-6)
    assert not torch.allclose(whole[0], whole[1], rtol=1e-3), "draws differ"
    torch.manual_seed(2)
    with torch.no_grad():
        assert not torch.allclose(bnn(x, samples=3, coherent=True).outputs, whole, rtol=1e-3), "seeds differ"
