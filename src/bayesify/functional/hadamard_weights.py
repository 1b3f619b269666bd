r"""Weights of Walsh-Hadamard variational inference, $W = S_1 H \mathrm{diag}(g) H S_2$, as matrices.

Because $(H \mathrm{diag}(g) H)_{ij} = (Hg)_{i \oplus j}$ for the unnormalised Hadamard matrix H (i xor j), one transform of g
gives all of W: $W_{ij} = s_{1,i}\, s_{2,j}\, (Hg)_{i \oplus j}$.

Shapes: n a power of two, ... any leading dimensions.
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
    r"""The upper left corner of $H \mathrm{diag}(g) H$, by one transform.

    Args:
        g: (..., n).
        rows, columns: of the corner; n without.

    Returns:
        (..., rows, columns).

    Example:
        >>> hadamard_core(torch.tensor([1.0, 2.0]))
        tensor([[ 3., -1.],
                [-1.,  3.]])
    """
    n = g.shape[-1]
    rows, columns = n if rows is None else rows, n if columns is None else columns
    if n <= _SMALL:  # a product with H costs little then, and its gradient less than that of picking elements
        return fwht(g.unsqueeze(-2) * hadamard_matrix(n, dtype=g.dtype, device=g.device)[:rows])[..., :columns]
    return fwht(g)[..., xor_table(rows, columns, g.device)]


def hadamard_blocks(
    g: Tensor, s1: Tensor | None, s2: Tensor | None, structure: Structure, rows: int | None = None, columns: int | None = None
) -> Tensor:
    r"""Blocks of a weight, from its factors: the upper left corners of $S_1 H \mathrm{diag}(g) H S_2$ or of another structure.

    Args:
        g: (..., n).
        s1, s2: (..., n), the diagonals of the structure; None for those it does not have ("SHGH" has s1).
        structure: "S1HGHS2", or the alternatives "S1HGHS2H", "SHGH" and "GH".
        rows, columns: of the corner; n without.

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
    r"""Products with the blocks of `hadamard_blocks`, by transforms: two of them for $S_1 H \mathrm{diag}(g) H S_2\, x$.

    Args:
        x: (..., n).
        g: (..., n), of shape such that it broadcasts to x; so do s1 and s2.
        s1, s2, structure: as for `hadamard_blocks`.

    Returns:
        (..., n), of the shape of all arguments broadcast, in the precision of x.

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
    r"""Marginal row and column second moments of $\tilde W = S_1 H \mathrm{diag}(\tilde g) H S_2$ for $\tilde g$ of mean zero
    and covariance $\Sigma$.

    $$U = \mathrm{E}\,\tilde W \tilde W^\top = S_1 H (\Sigma \circ (H S_2^2 H)) H S_1, \qquad
      V = \frac{\mathrm{E}\,\tilde W^\top \tilde W}{\mathrm{tr}\,U} = \frac{S_2 H (\Sigma \circ (H S_1^2 H)) H
      S_2}{\mathrm{tr}\,U}$$

    They are marginals and no more: the covariance of all of $\tilde W$ has rank n, $V \otimes U$ in general rank $n^2$. The law
    of W is not a matrix normal (Kronecker) distribution, and must not be sampled as one.

    Args:
        s1, s2: (..., n).
        covariance: of g, (..., n, n).

    Returns:
        U and V, (..., n, n).

    Source: Rossi, Marmin & Filippone, *Walsh-Hadamard variational inference for Bayesian deep learning* (2020), equation (5),
    put right.

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
    """i xor j, (rows, columns): which element of Hg a weight is."""
    return torch.arange(rows, device=device).unsqueeze(-1) ^ torch.arange(columns, device=device)
