"""Random features and inducing points: functions with known values, kernels, equal numbers of parameters, missing packages."""

import math
from importlib.util import find_spec

import pytest
import torch
from experiments.harness.config import read_table
from experiments.harness.protocol import Context, Job, Table, UnitError
from experiments.protocols.random_features import RandomFeatures, _split
from experiments.protocols.random_features.functions import FUNCTIONS
from experiments.protocols.random_features.models import (
    Data,
    Features,
    Fit,
    inducing_of,
    sparse_process,
    variational,
    whvi_parameters,
)

F64 = torch.float64


def at(name: str, *x: float) -> float:
    return float(FUNCTIONS[name].value(torch.tensor([x], dtype=F64)))


def context() -> Context:
    return Context(None, lambda share: None, lambda units: None)


class TestFunctions:
    def test_hartman6_at_its_minimum(self) -> None:
        assert at("hartman6", 0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573) == pytest.approx(-3.32237, abs=1e-5)

    def test_rastrigin5_at_its_minimum_and_at_a_corner(self) -> None:
        assert at("rastrigin5", *[0.5] * 5) == pytest.approx(0.0, abs=1e-9)
        one = 0.5 + 1 / 10.24  # z = 1, where the cosine is 1 again
        assert at("rastrigin5", one, *[0.5] * 4) == pytest.approx(1.0)

    def test_the_robot_arm_stretched_and_folded(self) -> None:
        assert at("robot", 0, 0, 0, 0, 1, 0.5, 0.25, 0.25) == pytest.approx(2.0)
        assert at("robot", 0.3, 0.5, 0, 0, 1, 1, 0, 0) == pytest.approx(0.0, abs=1e-9)  # the second segment points back
        assert at("robot", 0.1, 0.25, 0, 0, 0.6, 0.8, 0, 0) == pytest.approx(1.0)  # a right angle

    def test_borehole_at_published_nominal_values(self) -> None:
        """r_w 0.10, r 25050 and the middle of the other ranges, written out by the formula of a serial flow resistance."""
        radius, influence, t_u, t_l, length, k = 0.10, 25050.0, 89335.0, 89.55, 1400.0, 10950.0
        log_ratio = math.log(influence / radius)
        radial = log_ratio / (2 * math.pi * t_u)  # resistances of aquifer, lower aquifer and hole add
        lower, hole = log_ratio / (2 * math.pi * t_l), length / (math.pi * radius**2 * k)
        assert at("borehole", *[0.5] * 8) == pytest.approx((1050 - 760) / (radial + lower + hole))

    def test_otlcircuit_with_an_infinite_gain(self) -> None:
        """The feedback resistor matters less the larger the gain; voltages are those of a divider."""
        x = torch.tensor([[0.5, 0.5, 0.0, 0.5, 1.0, 1.0]], dtype=F64)
        divider = 12 * 47.5 / (100 + 47.5) + 0.74
        beta = 300 * (1.2 + 9)
        expected = (divider * beta + 11.35 * 0.5 + 0.74 * 0.5 * beta / 1.85) / (beta + 0.5)
        assert float(FUNCTIONS["otlcircuit"].value(x)) == pytest.approx(expected)

    @pytest.mark.parametrize("name", FUNCTIONS)
    def test_splits(self, name: str) -> None:
        train, test, std = _split(name, 500, 3)
        assert (len(train.x), len(test.x), train.x.shape[1]) == (100, 400, FUNCTIONS[name].inputs)
        assert not (train.x.unsqueeze(1) == test.x).all(2).any()
        y = FUNCTIONS[name].value(torch.cat([train.x, test.x]).double())
        torch.testing.assert_close(y[:100].std(), torch.tensor(std, dtype=F64), rtol=1e-4, atol=0)
        torch.testing.assert_close((y - y[:100].mean()) / std, torch.cat([train.y, test.y]).double(), rtol=1e-3, atol=1e-3)


