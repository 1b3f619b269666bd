"""The training loop against closed forms and hand-written loops; data of every kind; reproducibility; errors."""

import contextlib
import math
import subprocess
import sys
import textwrap
from functools import partial
from itertools import chain
from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from bayesify import Cyclical, Deterministic, Draws, LinearWarmup, MCDropout, MeanField, bayesify
from bayesify.likelihoods import Categorical, Gaussian
from bayesify.train import History, fit
from bayesify.train.batch import Batch, ToDevice
from bayesify.train.data_loading import Order

fit_cpu = partial(fit, accelerator="cpu")
sgd = partial(torch.optim.SGD, lr=0.05)
climbing = partial(torch.optim.SGD, lr=0.05, maximize=True)  # makes things worse


def regression(n=40, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 3, generator=generator, dtype=dtype)
    return x, x[:, 0] - 0.5 * x[:, 1] + 0.1 * torch.randn(n, generator=generator, dtype=dtype)


def net(method=None, width=8, extra=None):
    torch.manual_seed(3)
    layers = [nn.Linear(3, width), nn.Tanh(), *([extra] if extra else []), nn.Linear(width, 1)]
    return bayesify(nn.Sequential(*layers), method or MeanField())


def weights(module):
    return torch.cat([p.detach().flatten() for p in module.state_dict().values()])


def without_seconds(history):
    return {name: value for name, value in history.to_dict().items() if name != "seconds"}


X, Y = regression(12)
SPOILT = X.clone()
SPOILT[4, 1] = math.nan


class Rows(Dataset):
    def __init__(self, *tensors):
        self.tensors = tensors

    def __len__(self):
        return len(self.tensors[0])

    def __getitem__(self, i):
        return tuple(t[i] for t in self.tensors)


# -- what is optimized ------------------------------------------------------------------------------------------------------------


def test_converges_to_the_mean_field_posterior_of_linear_regression():
    """The best factorized normal has the exact posterior's mean and its precision's diagonal (Bishop, 2006, section 10.1.2)."""
    torch.manual_seed(0)
    x = torch.randn(30, 2, dtype=torch.float64) @ torch.tensor([[1.0, 0.8], [0.0, 0.6]], dtype=torch.float64)
    noise = 0.7
    y = x @ torch.tensor([1.0, -2.0], dtype=torch.float64) + noise * torch.randn(30, dtype=torch.float64)
    precision = x.mT @ x / noise**2 + torch.eye(2, dtype=torch.float64)
    mean = torch.linalg.solve(precision, x.mT @ y / noise**2)
    std = precision.diagonal().rsqrt()

    bnn = bayesify(nn.Linear(2, 1, bias=False).double(), MeanField())
    decay = partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.99)
    fit_cpu(bnn, (x, y), Gaussian(std=noise).double(), epochs=500, batch_size=10, samples=8, learning_rate=0.05, scheduler=decay)
    assert torch.allclose(bnn.net.weight[0], mean, atol=0.2 * float(std.min()))
    assert torch.allclose(bnn.net.posterior.weight_log_std[0].exp(), std, rtol=0.1)  # counting the KL twice changes it by 30 %


