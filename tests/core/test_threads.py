"""Threads and processes that share a network: each gets its own draws, those that it gets alone, or a named error."""

import copy
import multiprocessing
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bayesify import EMP, VIFO, DeepEnsemble, Gaussian, MCDropout, MeanField, PassError, bayesify, elbo, fit, predict
from bayesify.core import turns
from bayesify.train import Training, fit_many

THREADS, CALLS = 4, 12
LIKELIHOOD = Gaussian(std=0.1)


@pytest.fixture(autouse=True)
def frequent_switches():
    """Let threads alternate in the midst of passes."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


class Yielding(nn.Module):
    """Another thread runs in the middle of every pass."""

    def forward(self, x):
        time.sleep(1e-4)
        return x


def network(method, batch_norm=True):
    torch.manual_seed(0)
    middle = (nn.BatchNorm1d(8), nn.Dropout(0.3)) if batch_norm else ()
    layers = nn.Linear(3, 8), Yielding(), *middle, nn.Tanh(), nn.Linear(8, 8), Yielding(), nn.Linear(8, 1)
    return bayesify(nn.Sequential(*layers).double(), method)


def rows(count, seed=0):
    return torch.randn(count, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def in_threads(call, count=THREADS * CALLS):
    """The results of call(0), call(1), ..., made in several threads at a time."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(call, range(count)))