class TestModels:
    def test_features_have_the_kernel(self) -> None:
        torch.manual_seed(0)
        features, x = Features(3, 100_000), torch.rand(5, 3)
        with torch.no_grad():
            features.log_lengths.copy_(torch.tensor([0.3, 1.0, 2.0]).log())
            features.log_variance.fill_(math.log(2.5))
            phi = features(x)
        scaled = x / torch.tensor([0.3, 1.0, 2.0])
        expected = 2.5 * torch.exp(-0.5 * torch.cdist(scaled, scaled).square())
        torch.testing.assert_close(phi @ phi.T, expected, rtol=0, atol=2.5 * 5 / math.sqrt(100_000))

    @pytest.mark.parametrize(("full", "expected"), [(False, 4 * 32), (True, 3 * 32 + 32 * 33 // 2)])
    def test_numbers_of_parameters(self, full: bool, expected: int) -> None:
        """WHVI for 1,024 weights in a matrix of 32 x 32: two scales, a mean, and standard deviations or a triangle."""
        assert whvi_parameters(1024, full) == expected
        count = inducing_of(expected, 6, full)
        assert _parameters(count, full) >= expected > _parameters(count - 1, full)

    @pytest.mark.default("diagonal-WHVI", extended=["*-mean-field", "full-WHVI"])
    @pytest.mark.parametrize("name", ["WHVI", "mean-field", "sparse GP"])
    @pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
    def test_they_learn_a_smooth_function(self, name: str, full: bool) -> None:
        if name == "sparse GP":
            pytest.importorskip("gpytorch")
        torch.manual_seed(0)
        x, new = torch.rand(300, 2), torch.rand(100, 2)
        fit, data = Fit(400, 200, 2e-2, 0.1, full), Data(x, 1.4 * torch.sin(4 * x[:, 0]))
        shares: list[float] = []
        if name == "sparse GP":
            found = sparse_process(20, data, new, fit, 0, shares.append)
            assert found.parameters == 20 * 2 + 20 + (20 * 21 // 2 if full else 20)
        else:
            found = variational(name, 256, data, new, fit, 0, shares.append)
            assert found.parameters == (512 if name == "mean-field" else whvi_parameters(256, full))
        truth = 1.4 * torch.sin(4 * new[:, 0])
        assert (found.mean - truth).square().mean().sqrt() < 0.35 * truth.std()
        assert (found.variance > 0).all()
        assert shares[-1] == 1.0


def _parameters(count: int, full: bool) -> int:
    """Inducing inputs in six dimensions, means, and a triangle or a diagonal."""
    return 6 * count + count + (count * (count + 1) // 2 if full else count)


def _quick() -> tuple[RandomFeatures, Table, list[Job]]:
    protocol, table = RandomFeatures(), read_table("whvi/figure13", quick=True)
    return protocol, table, protocol.jobs(table)


def test_the_quick_run_and_its_report(monkeypatch: pytest.MonkeyPatch) -> None:
    protocol, table, jobs = _quick()
    assert len({job.key for job in jobs}) == len(jobs) == 5  # mean field has no full covariance
    monkeypatch.setattr("experiments.protocols.random_features.find_spec", lambda name: None)
    results = {}
    for job in jobs:
        if job.settings["method"] == "sparse GP":
            with pytest.raises(UnitError, match="gpytorch is not installed: pip install gpytorch"):
                protocol.run(job, job.units, context())
        else:
            results[job.key] = protocol.run(job, job.units, context())
    report = protocol.report(table, jobs, results)
    assert "| otlcircuit | diagonal | WHVI | 16 features | 16 |" in report
    assert "sparse GP" not in report
    assert protocol.figure(table, jobs, results) is not None


@pytest.mark.skipif(find_spec("gpytorch") is None, reason="gpytorch is not installed")
def test_the_sparse_process_of_the_quick_run() -> None:
    protocol, _, jobs = _quick()
    for job in jobs:
        if job.settings["method"] == "sparse GP":
            unit = protocol.run(job, ["0"], context())["0"]
            assert unit["parameters"] >= whvi_parameters(16, job.settings["covariance"] == "full")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": [32]}, "features must be powers of four"),
        ({"functions": ["boston"]}, "functions must be"),
        ({"learning_rate": {}}, "learning_rate needs a value for 'other'"),
    ],
)
def test_settings(change: dict, message: str) -> None:
    protocol, table, _ = _quick()
    with pytest.raises(ValueError, match=message):
        protocol.jobs(Table(**{**vars(table), "settings": {**table.settings, **change}}))
