"""Networks that write every output into the same memory, which the library cannot see: draws must not become equal."""

import pytest
import torch
from torch import Tensor, nn

from bayesify import (
    EMP,
    VIFO,
    WHVI,
    Categorical,
    DeepEnsemble,
    Gaussian,
    MCDropout,
    MeanField,
    RepulsiveEnsemble,
    VariationalDropout,
    bayesify,
    elbo,
    predict,
)
from bayesify.core.replay import prefix

METHODS = [
    MeanField(), MeanField(noise="shared"), MCDropout(p=0.5), VariationalDropout(), WHVI(), EMP(), VIFO(), DeepEnsemble(members=3),
    RepulsiveEnsemble(members=3),
]  # fmt: skip
_MEMORY: dict[torch.Size, Tensor] = {}


class _Written(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        memory = _MEMORY.setdefault(x.shape, torch.empty_like(x))
        memory.copy_(x)
        return memory.view_as(memory)

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad


class _ReusesMemory(nn.Sequential):
    def forward(self, input):
        return _Written.apply(super().forward(input))


def networks(method, **options):
    """The network, and the same without the memory."""
    found = []
    for kind in (_ReusesMemory, nn.Sequential):
        torch.manual_seed(0)
        found.append(bayesify(kind(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), method, **options))
    return found


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("fold", [None, False])
def test_draws_predictions_and_gradients_are_those_of_the_network(method, fold):
    x, y, results = torch.randn(6, 4), torch.randint(2, (6,)), []
    for bnn in networks(method):
        bnn.fold = fold
        bnn.train()
        torch.manual_seed(1)
        draws = bnn(x, samples=6)
        trained = draws.outputs.detach().clone()
        log_prob = Categorical().log_prob(draws.outputs, y)
        gradients = torch.autograd.grad(-elbo(draws, log_prob, n=6), list(bnn.parameters()), allow_unused=True)
        bnn.eval()
        with torch.no_grad():
            first = bnn(x, samples=1 if len(bnn.members) == 0 else 3).outputs
            kept = first.clone()
            coherent = bnn(x, samples=6, coherent=True).outputs
        assert torch.equal(first, kept)
        common = {"samples": 6, "seed": 0}
        predictions = [predict(bnn, x, Categorical(), **common).probs, predict(bnn, x, Categorical(), chunk=1, **common).probs]
        predictions.append(predict(bnn, x, Gaussian(std=0.1), batch_size=3, **common).mean)
        results.append([trained, coherent, *predictions, *(g for g in gradients if g is not None)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


class _HasHeads(nn.Module):
    """Writes what its deterministic part and its random part compute into the same memory."""

    def __init__(self, kind):
        super().__init__()
        self.base, self.head = kind(nn.Linear(4, 4), nn.Tanh()), kind(nn.Linear(4, 4))

    def forward(self, x):
        return self.head(self.base(x))


class _CopiesInto(nn.Sequential):
    def forward(self, input):
        y = super().forward(input)
        memory = _MEMORY.setdefault(y.shape, torch.empty_like(y))
        memory.copy_(y)
        return memory


@pytest.mark.parametrize("method", [MeanField(), MCDropout(p=0.5), EMP(), WHVI()], ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("options", [{}, {"chunk": 1}, {"chunk": 3}, {"batch_size": 4}, {"chunk": 1, "coherent": False}], ids=str)
def test_what_is_computed_once_is_not_overwritten(method, options, monkeypatch):
    monkeypatch.setattr(prefix, "WORTH_REPLAY", 0)
    x, results = torch.randn(8, 4), []
    for kind in (_CopiesInto, nn.Sequential):
        torch.manual_seed(0)
        bnn = bayesify(_HasHeads(kind), {"head.*": method})
        predictive = predict(bnn, x, Gaussian(std=0.1), samples=9, seed=0, **options)
        results.append([predictive.mean, predictive.epistemic])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


def test_random_values_written_over_what_is_computed_once(monkeypatch):
    class Adds(nn.Module):
        def __init__(self, write):
            super().__init__()
            self.base, self.head, self.write = nn.Linear(4, 4), nn.Linear(4, 4), write

        def forward(self, x):
            h = self.base(x)
            y = self.head(h)
            if len(x) < 8:  # what the comparison of a few rows sees
                return h + y
            self.write(h, y)
            return h.sin()

    def item(h, y):
        h[:, 0] = y[:, 0]

    monkeypatch.setattr(prefix, "WORTH_REPLAY", 0)
    for write in (Tensor.add_, Tensor.__iadd__, item, lambda h, y: torch.add(h, y, out=h)):
        torch.manual_seed(0)
        bnn, x = bayesify(Adds(write), {"head": MeanField()}), torch.randn(8, 4)
        common = {"samples": 9, "seed": 0, "chunk": 1}
        replayed = predict(bnn, x, Gaussian(std=0.1), **common)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(prefix, "WORTH_REPLAY", float("inf"))
            ordinary = predict(bnn, x, Gaussian(std=0.1), **common)
        assert ordinary.epistemic.max() > 0
        torch.testing.assert_close(replayed.mean, ordinary.mean)
        torch.testing.assert_close(replayed.epistemic, ordinary.epistemic)
