"""Runs that learn of their network in the middle of training, and are interrupted afterwards, end as uninterrupted ones do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from bayesify import Gaussian, MeanField, bayesify
from bayesify.core.model import Bayesian
from bayesify.core.planning import Planning
from bayesify.train import fit

pytestmark = pytest.mark.filterwarnings("ignore::bayesify.errors.BayesifyWarning")


class Net(nn.Module):
    """Two linear layers, used as a function says."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.function = nn.Linear(3, 6), nn.Linear(6, 6), function
        self.last = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self, x))


def _recurrent(net: Net, x: Tensor) -> Tensor:
    """Calls its second layer once for every step of a sequence (B, T, 3)."""
    state = net.first(x[:, 0])
    for step in range(x.shape[1]):
        state = net.second(state + net.first(x[:, step])).tanh()
    return state


def _coupled_at_eight(net: Net, x: Tensor) -> Tensor:
    """Rows affect each other in a pass over eight of them: two draws of the last batch."""
    hidden = net.first(x)
    return net.second(hidden - hidden.mean(0) if len(x) == 8 else hidden).tanh()


def _coupled_by_values(net: Net, x: Tensor) -> Tensor:
    """Rows affect each other in batches of a negative sum, of which the first is none."""
    hidden = net.first(x)
    return net.second(hidden - hidden.mean(0) if x.sum() < 0 else hidden).tanh()


def _batches(function: Callable[..., Tensor]) -> Any:
    generator = torch.Generator().manual_seed(1)
    if function is _recurrent:  # the third batch is the first with two steps
        steps = [torch.randn(12, 1 + (i > 1), 3, generator=generator) for i in range(4)]
        return DataLoader([(x, x.sum((1, 2))) for x in steps], batch_size=None)  # pyright: ignore[reportArgumentType]
    x = torch.randn(40, 3, generator=generator)
    x = torch.cat([x[:12].abs(), x[12:24].abs(), x[24:]])
    return DataLoader([(part, part.sum(1)) for part in x.split(12)], batch_size=None)  # pyright: ignore[reportArgumentType]


def _run(function: Callable[..., Tensor], stop_after: int | None = None, **settings: Any) -> tuple[Bayesian, Any]:
    torch.manual_seed(3)
    bnn, data = bayesify(Net(function), MeanField(initial_std=0.5)), _batches(function)

    def interrupt(record: dict[str, float]) -> None:
        if record["epoch"] == stop_after:
            raise KeyboardInterrupt

    history = None
    try:
        history = fit(bnn, data, Gaussian(std=0.5), epochs=4, n=40, samples=2, loggers=[interrupt], progress=False, **settings)
    except KeyboardInterrupt:
        assert stop_after is not None
    return bnn, history


@pytest.mark.default("_recurrent-1", "_coupled_at_eight-1")
@pytest.mark.parametrize("stop_after", [1, 3])
@pytest.mark.parametrize("function", [_recurrent, _coupled_at_eight, _coupled_by_values])
def test_resuming_is_exact(tmp_path: Path, function: Callable[..., Tensor], stop_after: int) -> None:
    whole, history = _run(function)
    _run(function, stop_after, checkpoint=tmp_path / "run.ckpt")
    resumed, found = _run(function, checkpoint=tmp_path / "run.ckpt")
    assert found.loss == history.loss
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name
    assert resumed.findings == whole.findings


def test_what_was_learned_is_recalled_until_it_is_forgotten() -> None:
    bnn, _ = _run(_coupled_at_eight)
    other = bayesify(Net(_coupled_at_eight), MeanField())
    other.relearn(bnn.learned())
    assert other.learned() == bnn.learned()
    other(torch.randn(12, 3), samples=2)  # separate passes, as in the first network
    assert other.learned() == bnn.learned()
    assert isinstance(other, Planning)
    other.forget_verdicts()
    assert other.learned()["verdicts"] == {}
