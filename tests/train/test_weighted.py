"""Weights of examples: the log likelihood of an example counts as often as its weight says."""

import pytest
import torch
from torch import nn

from bayesify import VIFO, DeepEnsemble, Deterministic, MeanField, bayesify
from bayesify.likelihoods import Categorical, Gaussian
from bayesify.train import Training, Weighted, fit, fit_many
from bayesify.train.batch import as_batch
from bayesify.train.many.ensemble import fold_rows, split_members
from bayesify.train.objective import Objective

F64 = torch.float64
COUNTS = torch.tensor([1, 3, 2, 1, 4])


def data() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(5, 2, dtype=F64)
    return x, x.sum(1).sin()


def mlp(outputs: int = 1) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, outputs))


# VIFO has a closed form, MeanField is drawn, here with hardly any spread
@pytest.mark.parametrize(("method", "tolerance"), [(VIFO(), 1e-12), (MeanField(initial_std=1e-7), 1e-5)])
def test_a_weight_counts_copies(method, tolerance):
    x, y = data()
    objective = Objective(bayesify(mlp(), method).to(F64), Gaussian(std=0.5, learn=True).to(F64))
    weighted = as_batch("data", Weighted((x, y), COUNTS.to(F64)))
    copies = as_batch("data", (x.repeat_interleave(COUNTS, 0), y.repeat_interleave(COUNTS)))
    total, expected = (batch.size * objective(batch, 1, batch.size, 0.7, None)[0] for batch in (weighted, copies))
    assert total.item() == pytest.approx(expected.item(), rel=tolerance)
    learned = list(objective.parameters())
    for one, other in zip(torch.autograd.grad(total, learned), torch.autograd.grad(expected, learned), strict=True):
        assert torch.allclose(one, other, rtol=100 * tolerance, atol=100 * tolerance)


def test_the_validation_nll_is_a_weighted_mean():
    (x, y), weights = data(), COUNTS.to(F64)
    bnn, likelihood = bayesify(mlp(), Deterministic()).to(F64), Gaussian(std=0.5).to(F64)
    history = fit(
        bnn, (x, y), likelihood, validation=Weighted((x, y), weights), epochs=1, batch_size=2, accelerator="cpu", progress=False
    )
    with torch.no_grad():
        log_prob = torch.distributions.Normal(bnn.net(x).squeeze(1), 0.5).log_prob(y)
    assert history.validation_nll[0] == pytest.approx(-float((COUNTS * log_prob).sum() / COUNTS.sum()))


@pytest.mark.default("True")
@pytest.mark.parametrize("together", [True, False])
def test_models_with_weights_of_their_own_train_as_alone(together):
    def trainings():
        torch.manual_seed(0)
        x, y = data()
        return [
            Training(
                bnn=bayesify(mlp(), MeanField()).to(F64), data=Weighted((x, y), torch.rand(5, dtype=F64)), seed=k,
                likelihood=Gaussian(std=0.5).to(F64), validation=Weighted((x, y), torch.rand(5, dtype=F64)), learning_rate=0.1,
            )
            for k in range(2)
        ]  # fmt: skip

    settings = {"epochs": 3, "batch_size": 2, "accelerator": "cpu", "progress": False}
    models, twins = trainings(), trainings()
    for one, history, twin in zip(models, fit_many(models, together=together, **settings), twins, strict=True):
        alone = fit(twin.bnn, twin.data, twin.likelihood, validation=twin.validation, seed=twin.seed, learning_rate=0.1, **settings)
        assert history.validation_nll == pytest.approx(alone.validation_nll)
        assert history.loss == pytest.approx(alone.loss)
        for a, b in zip(one.bnn.parameters(), twin.bnn.parameters(), strict=True):
            assert torch.allclose(a, b)


def test_folds_split_the_weights_with_the_rows():
    x, y, weights = torch.arange(8.0).unsqueeze(1), torch.zeros(8), torch.arange(8.0)
    ensemble = bayesify(nn.Linear(1, 1), DeepEnsemble(members=2))
    training = Training(bnn=ensemble, data=Weighted((x, y), weights), likelihood=Gaussian(), validation="folds", seed=3)
    for member, held_out in zip(split_members(training), fold_rows(8, 2, 3), strict=True):
        assert isinstance(member.validation, Weighted)
        assert torch.equal(member.validation.weights, held_out.float())
        assert isinstance(member.data, Weighted)
        inputs = member.data.data[0]
        assert isinstance(inputs, torch.Tensor)
        assert torch.equal(member.data.weights, inputs.squeeze(1))


def test_examples_of_weight_zero_have_no_influence():
    x, results = torch.randn(60, 2), []
    for wrong in (0, 1):
        torch.manual_seed(1)
        bnn = bayesify(mlp(2), Deterministic())
        y, weights = (x[:, 0] > 0).long(), torch.ones(60)
        y[::3], weights[::3] = wrong, 0
        fit(bnn, Weighted((x, y), weights), Categorical(), epochs=5, accelerator="cpu", progress=False)
        results.append(bnn.net(x))
    assert torch.equal(*results)


@pytest.mark.parametrize(
    "weights",
    [torch.ones(4), torch.ones(5, 1), torch.ones(5, dtype=torch.long), torch.zeros(5), -torch.ones(5), torch.full((5,), torch.nan)],
)
def test_bad_weights(weights):
    with pytest.raises(ValueError, match="weights must be"):
        Weighted(data(), weights)
