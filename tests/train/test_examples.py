"""The number of examples n by which the KL is divided, against hand computation, for every kind of data and sampler."""

import math
import warnings
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from bayesify import VIFO, DeepEnsemble, Deterministic, LinearWarmup, bayesify
from bayesify.likelihoods import Gaussian
from bayesify.objectives import Constant
from bayesify.train import History, Training, fit, fit_many

fit_cpu = partial(fit, accelerator="cpu", progress=False)
still = partial(torch.optim.SGD, lr=0.0)  # the weights stay, so that every step has the same KL
X = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
Y = X.sum(1)
PRIOR_STD = 2.0


def net(method=None):
    torch.manual_seed(3)
    return bayesify(nn.Linear(3, 1), method or Deterministic(prior_std=PRIOR_STD))


class Rows(Dataset):
    """Rows with a length."""

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return X[i], Y[i]


class Unmeasured(Dataset):
    """Rows without a length."""

    def __getitem__(self, i):
        return X[i], Y[i]


class Lettered(Dataset):
    """Rows by letter."""

    def __getitem__(self, letter):
        return X[ord(letter) - ord("a")], Y[ord(letter) - ord("a")]


class Stream(IterableDataset):
    def __init__(self, rows=40):
        self.rows = rows

    def __iter__(self):
        return iter(list(zip(X[: self.rows], Y[: self.rows], strict=True)))


class MeasuredStream(Stream):
    def __len__(self):
        return self.rows


class Batched(IterableDataset):
    """Whole batches: its length says nothing about the number of examples."""

    def __len__(self):
        return 5

    def __iter__(self):
        return iter(list(zip(X.split(8), Y.split(8), strict=True)))


class OnceOnly(IterableDataset):
    def __init__(self):
        self.rows = iter(list(zip(X, Y, strict=True)))

    def __iter__(self):
        return self.rows


class Custom(Sampler):
    """Indices by a rule of its own; it visits every row several times in an epoch."""

    def __init__(self, indices):
        self.indices = indices

    def __iter__(self):
        return iter(self.indices)

    def __len__(self):
        return len(self.indices)


def check(data, expected, **arguments):
    """Train without moving the weights: the loss holds KL / n, with the KL of a point estimate by hand."""
    bnn = net()
    kl = sum(float(p.detach().double().square().sum()) for p in bnn.parameters()) / (2 * PRIOR_STD**2)
    history = fit_cpu(bnn, data, Gaussian(std=0.5), **{"epochs": 2, "optimizer": still, "batch_size": 8, **arguments})
    for loss, nll in zip(history.loss, history.nll, strict=True):
        assert loss - nll == pytest.approx(kl / expected, rel=1e-3)  # a difference of single precision numbers
    assert history.n == expected
    return history


def loader(sampler, dataset=None):
    return DataLoader(dataset or Rows(), batch_size=8, sampler=sampler)


ROWS = Rows()
WEIGHTS = torch.ones(40)
SOME = torch.cat([torch.ones(10), torch.zeros(30)])


