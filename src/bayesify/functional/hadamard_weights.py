r"""Weights of Walsh-Hadamard variational inference, $W = S_1 H \mathrm{diag}(g) H S_2$, as matrices.

Because $(H \mathrm{diag}(g) H)_{ij} = (Hg)_{i \oplus j}$ for the unnormalized Hadamard matrix H (i xor j), one transform of g
gives all of W: $W_{ij} = s_{1,i}\, s_{2,j}\, (Hg)_{i \oplus j}$.

Shapes: n a power of two, ... leading dimensions.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from bayesify.functional.hadamard import fwht, hadamard_matrix

__all__ = ["Structure", "hadamard_blocks", "hadamard_core", "hadamard_product", "hadamard_second_moments"]

Structure = Literal["S1HGHS2", "S1HGHS2H", "SHGH", "GH"]

_SMALL = 64


def hadamard_core(g: Tensor, rows: int | None = None, columns: int | None = None) -> Tensor:
    r"""Upper left corner of $H \mathrm{diag}(g) H$, by one transform.

    Args:
        g: (..., n).
        rows, columns: size of the corner; n by default.

    Returns:
        (..., rows, columns).

    Example:
        >>> hadamard_core(torch.tensor([1.0, 2.0]))
        tensor([[ 3., -1.],
                [-1.,  3.]])
    """
    n = g.shape[-1]
    rows, columns = n if rows is None else rows, n if columns is None else columns
    if n <= _SMALL:  # a product with a small H is cheap, and its gradient cheaper than that of indexing
        return fwht(g.unsqueeze(-2) * hadamard_matrix(n, dtype=g.dtype, device=g.device)[:rows])[..., :columns]
    return fwht(g)[..., xor_table(rows, columns, g.device)]


def hadamard_blocks(
    g: Tensor, s1: Tensor | None, s2: Tensor | None, structure: Structure, rows: int | None = None, columns: int | None = None
) -> Tensor:
    r"""Blocks of a weight: upper left corners of $S_1 H \mathrm{diag}(g) H S_2$, or of another structure, from its factors.

    Args:
        g: (..., n).
        s1, s2: (..., n), the diagonals of the structure; None for those that it does not have ("SHGH" has s1).
        structure: "S1HGHS2", "S1HGHS2H", "SHGH" or "GH".
        rows, columns: size of the corner; n by default.

    Returns:
        (..., rows, columns), linear in each factor.

    Source: Rossi, Marmin & Filippone (2020), equation (3) and table 2.

    Example:
        >>> hadamard_blocks(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 10.0]), torch.ones(2), "S1HGHS2")
        tensor([[  3.,  -1.],
                [-10.,  30.]])
    """
    n = g.shape[-1]
    cut = n if structure == "S1HGHS2H" else columns  # the last H mixes columns
    if structure == "GH":
        blocks = g[..., :rows, None] * hadamard_matrix(n, dtype=g.dtype, device=g.device)[:rows, :cut]
    else:
        blocks = hadamard_core(g, rows, cut)
    if s2 is not None:
        blocks = blocks * s2[..., None, :cut]
    if structure == "S1HGHS2H":
        blocks = fwht(blocks)[..., :columns]
    return blocks if s1 is None else blocks * s1[..., :rows, None]


def hadamard_product(x: Tensor, g: Tensor, s1: Tensor | None, s2: Tensor | None, structure: Structure) -> Tensor:
    r"""Multiply x by the blocks of `hadamard_blocks`, with two transforms for $S_1 H \mathrm{diag}(g) H S_2\, x$.

    Args:
        x: (..., n).
        g, s1, s2: (..., n), broadcastable with x.
        structure: as for `hadamard_blocks`.

    Returns:
        (..., n), in the dtype of x.

    Example:
        >>> g, s1, s2 = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 10.0]), torch.ones(2)
        >>> hadamard_product(torch.tensor([1.0, 0.0]), g, s1, s2, "S1HGHS2")
        tensor([  3., -10.])
    """
    if structure != "S1HGHS2":
        x = fwht(x)
    if s2 is not None:
        x = fwht(x * s2.to(x.dtype))
    y = x * g.to(x.dtype)
    return y if s1 is None else fwht(y) * s1.to(y.dtype)


def hadamard_second_moments(s1: Tensor, s2: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    r"""Second moments of the rows and columns of a random Hadamard weight.

    For $\tilde W = S_1 H \mathrm{diag}(\tilde g) H S_2$ with $\tilde g$ of mean zero and covariance $\Sigma$:

    $$U = \mathrm{E}\,\tilde W \tilde W^\top = S_1 H (\Sigma \circ (H S_2^2 H)) H S_1, \qquad
      V = \frac{\mathrm{E}\,\tilde W^\top \tilde W}{\mathrm{tr}\,U} = \frac{S_2 H (\Sigma \circ (H S_1^2 H)) H
      S_2}{\mathrm{tr}\,U}$$

    W is not matrix normal: the covariance of all of $\tilde W$ has rank n, while $V \otimes U$ has in general rank $n^2$.

    Args:
        s1, s2: (..., n).
        covariance: of g, (..., n, n).

    Returns:
        U and V, (..., n, n).

    Source: Rossi, Marmin & Filippone, *Walsh-Hadamard variational inference for Bayesian deep learning* (2020), equation (5),
    corrected.

    Example:
        >>> one = torch.ones(2)
        >>> u, v = hadamard_second_moments(one, one, torch.eye(2))
        >>> u, v
        (tensor([[4., 0.], [0., 4.]]), tensor([[0.5000, 0.0000], [0.0000, 0.5000]]))
    """

    def both_sides(matrix: Tensor) -> Tensor:
        return fwht(fwht(matrix).mT).mT

    def moment(outer: Tensor, inner: Tensor) -> Tensor:
        inside = both_sides(covariance * both_sides(torch.diag_embed(inner.square())))
        return outer.unsqueeze(-1) * inside * outer.unsqueeze(-2)

    u = moment(s1, s2)
    return u, moment(s2, s1) / u.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]


def xor_table(rows: int, columns: int, device: torch.device) -> Tensor:
    """i xor j, (rows, columns): the index into Hg of every weight."""
    return torch.arange(rows, device=device).unsqueeze(-1) ^ torch.arange(columns, device=device)
