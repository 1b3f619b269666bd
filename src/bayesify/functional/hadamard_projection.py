r"""The projection of a given matrix onto $S_1 H \mathrm{diag}(g) H S_2$, in the sense of least squares."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesify.functional.hadamard import fwht
from bayesify.functional.hadamard_weights import xor_table

__all__ = ["hadamard_projection"]


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
        sweeps: of the alternation, from the best of four starts.

    Returns:
        s1 (K, n), s2 (K, n), g (K, n) or (1, n), and the relative error, a scalar: the Frobenius norm of what is missed over
        that of the weight, between 0 and 1. A matrix without any structure keeps about $\sqrt{1 - 3/n}$ of its norm as error.

    Raises:
        ValueError: a weight that is not finite.

    Example:
        >>> s1, s2, g, error = hadamard_projection(torch.eye(4)[None], torch.ones(4, 4, dtype=torch.bool))
        >>> hadamard_core(g[0]), error  # the identity is of the family
        (tensor([[1., 0., 0., 0.],
                [0., 1., 0., 0.],
                [0., 0., 1., 0.],
                [0., 0., 0., 1.]]), tensor(0.))
    """
    dtype, n = weight.dtype, weight.shape[-1]
    w = (weight * kept).double()
    total = w.square().sum()
    if not total.isfinite():
        raise ValueError(f"weight must be finite to be projected, got {weight}")
    mask = kept.expand_as(w).double()
    xor = xor_table(n, n, weight.device)
    groups = 1 if shared else len(w)
    candidates = [_alternate(w, mask, xor, groups, *start, sweeps=_TRIAL) for start in _starts(w)]
    errors = torch.stack([_missed(w, mask, xor, *factors) for factors in candidates])
    a, b, _ = candidates[int(errors.argmin())]
    a, b, c = _alternate(w, mask, xor, groups, a, b, sweeps)
    error = torch.where(total > 0, (_missed(w, mask, xor, a, b, c) / total).clamp(0, 1).sqrt(), 0.0)
    return a.to(dtype), b.to(dtype), (fwht(c) / n).to(dtype), error.to(dtype)


_TRIAL = 8  # sweeps that tell which start is the best


def _starts(w: Tensor) -> list[tuple[Tensor, Tensor]]:
    """s1 and s2 of ones, and of random signs: the same ones every time, whatever random numbers the caller is using."""
    generator = torch.Generator().manual_seed(0)
    signs = [torch.randint(0, 2, (2, *w.shape[:2]), generator=generator).to(w) * 2 - 1 for _ in range(3)]
    return [(start[0], start[1]) for start in (torch.ones_like(signs[0]), *signs)]


def _alternate(
    w: Tensor, mask: Tensor, xor: Tensor, groups: int, a: Tensor, b: Tensor, sweeps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Least squares for c = Hg, for a = s1 and for b = s2 in turn, each with the other two fixed."""
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


def _missed(w: Tensor, mask: Tensor, xor: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The squared error, a scalar."""
    return ((w - a.unsqueeze(-1) * b.unsqueeze(-2) * c[:, xor]) * mask).square().sum()


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
    """The same products, with a and b of one size: the scales of the factors are free, and kept apart from overflow."""
    size_a, size_b = (x.square().mean(-1, keepdim=True).sqrt().clamp_min(1e-150) for x in (a, b))
    root = torch.sqrt(size_a * size_b)
    return a * (root / size_a), b * (root / size_b)