@pytest.mark.parametrize(
    ("data", "n"),
    [
        ((X, Y), 40),
        (TensorDataset(X, Y), 40),
        (ROWS, 40),
        (Subset(ROWS, range(10)), 10),
        (DataLoader(ROWS, batch_size=8), 40),
        (DataLoader(ROWS, batch_size=16, shuffle=True, drop_last=True), 40),
        (loader(RandomSampler(ROWS, replacement=True, num_samples=400)), 40),
        (loader(RandomSampler(ROWS, replacement=True, num_samples=4)), 40),
        (loader(RandomSampler(ROWS, num_samples=4)), 40),  # other rows in every epoch
        (loader(RandomSampler(range(10))), 10),  # the first ten rows
        (loader(SequentialSampler(range(10))), 10),
        (loader(WeightedRandomSampler(WEIGHTS, 400)), 40),
        (loader(WeightedRandomSampler(WEIGHTS, 4)), 40),
        (loader(WeightedRandomSampler(SOME, 400)), 10),  # rows of weight 0 are never drawn
        (loader(SubsetRandomSampler(range(10))), 10),
        (loader(SubsetRandomSampler(torch.arange(10))), 10),
        (loader(SubsetRandomSampler([*range(10)] * 3)), 10),
        (loader(SubsetRandomSampler(range(10)), Unmeasured()), 10),
        (loader([3, 1, 4, 1, 5]), 4),
        (loader(SubsetRandomSampler("abba"), Lettered()), 2),
        (loader(range(10)), 10),
        (DataLoader(ROWS, batch_sampler=[[0, 1], [2, 0]]), 3),
        (loader(DistributedSampler(ROWS, num_replicas=4, rank=1)), 40),
        (loader(Custom([*range(40)] * 10)), 40),
        (DataLoader(ROWS, batch_sampler=BatchSampler(RandomSampler(ROWS, replacement=True, num_samples=400), 8, False)), 40),
        (DataLoader(ROWS, batch_sampler=BatchSampler(SubsetRandomSampler(range(10)), 8, False)), 10),
        (DataLoader(ROWS, batch_sampler=Custom([[0, 1], [2, 3]])), 40),
        (DataLoader(ROWS, sampler=BatchSampler(RandomSampler(ROWS), 8, False), batch_size=None), 40),
        (DataLoader(ConcatDataset([ROWS, ROWS]), batch_size=8), 80),
        (MeasuredStream(), 40),
        (DataLoader(MeasuredStream(), batch_size=8), 40),
    ],
)
def test_n_is_the_number_of_examples_of_the_data_set(data, n):
    check(data, n)


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        ROWS,
        loader(RandomSampler(ROWS, replacement=True, num_samples=400)),
        Stream(),
        DataLoader(Stream(), batch_size=8),
        DataLoader(Stream(), batch_size=8, num_workers=1),
        DataLoader(Batched(), batch_size=None),
        loader(Custom(range(40)), Unmeasured()),
    ],
)
def test_a_given_n_is_taken(data):
    check(data, 100, n=100)


@pytest.mark.parametrize(
    "data",
    [
        Stream(),
        DataLoader(Stream(), batch_size=8),
        DataLoader(Batched(), batch_size=None),
        loader(Custom(range(40)), Unmeasured()),
    ],
)
def test_n_is_asked_for_where_it_is_unknown(data):
    with pytest.raises(TypeError, match=r"number of training examples.*n="):
        fit_cpu(net(), data, Gaussian(), epochs=1)
    with pytest.raises(TypeError, match=r"number of training examples.*n="):
        fit_many([Training(bnn=net(), data=data, likelihood=Gaussian())], epochs=1, accelerator="cpu")


@pytest.mark.parametrize("n", [0, -3, 2.5, True, "40"])
def test_bad_n(n):
    with pytest.raises(ValueError, match="n must be a whole number of at least 1"):
        fit_cpu(net(), (X, Y), Gaussian(), epochs=1, n=n)
    with pytest.raises(ValueError, match="n must be a whole number of at least 1"):
        fit_many([Training(bnn=net(), data=(X, Y), likelihood=Gaussian(), n=n)], epochs=1, accelerator="cpu")


@pytest.mark.parametrize("data", [(X, Y), ROWS, Stream(), DataLoader(Stream(), batch_size=8)])
def test_an_n_below_the_number_of_examples_is_warned_about(data):
    with pytest.warns(UserWarning, match=r"n=5 .* 40 examples"):
        check(data, 5, n=5)


def test_a_custom_sampler_that_visits_fewer_rows_is_warned_about():
    with pytest.warns(UserWarning, match=r"Custom .* 10 of 40 .* n=10"):
        check(loader(Custom(range(10))), 40)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(loader(Custom(range(10))), 40, n=40)
        check(loader(Custom(range(10))), 10, n=10)
        check(loader(RandomSampler(ROWS, num_samples=4)), 40)