def test_equals_a_hand_written_loop():
    x, y = regression(20)
    ours, mine = net(Deterministic(prior_std=2.0)), net(Deterministic(prior_std=2.0))
    data = DataLoader(Rows(x, y), batch_size=8)
    history = fit_cpu(ours, data, Gaussian(std=0.5), epochs=3, optimizer=sgd, beta=0.3, clip_norm=1.0)

    optimizer = sgd(mine.parameters())
    for _ in range(3):
        nlls = []
        for xb, yb in zip(x.split(8), y.split(8), strict=True):
            nll = -torch.distributions.Normal(mine.net(xb).squeeze(1), 0.5).log_prob(yb)
            penalty = sum(p.square().sum() for p in mine.parameters()) / (2 * 2.0**2)
            (nll.mean() + 0.3 / 20 * penalty).backward()
            nn.utils.clip_grad_norm_(mine.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            nlls.append(nll.detach())
    assert torch.allclose(weights(ours), weights(mine), atol=1e-6)
    assert history.nll[-1] == pytest.approx(float(torch.cat(nlls).mean()), rel=1e-5)  # the short last batch counts by its size
    assert history.loss[-1] == pytest.approx(history.nll[-1] + 0.3 / 20 * history.kl[-1], rel=1e-5)


@pytest.mark.parametrize("n", [24, 20])
def test_accumulation_is_a_larger_batch(n):
    x, y = regression(n)
    small, large = net(Deterministic(prior_std=1.0)), net(Deterministic(prior_std=1.0))
    fit_cpu(small, DataLoader(Rows(x, y), batch_size=4), Gaussian(), epochs=2, optimizer=sgd, accumulate=3)
    fit_cpu(large, DataLoader(Rows(x, y), batch_size=12), Gaussian(), epochs=2, optimizer=sgd)
    assert torch.allclose(weights(small), weights(large), atol=1e-6)


@pytest.mark.parametrize("schedule", [LinearWarmup(beta=0.5, fraction=0.4), Cyclical(cycles=2)])
def test_kl_weight_follows_the_schedule_step_by_step(schedule):
    history = fit_cpu(net(), regression(40), Gaussian(), epochs=5, batch_size=10, beta=schedule)
    expected = [sum(schedule(step / 20) for step in range(4 * e, 4 * e + 4)) / 4 for e in range(5)]
    assert history.beta == pytest.approx(expected)


def test_learned_noise_is_trained_along():
    x, y = regression(200)
    likelihood = Gaussian(std=1.0, learn=True)
    fit_cpu(net(Deterministic()), (x, y), likelihood, epochs=150, learning_rate=0.02)
    assert float(likelihood.std.detach()) == pytest.approx(0.1, rel=0.3)


# -- validation -------------------------------------------------------------------------------------------------------------------


def test_validation_nll_is_the_log_mean_density_and_the_best_epoch_is_kept():
    x, y = regression(60)
    bnn = net(MCDropout(p=0.5))
    records = []

    def remember(record):
        records.append({name: value.clone() for name, value in bnn.state_dict().items()})

    history = fit_cpu(
        bnn, (x[:40], y[:40]), Gaussian(std=0.3), epochs=6, learning_rate=0.3, validation=(x[40:], y[40:]),
        validation_samples=2000, loggers=[remember],
    )  # fmt: skip
    best = min(range(6), key=history.validation_nll.__getitem__)
    assert history.best_epoch == best + 1
    assert history.kept_epochs == [best + 1]
    assert all(torch.equal(value, records[best][name]) for name, value in bnn.state_dict().items())
    with torch.no_grad():
        means = bnn.eval()(x[40:], samples=20_000).outputs.squeeze(-1).numpy()
    noise = stats.norm(means, 0.3)
    expected = -np.log(noise.pdf(y[40:].numpy()).mean(0)).mean()
    assert history.validation_nll[best] == pytest.approx(expected, abs=0.1)
    assert -noise.logpdf(y[40:].numpy()).mean() > expected + 0.5  # what averaging log densities would give


def test_validation_leaves_training_as_it_was():
    x, y = regression(60)
    alone, watched = net(extra=nn.Dropout(0.2)), net(extra=nn.Dropout(0.2))
    records = []
    plain = fit_cpu(alone, (x[:40], y[:40]), Gaussian(), epochs=4, batch_size=16)
    held_out = Rows(x[40:], y[40:])
    seen = fit_cpu(watched, (x[:40], y[:40]), Gaussian(), epochs=4, batch_size=16, validation=held_out, loggers=[records.append])
    assert plain.loss == seen.loss
    assert [r["validation_nll"] for r in records] == seen.validation_nll
    assert seen.best_epoch == 4
    assert torch.equal(weights(alone), weights(watched))


def test_early_stopping():
    x, y = regression(60)
    bnn = net(Deterministic())
    history = fit_cpu(bnn, (x, y), Gaussian(), epochs=50, optimizer=climbing, validation=(x, y), patience=3)
    assert history.stopped_early
    assert (len(history), history.best_epoch) == (4, 1)


def test_plateau_scheduler_sees_the_validation_nll():
    x, y = regression(60)
    scheduler = partial(torch.optim.lr_scheduler.ReduceLROnPlateau, patience=0, factor=0.5)
    bnn = net(Deterministic())
    history = fit_cpu(bnn, (x, y), Gaussian(), epochs=3, optimizer=climbing, validation=(x, y), scheduler=scheduler)
    assert history.learning_rate == pytest.approx([0.05, 0.05, 0.025])


# -- data -------------------------------------------------------------------------------------------------------------------------


def test_tensors_and_datasets_give_the_same_run():
    x, y = regression(45)
    results = []
    for data in ((x, y), TensorDataset(x, y), Rows(x, y)):
        bnn = net()
        history = fit_cpu(bnn, data, Gaussian(), epochs=3, batch_size=8)
        results.append((without_seconds(history), weights(bnn).tolist()))
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("generator", [None, torch.Generator()])
def test_a_shuffling_loader_is_reproducible(generator):
    x, y = regression(45)
    results = []
    for _ in range(2):
        bnn = net()
        fit_cpu(bnn, DataLoader(Rows(x, y), batch_size=8, shuffle=True, generator=generator), Gaussian(), epochs=3)
        results.append(weights(bnn))
    assert torch.equal(*results)


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 1), nn.Linear(1, 1)

    def forward(self, a, b):
        return self.a(a) + self.b(b)


