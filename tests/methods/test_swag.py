"""SWA and SWAG: snapshots along training, the covariance of draws across layers, training loops, batch normalization."""

import copy
import dataclasses
import itertools
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import SWALR, AveragedModel

from bayesify import (
    SWA,
    SWAG,
    Bayesian,
    BayesifyWarning,
    CheckpointError,
    ConfigurationError,
    DataError,
    DeepEnsemble,
    Deterministic,
    Gaussian,
    MeanField,
    Method,
    Posterior,
    bayesify,
    fit,
    predict,
    score_tokens,
    summary,
    unbayesify,
)
from bayesify.core.layer import BayesianLayer
from bayesify.testing import LAYERS, NET_CHECKS, References, check_method
from bayesify.train import Training, ensemble_of_draws, fit_many

F64 = torch.float64
SETTINGS = {"epochs": 8, "batch_size": 8, "accelerator": "cpu", "progress": False}


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1))


def normalized() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1))


def data(n: int = 30) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 2)
    return x, x[:, 0].sin()


class Pair(nn.Module):
    """Two layers whose weights, for inputs of 1, are the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(1, 3, bias=False), nn.Linear(1, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.first(x), self.second(x)], 1)


def collect(bnn: Bayesian, snapshots: Tensor) -> None:
    """Collect rows (T, P) as the parameters of a network, in order."""
    parameters = list(bnn.net.parameters())
    for row in snapshots:
        parts = row.split([p.numel() for p in parameters])
        with torch.no_grad():
            for p, value in zip(parameters, parts, strict=True):
                p.copy_(value.view_as(p))
        bnn.collect()


def covariance(snapshots: Tensor, rank: int) -> Tensor:
    """The dense covariance (P, P) of the paper, from explicit means of the first i snapshots."""
    diagonal = torch.diag(snapshots.var(0, correction=0))
    if not rank:
        return diagonal
    columns = [snapshots[i] - snapshots[: i + 1].mean(0) for i in range(len(snapshots))][-rank:]
    low_rank = sum(torch.outer(d, d) for d in columns) / (len(columns) - 1)
    return (diagonal + low_rank) / 2


def require_covariance(draws: Tensor, mean: Tensor, expected: Tensor) -> None:
    """Draws (n, P) have this mean and covariance within 5 standard errors, for n = 1,500 a fifth of the variances."""
    n, variances = len(draws), expected.diagonal()
    assert float(((draws.mean(0) - mean).abs() / (variances / n).sqrt()).max()) < 5
    errors = ((torch.outer(variances, variances) + expected.square()) / n).sqrt()
    assert float(((draws.T.cov() - expected).abs() / errors).max()) < 5


# The posterior


@pytest.mark.parametrize(
    ("rank", "count", "fold"), [(4, 9, True), (6, 3, True), (0, 5, True), (2, 2, True), (4, 9, False)], ids=str
)
def test_draws_have_the_covariance_of_the_paper_across_layers(rank: int, count: int, fold: bool) -> None:
    snapshots = torch.randn(count, 1, dtype=F64) + 0.5 * torch.randn(count, 5, dtype=F64)  # correlated between all weights
    bnn = bayesify(Pair().double(), SWAG(rank=rank), fold=fold).eval()
    collect(bnn, snapshots)
    with torch.no_grad():
        draws = bnn(torch.ones(1, 1, dtype=F64), samples=20_000 if fold else 1500).outputs[:, 0]
    expected = covariance(snapshots, rank)
    require_covariance(draws, snapshots.mean(0), expected)
    if rank:  # layers with a z of their own would have no covariance
        across, errors = expected[:3, 3:], (expected.diagonal()[:3, None] * expected.diagonal()[3:] / len(draws)).sqrt()
        assert float((across.abs() / errors).max()) > 10


def test_functions_and_networks_are_joint_draws_too() -> None:
    snapshots = torch.randn(6, 1, dtype=F64) + 0.3 * torch.randn(6, 5, dtype=F64)
    bnn = bayesify(Pair().double(), SWAG(rank=6)).eval()
    collect(bnn, snapshots)
    x = torch.ones(1, 1, dtype=F64)
    networks = torch.stack([torch.cat([p.flatten() for p in bnn.sample_network(s).parameters()]) for s in range(1500)])
    require_covariance(networks.detach(), snapshots.mean(0), covariance(snapshots, 6))
    for seed in range(3):
        torch.testing.assert_close(bnn.function(seed)(x)[0], networks[seed])
        with bnn.drawn(seed) as net:
            torch.testing.assert_close(net(x)[0], networks[seed])


def test_moments_in_single_precision_are_exact_where_the_mean_square_loses_them() -> None:
    exact = 1 + 1e-5 * torch.randn(200, 5, dtype=F64)
    bnn = bayesify(Pair(), SWAG(rank=0, snapshots=200))
    collect(bnn, exact.float())
    variance = torch.cat([layer.posterior.get_buffer("squares") for _, layer in bnn.random_layers()]).double() / 200
    expected = exact.float().double().var(0, correction=0)
    torch.testing.assert_close(variance, expected, rtol=0.02, atol=0)
    mean_square = exact.float().square().mean(0) - exact.float().mean(0).square()
    assert float((mean_square.double() / expected - 1).abs().max()) > 0.5


def test_moments_of_a_network_in_half_precision_are_in_single_precision() -> None:
    snapshots = 1 + torch.arange(300.0).unsqueeze(1) / 300 * torch.ones(1, 5)
    bnn = bayesify(Pair(), SWAG(rank=2, snapshots=300)).to(torch.bfloat16)
    collect(bnn, snapshots)
    (_, layer), *_ = bnn.random_layers()
    expected = snapshots.bfloat16().float()[:, :3].mean(0)
    torch.testing.assert_close(layer.posterior.get_buffer("average"), expected, rtol=1e-5, atol=0)
    assert bnn.eval()(torch.ones(1, 1, dtype=torch.bfloat16), samples=2).outputs.dtype == torch.bfloat16


def test_training_passes_have_the_trained_weights_and_others_the_collected() -> None:
    bnn, x = bayesify(normalized(), SWAG(rank=2)), torch.randn(5, 2)
    collect(bnn, torch.randn(4, sum(p.numel() for p in bnn.parameters())))
    plain = bnn.sample_network(0)  # of the plain classes
    plain.load_state_dict({name: value for name, value in bnn.net.state_dict().items() if "posterior" not in name})
    for coherent in (False, True):
        bnn.train()
        bnn.net[1].eval()  # frozen statistics do not make a layer one of prediction
        plain.train()[1].eval()
        outputs = bnn(x, samples=3, coherent=coherent).outputs
        torch.testing.assert_close(outputs, plain(x).expand(3, 5, 1))
        bnn.zero_grad()
        outputs.sum().backward()
        assert all(p.grad is not None for p in bnn.parameters())
        bnn.eval()
        draws = bnn(x, samples=3, coherent=coherent).outputs
        gradients = torch.autograd.grad(draws.sum(), list(bnn.parameters()), allow_unused=True)
        assert not any(g is not None and g.any() for g in gradients)
        assert float(draws.detach().std(0).min()) > 0


def test_the_prior_is_that_of_a_point_estimate() -> None:
    net = mlp()
    reference = bayesify(copy.deepcopy(net), Deterministic(prior_std=0.3)).kl()
    for method in (SWA(prior_std=0.3), SWAG(prior_std=0.3)):
        torch.testing.assert_close(bayesify(copy.deepcopy(net), method).kl(), reference)
    assert bayesify(net, SWAG()).kl() == 0


def test_unbayesify_restores_the_mean_and_a_plain_checkpoint_starts_afresh() -> None:
    snapshots, start = torch.randn(3, 5), Pair().state_dict()
    bnn = bayesify(Pair(), SWAG(rank=2))
    collect(bnn, snapshots)
    restored = unbayesify(copy.deepcopy(bnn))
    torch.testing.assert_close(torch.cat([p.flatten() for p in restored.parameters()]), snapshots.mean(0))
    bnn.net.load_state_dict(start)
    assert all(not value.any() for name, value in bnn.state_dict().items() if "posterior" in name)
    torch.testing.assert_close(bnn.eval()(torch.ones(1, 1)).outputs.flatten(), torch.cat([v.flatten() for v in start.values()]))


def test_a_copy_is_collected_for_itself() -> None:
    bnn = bayesify(Pair(), SWAG(rank=2))
    collect(bnn, torch.randn(2, 5))
    twin = copy.deepcopy(bnn)
    twin.collect()
    assert [int(each.net.first.posterior.count) for each in (bnn, twin)] == [2, 3]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectedSWAG(SWAG):
    """SWAG whose layers have snapshots around their weights from the beginning."""

    def build(self, layer: BayesianLayer) -> Posterior:
        posterior = super().build(layer)
        own = {p: p.detach().clone() for p in layer.parameters(recurse=False)}
        with torch.no_grad():
            for _ in range(self.snapshots):
                for p, value in own.items():
                    p.copy_(value * (1 + 0.3 * torch.randn_like(value)))
                posterior.collect(layer)
            for p, value in own.items():
                p.copy_(value)
        return posterior


Method.registry.pop("CollectedSWAG")  # naming it made it known; other tests in this process must not meet it


@pytest.mark.extended
def test_the_collected_posterior_fulfils_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Method.registry, "CollectedSWAG", CollectedSWAG)
    nets = [check for check in NET_CHECKS if check.__name__ in ("check_graph_network", "check_tied_embedding", "check_functions")]
    layers = {name: LAYERS[name] for name in ("Linear", "Embedding")}
    check_method(CollectedSWAG(rank=3, snapshots=4, prior_std=0.5), layers, References(), nets=nets)


# Along training


@pytest.mark.parametrize(("start", "snapshots", "steps"), [(0.5, 10, 20), (0.75, 100, 400), (0.0, 7, 7), (0.3, 50, 1000)])
def test_snapshots_are_spread_evenly_over_the_rest_of_training(start: float, snapshots: int, steps: int) -> None:
    bnn = bayesify(Pair(), SWAG(start=start, snapshots=snapshots, rank=2))
    due = [step for step in range(steps) if bnn.is_due(step / steps, (step + 1) / steps)]
    assert len(due) == snapshots
    assert due[-1] == steps - 1
    assert due[0] >= start * steps - 1
    gaps = {b - a for a, b in itertools.pairwise(due)}
    assert max(gaps) - min(gaps) <= 1


def test_fit_averages_as_pytorch_does() -> None:
    x, y = data()
    bnn = bayesify(mlp(), SWA(start=0.5, snapshots=4))
    averaged = AveragedModel(mlp())

    def at_epoch_end(record: dict[str, float]) -> None:
        if record["epoch"] > 4:
            plain = bnn.sample_network(0)
            plain.load_state_dict({name: v for name, v in bnn.net.state_dict().items() if "posterior" not in name})
            averaged.update_parameters(plain)

    fit(bnn, (x, y), Gaussian(std=0.1), loggers=[at_epoch_end], **SETTINGS)
    torch.testing.assert_close(bnn.eval()(x).outputs[0], averaged(x))
    torch.testing.assert_close(predict(bnn, x, Gaussian(std=0.1), samples=3).mean, averaged(x).squeeze(1).detach())
    assert "4 snapshots collected" in str(summary(bnn))


@pytest.mark.parametrize("accumulate", [1, 3])
def test_an_interrupted_run_collects_as_an_uninterrupted_one(tmp_path: Path, accumulate: int) -> None:
    x, y = data()
    schedule = partial(SWALR, swa_lr=1e-2, anneal_epochs=4)
    if any(map(callable, schedule(torch.optim.Adam(mlp().parameters())).state_dict().values())):
        pytest.skip("SWALR of PyTorch 2.8 keeps a function in its state, which no checkpoint can hold: `fit` says so")
    settings = {**SETTINGS, "accumulate": accumulate, "scheduler": schedule}

    def stop(record: dict[str, float]) -> None:
        if record["epoch"] == 6:
            raise KeyboardInterrupt

    torch.manual_seed(1)
    bnn = bayesify(mlp(), SWAG(snapshots=9, rank=3))
    twin = copy.deepcopy(bnn)
    fit(bnn, (x, y), Gaussian(std=0.1), **settings)
    fresh = copy.deepcopy(twin)
    with pytest.raises(KeyboardInterrupt):
        fit(twin, (x, y), Gaussian(std=0.1), checkpoint=tmp_path / "run.pt", loggers=[stop], **settings)
    fit(fresh, (x, y), Gaussian(std=0.1), checkpoint=tmp_path / "run.pt", **settings)
    assert int(bnn.net[0].posterior.count) == (9 if accumulate == 1 else 7)  # of 8 steps with accumulate=3, one is not due
    for name, value in bnn.state_dict().items():
        torch.testing.assert_close(fresh.state_dict()[name], value, msg=name)


def test_more_epochs_would_collect_other_snapshots(tmp_path: Path) -> None:
    bnn = bayesify(mlp(), SWAG())
    fit(bnn, data(), Gaussian(std=0.1), checkpoint=tmp_path / "run.pt", **SETTINGS)
    with pytest.raises(CheckpointError, match="epochs was 8 and is 9"):
        fit(bnn, data(), Gaussian(std=0.1), checkpoint=tmp_path / "run.pt", **{**SETTINGS, "epochs": 9})


def test_validation_does_not_choose_an_epoch_and_patience_is_refused() -> None:
    x, y = data()
    bnns = [bayesify(mlp(), SWAG(snapshots=8, rank=2)) for _ in range(3)]
    for bnn in bnns[1:]:
        bnn.load_state_dict(bnns[0].state_dict())
    wrong = (x, bnns[0](x).outputs[0, :, 0].detach())  # what the network predicts before training
    settings = {**SETTINGS, "learning_rate": 0.02}
    fit(bnns[0], (x, y), Gaussian(std=0.1), **settings)
    history = fit(bnns[1], (x, y), Gaussian(std=0.1), validation=wrong, **settings)
    assert history.best_epoch != 8
    pair = [Training(bnn=b, data=(x, y), likelihood=Gaussian(std=0.1), validation=wrong, learning_rate=0.02) for b in bnns[2:]]
    fit_many([*pair, dataclasses.replace(copy.deepcopy(pair[0]), seed=1)], together=True, epochs=8, batch_size=8, progress=False)
    for bnn in bnns[1:]:
        torch.testing.assert_close(bnn.state_dict(), bnns[0].state_dict())
    with pytest.raises(ConfigurationError, match="patience=2 would stop training before"):
        fit(bnns[0], (x, y), Gaussian(), validation=(x, y), patience=2, **SETTINGS)


def test_a_loader_of_unknown_length_is_collected_by_epochs() -> None:
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            x, y = data()
            return zip(x, y, strict=True)

    bnn = bayesify(mlp(), SWAG(start=0.5, snapshots=10, rank=2))
    fit(bnn, Stream(), Gaussian(std=0.1), n=30, **SETTINGS)
    assert int(bnn.net[0].posterior.count) == 4  # one per epoch of the second half


def test_collecting_needs_a_method_for_it() -> None:
    with pytest.raises(ConfigurationError, match=r"no posterior of this network is collected along training; use SWAG"):
        bayesify(mlp(), MeanField()).collect()


# Predictions


def messages(bnn: Bayesian, x: Tensor) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        predict(bnn, x, Gaussian(std=0.1), samples=2)
        predict(bnn, x, Gaussian(std=0.1), samples=2)
    return [str(each.message) for each in caught if issubclass(each.category, BayesifyWarning)]


@pytest.mark.parametrize("method", [SWA(), SWAG(), DeepEnsemble(members=2, base=SWAG())])
def test_predictions_without_snapshots_warn_once(method: Method) -> None:
    x, y = data()
    bnn = bayesify(mlp(), method)
    (message,) = messages(bnn, x)
    assert message.startswith("no snapshot has been collected, so predictions are those of the current weights")
    assert "no snapshot" in str(summary(bnn))
    fit(bnn, (x, y), Gaussian(std=0.1), **SETTINGS)
    assert not messages(bnn, x)
    assert "no snapshot" not in str(summary(bnn))


def test_scores_of_tokens_without_snapshots_warn() -> None:
    bnn, tokens = bayesify(nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5)), SWAG()), torch.tensor([[0, 1, 2], [3, 4, 0]])
    with pytest.warns(BayesifyWarning, match="no snapshot has been collected"):
        score_tokens(bnn, tokens, tokens, samples=2)


def test_predictions_with_weights_left_out_warn() -> None:
    bnn, x = bayesify(mlp(), {"0": SWAG()}), torch.randn(4, 2)
    bnn.collect()
    (message,) = messages(bnn, x)
    assert "2 trained parameters are in layers without snapshots" in message
    frozen = mlp()
    frozen[2].requires_grad_(False)
    bnn = bayesify(frozen, {"0": SWAG()})
    bnn.collect()
    assert not messages(bnn, x)


@pytest.mark.parametrize("base", [None, SWAG(snapshots=10, rank=4)], ids=["SWAG", "MultiSWAG"])
@pytest.mark.parametrize("size", [40, 13], ids=["one batch", "four batches"])
def test_batch_statistics_of_every_draw(base: Method | None, size: int) -> None:
    x, y = data(40)
    bnn = bayesify(normalized(), DeepEnsemble(members=2, base=base) if base else SWAG(snapshots=10, rank=4)).double()
    x, y = x.double(), y.double()
    fit(bnn, (x, y), Gaussian(std=0.1).double(), learning_rate=0.05, **SETTINGS)
    (message,) = messages(bnn, x)
    assert "the running statistics of batch normalization belong to the last weights" in message
    before = copy.deepcopy(bnn.state_dict())
    ensemble = ensemble_of_draws(bnn, x, draws=4, batch_size=size, seed=3)
    assert not messages(ensemble, x)
    torch.testing.assert_close(bnn.state_dict(), before)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(3))
    batches = x[order[1:] if 40 % size == 1 else order].split(size)
    outputs = []
    for s in range(4):
        net = bnn.sample_network(3 + s)
        hidden = [F.linear(batch, net[0].weight, net[0].bias) for batch in batches]
        mean, var = torch.stack([h.mean(0) for h in hidden]).mean(0), torch.stack([h.var(0) for h in hidden]).mean(0)
        h = (F.linear(x, net[0].weight, net[0].bias) - mean) / (var + 1e-5).sqrt() * net[1].weight + net[1].bias
        outputs.append(F.linear(h.tanh(), net[3].weight, net[3].bias))
    draws = ensemble.eval()(x, samples=4).outputs
    torch.testing.assert_close(draws, torch.stack(outputs))
    assert float(draws.detach().std(0).mean()) > 1e-3


def test_batch_statistics_from_a_loader_and_errors() -> None:
    x, y = data(32)
    bnn = bayesify(normalized(), SWA(snapshots=4))
    fit(bnn, (x, y), Gaussian(std=0.1), **SETTINGS)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32)
    one, other = (ensemble_of_draws(bnn, inputs, draws=1, batch_size=32).eval() for inputs in (loader, x))
    torch.testing.assert_close(one(x).outputs, other(x).outputs)
    with pytest.raises(TypeError, match="got an iterator, which can be used only once"):
        ensemble_of_draws(bnn, iter(loader))
    with pytest.raises(DataError, match="must have at least one batch"):
        ensemble_of_draws(bnn, [])
    with pytest.raises(TypeError, match="bnn must be what bayesify returned, got Sequential"):
        ensemble_of_draws(mlp(), x)  # pyright: ignore[reportArgumentType]


def test_multiswag_is_an_ensemble_of_swag() -> None:
    x, y = data()
    bnn = bayesify(mlp(), DeepEnsemble(members=3, base=SWAG(snapshots=10, rank=4)))
    fit(bnn, (x, y), Gaussian(std=0.1), learning_rate=0.03, **SETTINGS)
    means = [member.net[0].posterior.get_buffer("average") for member in bnn.members]
    assert [int(member.net[0].posterior.count) for member in bnn.members] == [10] * 3
    assert len({round(float(mean[0]), 4) for mean in means}) == 3
    draws = bnn.eval()(x, samples=60).outputs[..., 0].detach()  # the draws of a member follow each other
    within = draws.unflatten(0, (3, 20))
    assert float(within.var(1).min()) > 0
    assert float(draws.var(0).mean()) > float(within.var(1).mean())  # members differ by more than their draws


# Settings


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"start": 1.0}, "start must be a fraction of training of at least 0 and below 1, got 1.0"),
        ({"start": True}, "start must be a fraction"),
        ({"snapshots": 0}, "snapshots"),
        ({"snapshots": 1, "rank": 0}, "snapshots must be at least 2"),
        ({"rank": 1}, "rank must be 0 .diagonal., or from 2 to snapshots=100"),
        ({"rank": 30, "snapshots": 20}, "rank must be 0 .diagonal., or from 2 to snapshots=20"),
        ({"rank": -1}, "rank"),
        ({"prior_std": 0.0}, "prior_std"),
    ],
)
def test_bad_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SWAG(**fields)
