"""Initial values of a weight's Walsh-Hadamard factors: s1, s2 and g in units of its prior's standard deviation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bayesify.functional import hadamard_projection
from bayesify.methods._square_blocks import SquareBlocks

if TYPE_CHECKING:
    from bayesify.methods.whvi import WHVI

__all__ = ["projected_factors", "random_factors"]


def random_factors(method: WHVI, blocks: SquareBlocks, fan_in: int) -> tuple[Tensor, Tensor, Tensor, None]:
    """Random signs, standard normal g: entries of W have variance 2 / fan-in, rows of a block are orthogonal on average.

    Returns:
        s1 and s2 (K, D), g (K or 1, D), and None: no weight is approximated.
    """
    # an entry has variance scale ** (2 * scales) * prior_std**2 * size**sums
    scales, sums = {"S1HGHS2": (2, 1), "S1HGHS2H": (2, 2), "SHGH": (1, 1), "GH": (0, 0)}[method.structure]
    variance = 2 / (fan_in * method.prior_std**2 * blocks.size**sums)
    scale = variance ** (0.5 / scales) if scales else 1.0
    s1, s2 = (scale * (2 * torch.randint(0, 2, (blocks.count, blocks.size)).float() - 1) for _ in range(2))
    g = torch.randn(blocks.count if method.blocks == "independent" else 1, blocks.size)
    return s1, s2, g if scales else g * math.sqrt(variance), None


def projected_factors(method: WHVI, blocks: SquareBlocks, weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The projection of a weight, with g of mean square 1.

    Returns:
        s1 and s2 (K, D), g (K or 1, D), and the relative error of the projection.
    """
    if weight.is_meta:
        return *random_factors(method, blocks, 1)[:3], weight.new_zeros(())
    parts, mask = blocks.split(weight.detach()), blocks.split(torch.ones_like(weight.detach())) > 0
    s1, s2, g, residual = hadamard_projection(parts, mask, tied=method.blocks == "tied")
    unit = g.square().mean(-1, keepdim=True).sqrt().clamp_min(1e-30)
    root = unit.sqrt() * method.prior_std**-0.5
    return s1 * root, s2 * root, g / unit, residual
