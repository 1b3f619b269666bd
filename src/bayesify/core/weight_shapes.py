"""Weights whose shape changed after the conversion, unlike that of their posteriors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bayesify.core.layer import BayesianLayer
from bayesify.errors import PassError
from bayesify.formatting import listing

if TYPE_CHECKING:
    from bayesify.core.model import Bayesian

__all__ = ["check_shapes"]


def check_shapes(root: Bayesian, layers: Sequence[BayesianLayer]) -> None:
    """Raise a `PassError` if a weight has another shape than at the conversion: kernels would read other memory."""
    for layer in layers:
        weight = layer._parameters.get("weight")
        if weight is not None and weight.shape != layer.weight_shape:
            names = {each: name for name, each in root.random_layers()}
            wrong = [
                f"{names[each]!r} {tuple(w.shape)} instead of {each.weight_shape}"
                for each in layers
                if (w := each._parameters.get("weight")) is not None and w.shape != each.weight_shape
            ]
            raise PassError(
                f"weights have another shape than their posteriors: {listing(wrong, most=3)}; change sizes, as by "
                "resize_token_embeddings, before bayesify"
            )
