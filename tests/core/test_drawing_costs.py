"""Without gradients, layers with many positions draw weights, and others noise for every output."""

from collections.abc import Callable
from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bayesify import ELRG, MNF, Categorical, MeanField, Method, bayesify, native, predict
from bayesify.core.drawing_costs import weights_cost_less
from bayesify.core.folded import Folded

CHANNELS_FIRST = {
    "Conv1d": (lambda: nn.Conv1d(3, 4, 1), (50,)),
    "Conv2d": (lambda: nn.Conv2d(3, 4, 1, stride=2), (14, 14)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(3, 4, 1), (7, 7)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(3), (7, 7)),
    "GroupNorm": (lambda: nn.GroupNorm(1, 3), (50,)),
}
CHANNELS_LAST = {
    "Linear": lambda: nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 4)),
    "LayerNorm": lambda: nn.LayerNorm(3),
    "RMSNorm": lambda: nn.RMSNorm(3),
}


def positions_differ(make: Callable[[], nn.Module], x: Tensor, channels: int) -> tuple[bool, bool]:
    """Whether outputs differ between positions with equal inputs, without and with gradients."""
    bnn = bayesify(make(), MeanField(initial_std=1.0)).eval()
    with torch.no_grad():
        outputs = [bnn(x).outputs[0]]
    outputs.append(bnn(x).outputs[0])
    rows = [y.movedim(channels, 1).flatten(2) for y in outputs]
    without, with_gradients = (not torch.allclose(y, y[..., :1].expand_as(y), atol=1e-6) for y in rows)
    return without, with_gradients


@pytest.mark.parametrize("name", CHANNELS_FIRST)
def test_positions_of_images_share_a_draw_of_the_weights_without_gradients(name: str) -> None:
    torch.manual_seed(0)
    make, positions = CHANNELS_FIRST[name]
    x = torch.randn(2, 3, *[1] * len(positions)).expand(2, 3, *positions)
    assert positions_differ(make, x, channels=1) == (False, True)


@pytest.mark.parametrize("name", CHANNELS_LAST)
def test_positions_of_sequences_share_a_draw_of_the_weights_without_gradients(name: str) -> None:
    torch.manual_seed(0)
    assert positions_differ(CHANNELS_LAST[name], torch.randn(2, 1, 3).expand(2, 50, 3), channels=2) == (False, True)


def test_moments_of_a_first_linear_layer_serve_all_draws() -> None:
    torch.manual_seed(0)
    assert positions_differ(lambda: nn.Linear(3, 4), torch.randn(2, 1, 3).expand(2, 50, 3), channels=2) == (True, True)


def test_many_weights_at_few_positions_are_not_drawn() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 1, 3000).expand(2, 3, 3000)
    assert positions_differ(lambda: nn.Sequential(nn.LayerNorm(3000), nn.Linear(3000, 4)), x, channels=2) == (True, True)


def test_rows_have_noise_of_their_own_at_one_position() -> None:
    """It averages out over rows, in metrics as well."""
    torch.manual_seed(0)
    for layer, x in ((nn.Linear(3, 1), torch.ones(1000, 3)), (nn.Conv2d(3, 1, 1), torch.ones(1000, 3, 1, 1))):
        with torch.no_grad():
            y = bayesify(layer, MeanField())(x).outputs[0]
        assert y.unique().numel() > 900


@pytest.mark.parametrize("with_kernels", [True, False])
def test_the_choice_by_size(with_kernels: bool) -> None:
    if with_kernels and not native.native_is_used():
        pytest.skip("without the native operators")
    before = native.native_is_used()
    native.use_native(with_kernels)
    try:
        with torch.no_grad():
            choices = [weights_cost_less(torch.zeros(1), 512 * 4608, rows, 16, 16 * 512) for rows in (1, 2, 8, 32, 128)]
            assert choices == sorted(choices)
            assert choices[0] is False
            assert choices[-1] is True
    finally:
        native.use_native(before)


def test_a_network_without_shared_work_makes_one_pass_before_a_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    bnn = bayesify(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 26 * 26, 3)), MeanField()).eval()
    x, few, original = torch.randn(64, 1, 28, 28), [], Folded._run
    predict(bnn, x, Categorical(), samples=2, seed=0)  # which examines the network

    def counted(self: Folded, *args: object) -> object:
        few.append(args[1].batch < 64)  # pyright: ignore[reportAttributeAccessIssue]
        return original(self, *args)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(Folded, "_run", counted)
    predict(bnn, x, Categorical(), samples=2, seed=0)
    assert few == [True, False, False]


REPEATED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Conv2d": (lambda: nn.Conv2d(3, 4, 3), (4, 3, 8, 8)),
    "Linear": (lambda: nn.Linear(3, 4), (4, 20, 3)),
    "LayerNorm": (lambda: nn.LayerNorm(3), (4, 20, 3)),
}


class Checkpointed(nn.Module):
    def __init__(self, layer: nn.Module, use_reentrant: bool | None) -> None:
        super().__init__()
        self.first, self.layer, self.use_reentrant = nn.Linear(1, 1), layer, use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.unsqueeze(-1)).squeeze(-1)
        if self.use_reentrant is None:
            return self.layer(x)
        return cast(Tensor, checkpoint(self.layer, x, use_reentrant=self.use_reentrant))


@pytest.mark.parametrize("name", REPEATED)
@pytest.mark.parametrize("method", [MeanField(initial_std=1.0), ELRG(), MNF()], ids=lambda method: type(method).__name__)
def test_a_reentrant_checkpoint_differentiates_its_own_outputs(name: str, method: Method) -> None:
    """It disables gradients in the first of two runs, which must draw the same noise."""
    make, shape = REPEATED[name]
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
