"""`BayesianModule` with `lightning.Trainer`: its loss, validation, schedules and checkpoints."""

import copy
import warnings

import lightning
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from bayesify import (
    HMC,
    IVON,
    SGLD,
    SWA,
    SWAG,
    VIFO,
    Bayesian,
    BayesifyWarning,
    Categorical,
    ConfigurationError,
    DeepEnsemble,
    Gaussian,
    Laplace,
    LinearWarmup,
    MeanField,
    NaturalGradient,
    NoisyKFAC,
    bayesify,
    elbo,
    predict,
)
from bayesify.integrations.lightning import BayesianModule
from bayesify.metrics import evaluate

ROWS = 20


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        warnings.filterwarnings("ignore", message=".*(num_workers|isinstance.treespec|logging interval).*")
        yield


def _net(outputs: int = 1) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, outputs))


def _loader(classes: int = 0, size: int = 6) -> DataLoader:
    x = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(2))
    y = torch.arange(ROWS) % classes if classes else x.sum(1)
    return DataLoader(TensorDataset(x, y), batch_size=size)


def _trainer(**settings) -> lightning.Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(**{"max_epochs": 2, "accelerator": "cpu", **quiet, **settings})


def test_the_loss_is_the_negative_elbo_and_n_the_length_of_the_data():
    losses, x, y = [], *next(iter(_loader()))

    class Recorded(BayesianModule):
        def training_step(self, batch, batch_idx):
            torch.manual_seed(4)
            losses.append(super().training_step(batch, batch_idx))
            return losses[-1]

    bnn = bayesify(_net(), MeanField())
    start = copy.deepcopy(bnn)
    module = Recorded(bnn, Gaussian(std=0.5), samples=2, beta=0.3)
    _trainer(max_steps=1).fit(module, _loader())
    assert module.n == ROWS
    torch.manual_seed(4)
    draws = start(x, samples=2)
    expected = -elbo(draws, Gaussian(std=0.5).log_prob(draws.outputs, y), n=ROWS, beta=0.3)
    torch.testing.assert_close(losses[0], expected)


def test_the_kl_weight_follows_its_schedule():
    weights = []

    class Recorded(BayesianModule):
        def on_train_batch_start(self, batch, batch_idx):
            weights.append(self.settings.beta_at(self.trainer.global_step, self.trainer.estimated_stepping_batches))

    module = Recorded(bayesify(_net(), MeanField()), Gaussian(), beta=LinearWarmup(fraction=0.5))
    _trainer(max_epochs=2).fit(module, _loader(size=10))
    assert weights == pytest.approx([0.0, 0.5, 1.0, 1.0])


@pytest.mark.parametrize("classes", [0, 3])
def test_validation_is_of_the_predictive_distribution(classes):
    likelihood = Categorical() if classes else Gaussian(std=0.5)
    module = BayesianModule(bayesify(_net(classes or 1), MeanField(initial_std=0.5)), likelihood)
    (actual,) = _trainer().validate(module, _loader(classes), verbose=False)
    parts = [predict(module.bnn, x, likelihood, 16, seed=i) for i, (x, _) in enumerate(_loader(classes))]
    expected = evaluate(parts[0].cat(*parts[1:]), _loader(classes).dataset.tensors[1])
    assert len(actual) == (3 if classes else 2)
    assert actual == pytest.approx({name: expected[name.removeprefix("val_")] for name in actual}, rel=1e-4)
    (tested,) = _trainer().test(module, _loader(classes), verbose=False)
    assert tested["test_nll"] == pytest.approx(actual["val_nll"])


@pytest.mark.extended
def test_training_improves_the_validation_nll_and_learns_the_noise():
    module = BayesianModule(bayesify(_net(), MeanField()), Gaussian(std=1.0, learn=True), learning_rate=0.02)
    trainer = _trainer(max_epochs=40)
    (before,) = trainer.validate(module, _loader(), verbose=False)
    trainer.fit(module, _loader(), _loader())
    assert float(trainer.callback_metrics["val_nll"]) < before["val_nll"]
    assert {"train_loss", "train_kl"} <= trainer.callback_metrics.keys()
    assert float(module.likelihood.std.detach()) < 1.0


