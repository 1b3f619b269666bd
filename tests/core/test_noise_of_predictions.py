"""Local noise is the same with and without gradients: predictions have that of training, and so has a checkpoint's first run."""

from collections.abc import Callable
from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bayesify import ELRG, MNF, Categorical, MeanField, Method, bayesify, predict
from bayesify.core.folded import Folded

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
    for method in (MeanField(initial_std=1.0), ELRG(), MNF())
    if "Norm" not in name or not isinstance(method, MNF)  # which has no normalization
]


@pytest.mark.parametrize(("name", "method"), COMBINATIONS)
def test_outputs_are_those_of_training(name: str, method: Method) -> None:
    """A network that is trained for noise of every position is underconfident with drawn weights, which positions share."""
    make, shape = CASES[name]
    torch.manual_seed(0)
    bnn, x = bayesify(make().double(), method).eval(), torch.randn(shape, dtype=torch.float64)
    outputs = []
    for with_gradients in (True, False, True):
        torch.manual_seed(1)
        with torch.set_grad_enabled(with_gradients):
            outputs.append(bnn(x, samples=3).outputs.detach())
    torch.testing.assert_close(outputs[1], outputs[2])


class Checkpointed(nn.Module):
    def __init__(self, layer: nn.Module, use_reentrant: bool | None) -> None:
        super().__init__()
        self.first, self.layer, self.use_reentrant = nn.Linear(1, 1), layer, use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.unsqueeze(-1)).squeeze(-1)
        if self.use_reentrant is None:
            return self.layer(x)
        return cast(Tensor, checkpoint(self.layer, x, use_reentrant=self.use_reentrant))


@pytest.mark.parametrize(("name", "method"), COMBINATIONS)
def test_a_reentrant_checkpoint_differentiates_its_own_outputs(name: str, method: Method) -> None:
    """It disables gradients in the first of two runs, which must draw the same noise."""
    make, shape = CASES[name]
    results = []
    for use_reentrant in (None, False, True):
        torch.manual_seed(0)
        bnn, x = bayesify(Checkpointed(make(), use_reentrant).double(), method), torch.randn(shape, dtype=torch.float64)
        bnn(x)  # which examines the network
        bnn.zero_grad()
        torch.manual_seed(1)
        outputs = bnn(x).outputs
        outputs.square().sum().backward()
        results.append([outputs.detach(), *(p.grad for p in bnn.parameters() if p.grad is not None)])
    for others in results[1:]:
        torch.testing.assert_close(others, results[0])


def test_a_network_without_shared_work_makes_one_pass_before_a_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 26 * 26, 3))
    bnn = bayesify(net, {"0": MeanField(noise="shared")}).eval()
    x, few, original = torch.randn(64, 1, 28, 28), [], Folded._run
    predict(bnn, x, Categorical(), samples=2, seed=0)  # which examines the network

    def counted(self: Folded, *args: object) -> object:
        few.append(args[1].batch < 64)  # pyright: ignore[reportAttributeAccessIssue]
        return original(self, *args)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(Folded, "_run", counted)
    predict(bnn, x, Categorical(), samples=2, seed=0)
    assert few == [True, False]
