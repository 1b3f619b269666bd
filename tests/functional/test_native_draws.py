"""Native draws: known answers, distributions, independence, and equal values however the code is run."""
# pyright: reportMissingImports=false, reportCallIssue=false

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from bayesify.core.noise_free import NoiseFree
from bayesify.functional import bernoulli, standard_normal, standard_uniform
from bayesify.native import switch, use_native
from bayesify.native.draws import draws_natively, fill_normal, fill_uniform

numba = pytest.importorskip("numba", reason="the native operators need bayesify[fast]")

N = 5000
F64 = torch.float64
DRAWS = {
    "normal": lambda like, *size: standard_normal(*size, like=like),
    "uniform": lambda like, *size: standard_uniform(*size, like=like),
    "bernoulli": lambda like, *size: bernoulli(*size, p=0.3, like=like),
}
EACH = pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
_ZERO, _ONES, _PI = (0, 0, 0, 0), (2**32 - 1,) * 4, (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)


@pytest.fixture(autouse=True)
def _native(monkeypatch):
    monkeypatch.setitem(switch.LIBRARIES, "cpu", "numba")
    torch.manual_seed(0)


def _generator(seed=1):
    return torch.Generator().manual_seed(seed)


def _normal(n, seed=1):
    return fill_normal(torch.empty(n), _generator(seed)).double().numpy()


