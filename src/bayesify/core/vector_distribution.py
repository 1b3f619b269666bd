"""Distributions of vectors for posteriors: normal with diagonal or full covariance, transformed by planar flows."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from bayesify.functional import at_least_float32, gaussian_kl_sum, planar_flow, planar_identity, standard_normal

__all__ = ["VectorDistribution"]

_KL_DRAWS = 8  # of the KL estimate with flows
_MEAN_PAIRS = 2**13  # antithetic pairs of draws, for the mean with flows


class VectorDistribution(nn.Module):
    r"""A learned distribution of K vectors of size D with a standard normal prior: $N(\mu, LL^\top)$, transformed by planar flows.

    Args:
        mean: initial mean, (K, D).
        std: initial standard deviation.
        full: whether L is a Cholesky factor instead of a diagonal matrix.
        flows: the number of planar flows, initially the identity.

    Example:
        >>> distribution = VectorDistribution(torch.zeros(1, 4), 0.5, flows=2)
        >>> distribution.draw(3)[0].shape
        torch.Size([3, 1, 4])
    """

    tril: Tensor | None
    flow_u: Tensor | None
    flow_w: Tensor | None
    flow_b: Tensor | None

    def __init__(self, mean: Tensor, std: float, full: bool = False, flows: int = 0) -> None:
        super().__init__()
        self.mean = nn.Parameter(mean)
        self.log_std = nn.Parameter(torch.full_like(mean, math.log(std)))
        blocks, size = mean.shape
        below = mean.new_zeros(blocks, size * (size - 1) // 2)
        self.register_parameter("tril", nn.Parameter(below) if full else None)
        w = torch.randn(flows, blocks, size, device=mean.device) / math.sqrt(size) if flows else None
        self.register_parameter("flow_w", None if w is None else nn.Parameter(w))
        self.register_parameter("flow_u", None if w is None else nn.Parameter(planar_identity(w)))
        self.register_parameter("flow_b", None if w is None else nn.Parameter(torch.zeros(flows, blocks, device=mean.device)))

    def draw(self, samples: int, eps: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Draw vectors (S, K, D), from eps (S, K, D) if given, and return them with the log-determinants of the flows (S,)."""
        if eps is None:
            eps = standard_normal(samples, *self.mean.shape, like=self.mean)
        if self.tril is None:
            z = torch.addcmul(self.mean, self.log_std.exp(), eps)
        else:
            z = self.mean + torch.einsum("kij,skj->ski", self.factor(), eps)
        log_det = z.new_zeros(samples)
        if self.flow_u is not None:
            assert self.flow_w is not None
            assert self.flow_b is not None
            for u, w, b in zip(self.flow_u, self.flow_w, self.flow_b, strict=True):
                z, each = planar_flow(z, u, w, b)
                log_det = log_det + each.sum(-1)
        return z, log_det

    def factor(self) -> Tensor:
        """The Cholesky factor of the covariance before the flows: (K, D, D)."""
        diagonal = torch.diag_embed(self.log_std.exp())
        if self.tril is None:
            return diagonal
        blocks, size = self.mean.shape
        i, j = torch.tril_indices(size, size, -1, device=self.tril.device)
        return diagonal.index_put((torch.arange(blocks, device=self.tril.device).unsqueeze(-1), i, j), self.tril)

    def kl(self) -> Tensor:
        """KL from a standard normal in nats, summed; an unbiased estimate with flows."""
        mean, log_std = at_least_float32(self.mean), at_least_float32(self.log_std)
        if self.flow_u is None:
            below = 0.0 if self.tril is None else 0.5 * at_least_float32(self.tril).square().sum()
            return gaussian_kl_sum(mean, log_std) + below
        z, log_det = self.draw(_KL_DRAWS)
        z, log_det = at_least_float32(z), at_least_float32(log_det)
        # E log q0 exactly; -log p by the draws; the constants of the two normals cancel
        return 0.5 * z.square().sum() / _KL_DRAWS - log_det.mean() - (log_std + 0.5).sum()

    def average(self) -> Tensor:
        """The mean (K, D): exact without flows, otherwise the average of 16,384 fixed draws."""
        if self.flow_u is None:
            return self.mean
        generator = torch.Generator().manual_seed(0)
        shape = _MEAN_PAIRS, *self.mean.shape
        eps = torch.randn(shape, generator=generator, dtype=self.mean.dtype, device="cpu").to(self.mean.device)
        return self.draw(2 * _MEAN_PAIRS, torch.cat([eps, -eps]))[0].mean(0)
