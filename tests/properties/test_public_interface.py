"""Properties of the most used functions for many generated inputs: right, or an error of this library that names the problem."""

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayesify import (
    Bernoulli,
    Categorical,
    EvidentialCategorical,
    EvidentialGaussian,
    Gaussian,
    GaussianMixture,
    HeteroscedasticGaussian,
    MCDropout,
    MeanField,
    NegativeBinomial,
    Ordinal,
    Poisson,
    bayesify,
    fit,
    predict,
)
from bayesify.conformal import ConformalIntervals, ConformalSets, conformal_rank, least_rows
from bayesify.errors import BayesifyError
from bayesify.metrics import balanced_accuracy, maximum_calibration_error, reliability
from bayesify.predictive import CategoricalPredictive, GaussianPredictive

QUICK = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, database=None)
F64 = torch.float64
seeds, sizes = st.integers(0, 2**20), st.integers(1, 5)
REFUSED = (BayesifyError, TypeError)

# likelihood, outputs per row, and targets of a seed
LIKELIHOODS: dict[str, tuple[Any, int, str]] = {
    "Gaussian": (lambda: Gaussian(std=0.7), 1, "real"),
    "HeteroscedasticGaussian": (HeteroscedasticGaussian, 2, "real"),
    "GaussianMixture": (lambda: GaussianMixture(components=2), 6, "real"),
    "EvidentialGaussian": (EvidentialGaussian, 4, "real"),
    "Categorical": (Categorical, 3, "class"),
    "EvidentialCategorical": (EvidentialCategorical, 3, "class"),
    "Ordinal": (lambda: Ordinal(3), 1, "class"),
    "Bernoulli": (Bernoulli, 1, "binary"),
    "Poisson": (Poisson, 1, "count"),
    "NegativeBinomial": (lambda: NegativeBinomial(0.5), 1, "count"),
    "NegativeBinomial per row": (lambda: NegativeBinomial(0.5, per_row=True), 2, "count"),
}


