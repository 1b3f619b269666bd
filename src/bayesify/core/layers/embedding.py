"""Embeddings."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.core.layer import BayesianLayer

__all__ = ["LAYERS"]


class BayesEmbedding(BayesianLayer, nn.Embedding):
    original = nn.Embedding

    def apply_weight(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = F.embedding(x, weight)
        # the padding token is the zero vector, without noise or gradient
        return y if self.padding_idx is None else y.masked_fill((x == self.padding_idx).unsqueeze(-1), 0)

    def constrained(self, weight: Tensor) -> Tensor:
        if self.padding_idx is None:
            return weight
        padding = torch.arange(self.num_embeddings, device=weight.device) == self.padding_idx
        return weight.masked_fill(padding.unsqueeze(-1), 0)

    def square(self, x: Tensor) -> Tensor:
        return x  # an index represents a one-hot row, which equals its square


LAYERS = (BayesEmbedding,)