def test_several_inputs():
    x, y = regression(30)
    a, b = x[:, :2], x[:, 2:]
    results = []
    for data in (((a, b), y), ({"b": b, "a": a}, y), TensorDataset(a, b, y)):
        torch.manual_seed(0)
        bnn = bayesify(TwoInputs(), MeanField())
        fit_cpu(bnn, data, Gaussian(), epochs=2)
        results.append(weights(bnn))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_batch_in_the_second_dimension():
    torch.manual_seed(0)
    x, y = torch.randn(5, 30, 3), torch.randn(30, 5)
    bnn = bayesify(nn.Sequential(nn.Linear(3, 1), nn.Flatten(1)), MeanField(), batch_dim=1)
    assert len(fit_cpu(bnn, (x, y), Gaussian(), epochs=2, batch_size=8)) == 2


@pytest.mark.parametrize(
    ("n", "batch_size", "sizes"), [(5, 2, [2, 3]), (6, 4, [4, 2]), (1, 4, [1]), (3, 1, [1, 1, 1]), (4, 4, [4])]
)
def test_every_example_once_and_no_single_one_left_over(n, batch_size, sizes):
    order = Order(n, batch_size, seed=0)
    batches = list(order)
    assert [len(batch) for batch in batches] == sizes
    assert len(order) == len(sizes)
    assert sorted(chain(*batches)) == list(range(n))


def test_processes_share_the_examples():
    shares = [list(chain(*Order(10, 2, 0, rank, 3))) for rank in range(3)]
    assert [len(share) for share in shares] == [4, 4, 4]
    assert set(chain(*shares)) == set(range(10))
    assert len({len(Order(10, 2, 0, rank, 3)) for rank in range(3)}) == 1


def test_orders_differ_between_epochs_and_seeds():
    order = Order(20, 20, seed=0)
    first = next(iter(order))
    order.epoch = 1
    assert first != next(iter(order))
    assert first != next(iter(Order(20, 20, seed=1)))


def test_batch_normalization_with_a_single_example_left_over():
    x, y = regression(9)
    assert len(fit_cpu(net(extra=nn.BatchNorm1d(8)), (x, y), Gaussian(), epochs=2, batch_size=4)) == 2


def test_double_precision_data_for_a_single_precision_net():
    x, y = regression(30, dtype=torch.float64)
    assert math.isfinite(fit_cpu(net(), (x, y), Gaussian(), epochs=1).loss[0])


def test_a_compiled_net():
    x, y = regression(30)
    plain, compiled = net(), net()
    history = fit_cpu(plain, (x, y), Gaussian(), epochs=2)
    assert fit_cpu(torch.compile(compiled, backend="eager"), (x, y), Gaussian(), epochs=2).loss == pytest.approx(history.loss)
    assert torch.allclose(weights(plain), weights(compiled))


# -- precision --------------------------------------------------------------------------------------------------------------------


