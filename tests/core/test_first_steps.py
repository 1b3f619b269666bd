"""Optimizers without parameters, layers that stay untrained and losses without the KL are noticed within a few steps."""

import copy
import gc
import pickle
import warnings
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.func import functional_call

from bayesify import (
    EMP,
    VIFO,
    VSD,
    WHVI,
    Bayesian,
    Categorical,
    DeepEnsemble,
    Draws,
    MCDropout,
    MeanField,
    Method,
    NoisyKFAC,
    VariationalDropout,
    bayesify,
    elbo,
    fit,
    summary,
)
from bayesify.core.weight_decay import variational_parameters
from bayesify.errors import BayesifyWarning

METHODS = [
    pytest.param(MeanField(), id="added to the weights"),
    pytest.param(WHVI(), id="in place of all weights"),
    pytest.param(EMP(), id="in place of some"),
    pytest.param(VIFO(), id="a root of its own"),
    pytest.param(DeepEnsemble(members=2), id="members"),
    pytest.param(DeepEnsemble(members=2, base=MeanField()), id="random members"),
]
X, Y = torch.randn(6, 4), torch.randint(0, 3, (6,))


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def _train(bnn: Bayesian, optimizer: torch.optim.Optimizer, steps: int, accumulate: int = 1) -> list[str]:
    """The warnings of a training loop."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BayesifyWarning)
        for i in range(steps * accumulate):
            draws = bnn(X)
            (-elbo(draws, Categorical().log_prob(draws.outputs, Y), n=len(X))).backward()
            if i % accumulate == accumulate - 1:
                optimizer.step()
                optimizer.zero_grad()
    return [str(warning.message) for warning in caught if issubclass(warning.category, BayesifyWarning)]


@pytest.mark.parametrize("method", METHODS)
def test_an_optimizer_made_before_is_noticed_once(method: Method) -> None:
    net = _net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    bnn = bayesify(net, method).train()
    [text] = _train(bnn, optimizer, steps=25)
    assert "make it from bnn.parameters()" in text
    assert text.split("'")[1] in dict(bnn.named_parameters())
    assert text in str(summary(bnn))


@pytest.mark.parametrize("accumulate", [1, 25])
@pytest.mark.parametrize("method", [*METHODS, pytest.param(MCDropout(), id="nothing added")])
def test_an_optimizer_made_afterwards_is_not(method: Method, accumulate: int) -> None:
    bnn = bayesify(_net(), method).train()
    optimizer = torch.optim.SGD(bnn.parameters(), lr=0.01)
    assert not _train(bnn, optimizer, steps=4, accumulate=accumulate)
    assert bnn.first_steps is None, "no longer observed"


@pytest.mark.parametrize("method", METHODS[:2])
def test_passes_without_an_optimizer_say_nothing(method: Method) -> None:
    bnn = bayesify(_net(), method).train()
    assert not _train(bnn, torch.optim.SGD([nn.Parameter(torch.zeros(1))]), steps=220)
    assert bnn.first_steps is None, "no longer observed"


@pytest.mark.parametrize("mixed", [False, True])
def test_optimizers_of_the_network_may_leave_parameters_for_some_steps(mixed: bool) -> None:
    """NoisyKFAC inverts its factors in every tenth step, so that a resumed training may begin with nine without a change."""
    bnn = bayesify(_net(), {"0": MeanField(), "2": NoisyKFAC()} if mixed else NoisyKFAC())
    optimizer = bnn.optimizer(Categorical(), learning_rate=0.01)
    _train(bnn, optimizer, 2)
    resumed = bayesify(_net(), {"0": MeanField(), "2": NoisyKFAC()} if mixed else NoisyKFAC())
    resumed.load_state_dict(bnn.state_dict())
    continued = resumed.optimizer(Categorical(), learning_rate=0.01)
    continued.load_state_dict(optimizer.state_dict())
    assert _train(resumed, continued, 12) == []


def test_lazy_layers_are_not_observed() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.LazyLinear(3))
    optimizer = torch.optim.SGD(net[0].parameters(), lr=0.01)
    bnn = bayesify(net, {"0": MeanField()}).train()
    [text] = _train(bnn, optimizer, steps=5)
    assert "net.0.posterior" in text


@pytest.mark.parametrize("trained", [False, True])
def test_parameters_that_are_replaced_are_freed(trained: bool) -> None:
    """As by sharding, and by `assign`."""
    bnn = bayesify(_net(), MeanField()).train()
    if trained:
        bnn(X)
    before = [weakref.ref(p) for p in bnn.parameters()]
    bnn.load_state_dict({name: x.clone() for name, x in bnn.state_dict().items()}, assign=True)
    gc.collect()
    assert all(p() is None for p in before)
    assert not _train(bnn, torch.optim.SGD(bnn.parameters(), lr=0.01), steps=5)


def test_frozen_spreads_are_a_choice() -> None:
    net = _net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    bnn = bayesify(net, MeanField()).train()
    for name, parameter in bnn.named_parameters():
        parameter.requires_grad_("log_std" not in name)
    assert not _train(bnn, optimizer, steps=5)


SPREAD = [pytest.param(m, id=type(m).__name__) for m in (MeanField(), WHVI(), VariationalDropout(), VSD())]


@pytest.mark.parametrize("method", SPREAD)
def test_an_optimizer_of_the_head_is_noticed(method: Method) -> None:
    bnn = bayesify(_net(), method).train()
    [text] = _train(bnn, torch.optim.SGD(bnn.net.get_submodule("2").parameters(), lr=0.01), steps=8)
    assert text.startswith("1 of 2 random layers, such as 'net.0', are not trained")


@pytest.mark.parametrize("method", SPREAD)
def test_layers_frozen_afterwards_are_noticed(method: Method) -> None:
    bnn = bayesify(_net(), method).train()
    bnn.net.get_submodule("0").requires_grad_(False)
    [text] = _train(bnn, torch.optim.SGD(bnn.parameters(), lr=0.01), steps=8)
    assert text.startswith("1 of 2 random layers, such as 'net.0', are not trained")


def test_layers_trained_before_may_be_frozen() -> None:
    state = bayesify(_net(), MeanField()).state_dict()
    bnn = bayesify(_net(), MeanField()).train()
    bnn.load_state_dict(state)
    bnn.net.get_submodule("0").requires_grad_(False)
    assert not _train(bnn, torch.optim.SGD(bnn.parameters(), lr=0.01), steps=8)


def test_layers_that_the_network_does_not_use_need_no_training() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    bnn = bayesify(Unused(), MeanField()).train()
    [text] = _train(bnn, torch.optim.SGD(bnn.net.get_submodule("used").parameters(), lr=0.01), steps=8)
    assert text.startswith("the network does not use 1 of its random layers")


def _train_with(bnn: Bayesian, loss: Callable[[Draws], torch.Tensor], steps: int = 8, *, maximize: bool = False) -> list[str]:
    optimizer = torch.optim.SGD(bnn.parameters(), lr=0.01, maximize=maximize)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BayesifyWarning)
        for _ in range(steps):
            optimizer.zero_grad()
            loss(bnn(X)).backward()
            optimizer.step()
    return [str(warning.message) for warning in caught]


def _misfit(draws: Draws) -> torch.Tensor:
    return nn.functional.cross_entropy(draws.outputs[0], Y)


@pytest.mark.parametrize("method", [*SPREAD, EMP()])
def test_a_loss_without_the_kl_is_noticed_once(method: Method) -> None:
    bnn = bayesify(_net(), method).train()
    [text] = _train_with(bnn, _misfit)
    assert "the loss lacks `draws.kl`" in text
    assert text in str(summary(bnn))


def test_a_loss_without_the_regularizer_of_outputs_is_noticed_once() -> None:
    bnn = bayesify(_net(), VIFO()).train()
    [text] = _train_with(bnn, lambda draws: _misfit(draws) + draws.kl / 6)
    assert "the loss lacks `draws.local_kl`" in text
    assert not _train_with(bayesify(_net(), VIFO(eta=0.0)).train(), _misfit)
    weighted = bayesify(_net(), VIFO()).train()
    assert not _train_with(weighted, lambda draws: _misfit(draws) + draws.local_beta * draws.local_kl.mean())


@pytest.mark.parametrize("method", [MeanField(), WHVI(), VIFO()])
def test_a_loss_without_its_sign_is_noticed_once(method: Method) -> None:
    def bound(draws: Draws) -> torch.Tensor:
        return elbo(draws, Categorical().log_prob(draws.outputs, Y), n=6)

    [text] = _train_with(bayesify(_net(), method).train(), bound)
    assert "the loss falls as the KL grows" in text
    assert not _train_with(bayesify(_net(), method).train(), bound, maximize=True)


@pytest.mark.parametrize("method", [MeanField(), WHVI(), EMP()])
@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_a_kl_that_is_not_divided_by_the_examples_is_noticed_once(method: Method, weight: float) -> None:
    """Beside a mean over examples, not beside a sum over them."""
    [text] = _train_with(bayesify(_net(), method).train(), lambda draws: _misfit(draws) + weight * draws.kl)
    assert f"the loss has `draws.kl` with the weight {weight:.2g}, beside a mean over 6 examples" in text
    assert not _train_with(bayesify(_net(), method).train(), lambda draws: len(X) * _misfit(draws) + weight * draws.kl)
    some = slice(2)  # the examples with labels
    assert not _train_with(
        bayesify(_net(), method).train(),
        lambda draws: nn.functional.cross_entropy(draws.outputs[0, some], Y[some]) + draws.kl / 2,
    )
    assert not _train_with(bayesify(_net(), method).train(), lambda draws: draws.outputs.square().mean() + weight * draws.kl)


@pytest.mark.parametrize("method", [*SPREAD, EMP(), VIFO(), MCDropout(prior_std=1.0), DeepEnsemble(members=2, base=MeanField())])
def test_a_loss_with_the_kl_is_not(method: Method) -> None:
    log_prob = Categorical().log_prob
    losses: list[Callable[[Draws], torch.Tensor]] = [
        lambda draws: -elbo(draws, log_prob(draws.outputs, Y), n=6),
        lambda draws: -elbo(draws, log_prob(draws.outputs, Y), n=6, beta=0.0),  # as warm-up has it at first
        lambda draws: -elbo(draws, log_prob(draws.outputs, Y), n=6, local_beta=0.0),
        lambda draws: _misfit(draws) + draws.kl / 6 + draws.local_kl.mean(),
        lambda draws: _misfit(draws) + bnn.kl() / 6,
        lambda draws: _misfit(draws) - elbo(again := bnn(X), log_prob(again.outputs, Y), n=6),
    ]
    for loss in losses:
        bnn = bayesify(_net(), method).train()
        assert not _train_with(bnn, loss)
        assert bnn.first_steps is None, "no longer observed"


def test_passes_under_functional_gradients_are_not_observed() -> None:
    bnn = bayesify(_net(), MeanField()).train()
    gradient = torch.func.grad(lambda x: bnn(x).outputs.sum())
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayesifyWarning)
        for _ in range(8):
            gradient(X)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("method", SPREAD)
def test_training_in_half_precision_is_noticed_and_the_remedy_trains(method: Method, dtype: torch.dtype) -> None:
    """Adam's steps of 1e-3 leave variances as they are, bit by bit; in float32 under autocast they change."""
    net = _net().to(dtype)
    bnn = bayesify(net, method).train()

    def train() -> tuple[list[str], dict[str, bool]]:
        spreads = variational_parameters(bnn)
        before = {name: p.detach().clone() for name, p in spreads.items()}
        optimizer = torch.optim.Adam(bnn.parameters(), lr=1e-3, eps=1e-6)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", BayesifyWarning)
            for _ in range(8):
                with torch.autocast("cpu", dtype, enabled=next(bnn.parameters()).dtype != dtype):
                    draws = bnn(X.to(dtype))
                optimizer.zero_grad()
                (-elbo(draws, Categorical().log_prob(draws.outputs, Y), n=len(X))).backward()
                optimizer.step()
        changed = {name: not torch.equal(p.detach(), before[name]) for name, p in spreads.items() if "log" in name}
        return [str(warning.message) for warning in caught], changed

    [text], changed = train()
    assert f"are trained in {dtype}" in text
    assert dtype == torch.float16 or not any(changed.values())
    bnn.float()
    texts, changed = train()
    assert not texts
    assert all(changed.values())