# -- data sets without an order or a length ---------------------------------------------------------------------------------------


def weights(bnn):
    return torch.cat([p.detach().flatten() for p in bnn.parameters()])


def test_a_stream_trains_as_its_rows_do():
    one, other = net(), net()
    history = fit_cpu(one, DataLoader(Rows(), batch_size=16), Gaussian(), epochs=3)
    streamed = fit_cpu(other, Stream(), Gaussian(), epochs=3, batch_size=16, n=40)
    assert streamed.loss == history.loss
    assert torch.equal(weights(one), weights(other))


@pytest.mark.parametrize("stream", [Stream(28), MeasuredStream(28)])
def test_accumulation_over_a_stream_is_a_larger_batch(stream):
    small, large = net(), net()
    fit_cpu(small, stream, Gaussian(), epochs=2, batch_size=4, accumulate=3, optimizer=partial(torch.optim.SGD, lr=0.05), n=28)
    fit_cpu(large, stream, Gaussian(), epochs=2, batch_size=12, optimizer=partial(torch.optim.SGD, lr=0.05), n=28)
    assert torch.allclose(weights(small), weights(large), atol=1e-6)


def test_a_schedule_needs_the_number_of_steps():
    with pytest.raises(ValueError, match=r"beta=.* __len__"):
        fit_cpu(net(), Stream(), Gaussian(), epochs=2, beta=LinearWarmup(), n=40)
    assert fit_cpu(net(), Stream(), Gaussian(), epochs=2, beta=Constant(beta=0.5), n=40).beta == [0.5, 0.5]
    history = fit_cpu(net(), MeasuredStream(), Gaussian(), epochs=2, batch_size=10, beta=LinearWarmup(fraction=1.0))
    assert history.beta == pytest.approx([1.5 / 8, 5.5 / 8])


def test_a_stream_for_validation():
    expected = fit_cpu(net(), (X, Y), Gaussian(), epochs=2, validation=(X[:20], Y[:20]), patience=1)
    history = fit_cpu(net(), (X, Y), Gaussian(), epochs=2, validation=Stream(20), patience=1)
    assert history.validation_nll == pytest.approx(expected.validation_nll)


def test_a_stream_that_ends_for_good():
    with pytest.raises(ValueError, match="data gave no batches in epoch 2"):
        fit_cpu(net(), OnceOnly(), Gaussian(), epochs=2, n=40)
    with pytest.raises(ValueError, match="data gave no batches in epoch 1"):
        fit_cpu(net(), Stream(0), Gaussian(), epochs=1, n=40)


def test_bad_rows_in_a_stream():
    class Spoilt(Stream):
        def __iter__(self):
            return iter([(X[0] * math.nan, Y[0])])

    with pytest.raises(ValueError, match="inputs of batch 1 of data has NaN"):
        fit_cpu(net(), Spoilt(), Gaussian(), epochs=1, n=40)


@pytest.mark.parametrize("auxiliary", [None, X, Stream(10), DataLoader(Stream(10), batch_size=4)])
@pytest.mark.parametrize("data", [Stream(), (X, Y)])
def test_streams_and_auxiliary_inputs(data, auxiliary):
    history = fit_cpu(net(VIFO(eta_aux=0.1)), data, Gaussian(), epochs=2, batch_size=8, n=40, auxiliary=auxiliary)
    assert len(history) == 2
    assert history.n == 40


def test_a_progress_bar_without_an_end(capsys):
    fit(net(), Stream(), Gaussian(), epochs=1, n=40, accelerator="cpu", progress=True)
    assert "epoch 1" in capsys.readouterr().err


