r"""Least-squares projection of matrices onto $S_1 H \mathrm{diag}(g) H S_2$."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesify.errors import DataError
from bayesify.functional.hadamard import fwht
from bayesify.functional.hadamard_weights import xor_table

__all__ = ["hadamard_projection"]


@torch.no_grad()
def hadamard_projection(
    weight: Tensor, kept: Tensor, tied: bool = False, sweeps: int = 60
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Approximate matrices by blocks $S_1 H \mathrm{diag}(g) H S_2$ in the least-squares sense.

    $W_{ij} \approx s_{1,i}\, s_{2,j}\, (Hg)_{i \oplus j}$ is linear in each factor and is fitted by alternating least squares from
    the best of four starts. The error decreases with every sweep, to a local minimum.

    Args:
        weight: K matrices, (K, n, n).
        kept: mask of the entries to approximate, (n, n) or (K, n, n), boolean.
        tied: whether all matrices share g.
        sweeps: number of alternations.

    Returns:
        s1 (K, n), s2 (K, n), g (K, n) or (1, n), and the relative error, a scalar between 0 and 1: the Frobenius norm of the
        residual over that of the weight. For a matrix without structure it is about $\sqrt{1 - 3/n}$.

    Raises:
        DataError: the weight is not finite.

    Example:
        >>> s1, s2, g, error = hadamard_projection(torch.eye(4)[None], torch.ones(4, 4, dtype=torch.bool))
        >>> hadamard_core(g[0]), error  # exact for the identity
        (tensor([[1., 0., 0., 0.],
                [0., 1., 0., 0.],
                [0., 0., 1., 0.],
                [0., 0., 0., 1.]]), tensor(0.))
    """
    dtype, n = weight.dtype, weight.shape[-1]
    w = (weight * kept).double()
    total = w.square().sum()
    if not total.isfinite():
        raise DataError(f"weight must be finite to be projected, got {int((~weight.isfinite()).sum())} NaN or infinite values")
    mask = kept.expand_as(w).double()
    xor = xor_table(n, n, weight.device)
    groups = 1 if tied else len(w)
    candidates = [_alternate(w, mask, xor, groups, *start, sweeps=_TRIAL) for start in _starts(w)]
    errors = torch.stack([_squared_error(w, mask, xor, *factors) for factors in candidates])
    a, b, _ = candidates[int(errors.argmin())]
    a, b, c = _alternate(w, mask, xor, groups, a, b, sweeps)
    error = torch.where(total > 0, (_squared_error(w, mask, xor, a, b, c) / total).clamp(0, 1).sqrt(), 0.0)
    return a.to(dtype), b.to(dtype), (fwht(c) / n).to(dtype), error.to(dtype)


_TRIAL = 8  # sweeps from each start, to choose the best


def _starts(w: Tensor) -> list[tuple[Tensor, Tensor]]:
    """s1 and s2 of ones, and of three fixed draws of random signs."""
    generator = torch.Generator().manual_seed(0)
    signs = [torch.randint(0, 2, (2, *w.shape[:2]), generator=generator, device="cpu").to(w) * 2 - 1 for _ in range(3)]
    return [(start[0], start[1]) for start in (torch.ones_like(signs[0]), *signs)]


def _alternate(
    w: Tensor, mask: Tensor, xor: Tensor, groups: int, a: Tensor, b: Tensor, sweeps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Least squares for c = Hg, a = s1 and b = s2 in turn, with the other two fixed."""
    c = w.new_zeros(groups, w.shape[-1])
    for _ in range(sweeps):
        outer = a.unsqueeze(-1) * b.unsqueeze(-2)
        c = _ratio(_by_xor(w * outer, xor, groups), _by_xor(mask * outer.square(), xor, groups))
        core = c[:, xor]
        factor = core * b.unsqueeze(-2)
        a = _ratio((w * factor).sum(-1), (mask * factor.square()).sum(-1))
        factor = core * a.unsqueeze(-1)
        b = _ratio((w * factor).sum(-2), (mask * factor.square()).sum(-2))
        a, b = _balance(a, b)
    return a, b, c


def _squared_error(w: Tensor, mask: Tensor, xor: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return ((w - a.unsqueeze(-1) * b.unsqueeze(-2) * c[:, xor]) * mask).square().sum()


def _by_xor(matrices: Tensor, xor: Tensor, groups: int) -> Tensor:
    """Sums over the entries with the same i xor j: (groups, n)."""
    n = xor.shape[0]
    # row i, column i xor k: for each k one entry of every row
    sums = matrices.gather(-1, xor.expand_as(matrices)).sum(-2)
    return sums.reshape(groups, -1, n).sum(1)


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """The quotient; zero if the denominator is zero."""
    return numerator / denominator.clamp_min(torch.finfo(denominator.dtype).tiny)


def _balance(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Rescale a and b to one size without changing their products, to prevent overflow."""
    size_a, size_b = (x.square().mean(-1, keepdim=True).sqrt().clamp_min(1e-150) for x in (a, b))
    root = torch.sqrt(size_a * size_b)
    return a * (root / size_a), b * (root / size_b)
