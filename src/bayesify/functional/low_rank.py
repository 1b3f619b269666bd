"""Low-rank changes of the identity, in the precision of their factors."""

import torch
from torch import Tensor

__all__ = ["identity_plus_gram_root"]


def identity_plus_gram_root(factor: Tensor) -> Tensor:
    r"""Cholesky factor of $I + W^\top W$, also where the rounded sum has none.

    It is the transposed triangular factor of W above I. The sum itself, in single precision, loses the digits of small singular
    values, or positive definiteness, if elements of W exceed a few hundred.

    Args:
        factor: W, (n, r), float32 or float64.

    Returns:
        C with $C C^\top = I + W^\top W$, lower triangular with a positive diagonal, (r, r). NaN if an element of W is not finite.

    Example:
        >>> identity_plus_gram_root(torch.tensor([[1e20]]))
        tensor([[1.0000e+20]])
    """
    identity = torch.eye(factor.shape[1], dtype=factor.dtype, device=factor.device)
    upper = torch.linalg.qr(torch.cat([factor, identity])).R
    return upper.mT * upper.diagonal().sign()