def normal(seed: int, *shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def targets(kind: str, seed: int, rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed + 1)
    if kind == "real":
        return torch.randn(rows, generator=generator, dtype=F64)
    return torch.randint({"class": 3, "binary": 2, "count": 6}[kind], (rows,), generator=generator)


@pytest.mark.parametrize("name", LIKELIHOODS)
@QUICK
@given(seed=seeds, s=sizes, b=sizes, scale=st.sampled_from([0.1, 1.0, 3.0]))
def test_a_predictive_is_the_mixture_of_the_likelihoods_of_its_draws(name: str, seed: int, s: int, b: int, scale: float) -> None:
    make, width, kind = LIKELIHOODS[name]
    likelihood, y = make().double(), targets(kind, seed, b)
    outputs = normal(seed, s, b, width, scale=scale)
    outputs = outputs.squeeze(-1) if width == 1 else outputs
    log_prob = likelihood.log_prob(outputs, y)
    assert log_prob.shape == (s, b)
    mixture = likelihood.predictive(outputs).log_prob(y)
    torch.testing.assert_close(mixture.double(), log_prob.detach().logsumexp(0) - math.log(s), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [name for name, (_, _, kind) in LIKELIHOODS.items() if kind != "real"])
@QUICK
@given(seed=seeds, s=sizes, scale=st.sampled_from([0.1, 1.0]))
def test_probabilities_sum_to_one(name: str, seed: int, s: int, scale: float) -> None:
    make, width, kind = LIKELIHOODS[name]
    outputs = normal(seed, s, 1, width, scale=scale)
    outputs = outputs.squeeze(-1) if width == 1 else outputs
    predictive = make().double().predictive(outputs)
    most = {"class": 3, "binary": 2, "count": 4000}[kind]
    total = sum(float(predictive.log_prob(torch.tensor([k])).exp()) for k in range(min(most, 200)))
    tail = 1 - float(predictive.cdf(torch.tensor([199.0]))) if kind == "count" else 0.0
    assert total + tail == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("name", [name for name, (_, _, kind) in LIKELIHOODS.items() if kind in ("real", "count")])
@QUICK
@given(seed=seeds, s=sizes, b=sizes, q=st.floats(0.01, 0.99))
def test_quantiles_invert_the_distribution(name: str, seed: int, s: int, b: int, q: float) -> None:
    make, width, kind = LIKELIHOODS[name]
    outputs = normal(seed, s, b, width)
    predictive = make().double().predictive(outputs.squeeze(-1) if width == 1 else outputs)
    at = predictive.quantile(q)
    if kind == "real":
        torch.testing.assert_close(predictive.cdf(at).double(), torch.full((b,), q, dtype=F64), rtol=0, atol=1e-4)
    else:
        assert (predictive.cdf(at) >= q - 1e-6).all()
        assert (predictive.cdf(at - 1) < q + 1e-6).all()
    density = (predictive.cdf(at + 1e-4) - predictive.cdf(at - 1e-4)) / 2e-4
    if kind == "real":
        torch.testing.assert_close(density.double(), predictive.log_prob(at).exp().double(), rtol=1e-2, atol=1e-3)


@QUICK
@given(seeds, st.sampled_from([MeanField(), MCDropout()]), st.integers(1, 12), st.integers(1, 7), st.integers(1, 12), st.booleans())
def test_predictions_do_not_depend_on_batches_and_chunks(
    seed: int, method: Any, rows: int, samples: int, size: int, heteroscedastic: bool
) -> None:
    torch.manual_seed(seed)
    likelihood = HeteroscedasticGaussian() if heteroscedastic else Gaussian(std=0.3)
    bnn = bayesify(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1 + heteroscedastic)).double(), method)
    x, order = normal(seed, rows, 3), torch.randperm(rows)
    whole = predict(bnn, x, likelihood, samples=samples, seed=seed, coherent=True)
    parts = predict(bnn, x[order], likelihood, samples=samples, seed=seed, coherent=True, batch_size=size)
    assert whole.mean.shape == (rows,)
    torch.testing.assert_close(parts.mean, whole.mean[order], rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(parts.variance, whole.variance[order], rtol=1e-9, atol=1e-10)


@QUICK
@given(
    st.lists(st.integers(0, 4), min_size=0, max_size=4),
    st.sampled_from([torch.float16, torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64]),
    st.sampled_from([0.0, 1.0, 1e30, math.nan, math.inf]),
    st.integers(-1, 3),
)
def test_predictions_of_any_inputs(shape: list[int], dtype: torch.dtype, value: float, samples: int) -> None:
    torch.manual_seed(0)
    bnn = bayesify(nn.Linear(3, 1), MeanField())
    inputs = torch.full(shape, value if dtype.is_floating_point else 1.0).to(dtype)
    try:
        found = predict(bnn, inputs, Gaussian(std=0.1), samples=samples, seed=0, progress=False)
    except REFUSED:
        return
    except RuntimeError:  # of the network: shapes and dtypes are its own
        assert shape[-1:] != [3] or not dtype.is_floating_point
        return
    assert samples >= 1
    assert found.mean.shape[0] == shape[0] > 0
    assert found.mean.isfinite().all()
    assert (found.variance >= 0).all()


@QUICK
@given(seeds, st.integers(1, 60), st.floats(0.5, 0.99), st.booleans())
def test_conformal_intervals_cover_the_rank_of_their_calibration_rows(seed: int, rows: int, level: float, wide: bool) -> None:
    means, y = normal(seed, 4, rows), normal(seed + 1, rows, scale=2.0)
    predictive = GaussianPredictive(means, normal(seed + 2, 4, rows).exp() * (10 if wide else 0.1))
    intervals = ConformalIntervals.calibrate(predictive, y)
    if rows < least_rows(level):
        with pytest.raises(BayesifyError, match="needs at least"):
            intervals.interval(predictive, level)
        return
    lower, upper = intervals.interval(predictive, level)
    inside = int(((lower - 1e-9 <= y) & (y <= upper + 1e-9)).sum())
    assert inside >= conformal_rank(rows, level) >= level * rows
    assert (lower <= upper).all()


@QUICK
@given(seeds, st.integers(1, 60), st.integers(2, 5), st.floats(0.5, 0.99))
def test_conformal_sets_cover_the_rank_of_their_calibration_rows(seed: int, rows: int, k: int, level: float) -> None:
    predictive = CategoricalPredictive.from_logits(normal(seed, 3, rows, k, scale=2.0))
    y = torch.randint(k, (rows,), generator=torch.Generator().manual_seed(seed))
    calibrated = ConformalSets.calibrate(predictive, y)
    if rows < least_rows(level):
        with pytest.raises(BayesifyError, match="needs at least"):
            calibrated.sets(predictive, level)
        return
    sets = calibrated.sets(predictive, level)
    assert sets.shape == (rows, k)
    assert int(sets[torch.arange(rows), y].sum()) >= conformal_rank(rows, level)


@QUICK
@given(seeds, st.integers(1, 30), st.integers(2, 4), st.integers(1, 12))
def test_metrics_of_classes(seed: int, n: int, k: int, bins: int) -> None:
    probs = normal(seed, n, k, scale=2.0).softmax(-1)
    y = torch.randint(k, (n,), generator=torch.Generator().manual_seed(seed))
    p, label = probs.numpy(), y.numpy()
    recalls = [(p.argmax(1) == label)[label == c].mean() for c in range(k) if (label == c).any()]
    assert float(balanced_accuracy(probs, y)) == pytest.approx(np.mean(recalls))
    diagram = reliability(probs, y, bins=bins)
    index = np.minimum((p.max(1) * bins).astype(int), bins - 1)
    gaps = [abs((p.max(1) - (p.argmax(1) == label))[index == i].mean()) for i in range(bins) if (index == i).any()]
    assert int(diagram.count.sum()) == n
    assert float(maximum_calibration_error(probs, y, bins=bins)) == pytest.approx(max(gaps), abs=1e-6)


@settings(QUICK, max_examples=15)
@given(
    st.sampled_from([0, -1, 1, 2, 1.5, math.nan]), st.sampled_from([0.0, -1.0, 1e-3, 10.0, math.nan, math.inf]),
    st.sampled_from([1, 0, -2, 5, 100]), st.sampled_from([1.0, 0.0, -1.0, math.nan]), st.integers(0, 6),
)  # fmt: skip
def test_training_with_any_numbers(epochs: Any, learning_rate: float, batch_size: int, beta: float, rows: int) -> None:
    torch.manual_seed(0)
    bnn, x = bayesify(nn.Linear(3, 1), MeanField()), normal(0, rows, 3).float()
    before = {name: value.clone() for name, value in bnn.state_dict().items()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            history = fit(
                bnn, (x, x.sum(1)), Gaussian(std=0.5), epochs=epochs, learning_rate=learning_rate, batch_size=batch_size, beta=beta,
                accelerator="cpu", progress=False,
            )  # fmt: skip
    except (BayesifyError, TypeError) as error:
        if not isinstance(error, FloatingPointError):  # refused before any work
            assert all(torch.equal(value, before[name]) for name, value in bnn.state_dict().items())
        return
    assert len(history.loss) == epochs
    assert all(map(math.isfinite, history.loss))
    assert all(value.isfinite().all() for value in bnn.state_dict().values())


def test_estimators_of_any_table() -> None:
    pd = pytest.importorskip("pandas")
    pytest.importorskip("sklearn")
    from bayesify.estimators import BayesianClassifier, BayesianRegressor

    columns = st.sampled_from(["number", "constant", "text", "missing", "huge", "boolean", "empty"])

    @settings(QUICK, max_examples=15)
    @given(seeds, st.lists(columns, min_size=1, max_size=4), st.integers(1, 25), st.booleans())
    def check(seed: int, kinds: list[str], rows: int, classifies: bool) -> None:
        rng = np.random.default_rng(seed)
        made = {
            "number": lambda: rng.normal(size=rows),
            "constant": lambda: np.ones(rows),
            "huge": lambda: 1e30 * rng.normal(size=rows),
            "text": lambda: rng.choice(["a", "b", "c"], rows),
            "boolean": lambda: rng.random(rows) < 0.5,
            "missing": lambda: np.where(rng.random(rows) < 0.5, np.nan, rng.normal(size=rows)),
            "empty": lambda: np.full(rows, np.nan),
        }
        table = pd.DataFrame({f"{kind}{i}": made[kind]() for i, kind in enumerate(kinds)})
        fast: dict[str, Any] = {"method": "MCDropout", "epochs": 1, "samples": 4, "hidden": (4,), "random_state": 0}
        y = rng.choice(["no", "yes"], rows) if classifies else rng.normal(size=rows)
        estimator = (BayesianClassifier if classifies else BayesianRegressor)(**fast)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                estimator.fit(table, y)
            except BayesifyError:
                return
            if classifies:
                probs = estimator.predict_proba(table)
                assert probs.shape == (rows, len(set(y)))
                np.testing.assert_allclose(probs.sum(1), 1, atol=1e-5)
            mean = estimator.predict(table)
        assert mean.shape == (rows,)
        assert classifies or np.isfinite(mean).all()

    check()
