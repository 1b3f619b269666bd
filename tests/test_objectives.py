"""The evidence lower bound by hand and over minibatches, and the schedules of its KL."""

import itertools
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bayesify import VIFO, Constant, Cyclical, Draws, KLSchedule, LinearWarmup, MeanField, Method, bayesify, elbo
from bayesify.errors import DataError

LOG_PROB = torch.tensor([[-1.0, -2.0, -6.0], [-3.0, -4.0, -2.0]], dtype=torch.float64)
DRAWS = Draws(
    outputs=torch.zeros(2, 3, 1, dtype=torch.float64),
    kl=torch.tensor(20.0, dtype=torch.float64),
    local_kl=torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64),
)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"n": 10}, -3 - 2 - 3),
        ({"n": 40}, -3 - 0.5 - 3),
        ({"n": 10, "beta": 0.5}, -3 - 1 - 3),
        ({"n": 10, "beta": 0.0}, -3 - 3),
        ({"n": 10, "local_beta": 0.5}, -3 - 2 - 1.5),
        ({"n": 10, "beta": 3.0, "local_beta": 0.0}, -3 - 6),
        ({"n": 10, "beta": torch.tensor(0.5).double(), "local_beta": torch.tensor(2.0).double()}, -3 - 1 - 6),
    ],
)
def test_elbo_by_hand(options: dict[str, float], expected: float) -> None:
    value = elbo(DRAWS, LOG_PROB, **options)
    assert (value.shape, value.dtype) == ((), torch.float64)
    assert value.item() == pytest.approx(expected, abs=1e-12)


def test_elbo_gradients_by_hand() -> None:
    log_prob = LOG_PROB.clone().requires_grad_()
    kl, local_kl = DRAWS.kl.clone().requires_grad_(), DRAWS.local_kl.clone().requires_grad_()
    elbo(DRAWS._replace(kl=kl, local_kl=local_kl), log_prob, n=10, beta=0.3, local_beta=0.6).backward()
    torch.testing.assert_close(log_prob.grad, torch.full((2, 3), 1 / 6).double())
    torch.testing.assert_close(kl.grad, torch.tensor(-0.03).double())
    torch.testing.assert_close(local_kl.grad, torch.full((3,), -0.2).double())


def test_n_times_the_elbo_is_the_sum_over_the_data() -> None:
    draws = DRAWS._replace(local_kl=torch.zeros(3).double())
    expected = LOG_PROB[0].sum() / 2 + LOG_PROB[1].sum() / 2 - 20
    assert 3 * elbo(draws, LOG_PROB, n=3).item() == pytest.approx(expected.item())


@pytest.mark.parametrize("size", [1, 3, 4])
def test_mean_over_minibatches_is_the_value_of_all_data(size: int) -> None:
    log_prob, local_kl = torch.randn(2, 12).double(), torch.rand(12).double()

    def value(rows: slice) -> torch.Tensor:
        draws = DRAWS._replace(outputs=log_prob[:, rows, None], local_kl=local_kl[rows])
        return elbo(draws, log_prob[:, rows], n=12, beta=0.7, local_beta=0.4)

    parts = [value(slice(start, start + size)) for start in range(0, 12, size)]
    torch.testing.assert_close(torch.stack(parts).mean(), value(slice(None)))


