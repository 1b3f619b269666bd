"""Properties for many generated inputs: right, or an error of this library that names the problem; never a wrong shape or NaN.

References are NumPy or `torch.distributions` in float64.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayesify import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Poisson, elbo
from bayesify import functional as f
from bayesify.core.outputs import Draws
from bayesify.errors import BayesifyError
from bayesify.metrics import (
    accuracy,
    average_precision,
    brier,
    coverage,
    expected_calibration_error,
    nll,
    ood_metrics,
    rmse,
    roc_auc,
)
from bayesify.predictive import BernoulliPredictive, CategoricalPredictive, GaussianPredictive

QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, database=None)
F64 = torch.float64
sizes = st.integers(1, 5)
dtypes = st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64])
seeds = st.integers(0, 2**20)
scales = st.sampled_from([1e-3, 1.0, 30.0])
REFUSED = (BayesifyError, TypeError)


def normal(seed: int, *shape: int, scale: float = 1.0, dtype: torch.dtype = F64) -> Tensor:
    return (scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)).to(dtype)


@QUICK
@given(seeds, sizes, sizes, sizes, dtypes, scales)
def test_gaussian_likelihood(seed: int, s: int, b: int, d: int, dtype: torch.dtype, scale: float) -> None:
    outputs, y = normal(seed, s, b, d, scale=scale, dtype=dtype), normal(seed + 1, b, d, scale=scale)
    log_prob = Gaussian(std=0.7).log_prob(outputs, y)
    expected = torch.distributions.Normal(outputs.double(), 0.7).log_prob(y).sum(-1)
    assert (log_prob.shape, log_prob.dtype) == ((s, b), torch.promote_types(dtype, torch.float32))
    torch.testing.assert_close(log_prob.double(), expected, rtol=1e-4, atol=1e-3)


@QUICK
@given(seeds, sizes, sizes, st.integers(2, 5), dtypes, scales)
def test_categorical_likelihood_and_predictive(seed: int, s: int, b: int, k: int, dtype: torch.dtype, scale: float) -> None:
    outputs = normal(seed, s, b, k, scale=scale, dtype=dtype)
    y = torch.randint(k, (b,), generator=torch.Generator().manual_seed(seed))
    expected = torch.distributions.Categorical(logits=outputs.double()).log_prob(y)
    torch.testing.assert_close(Categorical().log_prob(outputs, y).double(), expected, rtol=1e-4, atol=1e-3)
    predictive = Categorical().predictive(outputs)
    mixture = expected.logsumexp(0) - math.log(s)
    torch.testing.assert_close(predictive.log_prob(y).double(), mixture, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(predictive.probs.sum(-1), torch.ones(b, dtype=predictive.probs.dtype))
    for value in (predictive.entropy, predictive.mutual_information, predictive.expected_entropy):
        assert value.shape == (b,)
        assert ((value >= 0) & (value <= math.log(k) + 1e-3)).all()


@QUICK
@given(seeds, sizes, sizes, dtypes, scales)
def test_bernoulli_likelihood(seed: int, s: int, b: int, dtype: torch.dtype, scale: float) -> None:
    outputs = normal(seed, s, b, scale=scale, dtype=dtype)
    y = torch.randint(2, (b,), generator=torch.Generator().manual_seed(seed))
    expected = torch.distributions.Bernoulli(logits=outputs.double()).log_prob(y.double())
    torch.testing.assert_close(Bernoulli().log_prob(outputs, y).double(), expected, rtol=1e-4, atol=1e-3)
    predictive = BernoulliPredictive.from_logits(outputs)
    torch.testing.assert_close(predictive.probs.double(), outputs.double().sigmoid().mean(0), rtol=1e-3, atol=1e-4)


LIKELIHOODS: list[Any] = [Gaussian, HeteroscedasticGaussian, Categorical, Bernoulli, Poisson]


@QUICK
@given(
    st.sampled_from(LIKELIHOODS),
    st.lists(st.integers(0, 4), max_size=4),
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64]),
    st.sampled_from([0.0, 1.0, 2.0, -1.0, math.nan, math.inf]),
)
def test_likelihoods_of_any_shape_and_type(
    kind: Any, shape: list[int], target: list[int], dtype: torch.dtype, value: float
) -> None:
    """A log probability is (S, B) and not NaN, or the input is refused: no error is PyTorch's."""
    y = torch.full(target, value if dtype.is_floating_point or dtype.is_complex or math.isfinite(value) else 0.0, dtype=F64)
    y = y.to(dtype)
    try:
        log_prob = kind().log_prob(torch.zeros(shape), y)
    except REFUSED:
        return
    assert log_prob.shape == tuple(shape[:2])
    assert not log_prob.isnan().any()