@pytest.mark.default("MeanField-*", "EMP-False", "DeepEnsemble-False")
@pytest.mark.parametrize("coherent", [False, True])
@pytest.mark.parametrize(
    "method", [MeanField(), MCDropout(), EMP(), VIFO(), DeepEnsemble(members=2, base=MeanField())], ids=lambda m: type(m).__name__
)
def test_predictions_are_those_of_a_single_thread(method, coherent):
    """Of a network in training mode, with seeds and numbers of rows and draws of their own."""
    bnn = network(method).train()

    def call(i):
        return predict(bnn, rows(2 + i % 3), LIKELIHOOD, samples=4 + 2 * (i % 2), seed=i % 5, coherent=coherent)

    expected = [call(i) for i in range(30)]
    before, state = copy.deepcopy(bnn.state_dict()), torch.get_rng_state()
    for i, found in enumerate(in_threads(call)):
        torch.testing.assert_close(found.mean, expected[i % 30].mean, rtol=0, atol=0)
        torch.testing.assert_close(found.variance, expected[i % 30].variance, rtol=0, atol=0)
    assert all(module.training for module in bnn.modules())
    assert all(torch.equal(value, before[name]) for name, value in bnn.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_predictions_of_different_networks_do_not_share_noise():
    bnns = [network(MeanField()), network(MCDropout())]

    def call(i):
        return predict(bnns[i % 2], rows(3), LIKELIHOOD, samples=6, seed=i % 3).mean

    expected = [call(i) for i in range(6)]
    assert all(torch.equal(found, expected[i % 6]) for i, found in enumerate(in_threads(call)))


def test_functions_and_sampled_networks_are_those_of_their_seeds():
    bnn, x = network(MeanField()), rows(4)

    def call(i):
        return bnn.function(i % 4)(x), bnn.sample_network(i % 4).eval()(x)

    expected = [call(i) for i in range(4)]
    for i, found in enumerate(in_threads(call)):
        assert all(map(torch.equal, found, expected[i % 4]))


def test_passes_draw_one_set_of_weights_each_beside_predictions():
    """In a coherent pass equal rows have equal outputs; if passes mixed, a row would get a layer of another draw."""
    bnn = network(MeanField(), batch_norm=False).train()
    alone = predict(bnn, rows(5), LIKELIHOOD, samples=4, seed=7).mean

    def call(i):
        if i % 3 == 0:
            return torch.equal(predict(bnn, rows(5), LIKELIHOOD, samples=4, seed=7).mean, alone)
        samples = 1 + i % 4
        draws = bnn(torch.ones(2 + i % 4, 3, dtype=torch.float64), samples=samples, coherent=True)
        assert draws.kl > 0, "no prediction has switched the KL off"
        return draws.outputs.shape[0] == samples and len(draws.outputs[:, 0].unique()) == samples

    bnn(rows(2), samples=2)
    assert all(in_threads(call))
    draws = in_threads(lambda i: bnn(torch.ones(3, 3, dtype=torch.float64), samples=3, coherent=True).outputs)
    assert all(torch.equal(y[:, :1].expand(3, 3, 1), y) for y in draws)
    assert len(torch.cat(draws)[:, 0].unique()) == 3 * len(draws), "no two draws are equal"


def test_networks_that_train_in_threads_have_their_own_gradients():
    def step(bnn):
        draws = bnn(rows(6), samples=2)
        loss = -elbo(draws, LIKELIHOOD.log_prob(draws.outputs, torch.zeros(6, dtype=torch.float64)), n=6)
        return torch.autograd.grad(loss, list(bnn.parameters()))

    bnn = network(MeanField(), batch_norm=False)
    for gradients in in_threads(lambda i: step(bnn)):
        assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.default("fit-MCDropout", "fit_many-VIFO", extended=["fit-VIFO", "fit-loader", "fit_many-MCDropout"])
@pytest.mark.parametrize(
    ("function", "method"),
    [
        ("fit", MCDropout()),
        ("fit", VIFO(eta_aux=0.1)),
        ("fit", "loader"),
        ("fit_many", MCDropout()),
        ("fit_many", VIFO(eta_aux=0.1)),
    ],
    ids=["fit-MCDropout", "fit-VIFO", "fit-loader", "fit_many-MCDropout", "fit_many-VIFO"],
)
def test_predictions_and_a_training_in_another_thread_are_those_of_a_single_thread(function, method):
    """Training seeds the generators every epoch, draws from them, and restores them in the end."""
    bnn, seeds = network(MCDropout()), range(3)
    expected = [predict(bnn, rows(4), LIKELIHOOD, samples=6, seed=seed).mean for seed in seeds]
    initial = [network(MCDropout() if method == "loader" else method, batch_norm=False) for _ in range(2)]
    data = rows(12), rows(12)[:, 0]
    data = DataLoader(TensorDataset(*data), batch_size=6) if method == "loader" else data

    def trained():
        nets = copy.deepcopy(initial)
        common = {"epochs": 12, "accelerator": "cpu", "progress": False}
        if function == "fit":
            fit(nets[0], data, Gaussian(std=1.0), seed=0, **common)
        else:
            trainings = [Training(bnn=net, data=data, likelihood=Gaussian(std=1.0), seed=k) for k, net in enumerate(nets)]
            fit_many(trainings, together=True, **common)
        return [p.detach().clone() for net in nets for p in net.parameters()]

    alone, state = trained(), torch.get_rng_state()
    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(trained)
        while not training.done():
            for seed in seeds:
                assert torch.equal(predict(bnn, rows(4), LIKELIHOOD, samples=6, seed=seed).mean, expected[seed])
        assert all(map(torch.equal, training.result(), alone))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_layer_in_another_thread_does_not_join_the_pass():
    bnn = network(MeanField(), batch_norm=False)
    errors = []

    def other():
        try:
            bnn.net[0](rows(2))
        except PassError as error:
            errors.append(str(error))

    def start(*_):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    hook = bnn.net[1].register_forward_pre_hook(start)
    bnn(rows(2), samples=2)
    errors.clear()
    bnn(rows(2), samples=2)
    hook.remove()
    assert len(errors) == 1
    assert "in one thread while its network is in a pass of another" in errors[0]
    assert bnn.net[0](rows(2)).shape == (2, 8)


def test_layers_on_their_own_take_turns():
    layer = network(MeanField()).net[0]
    outputs = in_threads(lambda i: layer(rows(2)), 200)
    assert len({float(y[0, 0]) for y in outputs}) == 200


def test_a_held_draw_is_that_of_all_threads_and_no_prediction_begins():
    bnn = network(MeanField(), batch_norm=False)
    expected = bnn.function(seed=1)(rows(2))
    with bnn.drawn(seed=1) as net:
        assert all(torch.equal(y, expected) for y in in_threads(lambda i: net(rows(2)), 200))
        with ThreadPoolExecutor(1) as pool, pytest.raises(PassError, match="a draw of this network is held"):
            pool.submit(predict, bnn, rows(2), LIKELIHOOD, 2).result(60)


def test_a_prediction_that_waits_for_another_thread_ends(monkeypatch):
    monkeypatch.setattr(turns, "_LIMIT", 0.2)
    bnn = network(MeanField(), batch_norm=False)

    def batches():
        with ThreadPoolExecutor(1, thread_name_prefix="reader") as pool:
            yield pool.submit(predict, bnn, rows(2), LIKELIHOOD, 2).result(60).mean.expand(2, 3)

    with pytest.raises(PassError, match=r"thread 'MainThread' has been in a pass or prediction for 0\.2 s"):
        predict(bnn, batches(), LIKELIHOOD, samples=2)
    assert predict(bnn, rows(2), LIKELIHOOD, samples=2).mean.shape == (2,)


def test_workers_of_loaders():
    """Workers are forked, and read rows in other processes, while the prediction has the turn."""
    bnn, x = network(MeanField()), rows(12)

    def call(i):
        return predict(bnn, DataLoader(TensorDataset(x), batch_size=6, num_workers=i % 2), LIKELIHOOD, samples=4, seed=0).mean

    plain = call(0)
    for found in in_threads(call, 4):  # shared memory has another alignment, and so another rounding
        torch.testing.assert_close(found, plain, rtol=1e-12, atol=1e-12)


def _predicted(bnn, queue):
    torch.set_num_threads(1)
    try:
        queue.put(predict(bnn, rows(3), LIKELIHOOD, samples=4, seed=0).mean.tolist())
    except PassError as error:
        queue.put(str(error))


def _in_fork(bnn):
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=_predicted, args=(bnn, queue))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    return queue.get()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # multi-threaded
def test_forked_processes():
    """After threads have predicted, a new process predicts; during a prediction of another thread, it says why it cannot."""
    bnn = network(MeanField(), batch_norm=False)
    expected = predict(bnn, rows(3), LIKELIHOOD, samples=4, seed=0).mean.tolist()
    in_threads(lambda i: predict(bnn, rows(3), LIKELIHOOD, samples=2))
    assert _in_fork(bnn) == expected

    inside, leave = threading.Event(), threading.Event()

    def pause(*_):
        inside.set()
        leave.wait(60)

    hook = bnn.net[1].register_forward_pre_hook(pause)
    thread = threading.Thread(target=predict, args=(bnn, rows(3), LIKELIHOOD, 2))
    thread.start()
    assert inside.wait(60)
    hook.remove()
    message = _in_fork(bnn)
    leave.set()
    thread.join()
    assert "was forked while another thread was in a pass" in message
    assert _in_fork(bnn) == expected
