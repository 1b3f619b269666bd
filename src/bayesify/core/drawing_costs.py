"""What a draw of a layer's weights costs next to a draw of its outputs."""

from __future__ import annotations

from torch import Tensor

from bayesify.native.operators import has_kernels

__all__ = ["weights_cost_less"]

_TRACED_ROWS = 32  # where the number of rows is a symbol: a decision by its value would be compiled again for others


def weights_cost_less(like: Tensor, weights: int, rows: int, uses: int, outputs: int) -> bool:
    """Whether to draw weights without gradients, if outputs could be drawn as well.

    Drawn weights take noise for every weight; drawn outputs take a second product, of squared inputs and variances, and noise for
    every output. The costs of noise are in units of one multiplication with addition, measured on two cores. A GPU, where weights
    are drawn at the rate of its memory, is close to the native operators.

    Args:
        like: the input.
        weights: their number.
        rows: rows per draw.
        uses: how often a row uses every weight: its positions.
        outputs: the outputs of a row.
    """
    rows = rows if isinstance(rows, int) else _TRACED_ROWS
    of_weight, of_output = (150, 100) if has_kernels(like) or not like.is_cpu else (400, 250)
    return weights * (of_weight - rows * uses) < of_output * rows * outputs