def test_own_optimizers_are_used():
    module = BayesianModule(bayesify(_net(), MeanField()), Gaussian(), optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    _trainer(max_steps=1).fit(module, _loader())
    assert isinstance(module.trainer.optimizers[0], torch.optim.SGD)


def test_checkpoints_restore_network_and_likelihood(tmp_path):
    module = BayesianModule(bayesify(_net(), MeanField()), Gaussian(learn=True))
    trainer = _trainer()
    trainer.fit(module, _loader())
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    again = BayesianModule(bayesify(_net(), MeanField()), Gaussian(learn=True))
    _trainer().validate(again, _loader(), ckpt_path=tmp_path / "a.ckpt", verbose=False, weights_only=True)
    assert all(torch.equal(x, again.state_dict()[name]) for name, x in module.state_dict().items())


class _Stream(IterableDataset):
    def __iter__(self):
        return iter(_loader().dataset)


def test_data_without_a_length_need_n():
    stream = DataLoader(_Stream(), batch_size=5)
    bnn = bayesify(_net(), MeanField())
    with pytest.raises(ConfigurationError, match=r"give BayesianModule\(n=\.\.\.\)"):
        _trainer().fit(BayesianModule(bnn, Gaussian()), stream)
    module = BayesianModule(bnn, Gaussian(), n=ROWS)
    _trainer(max_steps=2).fit(module, stream)
    assert module.n == ROWS


def test_what_cannot_be_trained_is_refused():
    with pytest.raises(TypeError, match="what bayesify returned"):
        BayesianModule(_net(), Gaussian())
    with pytest.raises(ConfigurationError, match="member by member"):
        BayesianModule(bayesify([_net(), _net()], DeepEnsemble(members=2)), Gaussian())
    with pytest.raises(ConfigurationError, match="eta_aux"):
        BayesianModule(bayesify(_net(), VIFO(eta_aux=0.5)), Gaussian())
    with pytest.raises(ConfigurationError, match="samples"):
        BayesianModule(bayesify(_net(), MeanField()), Gaussian(), samples=0)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_posterior_is_collected_along_training(accumulate, tmp_path):
    weights = []

    class Recorded(BayesianModule):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            before = int(self.bnn.net[0].posterior.count)
            super().on_train_batch_end(outputs, batch, batch_idx)
            if int(self.bnn.net[0].posterior.count) > before:
                weights.append((self.trainer.global_step, self.bnn.net[0].weight.detach().clone()))

    module = Recorded(bayesify(_net(), SWA(start=0.5, snapshots=4)), Gaussian(std=0.5))
    trainer = _trainer(max_epochs=4, accumulate_grad_batches=accumulate)
    trainer.fit(module, _loader(size=10 // accumulate))  # two steps per epoch
    assert [step for step, _ in weights] == [5, 6, 7, 8]
    mean = torch.stack([weight for _, weight in weights]).mean(0)
    torch.testing.assert_close(module.bnn.net[0].posterior.average[:24].view(8, 3), mean)
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    again = BayesianModule(bayesify(_net(), SWA(start=0.5, snapshots=4)), Gaussian(std=0.5))
    again.load_state_dict(torch.load(tmp_path / "run.ckpt", weights_only=False)["state_dict"])
    torch.testing.assert_close(again.bnn.state_dict(), module.bnn.state_dict())


def test_validation_before_the_first_snapshot_warns_of_nothing():
    module = BayesianModule(bayesify(_net(), SWAG(start=0.5, snapshots=4, rank=2)), Gaussian(std=0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayesifyWarning)
        _trainer(max_epochs=4, num_sanity_val_steps=2).fit(module, _loader(), _loader())
    assert module.bnn.findings == []
    with pytest.warns(BayesifyWarning, match="no snapshot has been collected"):
        predict(bayesify(_net(), SWAG()), torch.zeros(2, 3), Gaussian(), samples=2)


def test_a_collected_posterior_needs_a_number_of_steps():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([(torch.zeros(3), torch.zeros(()))] * 4)

    module = BayesianModule(bayesify(_net(), SWAG()), Gaussian(std=0.5), n=4)
    with pytest.raises(ConfigurationError, match=r"give Trainer\(max_steps=...\)"):
        _trainer(max_epochs=2).fit(module, DataLoader(Stream(), batch_size=2))


@pytest.mark.parametrize("method", [IVON(), NoisyKFAC()], ids=["IVON", "NoisyKFAC"])
def test_a_method_with_an_optimizer_is_trained_by_it_and_resumed(tmp_path, method):
    def train(epochs: int, **resume) -> BayesianModule:
        torch.manual_seed(0)
        module = BayesianModule(bayesify(_net(), method), Gaussian(std=0.5), learning_rate=0.05)
        _trainer(max_epochs=epochs, default_root_dir=tmp_path, enable_checkpointing=True).fit(module, _loader(), **resume)
        return module

    before = train(1)
    assert isinstance(before.trainer.optimizers[0], NaturalGradient)
    assert all(layer.posterior.ess == ROWS for _, layer in before.bnn.random_layers())
    path = next(tmp_path.rglob("*.ckpt"))
    state = torch.load(path, weights_only=False)["optimizer_states"][0]["state"]
    after = train(2, ckpt_path=path)
    assert next(iter(state.values()))["step"] == 4
    assert next(iter(after.trainer.optimizers[0].state.values()))["step"] == 8
    with pytest.raises(ConfigurationError, match="leave optimizer out"):
        BayesianModule(bayesify(_net(), method), Gaussian(), optimizer=torch.optim.Adam)


def _linear(method) -> BayesianModule:
    torch.manual_seed(0)
    return BayesianModule(bayesify(nn.Linear(3, 1), method), Gaussian(std=0.5), learning_rate=0.1)


def _exact(scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and covariance of the posterior of a linear model, whose log likelihood counts `scale` times."""
    x, y = _loader().dataset.tensors
    x = torch.cat([x, torch.ones(ROWS, 1)], 1).double()
    covariance = torch.linalg.inv(scale * x.T @ x / 0.25 + torch.eye(4))
    return scale * covariance @ x.T @ y.double() / 0.25, covariance


@pytest.mark.slow
@pytest.mark.parametrize(("n", "beta"), [(None, 1.0), (60, 1.0), (None, 0.5)])
def test_a_posterior_is_made_after_training(n, beta, tmp_path):
    pytest.importorskip("laplace")
    bnn = _linear(Laplace(structure="full", tune_prior=False)).bnn
    module = BayesianModule(bnn, Gaussian(std=0.5), n=n, beta=beta, learning_rate=0.1)
    trainer = _trainer(max_epochs=60)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayesifyWarning)
        trainer.fit(module, _loader(), _loader())  # validated by the weights while training
        trainer.validate(module, _loader(), verbose=False)
    mean, covariance = _exact((n or ROWS) / ROWS / beta)
    scale = bnn.net.posterior.scale.double()
    torch.testing.assert_close(scale @ scale.T, covariance, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(torch.cat([bnn.net.weight[0], bnn.net.bias]).double(), mean, rtol=0.1, atol=0.1)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    again = _linear(Laplace(structure="full", tune_prior=False))
    again.load_state_dict(torch.load(tmp_path / "a.ckpt", weights_only=True)["state_dict"])
    torch.testing.assert_close(again.bnn.net.posterior.scale, bnn.net.posterior.scale)


@pytest.mark.parametrize(("settings", "drop", "scale"), [({}, False, 1), ({"n": 60}, True, 60 / 18), ({"beta": 0.5}, False, 2)])
def test_the_likelihood_counts_as_in_training(settings, drop, scale, monkeypatch):
    found = {}

    def complete(self, batches, likelihood, **kwargs):
        found.update(kwargs, rows=[sum(len(y) for _, y in batches) for _ in range(2)])

    monkeypatch.setattr(Bayesian, "complete", complete)
    module = BayesianModule(bayesify(_net(), SGLD()), Gaussian(std=0.5), **settings)
    _trainer(max_epochs=1).fit(module, DataLoader(_loader().dataset, batch_size=6, drop_last=drop))
    assert found["scale"] == pytest.approx(scale)
    assert found["rows"] == [18, 18] if drop else [20, 20]


def test_more_training_makes_the_posterior_again():
    module = _linear(SGLD(draws=4, burn_in=20, thinning=2))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the chains have not mixed")
        _trainer(max_epochs=1).fit(module, _loader())
        first, seen = module.bnn.net.posterior.draws.clone(), []

        class Seen(lightning.Callback):
            def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
                seen.append(pl_module.bnn.net.posterior.is_complete)

        _trainer(max_epochs=1, callbacks=[Seen()]).fit(module, _loader())
    assert not any(seen)
    assert module.bnn.net.posterior.draws.shape == first.shape
    assert not torch.equal(module.bnn.net.posterior.draws, first)


def test_what_stands_against_a_posterior_is_said_before_training():
    module = BayesianModule(bayesify(_net(), SGLD()), Gaussian(std=0.5), n=ROWS)
    with pytest.warns(BayesifyWarning, match=r"stream without length, so no posterior.*call `bnn.complete\("):
        _trainer(max_steps=2).fit(module, DataLoader(_Stream(), batch_size=5))
    with pytest.warns(BayesifyWarning, match="no posterior was made after training"):
        module(torch.zeros(2, 3))
    module = BayesianModule(bayesify(_net(), SGLD()), Gaussian(std=0.5), beta=0.0)
    with pytest.raises(ConfigurationError, match="beta is 0 at the end"):
        _trainer().fit(module, _loader())


def test_a_network_of_fixed_precision_is_found_before_the_first_step():
    pytest.importorskip("pyro")

    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 1)

        def forward(self, x):
            return self.linear(x.float())

    module, trainer = BayesianModule(bayesify(Fixed(), HMC(draws=4, warmup=2)), Gaussian(std=0.5)), _trainer(max_epochs=1)
    with pytest.raises(ConfigurationError, match=r"computed in torch\.float64, but the network fails in it"):
        trainer.fit(module, _loader())
    assert trainer.global_step == 0