def test_minibatch_gradients_of_a_network_add_up() -> None:
    bnn = bayesify(nn.Sequential(nn.Linear(2, 1).double()), MeanField(initial_std=1e-9))  # almost without noise
    x, y = torch.randn(12, 2).double(), torch.randn(12, 1).double()

    def gradient(rows: slice) -> torch.Tensor:
        bnn.zero_grad()
        draws = bnn(x[rows], samples=3)
        elbo(draws, -(draws.outputs - y[rows]).square().sum(-1), n=12).backward()
        return bnn.net[0].weight.grad.clone()

    parts = [gradient(slice(start, start + 4)) for start in range(0, 12, 4)]
    torch.testing.assert_close(torch.stack(parts).mean(0), gradient(slice(None)), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("n", [0, -5, math.nan])
def test_elbo_refuses_an_empty_data_set(n: float) -> None:
    with pytest.raises(ValueError, match=f"n must be the number of training examples, a finite number above 0, got {n}"):
        elbo(DRAWS, LOG_PROB, n=n)


@pytest.mark.parametrize("shape", [(), (3,), (2, 4), (1, 3), (2, 3, 1)])
def test_elbo_refuses_log_probabilities_of_another_shape(shape: tuple[int, ...]) -> None:
    message = r"log_prob must have shape \(S, B\) = \(2, 3\), got \(" + ", ".join(map(str, shape))
    with pytest.raises(ValueError, match=message):
        elbo(DRAWS, torch.zeros(shape), n=10)


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (Constant(), {0.0: 1.0, 0.5: 1.0, 1.0: 1.0}),
        (Constant(beta=0.2), {0.0: 0.2, 1.0: 0.2}),
        (LinearWarmup(), {0.0: 0.0, 0.125: 0.25, 0.5: 1.0, 0.75: 1.0, 1.0: 1.0}),
        (LinearWarmup(beta=0.4, fraction=1.0), {0.0: 0.0, 0.5: 0.2, 1.0: 0.4}),
        # cycles of a quarter, half of each rising
        (Cyclical(), {0.0: 0.0, 0.0625: 0.5, 0.125: 1.0, 0.1875: 1.0, 0.25: 0.0, 0.5: 0.0, 0.8125: 0.5, 0.9375: 1.0, 1.0: 1.0}),
        (Cyclical(beta=2.0, cycles=1, fraction=0.25), {0.0: 0.0, 0.125: 1.0, 0.25: 2.0, 0.9: 2.0, 1.0: 2.0}),
        (Cyclical(cycles=2, fraction=1.0), {0.25: 0.5, 0.5: 0.0, 0.75: 0.5, 1.0: 1.0}),
    ],
)
def test_schedules(schedule: KLSchedule, values: dict[float, float]) -> None:
    assert {progress: schedule(progress) for progress in values} == pytest.approx(values)


def test_schedules_stay_within_their_weight() -> None:
    for schedule in (Constant(beta=0.3), LinearWarmup(beta=0.3, fraction=0.1), Cyclical(beta=0.3, cycles=7, fraction=0.3)):
        weights = [schedule(step / 1000) for step in range(1001)]
        assert min(weights) >= 0
        assert max(weights) == pytest.approx(0.3)
        assert weights[-1] == pytest.approx(0.3), "training ends on the bound"
    rises = sum(b > a for a, b in itertools.pairwise(weights))
    assert rises == pytest.approx(300, abs=8), "each cycle rises over its fraction"
    drops = sum(b < a for a, b in itertools.pairwise(weights))
    assert drops == 6


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (Constant, {"beta": 0.0}, "beta must be a finite number above 0, got 0.0"),
        (LinearWarmup, {"beta": math.inf}, "beta must be a finite number above 0, got inf"),
        (LinearWarmup, {"fraction": 0.0}, r"fraction must be a number in \(0, 1\], got 0.0"),
        (LinearWarmup, {"fraction": 1.1}, r"fraction must be a number in \(0, 1\], got 1.1"),
        (Cyclical, {"beta": -1.0}, "beta must be a finite number above 0, got -1.0"),
        (Cyclical, {"cycles": 0}, "cycles must be a whole number of at least 1, got 0"),
        (Cyclical, {"cycles": 2.5}, "cycles must be a whole number of at least 1, got 2.5"),
        (Cyclical, {"fraction": -0.5}, r"fraction must be a number in \(0, 1\], got -0.5"),
    ],
)
def test_schedule_errors(kind: type[KLSchedule], fields: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**fields)


def test_a_schedule_must_say_its_weight() -> None:
    with pytest.raises(NotImplementedError, match="KLSchedule must define __call__"):
        KLSchedule()(0.5)