def _words(counter, key):
    """The words of the 16 counters around one, (4, 16), and the lane of that counter."""
    from bayesify.native import draw_kernels
    from bayesify.native.vectors import float32_at

    @numba.njit
    def run(address, block, upper, key):
        draw_kernels.words(float32_at(address), block, upper, key)

    def signed(low, high):
        return np.array([high << 32 | low], np.uint64).view(np.int64)[0]

    out = np.empty((4, 16), np.uint32)
    lower = counter[1] << 32 | counter[0]
    run(out.ctypes.data, np.int64(lower >> 4), signed(*counter[2:]), signed(*key))
    return out, counter[0] & 15


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # kat_vectors of Random123
        (_ZERO, (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (_ONES, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (_PI, (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ],
)
def test_known_answers(counter, key, expected):
    words, lane = _words(counter, key)
    assert tuple(words[:, lane]) == expected


def test_values_are_those_of_the_words():
    generator = _generator()
    upper, key = torch.empty(2, dtype=torch.int64).random_(generator=generator).tolist()
    split = [(x & 0xFFFFFFFF, x >> 32) for x in (upper, key)]
    blocks = [_words((16 * block, 0, *split[0]), split[1])[0] for block in range(3)]
    words = np.concatenate([block.reshape(-1) for block in blocks])
    uniform = fill_uniform(torch.empty(192), _generator()).numpy()
    assert np.array_equal(uniform, (words >> 8) * np.float32(2**-24))
    pairs = np.stack(blocks).reshape(3, 2, 2, 16)
    u = ((pairs[:, :, 0] >> 1) + 0.5) * 2.0**-31
    t = (pairs[:, :, 1].view(np.int32) >> 2) * (math.pi / 4 / 2**29)
    radius, sign, exchanged = np.sqrt(-2 * np.log(u)), 1 - 2.0 * (pairs[:, :, 1] >> 1 & 1), pairs[:, :, 1] & 1 == 1
    x, y = radius * sign * np.cos(t), radius * np.sin(t)
    expected = np.stack([np.where(exchanged, y, x), np.where(exchanged, x, y)], 2).reshape(-1)
    assert np.abs(_normal(192) - expected).max() < 4e-6


def test_extreme_words_give_finite_draws():
    from bayesify.native import draw_kernels
    from bayesify.native.vectors import float32_at

    @numba.njit
    def run(address):
        draw_kernels.normals(float32_at(address))

    for word, largest in ((0, math.sqrt(-2 * math.log(2**-32))), (2**32 - 1, 4e-4)):
        block = np.full(64, word, np.uint32)
        run(block.ctypes.data)
        radius = np.hypot(*block.view(np.float32).reshape(2, 2, 16).swapaxes(0, 1))
        assert np.isfinite(radius).all()
        assert radius.max() <= largest * (1 + 1e-6)


@pytest.mark.parametrize("seed", [1, 2])
def test_normal_distribution(seed):
    n = 2**21
    z = _normal(n, seed)
    for power, moment, std in ((1, 0, 1), (2, 1, 2**0.5), (3, 0, 15**0.5), (4, 3, 96**0.5), (6, 15, 10170**0.5)):
        assert abs((z**power).mean() - moment) < 5 * std / n**0.5
    assert stats.kstest(z[: 2**18], "norm").pvalue > 1e-3
    counts = np.histogram(stats.norm.cdf(z), 1024, (0, 1))[0]
    assert stats.chisquare(counts).pvalue > 1e-3
    pairs = stats.norm.cdf(z).reshape(-1, 2, 2, 16)  # of one radius and angle each
    joint = np.histogram2d(pairs[:, :, 0].reshape(-1), pairs[:, :, 1].reshape(-1), 32, ((0, 1), (0, 1)))[0]
    assert stats.chisquare(joint.reshape(-1)).pvalue > 1e-3


def test_tails():
    n = 2**24
    z = fill_normal(torch.empty(n), _generator(3)).abs()
    for bound in (3.0, 4.0, 5.0):
        expected = n * 2 * stats.norm.sf(bound)
        assert abs(int((z > bound).sum()) - expected) < 5 * expected**0.5  # 9.6 draws beyond 5
    assert 5 < float(z.max()) < 6.7


def test_uniform_distribution():
    u = fill_uniform(torch.empty(2**20), _generator()).double().numpy()
    assert u.min() >= 0
    assert u.max() < 1
    assert stats.kstest(u[: 2**18], "uniform").pvalue > 1e-3
    assert stats.chisquare(np.histogram(u, 4096, (0, 1))[0]).pvalue > 1e-3
    serial = np.histogram2d(u[:-1], u[1:], 32, ((0, 1), (0, 1)))[0]
    assert stats.chisquare(serial.reshape(-1)).pvalue > 1e-3


@pytest.mark.parametrize("p", [1e-3, 0.3, 0.5, 0.999])
def test_bernoulli_distribution(p):
    n = 2**18
    mask = bernoulli(n, p=p, like=torch.zeros(1))
    assert set(mask.tolist()) == {0.0, 1.0}
    assert stats.binomtest(int(mask.sum()), n, p).pvalue > 1e-3
    assert not bernoulli(N, p=0.0, like=mask).any()
    assert bernoulli(N, p=1.0, like=mask).all()


def test_draws_are_uncorrelated():
    n = 2**20
    z = _normal(n, 4)
    for lag in (1, 2, 3, 15, 16, 17, 32, 48, 64, 128, 1024, 4096, 65536):
        for x in (z, z**2 - 1, np.abs(z) - (2 / math.pi) ** 0.5):
            correlation = (x[:-lag] * x[lag:]).mean() / x.var()
            assert abs(correlation) < 5 / (n - lag) ** 0.5, lag


def test_streams_are_independent():
    n = 2**18
    one = _generator(1)
    streams = [fill_normal(torch.empty(n), one) for _ in range(4)] + [torch.from_numpy(_normal(n, seed)).float() for seed in (2, 3)]
    correlations = torch.corrcoef(torch.stack(streams).double()) - torch.eye(6)
    assert correlations.abs().max() < 5 / n**0.5
    squares = torch.corrcoef(torch.stack(streams).double().square()) - torch.eye(6)
    assert squares.abs().max() < 5 / n**0.5


@EACH
def test_values_do_not_depend_on_threads_or_size(draw):
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            for n in (300_000, 300_037):
                torch.manual_seed(5)
                results.append(draw(torch.zeros(1), n)[:300_000])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(result, results[0]) for result in results)


@EACH
def test_values_follow_the_generator(draw):
    like = torch.zeros(1)
    torch.manual_seed(7)
    first, second = draw(like, N), draw(like, N)
    assert not torch.equal(first, second)
    torch.manual_seed(7)
    with torch.random.fork_rng([]):
        assert torch.equal(draw(like, N), first)
    assert torch.equal(draw(like, N), first)
    state = torch.get_rng_state()
    assert torch.equal(draw(like, N), second)
    torch.set_rng_state(state)
    assert torch.equal(draw(like, N), second)


def test_activation_checkpointing_repeats_draws():
    def noisy(x):
        return (x * standard_normal(50, 100, like=x)).square()

    x = torch.ones(50, 100, requires_grad=True)
    gradients = []
    for run in (noisy, lambda x: checkpoint(noisy, x, use_reentrant=False)):
        torch.manual_seed(2)
        gradients.append(torch.autograd.grad(run(x).sum(), x)[0])
    assert torch.equal(*gradients)


@EACH
def test_traced_code_draws_the_values_of_eager_code(draw):
    def function(x):
        return x * draw(x, 2, N)

    def derived(x):
        return torch.func.grad(lambda x: (lambda noise: (noise.sum() * x, noise))(draw(x, 2, N)), has_aux=True)(x)[1]

    def forward(x):
        return torch.func.jvp(function, (x,), (torch.ones(()),))[0]

    def seeded(run, x):
        torch.manual_seed(3)
        return run(x)

    x = torch.ones(())
    expected = seeded(function, x)
    torch.compiler.reset()
    traced = make_fx(function, tracing_mode="fake")(x)
    for run in (traced, derived, forward, torch.compile(function, fullgraph=True, backend="aot_eager")):
        assert torch.equal(seeded(run, x), expected)
    torch.compiler.reset()


@EACH
def test_what_cannot_record_native_draws_uses_pytorch_s(draw):
    def function(x):
        return x + draw(x, N)

    traced: Any = torch.jit.trace(function, torch.zeros(()), check_trace=False)
    assert "aten::rand" in str(traced.graph)
    rows = torch.func.vmap(function, randomness="different")(torch.zeros(2))
    assert not torch.equal(rows[0], rows[1])
    same = torch.func.vmap(function, randomness="same")(torch.zeros(2))
    assert torch.equal(same[0], same[1])
    with FakeTensorMode():
        assert function(torch.zeros(())).shape == (N,)
    assert function(torch.zeros((), device="meta")).is_meta


def test_noise_free_networks():
    with NoiseFree():
        like = torch.zeros(1)
        assert (standard_normal(N, like=like) == 0.5).all()
        assert (standard_uniform(N, like=like) == 0.5).all()
        assert bernoulli(N, p=0.3, like=like).all()


def test_precisions():
    def seeded(dtype):
        torch.manual_seed(4)
        return standard_normal(N, like=torch.zeros((), dtype=dtype))

    wide = seeded(torch.float32)
    for dtype in (torch.bfloat16, torch.float16):
        assert torch.equal(seeded(dtype), wide.to(dtype))
    torch.manual_seed(4)
    assert torch.equal(seeded(F64), torch.randn(N, dtype=F64, generator=_generator(4)))


def test_when_native_draws_are_used():
    cpu = torch.device("cpu")
    assert draws_natively(N, cpu)
    assert not draws_natively(100, cpu)
    assert not draws_natively(N, torch.device("meta"))
    use_native(False)
    assert not draws_natively(N, cpu)
    torch.manual_seed(1)
    assert torch.equal(standard_normal(N, like=torch.zeros(1)), torch.randn(N, generator=_generator(1)))
