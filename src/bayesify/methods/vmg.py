r"""VMG: a matrix normal posterior, with one variance per row and one per column of a layer's weight.

$$q(W) = \mathcal{MN}(M, U, V), \quad U = \mathrm{diag}(u^2),\; V = \mathrm{diag}(v^2) \quad\Longleftrightarrow\quad
  W_{ij} \sim N(M_{ij}, u_i^2 v_j^2), \qquad p(W) = \mathcal{MN}(0, sI, sI),$$

independently, with O + I instead of O I variances. The KL is that of mean field with the variances $u_i^2 v_j^2$. The outputs of a
layer are drawn per example (local reparameterization); the variance of output i is $u_i^2 \sum_j v_j^2 x_j^2$, which costs a
product with one row instead of all.

Source: Louizos & Welling, *Structured and efficient variational deep learning with matrix Gaussian posteriors*
([arXiv:1603.04733](https://arxiv.org/abs/1603.04733), 2016), with the diagonal covariances of its experiments. Unlike in the paper

- there are no pseudo-data, which there make the columns of a draw dependent, as in a Gaussian process;
- the weight of a convolution is the matrix whose rows are its kernels (O x I k k; transposed convolutions: I x O k k);
- biases have variances of their own. The paper appends them to W as a further column, whose entries share the $u_i$.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesify.core.checks import check_scale
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.layers.linear import OutputMajorLinear
from bayesify.core.method import Method
from bayesify.functional import at_least_float32, gaussian_kl_sum, matrix_normal_kl
from bayesify.functional.noise import normal_draws

__all__ = ["VMG"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VMG(Method):
    r"""Matrix normal weights with one variance per row and column, for linear layers and convolutions.

    Args:
        prior_std: s, standard deviation of the normal prior on weights and biases.
        initial_std: initial posterior standard deviation, in units of $1/\sqrt{\text{fan-in}}$.

    Example:
        >>> bnn = bayesify(torch.nn.Linear(30, 20, bias=False), VMG())
        >>> [tuple(p.shape) for p in bnn.parameters()]
        [(20, 30), (20,), (30,)]
    """

    family: ClassVar[str] = "Weights"
    paper: ClassVar[str] = "Louizos & Welling 2016, arXiv 1603.04733"
    advice: ClassVar[str] = "Like MeanField with fewer variances: one per row and column of a weight."
    cost: ClassVar[str] = "2.1, 1.3; S passes"

    prior_std: float = 1.0
    initial_std: float = 0.1

    def __post_init__(self) -> None:
        check_scale("prior_std", self.prior_std)
        check_scale("initial_std", self.initial_std)

    def build(self, layer: BayesianLayer) -> Posterior | None:
        return MatrixNormalPosterior(self, layer) if layer.contracts else None


class MatrixNormalPosterior(Posterior):
    """Log standard deviations of rows, columns and bias; the means are the layer's own weight and bias."""

    has_moments = True

    bias_log_std: Tensor | None

    def __init__(self, method: VMG, layer: BayesianLayer) -> None:
        super().__init__()
        self.prior_std = method.prior_std
        rows, columns = layer.weight_shape[0], math.prod(layer.weight_shape[1:])
        log_std = math.log(method.initial_std) - 0.5 * math.log(layer.fan_in)
        # half of it each, because only the product of both has a meaning
        self.row_log_std = nn.Parameter(torch.full((rows,), log_std / 2))
        self.column_log_std = nn.Parameter(torch.full((columns,), log_std / 2))
        bias_log_std = None if layer.bias_shape is None else nn.Parameter(torch.full(layer.bias_shape, log_std))
        self.register_parameter("bias_log_std", bias_log_std)

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        weight, bias = self.mean(layer)
        drawn = normal_draws(weight, self._weight_log_std(layer), samples)
        return drawn, None if bias is None or self.bias_log_std is None else normal_draws(bias, self.bias_log_std, samples)

    def moments(self, layer: BayesianLayer, x: Tensor) -> tuple[Tensor, Tensor]:
        y, squares = layer.op(x, *self.mean(layer)), layer.square(x)
        bias_variance = None if self.bias_log_std is None else torch.exp(2 * self.bias_log_std)
        if not _has_output_rows(layer):
            return y, layer.op(squares, torch.exp(2 * self._weight_log_std(layer)), bias_variance)
        shared = layer.op(squares, torch.exp(2 * self.column_log_std).reshape(1, *layer.weight_shape[1:]), None)
        variance = shared * layer.over_outputs(torch.exp(2 * self.row_log_std), y)
        return y, variance if bias_variance is None else variance + layer.over_outputs(bias_variance, y)

    def kl(self, layer: BayesianLayer) -> Tensor:
        weight, bias = self.mean(layer)
        row, column = at_least_float32(self.row_log_std), at_least_float32(self.column_log_std)
        total = matrix_normal_kl(at_least_float32(weight).flatten(1), row, column, self.prior_std)
        if bias is None or self.bias_log_std is None:
            return total
        return total + gaussian_kl_sum(at_least_float32(bias), at_least_float32(self.bias_log_std), 0.0, self.prior_std)

    def _weight_log_std(self, layer: BayesianLayer) -> Tensor:
        return (self.row_log_std.unsqueeze(1) + self.column_log_std).reshape(layer.weight_shape)


def _has_output_rows(layer: BayesianLayer) -> bool:
    """Whether row i of the weight gives output i, from all inputs."""
    return isinstance(layer, OutputMajorLinear) or (isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) and layer.groups == 1)