@pytest.mark.parametrize("method", [MCDropout(), DeepEnsemble(members=2)], ids=repr)
def test_networks_without_variances_may_be_trained_in_half_precision(method: Method) -> None:
    bnn = bayesify(_net().bfloat16(), method).train()
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayesifyWarning)
        fit(bnn, (X.bfloat16(), Y), Categorical(), epochs=2, progress=False)


@pytest.mark.parametrize("method", [MeanField(), DeepEnsemble(members=2, base=MeanField())], ids=["one", "members"])
def test_fit_tells_of_half_precision_once(method: Method) -> None:
    bnn = bayesify(_net().bfloat16(), method)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default", BayesifyWarning)  # which hides equal texts, those of the members
        fit(bnn, (X.bfloat16(), Y), Categorical(), epochs=2, progress=False)
    assert [str(warning.message).partition(",")[0] for warning in caught] == ["parameters of posteriors"]


def test_copies_fits_and_functional_calls_do_not_observe() -> None:
    bnn = bayesify(_net(), WHVI()).train()
    for other in (copy.deepcopy(bnn), pickle.loads(pickle.dumps(bnn))):
        other(X)
        assert other.first_steps is None
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayesifyWarning)
        state = {name: p.detach().clone() for name, p in bnn.named_parameters()}
        for _ in range(30):
            functional_call(bnn, state, (X,))
        fit(bnn, (X, Y), Categorical(), epochs=25, progress=False)
