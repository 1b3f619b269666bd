"""Base class of likelihoods: checks of targets, log probabilities for training, predictive distributions.

Shapes: S draws, B batch, * any further dimensions (tokens, outputs). Log probabilities are in nats, per draw and example, summed
over everything else, and at least float32.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from bayesify.core.values import may_look_at
from bayesify.errors import ConfigurationError, DataError, warn
from bayesify.functional import at_least_float32
from bayesify.plain_numbers import plain
from bayesify.predictive.base import Predictive, align_targets, sum_from
from bayesify.predictive.discrete import BernoulliPredictive, CategoricalPredictive

__all__ = ["Likelihood", "check_draws", "check_likelihood"]

_PASSES = 100  # more than anyone accumulates gradients for


class Likelihood(nn.Module, ABC):
    """Distribution of the targets given the network's outputs: what training maximizes and what `predict` returns.

    A subclass passes its constructor arguments on to `super().__init__` and implements the abstract methods; defining it registers
    it. `to_dict` saves the arguments, `state_dict` what was learned.

    Attributes:
        impossible: whether outputs may be minus infinity (an impossible class).
        closed_form: whether `expected_log_prob` is implemented.

    Example:
        >>> Categorical().log_prob(torch.zeros(1, 2, 4), torch.tensor([3, 0]))  # S = 1 draw, B = 2 examples, K = 4 classes
        tensor([[-1.3863, -1.3863]])
    """

    registry: ClassVar[dict[str, type[Likelihood]]] = {}
    impossible: ClassVar[bool] = False
    closed_form: ClassVar[bool] = False
    _has_checked: bool = False
    _has_told: bool = False
    _unchanged: int | None = 0  # calls in which a learned parameter had a gradient and its first value; None: no longer counted
    _first_version: int | None = None
    _without_penalty: int | None = None  # calls in training before the first of `penalty`, if the likelihood needs one

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Likelihood.registry[cls.__name__] = cls

    def __init__(self, **fields: Any) -> None:
        super().__init__()
        self.fields = {name: plain(value) for name, value in fields.items()}  # for JSON

    @abstractmethod
    def check_outputs(self, outputs: Tensor) -> None:
        """Raise DataError unless the draws (S, B, *) have a shape and dtype of this likelihood."""

    def target_shape(self, outputs: Tensor) -> tuple[int, ...]:
        """The shape (B, *) of the targets of draws (S, B, *); by default that of one draw."""
        return tuple(outputs.shape[1:])

    @abstractmethod
    def check_values(self, y: Tensor, outputs: Tensor | None) -> None:
        """Raise TypeError or DataError unless y has valid targets (for these outputs, if given)."""

    def misread(self, outputs: Tensor, y: Tensor | None) -> str:
        """What is wrong with valid draws (S, B, *), or with their targets (B, *) if given; empty if nothing."""
        return ""

    def misfit(self, nll: Sequence[float], y: Tensor) -> str:
        """What is wrong with noise that is not learned, given the NLL on the training data; empty if nothing.

        Args:
            nll: of every epoch, mean over examples and draws, nats.
            y: targets of any examples.
        """
        return ""

    @abstractmethod
    def terms(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Log probability (S, *target_shape) of each target, nats, from outputs (S, B, *) and y (*target_shape).

        Raises:
            TypeError: the likelihood needs integer labels, and y has none.
        """

    @abstractmethod
    def mixture(self, outputs: Tensor) -> Predictive:
        """The predictive distribution of valid draws (S, B, *)."""

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Log probability or density of the targets under each draw.

        Shapes are always checked. Values are checked in the first call only, because looking at them waits for the GPU, and not
        in compiled or vectorized code; `check_targets` checks them at any time.

        Args:
            outputs: (S, B, *), from the network.
            y: (B, *), targets. A trailing dimension of size 1 may be added or missing; nothing is broadcast.

        Returns:
            (S, B), nats, at least float32, summed over the dimensions of one example.

        Raises:
            TypeError, DataError: a shape or type that does not fit; in the first call also values that do not, as NaN.

        Warns:
            BayesifyWarning: training does not change a learned parameter, because the optimizer lacks `likelihood.parameters()`;
                it leaves out the `penalty` of an evidential likelihood; the outputs are probabilities where logits are expected; or
                fixed noise is far above the variation of the targets.
        """
        self.check_outputs(outputs)
        if not torch.compiler.is_compiling() and self._unchanged is not None and torch.is_grad_enabled():
            self._notice_stale_optimizer()
        if not torch.compiler.is_compiling() and self._without_penalty is not None and outputs.requires_grad:
            self._notice_missing_penalty()
        targets = align_targets(y, self.target_shape(outputs))
        if not self._has_checked and may_look_at(y, outputs):
            self.check_values(y, outputs)
            self._has_checked = True
            self._tell_of_misreading(outputs, targets)
        return self._sum_of_terms(outputs, targets)

    def _notice_stale_optimizer(self) -> None:
        learned = next(((name, p) for name, p in self.named_parameters() if p.requires_grad and p.is_leaf), None)
        if learned is None or self._unchanged is None:
            return
        name, parameter = learned
        self._first_version = parameter._version if self._first_version is None else self._first_version
        self._unchanged += parameter.grad is not None  # `zero_grad` of an optimizer that has it would remove it
        if parameter._version != self._first_version:
            self._unchanged = None
        elif self._unchanged > _PASSES:
            self._unchanged = None
            warn(f"{name} of {self!r} has gradients, but does not change: give likelihood.parameters() to the optimizer")

    def _notice_missing_penalty(self) -> None:
        assert self._without_penalty is not None
        self._without_penalty += 1
        if self._without_penalty > _PASSES:
            self._without_penalty = None
            warn(
                f"training leaves out the penalty of {self!r}, without which its epistemic uncertainty means nothing: give elbo "
                "likelihood.log_prob(outputs, y) - beta * likelihood.penalty(outputs, y), or use fit"
            )

    def _tell_of_misreading(self, outputs: Tensor, y: Tensor | None = None) -> None:
        self._has_told = True
        if text := self.misread(outputs, y):
            warn(text)

    def log_prob_of_samples(self, outputs: Tensor, y: Tensor) -> Tensor:
        """As `log_prob`, without a look at the values of targets, which `sample` drew."""
        return self._sum_of_terms(outputs, align_targets(y, self.target_shape(outputs)))

    def _sum_of_terms(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return sum_from(self.terms(at_least_float32(outputs), targets), 2)

    def penalty(self, outputs: Tensor, y: Tensor) -> Tensor | None:
        """What training subtracts from `log_prob`, weighted by `beta`, of each example under each draw: (S, B), nats, or None."""
        return None

    def expected_terms(self, mean: Tensor, std: Tensor, y: Tensor) -> Tensor:
        """Expectation of `terms` over independent normal outputs (1, B, *), where it has a closed form."""
        raise NotImplementedError(f"the expectation of {type(self).__name__} has no closed form; draw outputs")

    def uncorrelated(self, mean: Tensor, covariance: Tensor) -> Tensor:
        """Mean (1, B, K) of independent normal outputs with the expectation that this mean and covariance (1, B, K, K) give.

        The mean itself if every term of `log_prob` depends on a single output.
        """
        return mean

    def expected_log_prob(self, mean: Tensor, std: Tensor, y: Tensor, covariance: Tensor | None = None) -> Tensor:
        """Expectation of `log_prob` over normal outputs.

        Args:
            mean, std: moments of the outputs, (B, *).
            y: as for `log_prob`.
            covariance: of the outputs of an example, (B, K, K); None for independent outputs.

        Returns:
            (B,), nats, at least float32, summed over the dimensions of one example.

        Raises:
            NotImplementedError: it has no closed form.
            DataError: a shape that does not fit.
        """
        mean, std = at_least_float32(mean).unsqueeze(0), at_least_float32(std).unsqueeze(0)
        self.check_outputs(mean)
        if covariance is not None:
            mean = self.uncorrelated(mean, at_least_float32(covariance).unsqueeze(0))
        return sum_from(self.expected_terms(mean, std, align_targets(y, self.target_shape(mean))), 2).squeeze(0)

    def forward(self, outputs: Tensor, y: Tensor) -> Tensor:
        """`log_prob`, for wrappers of modules such as DistributedDataParallel."""
        return self.log_prob(outputs, y)

    def predictive(self, outputs: Tensor) -> Predictive:
        """The predictive distribution of one batch of draws (S, B, *).

        Raises:
            DataError: a shape that does not fit, NaN or infinity.
        """
        self.check_outputs(outputs)
        invalid = outputs.isnan() | (outputs == math.inf) if self.impossible else ~outputs.isfinite()
        if invalid.any():
            raise DataError(
                f"outputs must be finite, got NaN or infinity in {int(invalid.sum())} of {outputs.numel()} values, "
                f"{int(invalid.flatten(1).any(1).sum())} of {outputs.shape[0]} draws; training diverged or the precision is too low"
            )
        if not self._has_told and may_look_at(outputs):
            self._tell_of_misreading(outputs)
        return self.mixture(at_least_float32(outputs.detach()))

    def sample(self, outputs: Tensor) -> Tensor:
        """Draw one target for every draw and example, noise included, without gradients.

        Args:
            outputs: (S, B, *), from the network.

        Returns:
            (S, B, *), targets of `log_prob` for each draw.

        Raises:
            DataError: as `predictive`.
        """
        predictive = self.predictive(outputs.detach().flatten(0, 1).unsqueeze(0))
        if isinstance(predictive, BernoulliPredictive):
            targets = torch.bernoulli(predictive.probs)
        elif isinstance(predictive, CategoricalPredictive):
            targets = torch.distributions.Categorical(logits=predictive.log_probs, validate_args=False).sample()
        else:
            targets = cast(Any, predictive).sample().squeeze(0)
        return targets.unflatten(0, outputs.shape[:2])

    def check_targets(self, y: Tensor, outputs: Tensor | None = None) -> None:
        """Check all targets once, before training.

        Args:
            y: (N, *), all targets.
            outputs: draws (S, N, *), to also check the shape and the number of classes.

        Raises:
            TypeError: not a tensor, or labels that are not integers.
            DataError: NaN, infinity, labels out of range, a shape that does not fit.
        """
        if not isinstance(y, Tensor):
            raise TypeError(f"y must be a torch.Tensor, got {type(y).__name__}; use torch.as_tensor(y)")
        if outputs is not None:
            self.check_outputs(outputs)
            align_targets(y, self.target_shape(outputs))
        self.check_values(y, outputs)

    def to_dict(self) -> dict[str, Any]:
        """Name and constructor arguments, for JSON; learned values are in `state_dict`."""
        return {"likelihood": type(self).__name__, **self.fields}

    @staticmethod
    def from_dict(fields: dict[str, Any]) -> Likelihood:
        """Build a likelihood from the result of `to_dict`.

        Raises:
            ConfigurationError: an unknown likelihood or field.

        Example:
            >>> Likelihood.from_dict({"likelihood": "gaussian", "std": 0.5})
            Gaussian(std=0.5, learn=False)
        """
        values = dict(fields)
        kind = Likelihood.named(values.pop("likelihood", None))
        names = list(inspect.signature(kind).parameters)
        if unknown := sorted(set(values) - set(names)):
            raise ConfigurationError(
                f"{kind.__name__} has no field {', '.join(map(repr, unknown))}; its fields are {', '.join(names) or 'none'}"
            )
        return kind(**values)

    @staticmethod
    def named(name: object) -> type[Likelihood]:
        """The registered likelihood class of that name, ignoring case.

        Raises:
            ConfigurationError: there is none.
        """
        by_name = {key.lower(): kind for key, kind in Likelihood.registry.items()}
        if str(name).lower() not in by_name:
            raise ConfigurationError(f"unknown likelihood {name!r}; known likelihoods: {', '.join(sorted(Likelihood.registry))}")
        return by_name[str(name).lower()]

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.fields.items())


def check_likelihood(likelihood: object) -> None:
    """Raise a `TypeError` unless it is a likelihood."""
    if not isinstance(likelihood, Likelihood):
        raise TypeError(f"likelihood must be a Likelihood such as Categorical() or Gaussian(learn=True), got {likelihood!r:.80}")


def check_draws(outputs: Tensor, least: int, expected: str) -> None:
    """Raise DataError unless the outputs are floating point with at least `least` dimensions."""
    if outputs.dim() < least or not outputs.is_floating_point():
        raise DataError(f"outputs must be floating point draws {expected}, got {tuple(outputs.shape)}, {outputs.dtype}")
