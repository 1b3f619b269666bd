"""Weight decay of variational parameters is noticed at the optimizer's first step, and left out by `fit`."""

import copy
import gc
import math
import warnings
from functools import partial

import pytest
import torch
from torch import nn

from bayesify import (
    EMP,
    VIFO,
    WHVI,
    Bayesian,
    Categorical,
    DeepEnsemble,
    Gaussian,
    MCDropout,
    MeanField,
    Method,
    VariationalDropout,
    bayesify,
    summary,
)
from bayesify.core import weight_decay
from bayesify.errors import BayesifyWarning
from bayesify.train import Training, fit, fit_many

F64 = torch.float64
DECAYING = [
    pytest.param(partial(torch.optim.SGD, lr=0.1, weight_decay=5e-4), "0.0005", id="SGD"),
    pytest.param(torch.optim.AdamW, "0.01", id="the default of AdamW"),
]
METHODS = [
    pytest.param(MeanField(), "net.0.posterior.weight_log_std", id="standard deviations"),
    pytest.param(VariationalDropout(), "net.0.posterior.log_alpha", id="dropout rates"),
    pytest.param(WHVI(), "net.0.posterior.bias_log_std", id="factors"),
    pytest.param(DeepEnsemble(members=2, base=MeanField()), "net.0.net.0.posterior.weight_log_std", id="random members"),
]


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def _step(optimizer: torch.optim.Optimizer, steps: int = 1) -> list[str]:
    """The warnings of steps with gradients of zero."""
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        parameter.grad = torch.zeros_like(parameter)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BayesifyWarning)
        for _ in range(steps):
            optimizer.step()
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize(("make", "rate"), DECAYING)
@pytest.mark.parametrize(("method", "name"), METHODS)
def test_decay_of_variances_is_noticed_once(method: Method, name: str, make: partial[torch.optim.Optimizer], rate: str) -> None:
    bnn = bayesify(_net(), method)
    optimizer = make(bnn.parameters())
    (message,) = _step(optimizer, 3)
    assert repr(name) in message
    assert f"bnn.parameter_groups(weight_decay={rate})" in message
    assert message in str(summary(bnn))
    assert _step(make(bnn.parameters())) == []


@pytest.mark.parametrize(("make", "rate"), DECAYING)
@pytest.mark.parametrize("method", [MeanField(), MCDropout(), EMP(), VIFO(), DeepEnsemble(members=2)], ids=repr)
def test_decay_of_weights_and_means_is_not(method: Method, make: partial[torch.optim.Optimizer], rate: str) -> None:
    bnn = bayesify(_net(), method)
    assert _step(make(bnn.parameter_groups(weight_decay=float(rate)))) == []


def test_frozen_variances_do_not_decay() -> None:
    bnn = bayesify(nn.Linear(4, 3), MeanField())
    for name, parameter in bnn.named_parameters():
        parameter.requires_grad_("posterior" not in name)
    assert _step(torch.optim.AdamW(bnn.parameters())) == []


def test_an_optimizer_of_its_own_for_the_variances() -> None:
    bnn = bayesify(nn.Linear(4, 3), MeanField())
    varying = list(weight_decay.variational_parameters(bnn).values())
    assert _step(torch.optim.AdamW([p for name, p in bnn.named_parameters() if "posterior" not in name])) == []
    (message,) = _step(torch.optim.AdamW(varying))
    assert "1 other variational parameter " in message


def test_networks_are_told_of_their_own_optimizer_alone() -> None:
    first, second = (bayesify(_net(), MeanField()) for _ in range(2))
    assert len(_step(torch.optim.AdamW(first.parameters()))) == 1
    assert (len(first.findings), len(second.findings)) == (1, 0)
    assert len(_step(torch.optim.AdamW(second.parameters()))) == 1


def test_observation_keeps_nothing_alive() -> None:
    bnn = bayesify(_net(), MeanField())
    keys = {id(p) for p in bnn.parameters()} & set(weight_decay._observed)
    assert len(keys) == 4
    del bnn
    gc.collect()
    other = bayesify(nn.Linear(4, 3), MeanField())
    assert {root() for root in weight_decay._observed.values()} >= {other}
    assert all(root() is not None for root in weight_decay._observed.values())


def _rows() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(12, 4, dtype=F64), torch.randn(12, dtype=F64)


def _decayed(bnn: Bayesian, likelihood: nn.Module, before: dict[str, torch.Tensor]) -> dict[str, float]:
    after = dict(nn.ModuleDict({"bnn": bnn, "likelihood": likelihood}).named_parameters())
    return {name: float((after[name].detach() / before[name]).mean()) for name in before if before[name].abs().min() > 0}


@pytest.mark.parametrize("together", [True, False])
def test_fit_decays_weights_and_means_alone(together: bool) -> None:
    """With a learning rate that only the decay can be seen of: one step multiplies by 1 - lr * decay, a gradient moves by lr."""
    torch.manual_seed(0)
    nets = [bayesify(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1)).double(), MeanField()) for _ in range(2)]
    noises = [Gaussian(std=0.3, learn=True).double() for _ in nets]
    pairs = list(zip(nets, noises, strict=True))
    before = [
        {name: p.detach().clone() for name, p in nn.ModuleDict({"bnn": b, "likelihood": n}).named_parameters()} for b, n in pairs
    ]
    optimizer = partial(torch.optim.SGD, lr=1e-12, weight_decay=1e11)
    settings = {"epochs": 1, "batch_size": 12, "optimizer": optimizer, "accelerator": "cpu", "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayesifyWarning)
        if together:
            fit_many([Training(bnn=b, data=_rows(), likelihood=n) for b, n in pairs], together=True, **settings)
        else:
            for b, n in pairs:
                fit(b, _rows(), n, **settings)
    for (b, n), start in zip(pairs, before, strict=True):
        factors = _decayed(b, n, start)
        assert len(factors) == 9
        for name, factor in factors.items():
            varies = "posterior" in name or "likelihood" in name
            assert math.isclose(factor, 1.0 if varies else 0.9, abs_tol=1e-6), name


def test_copies_are_not_observed() -> None:
    bnn = copy.deepcopy(bayesify(_net(), MeanField()))
    assert _step(torch.optim.AdamW(bnn.parameters())) == []


def test_decay_widens_a_posterior() -> None:
    """What the warning is for: on the same data, decay of all parameters makes standard deviations more than twice as large."""

    def log_std(make_groups: bool) -> float:
        torch.manual_seed(0)
        x = torch.randn(512, 8)
        y = (x[:, :3].sum(1) > 0).long()
        bnn = bayesify(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)), MeanField())
        groups = bnn.parameter_groups(weight_decay=5e-3) if make_groups else bnn.parameters()
        optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=5e-3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BayesifyWarning)
            for _ in range(300):
                draws = bnn(x)
                loss = -(Categorical().log_prob(draws.outputs, y).mean() - draws.kl / 5120)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return float(torch.cat([p.detach().flatten() for p in weight_decay.variational_parameters(bnn).values()]).mean())

    assert log_std(make_groups=False) - log_std(make_groups=True) > math.log(2)
