"""Errors and the warning of this library.

Each error is also the built-in exception that it refines, so `except ValueError` keeps working.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

__all__ = [
    "BayesifyError",
    "BayesifyWarning",
    "CheckpointError",
    "ClusterError",
    "ConfigurationError",
    "ContractError",
    "DataError",
    "DivergenceError",
    "MissingDependencyError",
    "ModelFileError",
    "NothingRandomError",
    "PassError",
    "StaleFunctionError",
    "TrackingError",
    "warn",
]


class BayesifyError(Exception):
    """Base class of the errors below."""


class ConfigurationError(BayesifyError, ValueError):
    """An argument, or a combination of arguments, is not possible."""


class NothingRandomError(ConfigurationError):
    """`bayesify` found no layer to make random."""


class DataError(BayesifyError, ValueError):
    """Data are not as required: NaN or infinite, empty, of the wrong shape, not the columns of the training data."""


class CheckpointError(BayesifyError, ValueError):
    """A training checkpoint cannot be read, or belongs to another training run.

    Attributes:
        path: the checkpoint.
        reason: what is wrong with it, a clause.
        advice: what to do.
    """

    def __init__(self, path: Path, reason: str, advice: str) -> None:
        super().__init__(path, reason, advice)
        self.path, self.reason, self.advice = path, reason, advice

    def __str__(self) -> str:
        return f"training cannot continue from the checkpoint {self.path}: {self.reason}; {self.advice}"


class ModelFileError(BayesifyError, ValueError):
    """A saved model cannot be read: damaged, incomplete, or written by something else."""


class DivergenceError(BayesifyError, FloatingPointError):
    """Training diverged: a loss, a weight or a prediction is NaN or infinite."""


class MissingDependencyError(BayesifyError, ImportError):
    """An optional package is not installed.

    Args:
        purpose: what needs the package, as the subject of the sentence.
        package: the package.
        extra: the extra of bayesify that installs it.
    """

    def __init__(self, purpose: str, package: str, *, extra: str) -> None:
        super().__init__(f'{purpose} requires {package}; install it with: pip install "bayesify[{extra}]"')


class ClusterError(BayesifyError, ConnectionError):
    """A cluster cannot be reached, was lost, or has a machine that cannot run jobs."""


class TrackingError(BayesifyError, ConnectionError):
    """A tracking server cannot be reached, or its folder not written."""


class PassError(BayesifyError, RuntimeError):
    """A forward pass cannot be run, or cannot be trusted, in this way."""


class StaleFunctionError(PassError):
    """A function drawn by `Bayesian.function` was called after its network had been trained or changed."""


class ContractError(BayesifyError, AssertionError):
    """A method breaks the contract that `check_method` tests."""


class BayesifyWarning(UserWarning):
    """Something works differently from what one might expect: slower, or on fewer layers."""


def warn(message: str) -> None:
    """Issue a `BayesifyWarning` that points at the first caller outside this library and PyTorch."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("bayesify", "torch"):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, BayesifyWarning, stacklevel=level)
