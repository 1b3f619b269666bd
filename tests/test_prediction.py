"""Prediction with a fake Bayesian network whose draws are known, and with a real one."""

import tracemalloc
import warnings
from typing import Any, NamedTuple, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, Subset, SubsetRandomSampler, TensorDataset

from bayesify import MeanField, bayesify
from bayesify.errors import BayesifyWarning
from bayesify.likelihoods import Categorical, Gaussian
from bayesify.prediction import _BatchPrediction, predict
from bayesify.predictive import GaussianPredictive


class Draws(NamedTuple):
    outputs: object
    kl: Tensor
    local_kl: Tensor


class Fake(nn.Module):
    """Linear in x with a random slope, one per draw (coherent) or one per draw and example; records its calls."""

    def __init__(self, outputs: int = 1):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(outputs))
        self.dropout = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(1))
        self.calls: list[tuple[int, int]] = []
        self.training_seen: set[bool] = set()
        self.grad_seen = False

    def forward(self, x: Tensor, shift: Tensor | None = None, *, samples: int = 1, coherent: bool = False) -> Draws:
        self.calls.append((samples, len(x)))
        self.training_seen |= {module.training for module in self.modules()}
        self.grad_seen |= torch.is_grad_enabled()
        slope = torch.randn(samples, 1 if coherent else len(x), len(self.weight), dtype=x.dtype)
        outputs = slope * x.unsqueeze(-1) + self.weight + (0 if shift is None else shift.unsqueeze(-1))
        return Draws(outputs, torch.zeros(()), torch.zeros(len(x)))


X = torch.linspace(-1, 1, 10)


def net():
    return bayesify(nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1)), MeanField())


def test_draws_in_chunks_and_rows_in_batches():
    bnn = Fake()
    p = predict(bnn, X, Gaussian(std=0.5), samples=7, chunk=3, batch_size=4)
    assert bnn.calls == [(3, 4), (3, 4), (1, 4), (3, 4), (3, 4), (1, 4), (3, 2), (3, 2), (1, 2)]
    assert (p.samples, len(p), p.mean.shape) == (7, 10, (10,))
    torch.testing.assert_close(p.aleatoric, torch.full((10,), 0.25))


def test_moments_are_those_of_the_draws():
    p = predict(Fake().double(), torch.linspace(-1, 1, 10).double(), Gaussian(std=0.5), samples=4000, seed=0, coherent=True)
    torch.testing.assert_close(p.epistemic, X.double().square(), rtol=0.1, atol=0.0)  # 4.5 standard errors of a variance
    assert p.epistemic.abs().min() > 0


@pytest.mark.parametrize(("rows", "expected"), [(10, 204), (3000, 2), (1, 500)])
def test_default_chunk_keeps_calls_at_about_two_thousand_rows(rows, expected):
    bnn = Fake()
    predict(bnn, torch.zeros(rows), Gaussian(), samples=500)
    assert bnn.calls[0][0] == expected
    assert all(samples * n <= 2048 for samples, n in bnn.calls)


def test_equal_seed_gives_equal_numbers_and_leaves_the_global_state():
    state = torch.get_rng_state()
    first = predict(Fake(), X, Gaussian(), samples=5, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(17)
    assert torch.equal(predict(Fake(), X, Gaussian(), samples=5, seed=3).means, first.means)
    assert not torch.equal(predict(Fake(), X, Gaussian(), samples=5, seed=4).means, first.means)
    means = first.means.squeeze(-1) / X
    assert len(means.flatten().round(decimals=5).unique()) == means.numel()  # no noise is used twice


def test_without_a_seed_the_global_generator_decides():
    torch.manual_seed(1)
    first, second = (predict(Fake(), X, Gaussian(), samples=5).means for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(predict(Fake(), X, Gaussian(), samples=5).means, first)


@pytest.mark.parametrize("make", [Fake, net])
def test_coherent_draws_are_the_same_functions_in_every_batch(make):
    bnn = make()
    x = torch.randn(11) if make is Fake else torch.randn(11, 3)
    whole = predict(bnn, x, Gaussian(), samples=8, chunk=3, seed=1, coherent=True, batch_size=100)
    split = predict(bnn, x, Gaussian(), samples=8, chunk=3, seed=1, coherent=True, batch_size=4)
    torch.testing.assert_close(split.means, whole.means)
    loader = DataLoader(TensorDataset(x, torch.zeros(11)), batch_size=5)
    torch.testing.assert_close(predict(bnn, loader, Gaussian(), samples=8, chunk=3, seed=1, coherent=True).means, whole.means)
    same = predict(bnn, x[:1].expand(6, *x.shape[1:]), Gaussian(), samples=8, seed=1, coherent=True, batch_size=2)
    torch.testing.assert_close(same.epistemic, same.epistemic[:1].expand(6))
    assert len(whole.means[:, 0].round(decimals=6).unique()) == 8  # chunks differ from one another


def test_eval_mode_inside_and_every_mode_back_afterwards():
    bnn = Fake()
    bnn.train()
    bnn.dropout[1].eval()
    before = [module.training for module in bnn.modules()]
    predict(bnn, X, Gaussian(), samples=2)
    assert bnn.training_seen == {False}
    assert not bnn.grad_seen
    assert [module.training for module in bnn.modules()] == before
    state = torch.get_rng_state()
    with torch.no_grad():
        bnn.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="outputs must be finite, got NaN or infinity in 20 of 20 values, 2 of 2 draws") as error:
        predict(bnn, X, Gaussian(), samples=5, chunk=2, seed=0)
    assert error.value.__notes__ == ["while predicting batch 0 with draws 0 to 1"]
    assert [module.training for module in bnn.modules()] == before
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "inputs",
    [
        (X, X),
        {"x": X, "shift": X},
        [((X[:6], X[:6]),), ((X[6:], X[6:]),)],
        [((X[:6], X[:6]), None), ([X[6:], X[6:]], None)],
        [{"x": X[:6], "shift": X[:6]}, {"x": X[6:], "shift": X[6:]}],
        DataLoader(
            TensorDataset(X, X), batch_size=6, collate_fn=lambda rows: (tuple(map(torch.stack, zip(*rows, strict=True))), "targets")
        ),
        ({"x": part, "shift": part} for part in (X[:6], X[6:])),
    ],
    ids=["tuple", "mapping", "nested (x,)", "nested (x, y)", "mappings", "loader", "generator"],
)
def test_ways_to_give_inputs(inputs):
    expected = predict(Fake(), (X, X), Gaussian(), samples=4, chunk=2, seed=0, coherent=True)
    torch.testing.assert_close(predict(Fake(), inputs, Gaussian(), samples=4, chunk=2, seed=0, coherent=True).means, expected.means)


