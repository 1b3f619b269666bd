r"""Weights of Walsh-Hadamard variational inference, $W = S_1 H \mathrm{diag}(g) H S_2$, as matrices.

Because $(H \mathrm{diag}(g) H)_{ij} = (Hg)_{i \oplus j}$ for the unnormalised Hadamard matrix H (i xor j), one transform of g
gives all of W: $W_{ij} = s_{1,i}\, s_{2,j}\, (Hg)_{i \oplus j}$.

Shapes: n a power of two, ... any leading dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesify.functional.hadamard import fwht, hadamard_matrix

__all__ = ["hadamard_core", "hadamard_projection", "hadamard_second_moments"]

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
    return fwht(g)[..., _xor(rows, columns, g.device)]


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


@torch.no_grad()
def hadamard_projection(
    weight: Tensor, kept: Tensor, shared: bool = False, sweeps: int = 60
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Blocks $S_1 H \mathrm{diag}(g) H S_2$ close to given matrices in the sense of least squares.

    $W_{ij} \approx s_{1,i}\, s_{2,j}\, (Hg)_{i \oplus j}$ is linear in each of the three factors: alternating least squares,
    from the best of a few starts. The error falls with every sweep; it need not reach the lowest there is.

    Args:
        weight: K matrices, (K, n, n).
        kept: (n, n) or (K, n, n), boolean: the entries that matter; the others may become anything.
        shared: one g for all matrices.
        sweeps: of the alternation.

    Returns:
        s1 (K, n), s2 (K, n), g (K, n) or (1, n), and the relative error, a scalar: the Frobenius norm of what is missed over
        that of the weight, between 0 and 1. A matrix without any structure keeps about $\sqrt{1 - 3/n}$ of its norm as error.
    """
    dtype, device, n = weight.dtype, weight.device, weight.shape[-1]
    w = (weight * kept).double()
    mask = kept.expand_as(w).double()
    xor = _xor(n, n, device)
    groups = 1 if shared else len(w)
    best, lowest = None, torch.tensor(torch.inf, dtype=torch.float64, device=device)
    # The same starts every time, whatever random numbers the caller is using.
    generator = torch.Generator().manual_seed(0)
    for start in range(4):
        signs = torch.randint(0, 2, (2, len(w), n), generator=generator).to(w) * 2 - 1
        a, b = (torch.ones_like(signs) if start == 0 else signs).unbind()
        c = torch.zeros(groups, n, dtype=torch.float64, device=device)
        for _ in range(sweeps):
            outer = a.unsqueeze(-1) * b.unsqueeze(-2)
            c = _ratio(_by_xor(w * outer, xor, groups), _by_xor(mask * outer.square(), xor, groups))
            core = c[:, xor]
            bc = core * b.unsqueeze(-2)
            a = _ratio((w * bc).sum(-1), (mask * bc.square()).sum(-1))
            ac = core * a.unsqueeze(-1)
            b = _ratio((w * ac).sum(-2), (mask * ac.square()).sum(-2))
            # the scales of the three factors are free: keep them apart from overflow
            c, a, b = c, *_balance(a, b)
        error = ((w - a.unsqueeze(-1) * b.unsqueeze(-2) * c[:, xor]) * mask).square().sum()
        if error < lowest:
            best, lowest = (a, b, c), error
    if best is None:
        raise ValueError(f"weight must be finite to be projected, got {weight}")
    a, b, c = best
    total = w.square().sum()
    relative = torch.where(total > 0, (lowest / total).clamp(0, 1).sqrt(), torch.zeros_like(total))
    return a.to(dtype), b.to(dtype), (fwht(c) / n).to(dtype), relative.to(dtype)


def _xor(rows: int, columns: int, device: torch.device) -> Tensor:
    return torch.arange(rows, device=device).unsqueeze(-1) ^ torch.arange(columns, device=device)


def _by_xor(matrices: Tensor, xor: Tensor, groups: int) -> Tensor:
    """Sums over the entries with the same i xor j: (groups, n)."""
    n = xor.shape[0]
    # row i, column i xor k: for each k one entry of every row
    sums = matrices.gather(-1, xor.expand_as(matrices)).sum(-2)
    return sums.reshape(groups, -1, n).sum(1)


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Zero where nothing says what the factor should be."""
    return numerator / denominator.clamp_min(torch.finfo(denominator.dtype).tiny)


def _balance(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The same products, with a and b of one size."""
    size_a, size_b = (x.square().mean(-1, keepdim=True).sqrt().clamp_min(1e-150) for x in (a, b))
    root = torch.sqrt(size_a * size_b)
    return a * (root / size_a), b * (root / size_b)
