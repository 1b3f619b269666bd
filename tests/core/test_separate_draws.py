"""Draws that depend on each other, in passes that each make one of them."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bayesify import SGLD, BatchEnsemble, Bayesian, Gaussian, bayesify, predict


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)).double()


def _inputs(rows: int = 6) -> Tensor:
    return torch.randn(rows, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def _distinct(bnn: Bayesian, samples: int) -> int:
    return len(bnn(_inputs(), samples=samples).outputs.unique(dim=0))


@pytest.mark.filterwarnings("ignore::bayesify.errors.BayesifyWarning")
def test_a_step_trains_every_member_also_with_batch_normalization() -> None:
    bnn = bayesify(_net(), BatchEnsemble(components=4)).train()
    assert [_distinct(bnn, 4) for _ in range(10)] == [4] * 10
    bnn.zero_grad()
    bnn(_inputs(), samples=4).outputs.square().sum().backward()
    for _, layer in bnn.random_layers():
        assert (layer.posterior.output_mean.grad.abs().sum(1) > 0).all()


def test_a_replayed_prediction_takes_every_member() -> None:
    bnn = bayesify(_net(), {"3": BatchEnsemble(components=4)}, fold=False).eval()
    x, seeds = _inputs(), range(5)
    means = [predict(bnn, x, Gaussian(std=1.0), samples=4, chunk=4, seed=seed).mean for seed in seeds]
    factors = bnn.net[3].posterior
    hidden = bnn.net[2](bnn.net[1](bnn.net[0](x)))
    weights = [bnn.net[3].weight * r * s.unsqueeze(1) for r, s in zip(factors.input_mean, factors.output_mean, strict=True)]
    expected = torch.stack([hidden @ weight.T + bnn.net[3].bias for weight in weights]).mean(0).squeeze(1)
    for mean in means:
        torch.testing.assert_close(mean, expected.detach())


@pytest.mark.filterwarnings("ignore:the chains have not mixed")
def test_stored_draws_are_all_taken() -> None:
    torch.manual_seed(0)
    bnn = bayesify(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double(), SGLD(draws=5, burn_in=10), fold=False)
    x = _inputs()
    bnn.complete([(x, x.sum(1, keepdim=True))], Gaussian(std=0.1), progress=False)
    assert [_distinct(bnn.eval(), 5) for _ in range(10)] == [5] * 10


@pytest.mark.default("True")
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradients_of_a_checkpoint(use_reentrant: bool) -> None:
    """A backward pass recomputes layers after the passes of all draws."""

    class Net(nn.Module):
        def __init__(self, recomputes: bool) -> None:
            super().__init__()
            self.recomputes, self.first, self.dropout, self.rest = recomputes, nn.Linear(3, 8), nn.Dropout(0.5), _net()[1:]

        def forward(self, x: Tensor) -> Tensor:
            x = x.clone().requires_grad_()
            if self.recomputes:
                return checkpoint(lambda x: self.rest(self.dropout(self.first(x))), x, use_reentrant=use_reentrant)
            return self.rest(self.dropout(self.first(x)))

    results = []
    for recomputes in (False, True):
        torch.manual_seed(0)
        bnn = bayesify(Net(recomputes).double(), BatchEnsemble(components=4), fold=False)
        torch.manual_seed(1)
        bnn(_inputs(), samples=4).outputs.square().sum().backward()
        results.append([p.grad for p in bnn.parameters()])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