@pytest.mark.parametrize(
    "batches", [[X], [(X,)], [(X, X)], [[X, X]], DataLoader(TensorDataset(X, X), batch_size=4), DataLoader(X, batch_size=4)]
)
def test_targets_in_batches_are_left_out(batches):
    expected = predict(Fake(), X, Gaussian(), samples=4, chunk=2, seed=0, coherent=True)
    torch.testing.assert_close(
        predict(Fake(), batches, Gaussian(), samples=4, chunk=2, seed=0, coherent=True).means, expected.means
    )


def test_classification_keeps_nothing_per_draw():
    p = predict(Fake(outputs=3), X, Categorical(), samples=64, chunk=8, seed=0)
    assert p.samples == 64
    assert {tuple(value.shape) for value in vars(p).values() if isinstance(value, Tensor)} == {(10, 3), (10,)}
    torch.testing.assert_close(p.probs.sum(-1), torch.ones(10))
    tracemalloc.start()
    predict(Fake(outputs=3), X, Categorical(), samples=400, chunk=1, seed=0)
    assert tracemalloc.get_traced_memory()[1] < 5e6
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        (torch.tensor([1.0, float("nan")]), ValueError, "inputs must be finite, got 1 NaN"),
        ([X, torch.tensor([float("inf")])], ValueError, "batch 1 must be finite"),
        (torch.zeros(0), ValueError, "at least one row"),
        (torch.zeros(()), ValueError, "at least one row"),
        ([], ValueError, "at least one batch"),
        ((), ValueError, "at least one tensor"),
        ((X, X[:5]), ValueError, r"same number of rows, got \[5, 10\]"),
        ([(X, X, X)], ValueError, r"batch 0 must be .* got 3 elements"),
        ([[1.0, 2.0]], TypeError, "batch 0 must be a tensor.*got float"),
        (X.numpy(), TypeError, "torch.as_tensor"),
        ("data.csv", TypeError, "inputs must be .* got str"),
        (5, TypeError, "inputs must be .* got int"),
    ],
)
def test_input_errors(inputs, error, message):
    with pytest.raises(error, match=message):
        predict(Fake(), inputs, Gaussian(), samples=2)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"samples": 0}, ValueError, "samples"),
        ({"samples": 2.5}, ValueError, "samples"),
        ({"chunk": 0}, ValueError, "chunk"),
        ({"batch_size": -1}, ValueError, "batch_size"),
        ({"seed": -1}, ValueError, "seed"),
        ({"likelihood": "gaussian"}, TypeError, "likelihood must be a Likelihood"),
        ({"bnn": print}, TypeError, "bnn must be a Bayesian network"),
        ({"bnn": nn.Identity()}, TypeError, "bnn is a plain Identity; make it Bayesian first"),
        ({"likelihood": Categorical()}, ValueError, "at least 2 classes"),
    ],
)
def test_argument_errors(changes, error, message):
    with pytest.raises(error, match=message):
        predict(**{"bnn": Fake(), "inputs": X, "likelihood": Gaussian(), "samples": 2, **changes})


