r"""SWA and SWAG: the average of the weights along training, and a Gaussian around it.

Maddox, Garipov, Izmailov, Vetrov & Wilson, *A simple baseline for Bayesian uncertainty in deep learning* (2019, arXiv 1902.02476);
Izmailov, Podoprikhin, Garipov, Vetrov & Wilson, *Averaging weights leads to wider optima and better generalization* (2018, arXiv
1803.05407).

Training is that of a point estimate. In its last part, at a constant or cyclical learning rate, T snapshots $\theta_i$ of the
weights are taken. SWA predicts with their mean $\bar\theta$; SWAG draws (equation 1 of the first paper)

$$\theta = \bar\theta + \frac{1}{\sqrt2}\,\Sigma_\text{diag}^{1/2} z_1 + \frac{1}{\sqrt{2(K-1)}}\,D z_2, \qquad
  z_1 \sim N(0, I_d), \quad z_2 \sim N(0, I_K),$$

whose covariance is the mean of two estimates of that of the snapshots: the diagonal matrix of their variances (with T in the
denominator), and $D D^\top / (K-1)$ with the last K deviations $\theta_i - \bar\theta_i$ from the mean of the first i snapshots as
columns of D. All layers of a draw share $z_2$. With `rank=0` the covariance is the diagonal alone, not half of it, as in the
paper's SWAG-Diagonal (section 3.2).

Differences from the paper:

* The paper computes the variance as $\overline{\theta^2} - \bar\theta^2$, which in float32 loses all digits of a standard deviation
  below about 1/4000 of the weight. Here mean and sum of squared deviations are updated by Welford's recursion.
* Algorithm 1 divides by K - 1 even before K columns are filled; here the divisor is the number of filled columns minus 1.
* Algorithm 1 counts the weights at the start as the first snapshot of the mean. Here, as in the authors' code, the mean has only
  the snapshots, so the first column of D is zero: the first snapshot is its own running mean.

MultiSWAG (Wilson & Izmailov,
*Bayesian deep learning and a probabilistic perspective of generalization*, 2020, arXiv 2002.08791) is
`DeepEnsemble(base=SWAG())`.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from bayesify.core.checks import check_integer, check_scale
from bayesify.core.collection import CollectedPosterior
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.method import Method
from bayesify.core.modes import without_autocast
from bayesify.core.stored import layer_parts, layer_vector
from bayesify.errors import ConfigurationError
from bayesify.functional import standard_normal
from bayesify.plain_numbers import is_number

__all__ = ["SWA", "SWAG"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SWA(Method):
    """Stochastic weight averaging: predictions with the mean of the weights in the last part of training.

    Train at a constant or cyclical learning rate while snapshots are taken, for example with `torch.optim.swa_utils.SWALR`, which
    anneals to a constant one. `fit` and the integrations take the snapshots; a training loop of your own calls `bnn.collect()`.

    Args:
        prior_std: standard deviation of a normal prior on weights and biases (MAP); None for maximum likelihood.
        start: fraction of training after which snapshots are taken.
        snapshots: their number, spread evenly over the rest of training; at most one per optimizer step.

    Example:
        >>> from functools import partial
        >>> from torch.optim.swa_utils import SWALR
        >>> x = torch.linspace(-1, 1, 64).unsqueeze(1)
        >>> bnn = bayesify(nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)), SWA(snapshots=20))
        >>> schedule = partial(SWALR, swa_lr=0.003, anneal_epochs=10)  # constant in the second half
        >>> history = fit(bnn, (x, 2 * x), Gaussian(std=0.1), epochs=20, learning_rate=0.01, scheduler=schedule, accelerator="cpu")
        >>> print(summary(bnn).layers[0].remark)
        10 snapshots collected
    """

    family: ClassVar[str] = "Along training"
    paper: ClassVar[str] = "Izmailov et al. 2018, arXiv 1803.05407"
    advice: ClassVar[str] = "A better point estimate after training at a constant learning rate."
    cost: ClassVar[str] = "about that of SWAG; one pass"

    prior_std: float | None = None
    start: float = 0.5
    snapshots: int = 100

    def __post_init__(self) -> None:
        if self.prior_std is not None:
            check_scale("prior_std", self.prior_std)
        if not is_number(self.start) or not 0 <= self.start < 1:
            raise ConfigurationError(f"start must be a fraction of training of at least 0 and below 1, got {self.start!r}")
        check_integer("snapshots", self.snapshots)

    @property
    def is_random(self) -> bool:
        return False

    @property
    def collects_from(self) -> float | None:
        return self.start

    def build(self, layer: BayesianLayer) -> Posterior:
        return MeanPosterior(self, layer)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SWAG(SWA):
    """Stochastic weight averaging, Gaussian: draws around the mean of the weights, with the covariance of training's last part.

    It is trained like `SWA`, and costs memory for rank + 2 further copies of the weights. MultiSWAG, an ensemble of it, is
    `DeepEnsemble(base=SWAG())`. With batch normalization, predict with `bayesify.train.ensemble_of_draws`.

    Args:
        prior_std, start, snapshots: as for `SWA`.
        rank: K, the number of last snapshots whose deviations make the low-rank part of the covariance, at least 2; 0 for a
            diagonal covariance.

    Example:
        >>> x = torch.linspace(-1, 1, 64).unsqueeze(1)
        >>> bnn = bayesify(nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)), SWAG(snapshots=20, rank=5))
        >>> history = fit(bnn, (x, 2 * x), Gaussian(std=0.1), epochs=40, learning_rate=0.01, accelerator="cpu")
        >>> bool((predict(bnn, x, Gaussian(std=0.1), samples=30, seed=0).epistemic > 0).all())
        True
    """

    paper: ClassVar[str] = "Maddox et al. 2019, arXiv 1902.02476"
    advice: ClassVar[str] = (
        "A posterior from ordinary training, also of large networks; in DeepEnsemble(base=SWAG()) it is MultiSWAG."
    )
    cost: ClassVar[str] = "1.1, 1.0; S passes"

    rank: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("rank", self.rank, least=0)
        if self.rank == 1 or self.rank > self.snapshots:
            raise ConfigurationError(
                f"rank must be 0 (diagonal), or from 2 to snapshots={self.snapshots}, of which it takes the last, got {self.rank}"
            )
        if self.snapshots < 2:
            raise ConfigurationError(f"snapshots must be at least 2, to have a variance, got {self.snapshots}")

    @property
    def is_random(self) -> bool:
        return True

    def build(self, layer: BayesianLayer) -> Posterior:
        return GaussianPosterior(self, layer)


class MeanPosterior(CollectedPosterior):
    """Point mass at the mean of the snapshots; weight and bias of the layer make one vector of P elements.

    Attributes:
        average: (P,), at least float32.
    """

    is_random = False
    average: Tensor

    def __init__(self, method: SWA, layer: BayesianLayer) -> None:
        super().__init__(method.start, method.snapshots)
        self.prior_std = method.prior_std
        self.register_buffer("average", torch.zeros_like(layer_vector(layer).detach()))

    @torch.no_grad()
    def collect(self, layer: BayesianLayer) -> None:
        self.count.add_(1)
        self.average.add_((layer_vector(layer) - self.average) / self.count)

    def center(self, layer: BayesianLayer) -> Tensor:
        """The mean (P,); the layer's own weights if there is no snapshot."""
        return torch.where(self.count > 0, self.average, layer_vector(layer))

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        weight, bias = self.point(layer)
        return weight.expand(samples, *weight.shape), None if bias is None else bias.expand(samples, *bias.shape)

    def point(self, layer: BayesianLayer) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of this pass without noise: those that are trained, or their mean."""
        return (layer.weight, layer.bias) if layer.forward_pass.trains() else self.mean(layer)

    def mean(self, layer: BayesianLayer) -> tuple[Tensor, Tensor | None]:
        weight, bias = layer_parts(layer, self.center(layer).unsqueeze(0))
        return weight.squeeze(0), None if bias is None else bias.squeeze(0)

    def forward(self, layer: BayesianLayer, x: Tensor) -> Tensor:
        return layer.prepared_op(x, *self.point(layer))

    @torch.no_grad()
    def adopt(self, layer: BayesianLayer, weight: Tensor, bias: Tensor | None) -> None:
        for collected in self.buffers(recurse=False):
            collected.zero_()


class GaussianPosterior(MeanPosterior):
    """Normal distribution around the mean, of diagonal plus low rank.

    Attributes:
        squares: (P,), sums of squared deviations from the mean.
        deviations: (K, P), of the last K snapshots from the running mean, in a ring; None if K is 0.
    """

    is_random = True
    squares: Tensor
    deviations: Tensor

    def __init__(self, method: SWAG, layer: BayesianLayer) -> None:
        super().__init__(method, layer)
        self.rank = method.rank
        # layers with snapshots at the same times share z
        self.shared = f"SWAG {method.rank} {method.start} {method.snapshots}"
        self.register_buffer("squares", torch.zeros_like(self.average))
        self.register_buffer("deviations", self.average.new_zeros(method.rank, self.average.numel()) if method.rank else None)

    @torch.no_grad()
    def collect(self, layer: BayesianLayer) -> None:
        before = layer_vector(layer) - self.average
        super().collect(layer)
        after = layer_vector(layer) - self.average
        self.squares.addcmul_(before, after)
        if self.rank:
            # indexed by a tensor: reading the count would wait for the device
            self.deviations.index_copy_(0, ((self.count - 1) % self.rank).unsqueeze(0), after.unsqueeze(0))

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        if layer.forward_pass.trains():
            return super().sample(layer, samples)
        mean = self.center(layer)
        variance = self.squares / self.count.clamp(min=1)
        share = 0.5 if self.rank else 1.0
        noise = standard_normal(samples, len(mean), like=mean)
        weights = torch.addcmul(mean, noise, (share * variance).sqrt())
        if self.rank:
            like = self.deviations
            z = layer.forward_pass.once(self.shared, lambda _: standard_normal(samples, self.rank, like=like), like=like)
            scale = (2 * (self.count.clamp(max=self.rank) - 1).clamp(min=1)).to(mean.dtype).rsqrt()
            with without_autocast(mean.device):
                weights = torch.addmm(weights, scale * z.to(mean), self.deviations)
        return layer_parts(layer, weights)

    def forward(self, layer: BayesianLayer, x: Tensor) -> Tensor:
        return layer.prepared_op(x, *(self.point(layer) if layer.forward_pass.trains() else layer.draw()))
