r"""Noisy K-FAC: matrix normal weights whose precision is the Kronecker-factored Fisher information.

Zhang, Sun, Duvenaud & Grosse, *Noisy natural gradient as variational inference* (2018, arXiv 1712.02390), algorithm 2. With the
effective sample size $\lambda = n/\beta$, a prior $N(0, s^2)$, the intrinsic damping $\delta = 1/(\lambda s^2)$ and the extrinsic
damping $\gamma$, the weights $W \in \mathbb{R}^{O \times J}$ of a layer, its bias the last column, have

$$q(\mathrm{vec}\,W) = N\bigl(\mathrm{vec}\,M,\; \tfrac1\lambda\,[A_\delta]^{-1} \otimes [S_\delta]^{-1}\bigr), \qquad
  A_\delta = A + \pi\sqrt\delta\,I, \quad S_\delta = S + \tfrac1\pi\sqrt\delta\,I, \quad
  \pi^2 = \frac{\operatorname{tr} A / J}{\operatorname{tr} S / O}$$

A and S are moving averages of the second moments of the layer's inputs a, with a 1 for the bias, and of the gradients g of the log
likelihood with respect to its outputs. The targets of these gradients are drawn from the model, which gives the Fisher information;
those of the data would give another matrix. With the negative log likelihood per example $\bar\ell$,

$$A \leftarrow A + \rho\,(\hat A - A), \qquad S \leftarrow S + \rho\,(\hat S - S), \qquad
  V \leftarrow \beta_1 V + (1 - \beta_1)\,\nabla\bar\ell(W), \qquad W \sim q$$
$$M \leftarrow M - \alpha\,[S_{\delta+\gamma}]^{-1}\Bigl(\frac{V}{1 - \beta_1^t} + \delta M\Bigr)[A_{\delta+\gamma}]^{-1}$$

Convolutions, and linear layers that act on T positions of an example, have $\hat A = \mathrm{E}\sum_t a_t a_t^\top$ and
$\hat S = \mathrm{E}\frac1T\sum_t g_t g_t^\top$ (Grosse & Martens, *A Kronecker-factored approximate Fisher matrix for convolution
layers*, 2016, arXiv 1602.01407).

$A_\delta \otimes S_\delta$ exceeds $A \otimes S + \delta I$ by $\sqrt\delta\,(A/\pi \otimes I + I \otimes \pi S)$, so the
posterior is too narrow where data and prior have similar precision: with equal precisions, its variance is half of the right one.

Differences from the paper: there is a momentum $\beta_1$, and the term of the prior uses the mean of the weights instead of their
draw.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.core.checks import check_fraction, check_integer, check_rate, check_scale
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.layers.linear import OutputMajorLinear
from bayesify.core.method import Method
from bayesify.core.modes import without_autocast
from bayesify.core.natural import NaturalPosterior, NaturalStep
from bayesify.core.per_example import Record
from bayesify.core.stored import add_where_trained, gradients_of
from bayesify.errors import DivergenceError
from bayesify.functional import at_least_float32, standard_normal

__all__ = ["NoisyKFAC"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisyKFAC(Method):
    r"""Matrix normal weights and biases of linear layers and `Conv2d`, trained by noisy K-FAC, its own optimizer.

    Trained as `IVON`, but the optimizer needs the likelihood, from which it draws targets: `bnn.optimizer(likelihood)`. A step
    costs a second backward pass, and a Cholesky decomposition of J x J and O x O matrices whenever these are inverted.

    Args:
        prior_std: s, the standard deviation of the prior.
        initial_std: initial posterior standard deviation, in units of $1/\sqrt{\text{fan-in}}$.
        momentum: $\beta_1$, of the gradients of means.
        fisher_rate: $\rho$, the weight of a step in the averages of A and S, in (0, 1].
        damping: $\gamma$, which makes steps of the means smaller, and has no effect on the spread.
        invert_every: steps from one inversion to the next.

    Example:
        >>> x = torch.linspace(-1, 1, 64).unsqueeze(1)
        >>> bnn = bayesify(nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)), NoisyKFAC())
        >>> history = fit(bnn, (x, 2 * x), Gaussian(std=0.1), epochs=20, learning_rate=0.05, accelerator="cpu")
        >>> history.loss[-1] < history.loss[0]
        True
    """

    family: ClassVar[str] = "Weights, natural gradients"
    paper: ClassVar[str] = "Zhang et al. 2018, arXiv 1712.02390"
    advice: ClassVar[str] = "Correlated weights of linear layers and Conv2d in small networks; its learning rate must be small."
    cost: ClassVar[str] = "5.1, 16; S passes"

    prior_std: float = 1.0
    initial_std: float = 0.1
    momentum: float = 0.9
    fisher_rate: float = 0.01
    damping: float = 0.01
    invert_every: int = 10

    def __post_init__(self) -> None:
        check_scale("prior_std", self.prior_std)
        check_scale("initial_std", self.initial_std)
        check_fraction("momentum", self.momentum)
        check_scale("damping", self.damping)
        check_integer("invert_every", self.invert_every)
        check_rate("fisher_rate", self.fisher_rate)

    def build(self, layer: BayesianLayer) -> Posterior | None:
        return KroneckerPosterior(self, layer) if _is_supported(layer) else None


class KroneckerPosterior(NaturalPosterior):
    """Matrix normal around the layer's own weight and bias.

    Attributes:
        row_tril, column_tril: Cholesky factors of the covariances of rows (O, O) and columns (J, J), logarithms on their diagonals.
    """

    observes = needs_calls = True
    samples_labels = True

    def __init__(self, method: NoisyKFAC, layer: BayesianLayer) -> None:
        super().__init__()
        self.method, self.rate = method, method.fisher_rate
        rows = layer.weight_shape[0]
        columns = math.prod(layer.weight_shape[1:]) + (layer.bias_shape is not None)
        log_std = math.log(method.initial_std) - 0.5 * math.log(layer.fan_in)
        self.row_tril = nn.Parameter(log_std * torch.eye(rows))
        self.column_tril = nn.Parameter(torch.zeros(columns, columns))

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        mean, rows, columns = _matrix(layer.weight, layer.bias), _factor(self.row_tril), _factor(self.column_tril)
        noise = standard_normal(samples, *mean.shape, like=mean)
        with without_autocast(mean.device):
            return _parts(layer, mean + rows @ noise @ columns.mT)

    def kl(self, layer: BayesianLayer) -> Tensor:
        mean, row, column = map(at_least_float32, (_matrix(layer.weight, layer.bias), self.row_tril, self.column_tril))
        log_det = mean.shape[1] * row.diagonal().sum() + mean.shape[0] * column.diagonal().sum()  # of the standard deviations
        trace = _factor(row).square().sum() * _factor(column).square().sum()
        s = self.method.prior_std
        return 0.5 * ((trace + mean.square().sum()) / s**2 - mean.numel()) - log_det + mean.numel() * math.log(s)

    def observe(self, layer: BayesianLayer, record: Record) -> dict[str, Tensor]:
        inputs, gradients = _positions(layer, record.x), record.gradient.detach()
        if isinstance(layer, nn.Conv2d):
            gradients = gradients.flatten(2).mT
        inputs, gradients = inputs.flatten(0, -2), gradients.flatten(0, -2)
        return {"input": inputs.mT @ inputs / record.rows, "output": gradients.mT @ gradients / len(gradients)}

    def update(self, layer: BayesianLayer, step: NaturalStep) -> None:
        method, state = self.method, step.state(self.column_tril)
        delta = 1 / (step.ess * method.prior_std**2)
        mean = _matrix(layer.weight, layer.bias)
        if not state:
            state.update(self._fisher(step.n), step=0, momentum=torch.zeros_like(mean))
        for name, value in step.observed.items():
            state[name].lerp_(value.to(state[name].dtype), method.fisher_rate)
        if state["step"] % method.invert_every == 0:
            self._follow(state, delta, step.ess)
        state["step"] += 1
        if (gradients := gradients_of(layer)) is None:
            return
        gradient = _matrix(*gradients) - step.kl_weight / method.prior_std**2 * mean
        state["momentum"].lerp_(gradient, 1 - method.momentum)
        average = state["momentum"] / (1 - method.momentum ** state["step"])
        change = state["output_inverse"] @ (average + delta * mean) @ state["input_inverse"]
        add_where_trained(layer, *_parts(layer, -step.learning_rate * change.unsqueeze(0)))

    def precisions(self, layer: BayesianLayer) -> Tensor | None:
        log_std = self.row_tril.diagonal().mean() + self.column_tril.diagonal().mean()
        return torch.exp(-2 * log_std) if self.row_tril.requires_grad else None

    def _fisher(self, n: float) -> dict[str, Any]:
        """A and S of the present posterior, so that a new optimizer continues with it."""
        ess = torch.where(self.ess > 0, self.ess, n)
        a, s = (torch.cholesky_inverse(_factor(each)) for each in (self.column_tril, self.row_tril))
        s = s / ess
        ratio, damping = _ratio(a, s), 1 / (ess.sqrt() * self.method.prior_std)
        return {
            "input": a - ratio * damping * torch.eye(len(a), dtype=a.dtype, device=a.device),
            "output": s - damping / ratio * torch.eye(len(s), dtype=s.dtype, device=s.device),
        }

    def _follow(self, state: dict[str, Any], delta: float, ess: float) -> None:
        """Set the covariance, and the preconditioner of the means, to A and S."""
        a, s = _damped(state["input"], state["output"], delta)
        if self.row_tril.requires_grad and self.column_tril.requires_grad:
            _store(self.column_tril, _inverse_factor(a))
            _store(self.row_tril, _inverse_factor(ess * s))
            self.ess.fill_(ess)
        state["input_inverse"], state["output_inverse"] = map(
            _inverse, _damped(state["input"], state["output"], delta + self.method.damping)
        )


def _is_supported(layer: BayesianLayer) -> bool:
    if isinstance(layer, nn.Conv2d):
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return isinstance(layer, OutputMajorLinear)


def _positions(layer: BayesianLayer, x: Tensor) -> Tensor:
    """The inputs (R, ..., J) that the matrix of weights multiplies, with a 1 for the bias."""
    if isinstance(layer, nn.Conv2d):
        size: Any = layer.kernel_size, layer.dilation, layer.padding, layer.stride
        x = F.unfold(x, *size).mT
    return x if layer.bias_shape is None else torch.cat([x, torch.ones_like(x[..., :1])], -1)


def _matrix(weight: Tensor, bias: Tensor | None) -> Tensor:
    """Weight and bias as one matrix (O, J)."""
    return weight.flatten(1) if bias is None else torch.cat([weight.flatten(1), bias.unsqueeze(1)], 1)


def _parts(layer: BayesianLayer, matrices: Tensor) -> tuple[Tensor, Tensor | None]:
    """Weight (S, *) and bias (S, *) of matrices (S, O, J)."""
    if layer.bias_shape is None:
        return matrices.unflatten(2, layer.weight_shape[1:]), None
    return matrices[..., :-1].unflatten(2, layer.weight_shape[1:]), matrices[..., -1]


def _factor(tril: Tensor) -> Tensor:
    """The Cholesky factor of a parameter."""
    return tril.tril(-1) + tril.diagonal().exp().diag_embed()


def _store(tril: Tensor, factor: Tensor) -> None:
    """Set a parameter to a Cholesky factor."""
    tril.copy_(factor.tril(-1) + factor.diagonal().log().diag_embed())


def _ratio(a: Tensor, s: Tensor) -> Tensor:
    """pi, the same for A and S as for both with damping."""
    return (a.diagonal().mean() / s.diagonal().mean()).sqrt()


def _damped(a: Tensor, s: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    """A and S whose Kronecker product is about damped."""
    ratio, root = _ratio(a, s), math.sqrt(damping)
    identities = (torch.eye(len(each), dtype=each.dtype, device=each.device) for each in (a, s))
    return a + ratio * root * next(identities), s + root / ratio * next(identities)


def _inverse(x: Tensor) -> Tensor:
    return torch.cholesky_inverse(_cholesky(x))


def _inverse_factor(x: Tensor) -> Tensor:
    """The Cholesky factor of the inverse, without forming it: that of x with reversed rows and columns, inverted and transposed."""
    identity = torch.eye(len(x), dtype=x.dtype, device=x.device)
    return torch.linalg.solve_triangular(_cholesky(x.flip(0, 1)), identity, upper=False).mT.flip(0, 1)


def _cholesky(x: Tensor) -> Tensor:
    factor, info = torch.linalg.cholesky_ex(x)
    if bool(info != 0) or not bool(factor.isfinite().all()):
        raise DivergenceError(
            "the Fisher information of a layer is infinite or not positive definite: training diverged. Lower learning_rate, or "
            "raise damping"
        )
    return factor