@pytest.mark.parametrize("samples", [2, 3, 5])
def test_the_gradient_of_the_score_has_the_mean_of_the_other_draws_as_baseline(samples: int) -> None:
    log_prob = torch.randn(samples, 4, dtype=torch.float64)
    score = torch.zeros(samples, dtype=torch.float64, requires_grad=True)
    outputs, nothing = torch.zeros(samples, 4, 1).double(), torch.zeros(()).double()
    elbo(Draws(outputs, nothing, torch.zeros(4).double(), score), log_prob, n=10).backward()
    for s in range(samples):
        others = torch.stack([log_prob[t] for t in range(samples) if t != s])
        expected = sum(float(log_prob[s, b] - others[:, b].mean()) for b in range(4)) / (4 * samples)
        assert score.grad is not None
        assert score.grad[s].item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("method", [MeanField(), VIFO()], ids=["KL", "KL per example"])
def test_a_kl_that_counts_twice_is_noticed(method: Method) -> None:
    """Two bounds of the same draws in one loss; not a sum of log likelihoods, a mean of bounds, betas that add up to 1 or a log."""
    x, y = torch.randn(8, 3), torch.randn(2, 8)

    def told(loss: Callable[[Draws, Tensor, Tensor], Tensor]) -> list[str]:
        draws = bayesify(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), method).train()(x, samples=2)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loss(draws, *(-0.5 * (draws.outputs[..., i] - y[i]).square() for i in range(2))).backward()
        return [str(each.message) for each in caught]

    assert told(lambda draws, a, b: -elbo(draws, a + b, n=8)) == []
    assert told(lambda draws, a, b: -0.5 * elbo(draws, 2 * a, n=8) - 0.5 * elbo(draws, 2 * b, n=8)) == []
    local = bayesify(nn.Linear(3, 2), method).local_beta
    half: dict[str, Any] = {"beta": 0.5, "local_beta": 0.5 * local}
    none: dict[str, Any] = {"beta": 0.0, "local_beta": 0.0}
    assert told(lambda draws, a, b: -elbo(draws, a, n=8, **half) - elbo(draws, b, n=8, **half)) == []
    assert told(lambda draws, a, b: -elbo(draws, a, n=8) - elbo(draws, b, n=8, **none)) == []
    assert told(lambda draws, a, b: elbo(draws, a, n=8).detach() - elbo(draws, a + b, n=8)) == []
    (message,) = told(lambda draws, a, b: -elbo(draws, a, n=8) - elbo(draws, b, n=8))
    assert "the loss has 2 bounds of the same draws" in message
    first, rest = slice(4), slice(4, 8)
    of_rows = told(lambda draws, a, b: -elbo(draws.rows(first), a[:, first], n=8) - elbo(draws.rows(rest), a[:, rest], n=8))
    assert len(of_rows) == isinstance(method, MeanField), "rows have a KL of their own with VIFO"


def test_some_rows_of_a_batch_have_the_bound_of_these_alone() -> None:
    """As labeled nodes of a graph: their mean, and the KL by their number."""
    local_kl, outputs = torch.rand(5).double(), torch.randn(2, 5, 3).double()
    draws = Draws(outputs={"a": outputs, "b": (outputs[..., 0],)}, kl=torch.tensor(20.0).double(), local_kl=local_kl)  # pyright: ignore[reportArgumentType]
    log_prob, mask = torch.randn(2, 5).double(), torch.tensor([True, False, False, True, True])
    for index in (mask, torch.tensor([0, 3, 4])):
        some = draws.rows(index)
        bound = elbo(some, log_prob[:, mask], n=3, beta=0.5, local_beta=0.25)
        expected = sum(float(log_prob[s, b]) for s in range(2) for b in (0, 3, 4)) / 6 - 0.5 * 20 / 3
        assert bound.item() == pytest.approx(expected - 0.25 * float(local_kl[[0, 3, 4]].mean()))
        assert some.outputs["b"][0].shape == (2, 3)  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert draws.rows(slice(2)).local_kl.shape == (2,)
    with pytest.raises(DataError, match=r"take draws\.rows\(mask\)"):
        elbo(draws, log_prob[:, mask], n=3)
