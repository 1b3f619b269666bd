"""What every likelihood does: log probabilities for training, predictive distributions afterwards, checks before.

Shapes: S draws, B batch, * any further dimensions (tokens, outputs). Log probabilities are in nats, per draw and example, summed
over everything else, and at least float32.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import Tensor, nn

from bayesify.functional import at_least_float32
from bayesify.predictive.base import Predictive, align_targets, sum_from

__all__ = ["Likelihood", "check_draws"]


class Likelihood(nn.Module, ABC):
    """How outputs become a probability of the targets: what training maximises and what `predict` returns.

    A new likelihood is a subclass that passes its constructor arguments on to `super().__init__` and fills in the abstract methods;
    naming it makes it known. `to_dict` and `Likelihood.from_dict` save the arguments, `state_dict` what was learned.

    Attributes:
        impossible: whether an output of minus infinity has a meaning (a class that cannot be).
        closed_form: whether `expected_log_prob` is there, the expectation over normal outputs without draws.
    """

    registry: ClassVar[dict[str, type[Likelihood]]] = {}
    impossible: ClassVar[bool] = False
    closed_form: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Likelihood.registry[cls.__name__] = cls

    def __init__(self, **fields: Any) -> None:
        super().__init__()
        self.fields = fields

    @abstractmethod
    def check_outputs(self, outputs: Tensor) -> None:
        """Raise ValueError unless the draws (S, B, *) have a shape and dtype this likelihood can read."""

    @abstractmethod
    def target_shape(self, outputs: Tensor) -> tuple[int, ...]:
        """The shape (B, *) of the targets that belong to the draws (S, B, *)."""

    @abstractmethod
    def check_values(self, y: Tensor, outputs: Tensor | None) -> None:
        """Raise TypeError or ValueError unless y can be a target (of these outputs, where they are known)."""

    @abstractmethod
    def terms(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Log probability of each target: outputs (S, B, *), y as `target_shape` says -> (S, *target_shape), nats."""

    @abstractmethod
    def mixture(self, outputs: Tensor) -> Predictive:
        """The predictive distribution of valid draws (S, B, *)."""

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Log probability or density of the targets under each draw; shapes are checked, values are not, so that it compiles.

        Args:
            outputs: (S, B, *), what the network returned, as the class says.
            y: (B, *), targets; a trailing dimension of size 1 may be missing or too many, nothing is broadcast.

        Returns:
            (S, B), nats, at least float32, summed over the dimensions of one example.

        Raises:
            ValueError: shapes that do not fit.
        """
        self.check_outputs(outputs)
        return sum_from(self.terms(at_least_float32(outputs), align_targets(y, self.target_shape(outputs))), 2)

    def expected_terms(self, mean: Tensor, std: Tensor, y: Tensor) -> Tensor:
        """`terms` in expectation over independent normal outputs (1, B, *), where it has a closed form."""
        raise NotImplementedError(f"the expectation of {type(self).__name__} has no closed form; draw outputs")

    def expected_log_prob(self, mean: Tensor, std: Tensor, y: Tensor) -> Tensor:
        """`log_prob` in expectation over independent normal outputs.

        Args:
            mean, std: (B, *), of the outputs.
            y: as for `log_prob`.

        Returns:
            (B,), nats, at least float32, summed over the dimensions of one example.

        Raises:
            NotImplementedError: no closed form.
            ValueError: shapes that do not fit.
        """
        mean, std = at_least_float32(mean).unsqueeze(0), at_least_float32(std).unsqueeze(0)
        self.check_outputs(mean)
        return sum_from(self.expected_terms(mean, std, align_targets(y, self.target_shape(mean))), 2).squeeze(0)

    def forward(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The same as `log_prob`: a learned likelihood wrapped for distributed training is called as a module."""
        return self.log_prob(outputs, y)

    def predictive(self, outputs: Tensor) -> Predictive:
        """The predictive distribution of one batch of draws (S, B, *).

        Raises:
            ValueError: a shape that does not fit, NaN or infinity.
        """
        self.check_outputs(outputs)
        # A logit of minus infinity is a class that cannot be; everything else that is not finite means something broke.
        wrong = outputs.isnan() | (outputs == math.inf) if self.impossible else ~outputs.isfinite()
        if wrong.any():
            raise ValueError(
                f"the outputs hold NaN or infinity: {int(wrong.sum())} of {outputs.numel()} values, "
                f"{int(wrong.flatten(1).any(1).sum())} of {outputs.shape[0]} draws; training diverged or the precision is too low"
            )
        return self.mixture(at_least_float32(outputs.detach()))

    def check_targets(self, y: Tensor, outputs: Tensor | None = None) -> None:
        """Check all targets once, before training.

        Args:
            y: (N, *), all targets.
            outputs: some draws (S, N, *); with them shapes and the number of classes are checked too.

        Raises:
            TypeError: not a tensor, or labels that are not integers.
            ValueError: NaN, infinity, labels out of range, a shape that does not fit.
        """
        if not isinstance(y, Tensor):
            raise TypeError(f"y must be a torch.Tensor, got {type(y).__name__}; use torch.as_tensor(y)")
        if outputs is not None:
            self.check_outputs(outputs)
            align_targets(y, self.target_shape(outputs))
        self.check_values(y, outputs)

    def to_dict(self) -> dict[str, Any]:
        """Name and constructor arguments, ready for JSON; what was learned lives in `state_dict`."""
        return {"likelihood": type(self).__name__, **self.fields}

    @staticmethod
    def from_dict(fields: dict[str, Any]) -> Likelihood:
        """Build a likelihood from what `to_dict` wrote.

        Raises:
            ValueError: an unknown likelihood or field, with the known ones.

        Example:
            >>> Likelihood.from_dict({"likelihood": "gaussian", "std": 0.5})
            Gaussian(std=0.5, learn=False)
        """
        values = dict(fields)
        kind = Likelihood.named(values.pop("likelihood", None))
        known = list(inspect.signature(kind).parameters)
        if unknown := sorted(set(values) - set(known)):
            raise ValueError(f"{kind.__name__} has no field {', '.join(map(repr, unknown))}; it has {', '.join(known) or 'none'}")
        return kind(**values)

    @staticmethod
    def named(name: object) -> type[Likelihood]:
        """The likelihood class of that name, in any case; ValueError with the known ones if there is none."""
        by_name = {known.lower(): kind for known, kind in Likelihood.registry.items()}
        if str(name).lower() not in by_name:
            raise ValueError(f"unknown likelihood {name!r}; known likelihoods: {', '.join(sorted(Likelihood.registry))}")
        return by_name[str(name).lower()]

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.fields.items())


def check_draws(outputs: Tensor, least: int, expected: str) -> None:
    """Raise ValueError unless the outputs are floating point with at least `least` dimensions."""
    if outputs.dim() < least or not outputs.is_floating_point():
        raise ValueError(f"outputs must be floating point draws {expected}, got {tuple(outputs.shape)}, {outputs.dtype}")