def test_targets_are_not_rounded_in_mixed_precision():
    class Spy(Gaussian):
        def log_prob(self, outputs, y):
            seen.append((outputs.dtype, y))
            return super().log_prob(outputs, y)

    seen = []
    y = torch.full((12,), 1000.3)
    bnn = net()
    fit_cpu(bnn, (X, y), Spy(std=100.0), epochs=1, precision="bf16-mixed", validation=(X, y))
    assert {dtype for dtype, _ in seen} == {torch.bfloat16}
    assert all(torch.equal(target, y) for _, target in seen)
    assert bnn.net[0].weight.dtype == torch.float32


def test_mixed_precision_learns_and_says_nothing(caplog):
    x, y = regression(60)
    with caplog.at_level("INFO"):
        history = fit_cpu(net(), (x, y), Gaussian(std=0.3), epochs=30, learning_rate=0.02, precision="bf16-mixed")
    assert history.loss[-1] < 0.5 * history.loss[0]
    assert not caplog.records


# -- what is left behind ----------------------------------------------------------------------------------------------------------


def test_seed_fixes_everything_and_leaves_no_trace():
    x, y = regression()
    torch.manual_seed(123)
    state = torch.get_rng_state()
    first, second, third = net(extra=nn.Dropout()), net(extra=nn.Dropout()), net(extra=nn.Dropout())
    torch.set_rng_state(state)
    first.eval()
    first.net[1].train()
    history = fit_cpu(first, (x, y), Gaussian(), epochs=3, batch_size=8, seed=7)
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in first.net] == [False, True, False, False]
    assert all(p.grad is None for p in first.parameters())
    torch.manual_seed(99)
    again = fit_cpu(second, (x, y), Gaussian(), epochs=3, batch_size=8, seed=7)
    assert without_seconds(history) == without_seconds(again)
    assert torch.equal(weights(first), weights(second))
    assert fit_cpu(third, (x, y), Gaussian(), epochs=3, batch_size=8, seed=8).loss != history.loss


def test_fabric_loggers(tmp_path):
    from lightning.fabric.loggers import CSVLogger

    fit_cpu(net(), regression(), Gaussian(), epochs=2, loggers=[logger := CSVLogger(tmp_path, flush_logs_every_n_steps=1)])
    logger.save()
    assert "loss" in next(tmp_path.rglob("metrics.csv")).read_text()


def test_history_goes_to_json_and_back():
    history = fit_cpu(net(), regression(), Gaussian(), epochs=2)
    assert History(**history.to_dict()) == history
    assert (len(history), history.best_epoch) == (2, None)
    assert {len(history.nll), len(history.kl), len(history.beta), len(history.learning_rate), len(history.seconds)} == {2}


def test_progress_bar(capsys):
    fit_cpu(net(), regression(), Gaussian(), epochs=2, progress=True)
    shown = capsys.readouterr()
    assert "100%" in shown.err
    assert "KL" in shown.err
    fit_cpu(net(), regression(), Gaussian(), epochs=2)
    assert capsys.readouterr() == ("", "")


# -- errors -----------------------------------------------------------------------------------------------------------------------


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(X[0], Y[0])])


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ((SPOILT, Y), ValueError, "inputs of data has NaN or infinity in 1 of 12 rows, first in row 4"),
        ((X, Y / 0), ValueError, "y of data has NaN or infinity in 12 of 12 rows"),
        ((X, Y[:11]), ValueError, "must have 11 rows in dimension 0, one per target"),
        ((X[:0], Y[:0]), ValueError, "data is empty"),
        (Rows(X[:0], Y[:0]), ValueError, "data is empty"),
        ((X.numpy(), Y), TypeError, "as_tensor"),
        ((X, Y.tolist()), TypeError, "y of data must be a tensor"),
        ((X, torch.tensor(1.0)), TypeError, "one row per example"),
        ((X,), TypeError, r"must be \(inputs, y\)"),
        ([X, Y], TypeError, "must be a tuple .* got list"),
        ((X, torch.stack([Y, Y], 1)), ValueError, r"\(12, 2\)"),
        (Rows(SPOILT, Y), ValueError, "inputs of batch 1 of data has NaN"),
        (Stream(), TypeError, "Dataset with a length"),
        (DataLoader(Stream()), TypeError, "must have a length"),
    ],
)
def test_bad_data(data, error, message):
    bnn = net()
    before = weights(bnn)
    with pytest.raises(error, match=message):
        fit_cpu(bnn, data, Gaussian(), epochs=1)
    assert torch.equal(before, weights(bnn))


