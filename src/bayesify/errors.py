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
    """Base class of the errors below.

    Example:
        >>> try:
        ...     MCDropout(p=2.0)
        ... except BayesifyError as error:
        ...     print(error)
        p must be a number in [0, 1), got 2.0
    """


class ConfigurationError(BayesifyError, ValueError):
    """An argument, or a combination of arguments, is not possible.

    Example:
        >>> MCDropout(p=2.0)
        Traceback (most recent call last):
            ...
        bayesify.errors.ConfigurationError: p must be a number in [0, 1), got 2.0
    """


class NothingRandomError(ConfigurationError):
    """`bayesify` found no layer to make random.

    Example:
        >>> bayesify(nn.Sequential(nn.Flatten(), nn.ReLU()), MeanField())
        Traceback (most recent call last):
            ...
        bayesify.errors.NothingRandomError: no layer of the network became random: it has no parameters
    """


class DataError(BayesifyError, ValueError):
    """Data are not as required: NaN or infinite, empty, of the wrong shape, not the columns of the training data.

    Example:
        >>> Gaussian(std=0.1).check_targets(torch.tensor([1.0, float("nan")]))
        Traceback (most recent call last):
            ...
        bayesify.errors.DataError: y must be finite, got 1 NaN or infinite of 2 values; drop these examples
    """


class CheckpointError(BayesifyError, ValueError):
    """A training checkpoint cannot be read, or belongs to another training run.

    Attributes:
        path: the checkpoint.
        reason: what is wrong with it, a clause.
        advice: what to do.

    Example:
        >>> import tempfile
        >>> x, bnn = torch.linspace(-1, 1, 64)[:, None], bayesify(nn.Linear(1, 1), MeanField())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for rate in (0.01, 0.02):
        ...         _ = fit(bnn, (x, x), Gaussian(), epochs=1, learning_rate=rate, checkpoint=f"{folder}/run", accelerator="cpu")
        Traceback (most recent call last):
            ...
        bayesify.errors.CheckpointError: ... belongs to another run (learning_rate was 0.01 and is 0.02, ...); ...
    """

    def __init__(self, path: Path, reason: str, advice: str) -> None:
        super().__init__(path, reason, advice)
        self.path, self.reason, self.advice = path, reason, advice

    def __str__(self) -> str:
        return f"training cannot continue from the checkpoint {self.path}: {self.reason}; {self.advice}"


class ModelFileError(BayesifyError, ValueError):
    """A saved model cannot be read: damaged, incomplete, or written by something else.

    Example:
        >>> import tempfile
        >>> from bayesify.persistence import load_model
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     load_model(folder)
        Traceback (most recent call last):
            ...
        bayesify.errors.ModelFileError: ... is not a model directory: it has no config.json
    """


class DivergenceError(BayesifyError, FloatingPointError):
    """Training diverged: a loss, a weight or a prediction is NaN or infinite.

    Example:
        >>> x, bnn = torch.linspace(-1, 1, 64)[:, None], bayesify(nn.Linear(1, 1), MeanField())
        >>> fit(bnn, (x, x), Gaussian(std=0.1), epochs=10, learning_rate=1e30, accelerator="cpu")
        Traceback (most recent call last):
            ...
        bayesify.errors.DivergenceError: the loss became ... in batch 1 of epoch 2. Try ... a lower learning_rate (now 1e+30), ...
    """


class MissingDependencyError(BayesifyError, ImportError):
    """An optional package is not installed.

    Args:
        purpose: what needs the package, as the subject of the sentence.
        package: the package.
        extra: the extra of bayesify that installs it, if there is one.

    Example:
        >>> raise MissingDependencyError("my plot", "seaborn", extra="plots")
        Traceback (most recent call last):
            ...
        bayesify.errors.MissingDependencyError: my plot requires seaborn; install it with: pip install "bayesify[plots]"
    """

    def __init__(self, purpose: str, package: str, *, extra: str | None = None) -> None:
        target = package if extra is None else f'"bayesify[{extra}]"'
        super().__init__(f"{purpose} requires {package}; install it with: pip install {target}")


class ClusterError(BayesifyError, ConnectionError):
    """A cluster cannot be reached, was lost, or has a machine that cannot run jobs."""


class TrackingError(BayesifyError, ConnectionError):
    """A tracking server cannot be reached, or its folder not written.

    Example:
        >>> import tempfile
        >>> from bayesify.tracking import open_run
        >>> with tempfile.NamedTemporaryFile() as file:  # not a folder
        ...     open_run(f"tensorboard:{file.name}")
        Traceback (most recent call last):
            ...
        bayesify.errors.TrackingError: tracking in 'tensorboard:...' is not possible: ...
    """


class PassError(BayesifyError, RuntimeError):
    """A forward pass cannot be run, or cannot be trusted, in this way.

    Example:
        >>> bnn = bayesify(nn.Linear(3, 1), MeanField())
        >>> with bnn.drawn(seed=0):
        ...     bnn(torch.zeros(2, 3))
        Traceback (most recent call last):
            ...
        bayesify.errors.PassError: a draw of this network is held: leave `with bnn.drawn(...)` before other passes, or use a copy
    """


class StaleFunctionError(PassError):
    """A function drawn by `Bayesian.function` was called after its network had been trained or changed.

    Example:
        >>> bnn = bayesify(nn.Linear(3, 1), MeanField())
        >>> f = bnn.function(seed=0)
        >>> _ = nn.init.zeros_(bnn.net.weight)
        >>> f(torch.zeros(2, 3))
        Traceback (most recent call last):
            ...
        bayesify.errors.StaleFunctionError: the network was trained or changed after this function was drawn from it; ...
    """


class ContractError(BayesifyError, AssertionError):
    """A method breaks the contract that `check_method` tests.

    Example:
        >>> from bayesify.testing import LAYERS, References, check_method
        >>> wrong = References(to_prior=lambda layer: None)  # does not move the posterior to the prior
        >>> check_method(MeanField(), {"Linear": LAYERS["Linear"]}, wrong, nets=())
        Traceback (most recent call last):
            ...
        bayesify.errors.ContractError: MeanField(...) on Linear fails the check of kl: the KL at the prior is ...
    """


class BayesifyWarning(UserWarning):
    """Something works differently from what one might expect: slower, or on fewer layers.

    Example:
        >>> import warnings
        >>> draws = bayesify(nn.Linear(3, 1), MeanField())(torch.zeros(64, 3))
        >>> with warnings.catch_warnings(action="error", category=BayesifyWarning):
        ...     elbo(draws, Gaussian().log_prob(draws.outputs, torch.zeros(64)), n=8)
        Traceback (most recent call last):
            ...
        bayesify.errors.BayesifyWarning: n=8 is smaller than the batch of 64 examples: ...
    """


_THROUGH = ("bayesify", "torch", "lightning", "transformers", "accelerate")


def warn(message: str) -> None:
    """Issue a `BayesifyWarning` that points at the first caller outside this library, PyTorch and trainers."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _THROUGH:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, BayesifyWarning, stacklevel=level)
