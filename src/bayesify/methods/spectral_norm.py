r"""SpectralNorm: point estimates whose weights have bounded spectral norms.

Miyato, Kataoka, Koyama & Yoshida, *Spectral normalization for generative adversarial networks* (2018, arXiv 1802.05957), with the
bound of Liu et al. (SNGP, 2020, arXiv 2006.10108, section 3.2), which keeps smaller norms:

$$W \min\Bigl(1, \frac{c}{\lVert W\rVert_2}\Bigr)$$

The norm is estimated by power iteration, one step per pass in training mode, as by `torch.nn.utils.parametrizations.spectral_norm`:
the estimate never exceeds the norm and approaches it while the weight changes slowly, so during training the norm may be slightly
above c. PyTorch's function always divides by the norm, also a smaller one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesify.core.checks import check_scale
from bayesify.core.layer import BayesianLayer, Posterior
from bayesify.core.layers import kind_of
from bayesify.core.method import Method
from bayesify.functional import dropout_kl

__all__ = ["SpectralNorm"]

_ITERATIONS = 100  # to start from the norm itself


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpectralNorm(Method):
    """Point estimates whose weights have spectral norms of at most `max_norm`, for linear layers and convolutions.

    The weight of a convolution is taken as a matrix (O, I*k*k), as in PyTorch's `spectral_norm`; the norm of the convolution as an
    operator may be larger by a factor of up to k.

    Args:
        max_norm: c, the largest spectral norm.
        prior_std: standard deviation of a normal prior on weights (before they are divided) and biases; None for none.

    Example:
        >>> bnn = bayesify(nn.Linear(4, 3), SpectralNorm(max_norm=0.1))
        >>> round(float(torch.linalg.matrix_norm(unbayesify(bnn).weight, 2)), 3)
        0.1
    """

    family: ClassVar[str] = "Baseline"
    paper: ClassVar[str] = "Miyato et al. 2018, arXiv 1802.05957"
    advice: ClassVar[str] = "The hidden layers of SNGP, by patterns of names."
    cost: ClassVar[str] = "not measured on these; one pass"

    max_norm: float = 0.95
    prior_std: float | None = None

    def __post_init__(self) -> None:
        check_scale("max_norm", self.max_norm)
        if self.prior_std is not None:
            check_scale("prior_std", self.prior_std)

    @property
    def is_random(self) -> bool:
        return False

    def assign(self, layers: Mapping[str, nn.Module]) -> Mapping[str, Method]:
        return {name: self for name, layer in layers.items() if kind_of(layer).contracts}

    def build(self, layer: BayesianLayer) -> Posterior | None:
        return BoundedPosterior(self, layer) if layer.contracts else None


class BoundedPosterior(Posterior):
    """Point mass at the layer's own weight, divided by its norm over c if that is above 1.

    Attributes:
        vector: an estimate of the first left singular vector, (O,).
    """

    is_random = False
    needs_linearity = True
    vector: Tensor

    def __init__(self, method: SpectralNorm, layer: BayesianLayer) -> None:
        super().__init__()
        self.method = method
        self.transposed = isinstance(layer, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d)
        matrix = self.matrix(layer.weight.detach())
        self.register_buffer("vector", self.iterated(matrix, torch.randn_like(matrix[:, 0]), _ITERATIONS))

    def matrix(self, weight: Tensor) -> Tensor:
        """The weight as a matrix (O, *); kernels of transposed convolutions are (I, O, *)."""
        return (weight.transpose(0, 1) if self.transposed else weight).flatten(1)

    @torch.no_grad()
    def iterated(self, matrix: Tensor, vector: Tensor, steps: int) -> Tensor:
        """The vector after steps of power iteration."""
        for _ in range(steps):
            vector = matrix @ (matrix.mT @ vector) + 1e-12 * vector  # a weight of zero leaves it as it is
            vector = vector / torch.linalg.vector_norm(vector)
        return vector

    def bounded(self, weight: Tensor) -> Tensor:
        """The weight with a norm of at most c."""
        matrix = self.matrix(weight)
        if self.training:
            vector = self.iterated(matrix, self.vector, 1)
            self.vector.copy_(vector)
        else:
            vector = self.vector.clone()  # a later pass changes it in place
        norm = torch.linalg.vector_norm(matrix.mT @ vector)
        return weight * (self.method.max_norm / norm.clamp(min=self.method.max_norm))

    def mean(self, layer: BayesianLayer) -> tuple[Tensor, Tensor | None]:
        return self.bounded(layer.weight), layer.bias

    def sample(self, layer: BayesianLayer, samples: int) -> tuple[Tensor, Tensor | None]:
        weight, bias = self.mean(layer)
        return weight.expand(samples, *weight.shape), None if bias is None else bias.expand(samples, *bias.shape)

    def forward(self, layer: BayesianLayer, x: Tensor) -> Tensor:
        weight = layer.forward_pass.once(self, lambda _: self.bounded(layer.weight))  # one step also if the layer is used twice
        return layer.prepared_op(x, weight, layer.bias)

    def kl(self, layer: BayesianLayer) -> Tensor:
        return dropout_kl(layer.weight, layer.bias, 0.0, self.method.prior_std)

    def adopt(self, layer: BayesianLayer, weight: Tensor, bias: Tensor | None) -> None:
        self.vector.copy_(self.iterated(self.matrix(weight), self.vector, _ITERATIONS))