def test_labels_beyond_the_classes():
    bnn = bayesify(nn.Linear(3, 4), MeanField())
    with pytest.raises(ValueError, match="4"):
        fit_cpu(bnn, (X, torch.arange(12)), Categorical(), epochs=1)
    with pytest.raises((TypeError, ValueError), match="integer"):
        fit_cpu(bnn, (X, Y), Categorical(), epochs=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epochs": 0}, "epochs"),
        ({"batch_size": 2.0}, "batch_size"),
        ({"samples": True}, "samples"),
        ({"accumulate": 0}, "accumulate"),
        ({"validation_samples": 0}, "validation_samples"),
        ({"checkpoint_every": 0}, "checkpoint_every"),
        ({"seed": -1}, "seed"),
        ({"beta": -1.0}, "beta must be a finite number of at least 0 or a KLSchedule"),
        ({"local_beta": LinearWarmup()}, "local_beta"),
        ({"learning_rate": math.inf}, "learning_rate"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"patience": 2}, "patience needs validation"),
        ({"accelerator": "abacus"}, "accelerator"),
        ({"precision": "8-bit"}, "precision"),
        ({"strategy": "fsdp", "devices": 1}, "fsdp|FSDP"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        fit(net(), (X, Y), Gaussian(), **{"epochs": 1, "accelerator": "cpu", **arguments})


def test_nets_that_cannot_be_trained():
    with pytest.raises(TypeError, match="bnn must be a Bayesian network, got Linear"):
        fit_cpu(nn.Linear(3, 1), (X, Y), Gaussian())
    with pytest.raises(ValueError, match="requires_grad"):
        fit_cpu(net().requires_grad_(False), (X, Y), Gaussian())


def test_divergence_names_epoch_and_batch():
    class Broken(Gaussian):
        calls = 0

        def log_prob(self, outputs, y):
            self.calls += 1
            return super().log_prob(outputs, y) * (math.nan if self.calls == 5 else 1.0)

    with pytest.raises(FloatingPointError, match=r"loss became nan in batch 2 of epoch 2.*clip_norm"):
        fit_cpu(net(), (X, Y), Broken(), epochs=3, batch_size=4)
    with pytest.raises(FloatingPointError, match="a weight became NaN"):
        fit_cpu(net(), (X, Y), Gaussian(), epochs=1, optimizer=partial(torch.optim.SGD, lr=math.nan))


def test_without_lightning(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning.fabric", None)
    with pytest.raises(ImportError, match=r'pip install "bayesify\[train\]"'):
        fit_cpu(net(), (X, Y), Gaussian())


def test_importing_needs_torch_alone():
    code = "import sys, bayesify.train; print([m for m in ('lightning', 'rich', 'scipy', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_local_kl_is_charged():
    class Local(type(net())):
        def forward(self, *inputs, samples=1, coherent=False, **kwargs):
            draws = super().forward(*inputs, samples=samples, coherent=coherent, **kwargs)
            return Draws(draws.outputs, draws.kl, draws.local_kl + 3.0)

    bnn = net()
    bnn.__class__ = Local
    history = fit_cpu(bnn, (X, Y), Gaussian(), epochs=1, beta=0.0, local_beta=0.5)
    assert history.loss[0] == pytest.approx(history.nll[0] + 1.5, rel=1e-5)


# -- several processes ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_processes_are_one_with_twice_the_batch(tmp_path):
    """A point estimate by SGD: the average of the two gradients is the gradient of the joint batch."""
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
        import os, sys, torch
        from functools import partial
        from torch import nn
        from bayesify import Deterministic, bayesify
        from bayesify.likelihoods import Gaussian
        from bayesify.train import fit

        devices, batch_size, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
        torch.manual_seed(0)
        x = torch.randn(32, 3)
        bnn = bayesify(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)), Deterministic(prior_std=1.0))
        likelihood = Gaussian(std=0.5, learn=True)
        history = fit(bnn, (x, x.sum(1)), likelihood, epochs=4, batch_size=batch_size, accelerator="cpu", devices=devices,
                      optimizer=partial(torch.optim.SGD, lr=0.02), validation=(x[:9], x[:9].sum(1)), checkpoint=out + ".ckpt")
        rank = os.environ.get("LOCAL_RANK", "0")
        torch.save([*bnn.state_dict().values(), likelihood.log_std, torch.tensor(history.validation_nll)], f"{out}.{rank}")
        """)
    )
    for devices, batch_size, out in ((2, 4, "two"), (1, 8, "one")):
        command = [sys.executable, str(script), str(devices), str(batch_size), str(tmp_path / out)]
        subprocess.run(command, check=True, timeout=300)
    one, first, second = (torch.load(tmp_path / name, weights_only=True) for name in ("one.0", "two.0", "two.1"))
    for a, b, c in zip(one, first, second, strict=True):
        assert torch.allclose(a, b, atol=1e-5)
        assert torch.equal(b, c)


@pytest.mark.parametrize("before", [False, True])
def test_training_flushes_subnormal_numbers_to_zero_and_leaves_that_as_it_was(before: bool) -> None:
    def flushes() -> bool:
        return float(torch.tensor(1e-39) * 0.5) == 0.0

    inside: list[bool] = []
    if not torch.set_flush_denormal(before):
        pytest.skip("this processor cannot")
    try:
        bnn = bayesify(nn.Linear(2, 1), Deterministic())
        data = (torch.ones(4, 2), torch.ones(4))
        fit(bnn, data, Gaussian(), epochs=1, accelerator="cpu", progress=False, loggers=[lambda _: inside.append(flushes())])
        assert inside == [True]
        assert flushes() == before
    finally:
        torch.set_flush_denormal(False)


def test_without_local_beta_the_draws_say_what_a_local_kl_weighs() -> None:
    class Local(type(net())):
        def forward(self, *inputs, samples=1, coherent=False, **kwargs):
            draws = super().forward(*inputs, samples=samples, coherent=coherent, **kwargs)
            return draws._replace(local_kl=draws.local_kl + 3.0, local_beta=0.25)

    bnn = net()
    bnn.__class__ = Local
    history = fit_cpu(bnn, (X, Y), Gaussian(), epochs=1, beta=0.0)
    assert history.loss[0] == pytest.approx(history.nll[0] + 0.75, rel=1e-5)


def test_every_epoch_has_noise_of_its_own():
    """And equal seeds have equal noise; a network that does not move draws one output per epoch."""

    def outputs(seed):
        bnn, seen = net(), []
        bnn.register_forward_hook(lambda module, args, draws: seen.append(float(draws.outputs.detach()[0, 0, 0])))
        still = partial(torch.optim.SGD, lr=1e-300)
        fit_cpu(bnn, (X[:1], Y[:1]), Gaussian(), epochs=4, batch_size=1, optimizer=still, seed=seed)
        return seen[-4:]

    assert len(set(outputs(0))) == 4
    assert outputs(0) == outputs(0) != outputs(1)


class _Noting(torch.Tensor):
    """Notes whether its copies may be read before they have arrived."""

    notes: ClassVar[list[tuple[str, bool]]] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.to and isinstance(args[1], torch.device):
            cls.notes.append((args[1].type, bool((kwargs or {}).get("non_blocking"))))
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize(("device", "ahead"), [("cpu", False), ("meta", False), ("cuda", True)])
def test_copies_to_the_cpu_are_waited_for(device, ahead, monkeypatch):
    """A copy from a GPU that is not waited for has arbitrary values."""
    monkeypatch.setattr(_Noting, "notes", [])
    batch = Batch(torch.ones(3, 2).as_subclass(_Noting), torch.ones(3).as_subclass(_Noting), None)
    with contextlib.nullcontext() if device != "cuda" else contextlib.suppress(AssertionError, RuntimeError):  # no GPU
        ToDevice(torch.device(device), torch.float32)(batch)
    assert set(_Noting.notes) == {(device, ahead)}