def test_a_network_that_does_not_return_draws():
    class Plain(Fake):
        def forward(self, x, **kwargs):
            return x

    class Pair(Fake):
        def forward(self, x, **kwargs):
            return Draws((x, x), x, x)

    class Few(Fake):
        def forward(self, x, **kwargs):
            return Draws(x.unsqueeze(0), x, x)

    for kind, error, message in [
        (Plain, TypeError, "one tensor, got Tensor"),
        (Pair, TypeError, "one tensor, got tuple"),
        (Few, ValueError, "S = 2, got"),
    ]:
        with pytest.raises(error, match=message):
            predict(kind(), X, Gaussian(), samples=2)


def test_progress(capsys):
    predict(Fake(), X, Gaussian(), samples=4)
    assert capsys.readouterr() == ("", "")  # not a terminal
    predict(Fake(), X, Gaussian(), samples=4, progress=True)
    assert "predict" in capsys.readouterr().err


def test_a_real_network_matches_its_own_draws():
    bnn = net().double()
    x = torch.randn(6, 3, dtype=torch.float64)
    p = predict(bnn, x, Gaussian(std=0.5), samples=5000, seed=0)
    with torch.no_grad():
        outputs = bnn(x, samples=5000).outputs.squeeze(-1)
    torch.testing.assert_close(p.mean, outputs.mean(0), rtol=0, atol=float(6 * outputs.std() / 5000**0.5))
    torch.testing.assert_close(p.epistemic, outputs.var(0), rtol=0.15, atol=0)


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_network():
    bnn = net()
    x = torch.randn(6, 3)
    compiled = torch.compile(bnn, backend="aot_eager")
    compiled.train()
    p = predict(compiled, x, Gaussian(), samples=4, seed=0, coherent=True)
    torch.testing.assert_close(p.means, predict(bnn, x, Gaussian(), samples=4, seed=0, coherent=True).means)
    assert bnn.training
    assert compiled.training


@pytest.mark.filterwarnings("ignore")
def test_a_network_wrapped_for_distributed_training(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        bnn = net()
        x = torch.randn(6, 3)
        wrapped = nn.parallel.DistributedDataParallel(bnn)
        p = predict(wrapped, x, Gaussian(), samples=4, seed=0)
        torch.testing.assert_close(p.means, predict(bnn, x, Gaussian(), samples=4, seed=0).means)
    finally:
        torch.distributed.destroy_process_group()


def test_a_batch_in_another_dimension():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 1)

        def forward(self, x):  # (T, B, 3)
            return self.linear(x).mean(0, keepdim=True)

    bnn = bayesify(Sum(), MeanField(), batch_dim=1)
    p = predict(bnn, torch.randn(5, 7, 3), Gaussian(), samples=4, chunk=2, batch_size=3)
    assert len(p) == 7


def test_batches_have_noise_of_their_own_unless_draws_are_coherent():
    x = torch.ones(8)
    for coherent in (False, True):
        means = predict(Fake(), x, Gaussian(), samples=5, batch_size=4, seed=1, coherent=coherent).means
        assert torch.equal(means[:, :4], means[:, 4:]) == coherent


def test_the_standard_error_is_that_of_the_mean_of_independent_chunks():
    means = torch.randn(9, 3, dtype=torch.float64)  # of chunks of 4 draws
    mixture = GaussianPredictive(means.mean(0, keepdim=True), torch.tensor(1.0))
    part = _BatchPrediction(cast(Any, None), None, 0, 4, torch.device("cpu"), samples=36, chunks=9, mixture=mixture)
    part.squares = 4 * means.square().sum(0)
    assert part.standard_error() == pytest.approx(float((means.std(0) / 3).max()), rel=1e-9)


ROWS = TensorDataset(torch.randn(11, 3), torch.zeros(11))
LOST = {
    "shuffled": (DataLoader(ROWS, batch_size=4, shuffle=True), "the loader shuffles"),
    "a random subset": (DataLoader(ROWS, sampler=SubsetRandomSampler(range(5))), "the loader shuffles"),
    "of several processes": (
        DataLoader(ROWS, sampler=DistributedSampler(ROWS, num_replicas=2, rank=0)), "the loader shuffles"
    ),
    "the last rows": (DataLoader(ROWS, batch_size=4, drop_last=True), "leaves out the last 3 rows"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOST)
def test_loaders_whose_rows_fit_no_targets_are_noticed(name):
    loader, text = LOST[name]
    with pytest.warns(BayesifyWarning, match=text):
        predict(bayesify(nn.Linear(3, 1), MeanField()), loader, Gaussian(), samples=2)


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(ROWS, batch_size=4),
        DataLoader(Subset(ROWS, range(8)), batch_size=4, drop_last=True),
        DataLoader(ROWS, sampler=DistributedSampler(ROWS, num_replicas=2, rank=0, shuffle=False)),
        DataLoader(ROWS, batch_sampler=[[0, 1], [2, 3]]),
        [(torch.randn(4, 3),)],
    ],
    ids=["in order", "whole batches", "of several processes", "batches", "list"],
)
def test_other_loaders_are_not(loader):
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayesifyWarning)
        predict(bayesify(nn.Linear(3, 1), MeanField()), loader, Gaussian(), samples=2)
