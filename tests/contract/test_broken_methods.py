"""Methods with one fault each are rejected by the check that is there for it, with and without `assert` statements."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from broken_methods import FAULTS, Broken, Estimating, verdict

from bayesify import MCDropout
from bayesify.core.method import Method
from bayesify.errors import ContractError
from bayesify.testing import LAYERS, Case, References, check_method
from bayesify.testing.layer_checks import check_kl
from bayesify.testing.nets import TwoLayers
from bayesify.testing.trial import Trial, fixed_inputs, require_equal_moments
from bayesify.testing.usage_checks import check_kl_of_larger_layers

_CHECKS = {
    "": "",
    "variance": "fails the check of moments",
    "variances of other weights": "fails the check of moments",
    "mean KL": "fails the check of kl",
    "KL of one variance": "fails the check of kl",
    "refilled buffer": "fails the check of accumulated gradients",
    "gradient of sigma": "fails the check of gradients numerically",
    "noise of predictions": "fails the check of noise of predictions",
    "unregistered state": "fails the check of copies",
    "ignored checkpoint": "fails the check of plain checkpoint",
    "misspelled means": "fails the check of declared means",
    "error in build": "cannot be converted: IndexError: of a hyperparameter",
}

# Compiles bayesify as `python -O` does; that flag would compile all of PyTorch anew, too.
_WITHOUT_ASSERT = """
import runpy, sys
from importlib.machinery import SourceFileLoader

load = SourceFileLoader.get_code

def get_code(loader, name):
    if name.partition(".")[0] != "bayesify":
        return load(loader, name)
    return compile(loader.get_data(loader.path), loader.path, "exec", dont_inherit=True, optimize=1)

SourceFileLoader.get_code = get_code
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.extended
def test_faults_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Method.registry, "Broken", Broken)
    _require_verdicts({fault: " ".join(verdict(fault).split()) for fault in FAULTS})


@pytest.mark.slow
def test_faults_are_found_without_assert_statements() -> None:
    command = [sys.executable, "-c", _WITHOUT_ASSERT, Path(__file__).with_name("broken_methods.py")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr
    _require_verdicts(dict(line.split("\t") for line in result.stdout.splitlines()))


def _require_verdicts(verdicts: dict[str, str]) -> None:
    assert verdicts.keys() == _CHECKS.keys()
    assert not verdicts[""], "without a fault it passes"
    for fault, text in verdicts.items():
        assert _CHECKS[fault] in text, f"{fault}: {text}"


def test_a_method_that_supports_no_layer_breaks_the_contract() -> None:
    with pytest.raises(ContractError, match="supports none"):
        check_method(MCDropout(), {"LayerNorm": LAYERS["LayerNorm"]}, nets=())


@pytest.mark.parametrize("fault", ["", "variance"])
def test_moments_of_networks_tell_a_factor_of_two(fault: str) -> None:
    torch.manual_seed(11)
    trial = Trial(Broken(fault=fault), TwoLayers, (fixed_inputs(5, 4),))
    if fault:
        with pytest.raises(ContractError, match="variance"):
            trial.require_equal_moments()
    else:
        trial.require_equal_moments()


def test_a_mean_in_place_of_the_sum_is_found_without_references() -> None:
    check_kl_of_larger_layers(Broken())
    with pytest.raises(ContractError, match="a sum over parameters, not their mean"):
        check_kl_of_larger_layers(Broken(fault="mean KL"))


def test_a_kl_of_passes_that_grows_with_the_draws_is_found() -> None:
    """Estimates differ between passes, so their means are compared."""
    check_kl(Case(Estimating(), LAYERS["Linear"], References(noisy_kl=True)))
    with pytest.raises(ContractError, match="the KL of passes with three draws"):
        check_kl(Case(Estimating(sums_draws=True), LAYERS["Linear"], References(noisy_kl=True)))


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_comparisons_of_moments_tell_a_factor_of_two(factor: float) -> None:
    truth, y = torch.randn(2, 800, 5, dtype=torch.float64)
    require_equal_moments(y, truth)
    with pytest.raises(ContractError, match="variance"):
        require_equal_moments(factor**0.5 * y, truth)