# -- many models, checkpoints, histories ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("together", [True, False])
def test_many_models_with_their_own_n(together):
    numbers = (None, 100, 100, 200)
    trainings = [Training(bnn=net(), data=(X, Y), likelihood=Gaussian(std=0.5), n=n, seed=k) for k, n in enumerate(numbers)]
    histories = fit_many(trainings, epochs=2, batch_size=8, together=together, accelerator="cpu", progress=False)
    for k, (n, history) in enumerate(zip(numbers, histories, strict=True)):
        alone = fit_cpu(net(), (X, Y), Gaussian(std=0.5), epochs=2, batch_size=8, n=n, seed=k)
        assert history.loss == pytest.approx(alone.loss, rel=1e-5)
        assert history.n == alone.n == (n or 40)


def test_many_streams():
    trainings = [Training(bnn=net(), data=Stream(), likelihood=Gaussian(), n=40, seed=k) for k in range(2)]
    histories = fit_many(trainings, epochs=2, batch_size=8, accelerator="cpu", progress=False)
    assert [len(history) for history in histories] == [2, 2]


def test_a_failed_training_has_its_n():
    trainings = [Training(bnn=net(), data=DataLoader(ROWS), likelihood=Gaussian()) for _ in range(2)]
    worse = partial(torch.optim.SGD, lr=math.nan)
    with pytest.warns(RuntimeWarning, match="failed"):
        histories = fit_many(trainings, epochs=1, optimizer=worse, accelerator="cpu", progress=False)
    assert [history.n for history in histories] == [40, 40]


def test_an_ensemble_pays_the_same_kl():
    bnn = net(DeepEnsemble(members=2, base=Deterministic(prior_std=PRIOR_STD)))
    history = fit_cpu(bnn, (X, Y), Gaussian(std=0.5), epochs=1, optimizer=still, n=100)
    assert history.loss[0] - history.nll[0] == pytest.approx(history.kl[0] / 100, rel=1e-3)
    assert history.n == 100


class StopError(Exception):
    pass


def test_a_stream_goes_on_from_a_checkpoint(tmp_path):
    path = tmp_path / "run"

    def interrupt(record):
        if record["epoch"] == 2:
            raise StopError

    straight, resumed = net(), net()
    expected = fit_cpu(straight, Stream(), Gaussian(), epochs=4, n=40, validation=Stream(20))
    with pytest.raises(StopError):
        fit_cpu(net(), Stream(), Gaussian(), epochs=4, n=40, validation=Stream(20), checkpoint=path, loggers=[interrupt])
    history = fit_cpu(resumed, Stream(), Gaussian(), epochs=4, n=40, validation=Stream(20), checkpoint=path)
    assert history.loss == expected.loss
    assert history.n == 40
    assert torch.equal(weights(straight), weights(resumed))


@pytest.mark.parametrize("data", [(X, Y), ROWS, Stream()])
def test_a_run_with_another_n_is_not_continued(tmp_path, data):
    path = tmp_path / "run"
    fit_cpu(net(), data, Gaussian(), epochs=1, n=40, checkpoint=path)
    with pytest.raises(ValueError, match="examples of data was 40 and is 50"):
        fit_cpu(net(), data, Gaussian(), epochs=2, n=50, checkpoint=path)
    assert fit_cpu(net(), data, Gaussian(), epochs=2, n=40, checkpoint=path).n == 40


def test_a_checkpoint_from_before_n_was_noted_is_continued(tmp_path):
    path = tmp_path / "run"
    fit_cpu(net(), (X, Y), Gaussian(), epochs=1, checkpoint=path)
    state = torch.load(path, weights_only=True)
    del state["history"]["n"]
    torch.save(state, path)
    history = fit_cpu(net(), (X, Y), Gaussian(), epochs=2, checkpoint=path)
    assert (len(history), history.n) == (2, 40)


def test_histories_from_before_n_was_noted_can_be_read():
    fields = History(loss=[1.0]).to_dict()
    assert fields.pop("n") is None
    assert History(**fields).n is None