@QUICK
@given(seeds, st.integers(1, 6), st.integers(1, 6), scales)
def test_gaussian_predictive(seed: int, s: int, n: int, scale: float) -> None:
    means, stds = normal(seed, s, n, scale=scale), normal(seed + 1, s, n).exp() * scale
    p = GaussianPredictive(means, stds)
    array, spread = means.numpy(), stds.numpy()
    np.testing.assert_allclose(p.mean, array.mean(0), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(p.variance, (spread**2 + array**2).mean(0) - array.mean(0) ** 2, rtol=1e-6, atol=1e-9)
    lower, upper = p.interval(0.9)
    assert (lower < upper).all()
    torch.testing.assert_close(p.cdf(upper) - p.cdf(lower), torch.full((n,), 0.9, dtype=F64), rtol=1e-6, atol=1e-6)
    assert (p.crps(p.mean) >= 0).all()


@QUICK
@given(seeds, st.integers(1, 12), st.integers(2, 4), st.sampled_from([torch.float32, torch.float64]))
def test_metrics_of_probabilities(seed: int, n: int, k: int, dtype: torch.dtype) -> None:
    probs = normal(seed, n, k, scale=2.0).softmax(-1).to(dtype)
    y = torch.randint(k, (n,), generator=torch.Generator().manual_seed(seed))
    p, one_hot = probs.double().numpy(), np.eye(k)[y]
    assert float(nll(probs, y)) == pytest.approx(-np.log(p[np.arange(n), y]).mean(), rel=1e-4)
    assert float(brier(probs, y)) == pytest.approx(((p - one_hot) ** 2).sum(1).mean(), rel=1e-4)
    assert float(accuracy(probs, y)) == pytest.approx((p.argmax(1) == y.numpy()).mean())
    assert 0 <= float(expected_calibration_error(probs, y)) <= 1
    for value in map(float, (roc_auc(probs, y), average_precision(probs, y))):
        assert 0 <= value <= 1 or len(y.unique()) == 1


METRICS: list[Any] = [rmse, accuracy, brier, nll, roc_auc, average_precision, expected_calibration_error]


@QUICK
@given(
    st.sampled_from(METRICS),
    st.lists(st.integers(0, 3), max_size=3),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from([0.0, 0.5, 1.0, 2.0, -1.0, math.nan, math.inf]),
    st.sampled_from([torch.float32, torch.int64, torch.bool, torch.complex64]),
)
def test_metrics_of_any_shape_and_type(metric: Any, shape: list[int], target: list[int], value: float, dtype: torch.dtype) -> None:
    """A finite number from two tensors of as many rows, or an error; nothing is broadcast."""
    y = torch.zeros(target, dtype=dtype)
    try:
        result = metric(torch.full(shape, value), y)
    except REFUSED:
        return
    assert result.shape == ()
    assert math.prod(shape) == math.prod(target) > 0 if metric is rmse else target == shape[:1]
    one_class = metric in (roc_auc, average_precision)  # these need two
    assert result.isfinite() or one_class or (metric is nll and value == 0)


@QUICK
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8), st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8))
def test_out_of_distribution_detection(inside: list[float], outside: list[float]) -> None:
    a, b = torch.tensor(inside, dtype=F64), torch.tensor(outside, dtype=F64)
    pairs = (b.unsqueeze(0) - a.unsqueeze(1)).sign()
    result = ood_metrics(a, b)
    assert result["auroc"] == pytest.approx(float((pairs + 1).mean() / 2), abs=1e-6)
    accepted = [(float((a <= t).double().mean()), float((b <= t).double().mean())) for t in torch.cat([a, b])]
    assert result["fpr95"] == pytest.approx(min(fpr for tpr, fpr in accepted if tpr >= 0.95), abs=1e-6)


