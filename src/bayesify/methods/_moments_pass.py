"""`MomentsPass`: a pass of a network with normal outputs, whose last layer returns means and standard deviations."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bayesify.core.forward_pass import ForwardPass
from bayesify.core.inputs import Inputs
from bayesify.core.layer import BayesianLayer
from bayesify.errors import ConfigurationError

__all__ = ["MomentsPass", "Probe"]

Probe = Callable[[BayesianLayer, Tensor], Tensor]
"""What the last layer returns instead of its means, in a test of what follows it."""


class MomentsPass(ForwardPass):
    """A pass whose last layer returns means followed by raw standard deviations.

    Args:
        batch_dim: the dimension in which they follow each other.
        inputs: those of the pass. A `ConfigurationError` is raised if the last layer gets a part of their examples.
        probes: the layer returns what these make of its means, one after the other, instead.
    """

    def __init__(self, batch_dim: int, inputs: Inputs, probes: tuple[Probe, ...] = ()) -> None:
        super().__init__()
        self.batch_dim, self.inputs, self.probes = batch_dim, inputs, probes
        self.last_rows = 0  # of the last layer's output, once it was called

    @property
    def examples(self) -> int:
        """The number of examples: graphs, if the layer follows the pooling of their nodes."""
        return self.last_rows if self.last_rows and self.inputs.accepts(self.last_rows) else self.inputs.batch

    def check_rows(self, mean: Tensor) -> None:
        """Check that the layer's output has all rows: parts of a batch, each with both halves, would be put together wrongly."""
        before, self.last_rows = self.last_rows, mean.shape[self.batch_dim]
        if self.batch_dim != 0 or torch.compiler.is_compiling() or self.last_rows % max(self.inputs.batch, 1) == 0:
            return
        if before or not self.inputs.accepts(self.last_rows):
            raise ConfigurationError(
                f"the last layer gets {self.last_rows} rows of a batch of {self.inputs.batch}: the network calls it on parts of "
                "its batch, whose means and standard deviations would be mixed. Let it get all rows, or use VIFO(separate_std=True)"
            )
