"""Properties of functions that take shapes, types and tables of users and that other properties do not reach."""

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayesify import Categorical
from bayesify import functional as f
from bayesify.calibration import HistogramBinning, IsotonicCalibration, VectorScaling, fit_temperature
from bayesify.errors import BayesifyError
from bayesify.metrics import interval_width
from bayesify.predictive import Predictive
from bayesify.stacking import stacking_weights

QUICK = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, database=None)
F64 = torch.float64
seeds, sizes = st.integers(0, 2**20), st.integers(1, 5)
scales = st.sampled_from([1e-3, 1.0, 30.0])
shapes = st.lists(st.integers(0, 4), max_size=3)
dtypes = st.sampled_from([torch.float16, torch.float32, torch.float64, torch.int64, torch.bool])
REFUSED = (BayesifyError, TypeError)


def normal(seed: int, *shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


@pytest.mark.extended
@QUICK
@given(
    seeds, st.integers(1, 30), st.integers(2, 4), scales, st.sampled_from([IsotonicCalibration, HistogramBinning, VectorScaling])
)
def test_maps_of_probabilities(seed: int, n: int, k: int, scale: float, kind: Any) -> None:
    logits, rng = normal(seed, n, k, scale=scale), np.random.default_rng(seed)
    y = torch.from_numpy(rng.integers(k, size=n))
    predictive = Categorical().predictive(logits.unsqueeze(0))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mapped = kind.fit(predictive, y)
    except REFUSED:
        return
    probs = mapped(predictive).mean
    assert probs.shape == (n, k)
    assert ((probs >= 0) & (probs <= 1)).all()
    torch.testing.assert_close(probs.sum(1), torch.ones(n, dtype=probs.dtype), atol=1e-6, rtol=0)
    assert kind.from_dict(mapped.to_dict()) == mapped


@pytest.mark.extended
@QUICK
@given(seeds, st.integers(1, 30), st.integers(2, 4), scales)
def test_temperatures_never_worsen_the_likelihood_of_their_rows(seed: int, n: int, k: int, scale: float) -> None:
    logits = normal(seed, n, k, scale=scale)
    y = torch.from_numpy(np.random.default_rng(seed).integers(k, size=n))

    def at(temperature: float) -> Predictive:
        return Categorical(temperature=temperature).predictive(logits.unsqueeze(0))

    found = fit_temperature(at, y)
    assert 0.1 <= found <= 10
    losses = [float(torch.nn.functional.cross_entropy(logits / t, y)) for t in (found, 1.0)]
    assert losses[0] <= losses[1] + 1e-6 * abs(losses[1])


@QUICK
@given(shapes, dtypes, st.sampled_from([0.0, -1.0, -1e30, -math.inf, math.nan, math.inf]), st.booleans())
def test_weights_of_stacked_models(shape: list[int], dtype: torch.dtype, value: float, weighted: bool) -> None:
    log_probs = torch.full(shape, value if dtype.is_floating_point else 1.0).to(dtype)
    weights = torch.rand(shape[:1], generator=torch.Generator().manual_seed(0)) if weighted else None
    try:
        found = stacking_weights(log_probs, weights)
    except REFUSED:
        return
    assert found.shape == (shape[1],)
    assert (found >= 0).all()
    assert float(found.sum()) == pytest.approx(1, abs=1e-3)


@QUICK
@given(shapes, shapes, dtypes, st.sampled_from([0.0, 1.0, math.nan, math.inf]))
def test_widths_of_intervals(lower: list[int], upper: list[int], dtype: torch.dtype, value: float) -> None:
    ends = torch.zeros(lower).to(dtype), torch.full(upper, value if dtype.is_floating_point else 1.0).to(dtype)
    try:
        width = interval_width(*ends)
    except REFUSED:
        return
    assert lower == upper
    assert width.shape == ()
    assert width == value if dtype.is_floating_point else width == 1


@QUICK
@given(seeds, st.integers(0, 6), sizes, st.lists(st.integers(0, 3), max_size=3), scales)
def test_reflections_keep_lengths(seed: int, t: int, k: int, rows: list[int], scale: float) -> None:
    vectors, x = normal(seed, t, k, scale=scale), normal(seed + 1, *rows, k)
    y = f.householder(vectors, x)
    assert y.shape == x.shape
    torch.testing.assert_close(y.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(f.householder(vectors.flip(0), y), x)


@QUICK
@given(seeds, st.integers(1, 6), st.integers(1, 6), st.floats(-8, 3), st.sampled_from([1e-6, 1.0, 1e3]))
def test_the_kl_of_low_rank_normals(seed: int, n: int, rank: int, log_std: float, scale: float) -> None:
    mean, noise, factor = normal(seed, n), normal(seed + 1, n), normal(seed + 2, rank, n, scale=scale)
    covariance = torch.diag(torch.exp(2 * (log_std + 0.1 * noise))) + factor.T @ factor
    expected = 0.5 * (covariance.trace() + mean.square().sum() - n - _log_det(covariance))
    found = f.low_rank_gaussian_kl(mean, log_std + 0.1 * noise, factor)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert found > -1e-9
    root = f.identity_plus_gram_root(factor.T.contiguous())
    torch.testing.assert_close(root @ root.T, torch.eye(rank, dtype=F64) + factor @ factor.T, rtol=1e-9, atol=1e-9 * scale**2)


def _log_det(covariance: Tensor) -> Tensor:
    """With the digits that float64 has not where standard deviations differ by factors of 1e6."""
    import mpmath

    with mpmath.workdps(60):
        return torch.tensor(float(mpmath.log(mpmath.det(mpmath.matrix(covariance.tolist())))), dtype=F64)


@QUICK
@given(seeds, st.integers(1, 4), st.integers(1, 40), st.lists(st.integers(1, 3), max_size=2), st.booleans())
def test_diagnostics_of_chains(seed: int, chains: int, draws: int, shape: list[int], stuck: bool) -> None:
    values = normal(seed, chains, 1 if stuck else draws, *shape).expand(chains, draws, *shape)
    try:
        r_hat, size = f.split_r_hat(values), f.effective_sample_size(values)
    except REFUSED:
        return
    assert r_hat.shape == size.shape == tuple(shape)
    assert not (r_hat < 0.5).any()
    assert draws >= 4
    assert not ((size < 0) | (size > chains * draws * math.log10(chains * draws) + 1e-6)).any()


@QUICK
@given(st.floats(1e-2, 1e3), st.floats(1e-2, 1e3), st.floats(0, 1))
def test_the_incomplete_beta_function(a: float, b: float, x: float) -> None:
    from scipy.special import betainc

    found = f.incomplete_beta(*(torch.tensor(value, dtype=F64) for value in (a, b, x)))
    assert float(found) == pytest.approx(betainc(a, b, x), rel=1e-8, abs=1e-12)


@QUICK
@given(seeds, st.integers(1, 6), sizes, st.sampled_from([0.0, 1e-3, 1.0, 1e6]))
def test_densities_of_particles(seed: int, m: int, d: int, scale: float) -> None:
    particles = normal(seed, m, d, scale=scale).requires_grad_()
    bandwidth = f.median_bandwidth(particles)
    density = f.log_kernel_density(particles, bandwidth)
    assert density.shape == (m,)
    assert ((density <= 1e-9) & (density >= -math.log(m) - 1e-9)).all()
    (gradient,) = torch.autograd.grad(density.sum(), particles)
    assert gradient.isfinite().all()


def test_descriptions_of_any_table() -> None:
    pd = pytest.importorskip("pandas")
    pytest.importorskip("sklearn")
    from bayesify.data import conform, describe_columns, drift, preprocessing, unusual_values

    cells = st.one_of(st.none(), st.floats(), st.integers(-(2**70), 2**70), st.booleans(), st.text(max_size=3), st.dates())

    @QUICK
    @given(st.lists(st.lists(cells, min_size=4, max_size=4), min_size=1, max_size=3))
    def check(values: list[list[Any]]) -> None:
        table = pd.DataFrame({f"column {i}": pd.Series(column, dtype=object) for i, column in enumerate(values)})
        for each in (table, table.infer_objects()):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    columns = describe_columns(each)
                    conformed = conform(each, columns)
                except REFUSED:
                    continue
                encoded = preprocessing(columns).fit_transform(conformed)
                assert len(unusual_values(each, columns)) == len(each)
                drift(each, columns)
            assert [column.name for column in columns] == list(each.columns)
            assert list(conformed.columns) == [column.name for column in columns if column.kind != "dropped"]
            assert encoded.shape[0] == len(each)
            assert np.isfinite(encoded).all()

    check()
