"""Why draws are not folded, in words that name the layers; and networks whose passes depend on each other."""

import copy
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from bayesify import Deterministic, MeanField, bayesify, summary
from bayesify.core.method import Method
from bayesify.errors import BayesifyWarning, PassError
from bayesify.testing.trial import captured_weights


class RelativePositions(nn.Module):
    """Adds a bias for every position, without a batch dimension before it is added."""

    def __init__(self) -> None:
        super().__init__()
        self.positions, self.layer = nn.Embedding(4, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        bias = self.positions(torch.arange(4).view(2, 2)).permute(2, 0, 1).unsqueeze(0)
        return self.layer(x) + bias.flatten(2).sum(-1)


class Product(nn.Module):
    """Multiplies its input by the matrix of a layer, which it gets from an identity matrix, as DoRA does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) / self.layer(torch.eye(6, dtype=x.dtype)).norm(dim=0)


class Remembering(nn.Module):
    """Computes the norm of its matrix once, in the first pass."""

    def __init__(self, used: bool) -> None:
        super().__init__()
        self.layer, self.used = nn.Linear(3, 2), used
        self.cache: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if not self.used:
            self.cache["output"] = y
        return y * self.cache.setdefault("scale", y.abs().mean().detach())


def _right(net: nn.Module, x: Tensor, methods: Method | dict[str, Method]) -> None:
    """Require that draws are those of the plain network."""
    bnn = bayesify(copy.deepcopy(net), methods)
    for coherent in (False, True):
        with captured_weights(bnn) as weights:
            draws = bnn(x, samples=3, coherent=coherent).outputs
        if coherent:
            torch.testing.assert_close(draws, torch.stack([functional_call(net, each, (x,)) for each in weights[-3:]]))


def test_a_layer_of_positions_that_cannot_have_rows_is_named() -> None:
    net, x = RelativePositions().double(), torch.randn(5, 3).double()
    with pytest.warns(BayesifyWarning, match=r"because the network calls 'positions' on inputs without rows, .*\(with Determin"):
        _right(net, x, MeanField())


@pytest.mark.filterwarnings("error::bayesify.errors.BayesifyWarning")
def test_draws_fold_if_the_layer_of_positions_is_deterministic() -> None:
    _right(RelativePositions().double(), torch.randn(5, 3).double(), {"positions": Deterministic(), "*": MeanField()})


def test_a_layer_that_is_called_with_rows_and_without_is_named() -> None:
    with pytest.warns(BayesifyWarning, match="because the network calls 'layer' on its batch and also on inputs without rows"):
        _right(Product().double(), torch.randn(5, 6).double(), MeanField())


@pytest.mark.filterwarnings("error::bayesify.errors.BayesifyWarning")
@pytest.mark.parametrize("rows", [2, 5])
def test_a_deterministic_layer_may_be_called_without_rows(rows: int) -> None:
    _right(Product().double(), torch.randn(rows, 6).double(), Deterministic())


def test_a_network_that_calls_other_layers_than_before_is_examined_again() -> None:
    class Switched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.on = nn.Linear(6, 6), Product(), False

        def forward(self, x: Tensor) -> Tensor:
            return self.second(x) if self.on else self.first(x)

    net, x = Switched().double(), torch.randn(2, 6).double()
    bnn = bayesify(copy.deepcopy(net), MeanField())
    with pytest.warns(BayesifyWarning, match="does not use 1 of its random layers"):
        bnn(x, samples=3)
    for each in (net, bnn.net):
        each.__dict__["on"] = True
    with pytest.warns(BayesifyWarning, match="also on inputs without rows"), captured_weights(bnn) as weights:
        draws = bnn(x, samples=3, coherent=True).outputs
    torch.testing.assert_close(draws, torch.stack([functional_call(net, each, (x,)) for each in weights[-3:]]))


def test_results_that_the_next_pass_uses_are_refused() -> None:
    bnn = bayesify(Remembering(used=True), MeanField())
    with pytest.raises(
        PassError, match=r"keeps results of random layers for its next passes, in 'the network itself', so draws would"
    ):
        bnn(torch.randn(5, 3), samples=2)


class Cached(nn.Module):
    """It computes its first layer once per shape of its inputs."""

    def __init__(self, keep: Callable[[Tensor], Any], use: Callable[[nn.Module, Any], Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)
        self.keep, self.use, self.cache = keep, use, {}

    def forward(self, x: Tensor) -> Tensor:
        if x.shape not in self.cache:
            self.cache[x.shape] = self.keep(self.first(x))
        return self.use(self.last, self.cache[x.shape])


def test_results_that_go_into_a_random_layer_or_to_the_output_are_refused() -> None:
    for use in (lambda last, kept: last(kept), lambda last, kept: kept):
        bnn = bayesify(Cached(lambda y: y.detach(), use), MeanField())
        with pytest.raises(PassError, match="keeps results of random layers for its next passes"):
            bnn(torch.randn(5, 3), samples=2)


@pytest.mark.parametrize(
    "keep",
    [
        *(torch.zeros_like, lambda y: y.new_ones(y.shape), lambda y: y.new_full(y.shape[:1], 2.0)[:, None]),
        *(lambda y: torch.arange(4).type_as(y), lambda y: torch.arange(4).to(y), lambda y: torch.ones(1, 4).expand_as(y)),
    ],
)
def test_what_has_only_the_shape_and_dtype_of_results_may_be_kept(keep: Callable[[Tensor], Tensor]) -> None:
    """As the grid of a detector, which does not depend on the values of its features."""

    class Grid(Cached):
        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            if x.shape not in self.cache:
                self.cache[x.shape] = keep(y)
            return self.last(y + self.cache[x.shape])

    torch.manual_seed(0)
    net = Grid(keep, lambda last, kept: last(kept)).double()
    bnn, x = bayesify(copy.deepcopy(net), MeanField(initial_std=0.5)), torch.randn(5, 3).double()
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayesifyWarning)
        bnn(x, samples=3)
    with captured_weights(bnn) as weights:
        draws = bnn(x, samples=3, coherent=True).outputs
    net.cache.clear()
    torch.testing.assert_close(draws, torch.stack([functional_call(net, each, (x,)) for each in weights[-3:]]))


def test_results_that_cannot_be_traced_are_reported() -> None:
    bnn = bayesify(Cached(lambda y: y.detach().numpy(), lambda last, kept: last(torch.from_numpy(kept))), MeanField())
    with pytest.warns(BayesifyWarning, match=r"does not use 'first' in a second pass .* If it keeps their results, draws mix"):
        bnn(torch.randn(5, 3), samples=2)


def test_results_that_no_pass_uses_may_be_kept() -> None:
    class Keeping(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 2)
            self.inner = nn.Linear(3, 3)

        def __call__(self, x: Tensor) -> Tensor:
            self.activations = self.inner(x)
            return super().__call__(self.activations)

    _right(nn.Sequential(Keeping()).double(), torch.randn(5, 3).double(), MeanField())


def test_rounding_of_sums_that_nearly_cancel_is_no_effect_of_other_rows() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(20):
            torch.manual_seed(seed)
            net, x = nn.Linear(64, 1), torch.randn(1, 64)
            with torch.no_grad():
                net.bias.fill_(5e-4 - float(x @ net.weight.T))
            bayesify(net, Deterministic()).eval()(x, samples=3)


def test_summary_names_parameters_that_belong_to_no_layer() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cls_token, self.layer = nn.Parameter(torch.zeros(1, 3)), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x + self.cls_token)

    rows = summary(bayesify(nn.Sequential(Tokens()), MeanField())).layers
    reason = next(row.reason for row in rows if row.layer == "Tokens")
    assert re.fullmatch(r"this type is not supported; its own parameters \(cls_token\) stay as they are", reason)


class InTraining(nn.Module):
    """Does something in training mode that forbids to fold."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.first, self.last, self.what = nn.Linear(3, 4), nn.Linear(4, 2), what

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).tanh()
        if self.training and self.what == "reads":
            return nn.functional.linear(h, self.last.weight)
        return self.last(h - h.mean(0) if self.training and self.what == "centers" else h)


@pytest.mark.parametrize(
    ("net", "reason"),
    [
        (InTraining("reads"), "because the network reads the weights of its layers there"),
        (InTraining("centers"), "because the rows of a batch affect each other there;"),
        (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, affine=False)), r"there \(batch normalization\);"),
    ],
    ids=["reads", "centers", "batch norm"],
)
def test_reasons_that_hold_in_training_mode_alone(net: nn.Module, reason: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BayesifyWarning)
        bayesify(net, MeanField()).train()(torch.randn(5, 3), samples=2)
    assert re.search(f"in training mode every draw takes a separate pass, .*{reason}", str(caught[0].message))