@QUICK
@given(st.lists(st.integers(0, 3), max_size=2), st.lists(st.integers(0, 3), max_size=2), st.lists(st.integers(0, 3), max_size=2))
def test_coverage_broadcasts_nothing(lower: list[int], upper: list[int], y: list[int]) -> None:
    try:
        value = coverage(torch.zeros(lower), torch.ones(upper), torch.full(y, 0.5))
    except BayesifyError:
        return
    assert lower == upper
    assert math.prod(lower) == math.prod(y)
    assert value == 1


@QUICK
@given(st.floats(allow_nan=True, allow_infinity=True), st.floats(allow_nan=True, allow_infinity=True), st.lists(sizes, max_size=3))
def test_elbo_of_any_numbers(n: float, beta: float, shape: list[int]) -> None:
    draws = Draws(torch.zeros(2, 3, 1), torch.tensor(1.0), torch.zeros(3))
    if 0 < n < 3:
        return  # a warning
    try:
        value = elbo(draws, torch.zeros(shape), n=n, beta=beta)  # pyright: ignore[reportArgumentType]
    except BayesifyError:
        value = None
    assert (value is not None) == (shape == [2, 3] and 3 <= n < math.inf and 0 <= beta < math.inf)
    if value is None:
        return
    assert float(value) == pytest.approx(-beta / n, rel=1e-4, abs=1e-30) or abs(beta / n) > 1e37


@QUICK
@given(seeds, st.integers(1, 40), st.floats(-8, 4), st.floats(1e-3, 1e3))
def test_the_kl_of_normal_distributions(seed: int, size: int, log_std: float, prior_std: float) -> None:
    mean, log_stds = normal(seed, size), normal(seed + 1, size) + log_std
    expected = torch.distributions.kl_divergence(
        torch.distributions.Normal(mean, log_stds.exp()), torch.distributions.Normal(torch.zeros(size, dtype=F64), prior_std)
    )
    torch.testing.assert_close(f.gaussian_kl(mean, log_stds, prior_std=prior_std), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(f.gaussian_kl_sum(mean, log_stds, prior_std=prior_std), expected.sum(), rtol=1e-9, atol=1e-9)


@QUICK
@given(seeds, st.integers(0, 7), sizes)
def test_the_hadamard_transform_is_orthogonal(seed: int, bits: int, rows: int) -> None:
    n = 2**bits
    x = normal(seed, rows, n)
    once = f.fwht(x)
    assert once.shape == x.shape
    torch.testing.assert_close(once @ once.mT, n * (x @ x.mT))
    torch.testing.assert_close(f.fwht(once), n * x)


@QUICK
@given(st.integers(-3, 40))
def test_sizes_of_hadamard_matrices(n: int) -> None:
    if n > 0 and n & (n - 1) == 0:
        h = f.hadamard_matrix(n, dtype=F64)
        torch.testing.assert_close(h @ h.mT, n * torch.eye(n, dtype=F64))
    else:
        with pytest.raises(BayesifyError, match="power of two"):
            f.hadamard_matrix(n)


@QUICK
@given(seeds, st.integers(1, 5), st.integers(2, 4))
def test_mixtures_of_classes_are_means_of_probabilities(seed: int, n: int, k: int) -> None:
    one, other = (normal(seed + i, 2 + i, n, k, scale=3.0) for i in (0, 1))
    mixed = CategoricalPredictive.from_logits(one).mix(CategoricalPredictive.from_logits(other))
    assert mixed.samples == 5
    torch.testing.assert_close(mixed.probs, torch.cat([one, other]).softmax(-1).mean(0))
