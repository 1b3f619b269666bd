"""Running averages that fit no draw: how far off predictions are, the warning, and the way out that it names."""

import math
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from bayesify import EMP, SWAG, Deterministic, Gaussian, MCDropout, bayesify, predict, summary
from bayesify.core.model import Bayesian
from bayesify.errors import BayesifyWarning
from bayesify.train import Training, ensemble_of_draws, fit, fit_many
from bayesify.train.running_statistics import misfits

MESSAGE = "running averages fit none of them"


def _data() -> tuple[Tensor, Tensor]:
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    return x, x[:, :1] - 0.5 * x[:, 1:2]


def _net() -> nn.Sequential:
    """The second normalization follows a linear layer, so its own statistics undo a shift of the first one exactly."""
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


def _patched(scale: float, shift: float) -> Bayesian:
    """Two components of the first normalization, with these scales and shifts of the second one; no spread elsewhere."""
    bnn = bayesify(_net(), EMP(components=2, where="0", spread=0.0, prior_std=None))
    with torch.no_grad():
        posterior = bnn.net[0].posterior  # pyright: ignore[reportIndexIssue]
        posterior.weight[1], posterior.bias[1] = scale, shift
    return bnn


def _train(bnn: Bayesian, likelihood: Gaussian, epochs: int = 30) -> None:
    fit(bnn, _data(), likelihood, epochs=epochs, batch_size=50, learning_rate=1e-2, accelerator="cpu", progress=False)


def test_the_misfit_is_the_divergence_of_each_draw_from_the_pooled_normal() -> None:
    bnn, (x, _) = _patched(scale=2.0, shift=1.5), _data()
    linear = bnn.net[1]  # pyright: ignore[reportIndexIssue]
    moments = []
    for scale, shift in ((1.0, 0.0), (2.0, 1.5)):
        hidden = (x / math.sqrt(1 + 1e-5) * scale + shift) @ linear.weight.detach().T + linear.bias.detach()
        moments.append((hidden.mean(0), hidden.var(0, correction=0)))
    (m0, v0), (m1, v1) = moments
    pooled = Normal((m0 + m1) / 2, ((v0 + v1) / 2).sqrt())
    expected = torch.stack([kl_divergence(Normal(m, v.sqrt()), pooled) for m, v in moments]).mean()
    assert float(expected) > 0.2  # the term of the means and that of the variances both count
    found = misfits(bnn, x, draws=1000)
    assert found["0"] == 0  # nothing before it is random
    assert found["2"] == pytest.approx(float(expected), rel=0.1)


@pytest.mark.parametrize("method", [Deterministic(), EMP(where="2"), EMP(where="out"), {"4": MCDropout(p=0.5)}])
def test_there_is_no_misfit_where_nothing_random_comes_before(method) -> None:
    assert not any(misfits(bayesify(_net(), method), _data()[0]).values())


def test_measuring_changes_nothing() -> None:
    bnn, (x, _) = _patched(scale=1.0, shift=1.0).train(), _data()
    before, random = {name: value.clone() for name, value in bnn.state_dict().items()}, torch.get_rng_state()
    misfits(bnn, x)
    assert all(torch.equal(before[name], value) for name, value in bnn.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())
    assert bnn.net[0].training  # pyright: ignore[reportIndexIssue]
    assert not bnn.net[0]._forward_pre_hooks  # pyright: ignore[reportIndexIssue]


def test_shifted_components_ruin_predictions_by_running_averages_and_leave_those_by_own_statistics_alone() -> None:
    """The cause of EMP's collapse on naval: every draw fits the data, and the averages over draws fit none."""
    likelihood, (x, y) = Gaussian(std=0.3), _data()
    scores = {}
    for shift in (0.0, 6.0):
        bnn = _patched(scale=1.0, shift=shift)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BayesifyWarning)
            _train(bnn, likelihood)
        for name, net in (("running", bnn), ("own", ensemble_of_draws(bnn, x, draws=40))):
            scores[name, shift] = float(predict(net, x, likelihood, samples=40, progress=False).log_prob(y).mean())
    assert scores["own", 6.0] == pytest.approx(scores["own", 0.0], abs=0.1)
    assert scores["running", 0.0] == pytest.approx(scores["own", 0.0], abs=0.1)
    assert scores["running", 6.0] < scores["own", 6.0] - 1


def test_training_warns_of_draws_that_need_other_averages() -> None:
    bnn = _patched(scale=1.0, shift=3.0)
    with pytest.warns(BayesifyWarning, match=rf"'2' differ between draws .*{MESSAGE}.*ensemble_of_draws"):
        _train(bnn, Gaussian(std=0.3), epochs=2)
    assert MESSAGE in str(summary(bnn))


def test_training_several_models_together_warns_for_each() -> None:
    bnns = [_patched(scale=1.0, shift=shift) for shift in (3.0, 0.1)]
    trainings = [Training(bnn=bnn, data=_data(), likelihood=Gaussian(std=0.3), seed=i) for i, bnn in enumerate(bnns)]
    with pytest.warns(BayesifyWarning, match=MESSAGE):
        fit_many(trainings, epochs=2, batch_size=50, accelerator="cpu", together=True, progress=False)
    assert [MESSAGE in str(summary(bnn)) for bnn in bnns] == [True, False]


@pytest.mark.parametrize("method", [None, SWAG(snapshots=4, rank=2)])
def test_training_does_not_warn_of_near_components_or_of_what_predictions_warn_of(method) -> None:
    bnn = _patched(scale=1.0, shift=0.1) if method is None else bayesify(_net(), method)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayesifyWarning)
        _train(bnn, Gaussian(std=0.3), epochs=4)
