"""The page of errata: the tests that it names exist; proofs that no other test gives."""

import math
import re
from pathlib import Path

import pytest
import torch
from scipy import integrate, stats

from bayesify.functional import householder, log_uniform_kl

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "errata.md").read_text()
NAMED = sorted(set(re.findall(r"`(test_\w+\.py)::(test_\w+)`", PAGE)))


@pytest.mark.parametrize(("file", "test"), NAMED, ids=[test for _, test in NAMED])
def test_named_tests_exist(file: str, test: str) -> None:
    (found,) = (ROOT / "tests").rglob(file)
    assert f"def {test}(" in found.read_text()


def test_every_row_has_a_proof() -> None:
    rows = re.findall(r"^\| ([VWEFK]\d+) \|.*\|$", PAGE, re.MULTILINE)
    assert len(rows) == len(set(rows)) == 52
    for line in PAGE.splitlines():
        if re.match(r"\| [VWEFK]\d+ \|", line):
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            assert len(cells) == 4
            assert all(cell.strip() for cell in cells), line


def test_the_posterior_of_vsd_is_singular_with_and_without_reflections() -> None:
    """V7: draws of vec(W) span as many dimensions as there are noise variables, and the same ones."""
    k, q = 5, 3
    theta = torch.randn(k, q, dtype=torch.float64)
    eps = torch.randn(200, k, dtype=torch.float64) * torch.rand(k, dtype=torch.float64)
    draws = [((1 + noise).unsqueeze(2) * theta).flatten(1) for noise in (eps, householder(torch.randn(2, k).double(), eps))]
    assert [torch.linalg.matrix_rank(each).item() for each in draws] == [k, k]
    assert torch.linalg.matrix_rank(torch.cat(draws)).item() == k < k * q


@pytest.mark.parametrize("samples", [1, 2, 10])
def test_the_running_mean_of_emp_averages_a_zero_in(samples: int) -> None:
    """E1: the printed recursion."""
    outputs = torch.randn(samples, dtype=torch.float64)
    mean = torch.zeros((), dtype=torch.float64)
    for s, output in enumerate(outputs, start=1):
        mean = mean + (output - mean) / (s + 1)
    torch.testing.assert_close(mean, torch.cat([outputs, outputs.new_zeros(1)]).mean())


@pytest.mark.parametrize("apart", [0.0, 1.0, 8.0])
def test_a_mixture_has_at_least_the_mean_entropy_of_its_components(apart: float) -> None:
    """E2, for two normals, by quadrature; far apart both bounds differ by the entropy of the choice."""
    p, stds = (0.3, 0.7), (0.5, 1.2)

    def density(x: float) -> float:
        return sum(weight * stats.norm.pdf(x, k * apart, std) for k, (weight, std) in enumerate(zip(p, stds, strict=True)))

    entropy = integrate.quad(lambda x: -density(x) * math.log(density(x)), -10, 20, limit=500, points=[0.0, apart])[0]
    mean = sum(weight * stats.norm.entropy(scale=std) for weight, std in zip(p, stds, strict=True))
    choice = stats.entropy(p)
    assert mean - 1e-9 <= entropy <= mean + choice + 1e-9
    assert entropy - mean == pytest.approx(choice, abs=1e-3) if apart == 8 else entropy < mean + choice - 0.01


def test_the_expected_log_of_the_noise_changes_its_sign() -> None:
    """K1: E log|N(1, alpha)| by quadrature, and the bound that the KL violates where it is positive."""

    def mean(alpha: float) -> float:
        def integrand(x: float) -> float:
            return math.log(abs(x)) * stats.norm.pdf(x, 1, math.sqrt(alpha))

        return sum(integrate.quad(integrand, *ends, limit=200)[0] for ends in ((-40, 0), (0, 1), (1, 42)))

    constant = (0.5772156649015329 + math.log(2)) / 2
    for alpha, sign in ((2.41, -1), (2.43, 1)):
        assert mean(alpha) * sign > 0
        bound = constant - 0.5 * math.log(alpha)
        kl = log_uniform_kl(torch.tensor(math.log(alpha), dtype=torch.float64)).item()
        assert (kl - bound) * sign > 0
        assert kl - bound == pytest.approx(mean(alpha), abs=1e-6)
