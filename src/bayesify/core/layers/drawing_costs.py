"""What a draw of weights costs next to a draw of outputs, without gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesify.native.operators import has_kernels

__all__ = ["weights_cost_less"]

_TRACED_ROWS = 32  # where the number of rows is a symbol: a decision by its value would be compiled again for others


def weights_cost_less(like: Tensor, weights: int, rows: int, uses: int, outputs: int, once: bool) -> bool:
    """Whether a layer should draw weights instead of outputs, if both are possible.

    A layer that uses its weights at one position keeps the noise of rows, which averages out over them. At several positions, the
    faster one is chosen. Both multiply inputs by weights. Drawn weights take noise for every weight. Drawn outputs take noise for every output and a
    second product, of squared inputs and variances; or neither product, if the moments of the outputs are computed once for all
    draws. The costs of noise are in units of one multiplication with addition, measured on two cores; a GPU, where weights are
    drawn at the rate of its memory, is close to the native operators.

    Args:
        like: the input.
        weights: their number.
        rows: rows per draw.
        uses: how often a row uses every weight: its positions.
        outputs: the outputs of a row.
        once: whether the moments are computed once for all draws.
    """
    if torch.is_grad_enabled() or uses <= 1:
        return False
    rows = rows if isinstance(rows, int) else _TRACED_ROWS
    of_weight, of_output = (150, 100) if has_kernels(like) or not like.is_cpu else (400, 250)
    products = rows * uses if once else -rows * uses
    return weights * (of_weight + products) < of_output * rows * outputs
