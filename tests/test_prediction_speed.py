"""Shortcuts of `predict`: max pooling by slices, draws per call, and no comparison of passes for small networks."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bayesify import Categorical, Gaussian, MeanField, bayesify, predict
from bayesify.core.folded import Folded
from bayesify.core.replay import is_worth_replay
from bayesify.prediction.inputs import draws_per_call
from bayesify.prediction.pooling import fast_pooling

F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16


@pytest.mark.parametrize("kernel", [2, 3, (2, 3), (1, 2)])
@pytest.mark.parametrize("shape", [(2, 3, 8, 9), (1, 1, 2, 3), (3, 7, 6), (2, 2, 1, 1)])
@pytest.mark.parametrize("dtype", [F32, F64, BF16])
def test_pooling_has_the_values_of_pytorch(kernel, shape, dtype):
    pool, x = nn.MaxPool2d(kernel), torch.randn(shape).to(dtype)
    x.view(-1)[0] = -torch.inf
    x.view(-1)[-1] = torch.nan
    try:
        expected = F.max_pool2d(x, kernel)
    except RuntimeError:  # the image is smaller than a block
        with fast_pooling(pool), pytest.raises(RuntimeError):
            pool(x)
        return
    with fast_pooling(pool), torch.no_grad():
        torch.testing.assert_close(pool(x), expected, rtol=0, atol=0, equal_nan=True)
    assert "forward" not in vars(pool)


def test_pooling_with_a_gradient_is_that_of_pytorch():
    """At ties the gradient goes to one input, not to both."""
    pool, x = nn.MaxPool2d(2), torch.zeros(1, 1, 2, 2, requires_grad=True)
    with fast_pooling(pool):
        pool(x).sum().backward()
    assert x.grad is not None
    assert sorted(x.grad.flatten().tolist()) == [0, 0, 0, 1]


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(3, 2), nn.MaxPool2d(2, padding=1), nn.MaxPool2d(2, dilation=2), nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d(2, return_indices=True),
    ],
)  # fmt: skip
def test_other_pooling_is_left_alone(pool):
    with fast_pooling(pool):
        assert "forward" not in vars(pool)


def test_a_replaced_forward_is_kept():
    pool = nn.MaxPool2d(2)
    pool.forward = lambda x: x + 1
    with fast_pooling(pool):
        assert pool(torch.zeros(1)) == 1
    assert pool(torch.zeros(1)) == 1


def conv_net():
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)
    return bayesify(nn.Sequential(*layers).double(), MeanField())


def test_predictions_with_and_without_slices_agree(monkeypatch):
    bnn, x = conv_net(), torch.randn(9, 1, 16, 16, dtype=F64)
    fast = predict(bnn, x, Categorical(), samples=7, seed=0)
    monkeypatch.setattr("bayesify.prediction.pooling._has_blocks", lambda module: False)
    torch.testing.assert_close(fast.probs, predict(bnn, x, Categorical(), samples=7, seed=0).probs)


def test_draws_per_call():
    """The draws of images share 400 kB of inputs, which keeps their features in the caches; others share about 2,048 rows."""
    cpu, bnn = torch.device("cpu"), conv_net()
    assert draws_per_call(bnn, torch.zeros(128, 1, 28, 28), 0, cpu, 100) == 1
    assert draws_per_call(bnn, torch.zeros(32, 1, 28, 28), 0, cpu, 100) == 3
    assert draws_per_call(bnn, torch.zeros(128, 784), 0, cpu, 100) == 3
    assert draws_per_call(bnn, torch.zeros(128, 10), 0, cpu, 100) == 16


def test_draws_per_call_of_a_gpu():
    """Up to 16,384 rows or 50 MB of inputs, but at least 2,048 rows, as of tokens, whose size is not that of their features."""
    gpu, bnn = torch.device("cuda"), conv_net()
    assert draws_per_call(bnn, torch.zeros(128, 1, 28, 28), 0, gpu, 1000) == 15_943 // 128
    assert draws_per_call(bnn, torch.zeros(128, 10), 0, gpu, 1000) == 16_384 // 128
    assert draws_per_call(bnn, torch.zeros(128, 10, dtype=torch.int64), 0, gpu, 1000) == 2_048 // 128
    assert draws_per_call(bnn, torch.zeros(16, 3, 224, 224), 0, gpu, 1000) == 2_048 // 16


@pytest.mark.parametrize("least", [0, 200_000_000])
def test_small_networks_make_no_comparison_of_passes(monkeypatch, least):
    """The prediction is the same up to rounding."""
    bnn = bayesify(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double(), {"2": MeanField()})
    x, compared = torch.randn(5, 3, dtype=F64), []
    original = Folded._replays
    monkeypatch.setattr(Folded, "_replays", lambda *args: compared.append(1) or original(*args))
    expected = predict(bnn, x, Gaussian(std=0.1), samples=20, seed=3).mean
    monkeypatch.setattr("bayesify.core.replay.prefix.WORTH_REPLAY", least)
    compared.clear()
    torch.testing.assert_close(predict(bnn, x, Gaussian(std=0.1), samples=20, seed=3).mean, expected)
    assert bool(compared) == (least == 0)


def test_replay_is_for_many_rows_and_many_draws(monkeypatch):
    """Rows times parameters times draws decide, where tokens and positions of sequences count as rows."""
    bnn = bayesify(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)), {"2": MeanField()})
    size = sum(p.numel() for p in bnn.parameters())
    monkeypatch.setattr("bayesify.core.replay.prefix.WORTH_REPLAY", 100 * size)
    worth = [(torch.zeros(99, 3), 1), (torch.zeros(11, 3), 10), (torch.zeros(5, 3, 3), 10), (torch.zeros(2, 6).long(), 10)]
    assert [is_worth_replay(bnn.net, [x], samples) for x, samples in worth] == [False, True, True, True]
    assert not is_worth_replay(bnn.net, [torch.zeros(11, 3)], 5)
