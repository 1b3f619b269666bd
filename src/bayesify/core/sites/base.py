"""Sites: ordinary layers made random. Each is the layer itself with its class swapped, so names, hooks, tying and types survive.

A site knows one thing: how its layer acts on an input, given a weight and a bias. For most layers that action is bilinear, so the
same `op` gives the mean of the output (with the mean weight) and its variance (squared input, weight variances).

Shapes: S draws, B batch, I in, O out, C channels, G groups. A folded input has S*B rows, all rows of draw 0 first.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesify.core.posterior import Posterior
from bayesify.core.tracking import Watch

__all__ = ["Drawing", "Site"]


@dataclasses.dataclass(eq=False)
class Drawing:
    """What the forward pass under way asks of the sites; one object, shared by the root and all its sites."""

    samples: int = 1
    coherent: bool = False
    # The sum of what `choose` was told in this pass, (S,).
    score: Tensor | None = None
    batch_dim: int = 0
    # The weights drawn so far in this pass, so that a module used twice in it is one function; None outside a pass.
    drawn: dict[nn.Module, tuple[Tensor, Tensor | None]] | None = None
    # The KLs that layers found on their way through a pass that is to return them; None in other passes.
    kls: dict[Posterior, Tensor] | None = None
    # What looks at the pass under way, and at its sites' inputs.
    watch: Watch | None = None

    def settle(self) -> None:
        """Forget the last pass where a layer is called on its own; a backward that recomputes layers (checkpointing) repeats it."""
        if self.drawn is None and torch._C._current_graph_task_id() == -1:
            self.samples, self.coherent, self.kls = 1, False, None

    def choose(self, log_prob: Tensor) -> None:
        """Tell the pass under way the log probability (S,) of discrete choices made in it: see `Draws.score`."""
        if self.drawn is not None:
            score = log_prob - log_prob.detach()
            self.score = score if self.score is None else self.score + score


class Site(nn.Module):
    """Mixin of a layer made random: `class BayesLinear(Site, nn.Linear)`.

    Attributes:
        original: the class of the layer before and after.
        contracts: whether the layer sums over input channels (linear, convolution), so that input noise is weight noise.
        normalizes: whether it scales and shifts what it has normalised.
        posterior: the distribution of its weight and bias.
        drawing: what the current forward pass asks for.
        weight_shape: the shape of one weight.
        bias_shape: the shape of one bias, None without one.
    """

    original: ClassVar[type[nn.Module]]
    contracts: ClassVar[bool] = False
    normalizes: ClassVar[bool] = False

    posterior: Posterior
    drawing: Drawing
    weight: Tensor  # None once a posterior has taken its place
    bias: Tensor | None
    weight_shape: tuple[int, ...]
    bias_shape: tuple[int, ...] | None

    def forward(self, input: Tensor) -> Tensor:
        self.drawing.settle()
        return self.sampled(input) if self.drawing.watch is None else self.drawing.watch.layer(self, input)

    def sampled(self, x: Tensor) -> Tensor:
        """The random output for x (S*B, ...)."""
        return self.act(x, *self.draw()) if self.drawing.coherent else self.posterior(self, x)

    def draw(self) -> tuple[Tensor, Tensor | None]:
        """Weight (S, *) and bias (S, *) of this pass: drawn once, however often the module is used in it."""
        drawn = self.drawing.drawn
        if drawn is None:
            self.drawing.settle()
            return self.posterior.sample(self, self.drawing.samples)
        if self not in drawn:
            drawn[self] = self.posterior.sample(self, self.drawing.samples)
        return drawn[self]

    def prefers_weights(self, x: Tensor, rows: int) -> bool:
        """Whether to draw weights and not outputs for an input x of so many rows per draw, where a posterior can do both.

        Outputs are drawn for gradients with less noise. Where none are wanted, the cheaper way is taken.
        """
        return False

    def act(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """`op` of the prepared x, in one go where the layer has a kernel for both."""
        return self.op(self.prepare(x), weight, bias)

    def op(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Apply weight (*weight_shape), shared by all draws, or (S, *weight_shape), one per draw, to a prepared x (S*B, ...)."""
        if weight.dim() == len(self.weight_shape):
            return self.apply_weight(x, weight, bias)
        if weight.shape[0] == 1:
            return self.apply_weight(x, weight.squeeze(0), None if bias is None else bias.squeeze(0))
        return self.apply_weights(x, weight, bias)

    def apply_weights(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """`op` for S > 1 draws: one ordinary call per draw, which is as fast as one grouped convolution, unless overridden."""
        rows = x.unflatten(0, (weight.shape[0], -1))
        biases = [None] * weight.shape[0] if bias is None else bias
        return torch.cat([self.apply_weight(rows[s], weight[s], biases[s]) for s in range(weight.shape[0])])

    def apply_weight(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """`op` for one weight: what the original layer computes, after `prepare`."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it acts on its input")

    def prepare(self, x: Tensor) -> Tensor:
        """The part of the layer before its weight acts (normalisation)."""
        return x

    def square(self, x: Tensor) -> Tensor:
        """The input whose `op` with weight variances is the variance of the output: x * x, for prepared x."""
        return x * x

    @property
    def fan_in(self) -> int:
        """How many weights are summed in one output."""
        return 1

    @property
    def input_channels(self) -> int:
        """K, the number of input channels that input noise multiplies."""
        raise NotImplementedError(f"{type(self).__name__} does not contract over input channels")

    def over_channels(self, v: Tensor, x: Tensor) -> Tensor:
        """Shape v (R, K) or (1, K), per row and input channel, to multiply x (R, ...)."""
        raise NotImplementedError(f"{type(self).__name__} does not contract over input channels")

    def over_outputs(self, v: Tensor, y: Tensor) -> Tensor:
        """Shape v (O,), per output channel, to meet the output y (R, ...)."""
        raise NotImplementedError(f"{type(self).__name__} does not contract over input channels")

    def over_weight(self, v: Tensor) -> Tensor:
        """Shape v (..., K), per input channel, to multiply the weight: the same as `over_channels(v)` times the input."""
        raise NotImplementedError(f"{type(self).__name__} does not contract over input channels")
