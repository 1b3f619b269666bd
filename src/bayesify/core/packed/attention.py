"""`nn.MultiheadAttention`, whose projections become layers.

Shapes: B batch, L queries, S keys, E features, H heads.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from bayesify.core.packed.unpacked import Place, Unpacked
from bayesify.errors import PassError

__all__ = ["UnpackedMultiheadAttention"]

_PROJECTIONS = ("q_proj", "k_proj", "v_proj")


class UnpackedMultiheadAttention(Unpacked, nn.MultiheadAttention):
    """Attention that calls `q_proj`, `k_proj`, `v_proj` and `out_proj`."""

    packed = nn.MultiheadAttention

    def layout(self) -> dict[str, list[Place]]:
        weights: dict[str, list[Place]] = {"in_proj_weight": [(part, "weight") for part in _PROJECTIONS]}
        if not self._qkv_same_embed_dim:
            weights = {f"{part}_weight": [(part, "weight")] for part in _PROJECTIONS}
        return {**weights, "in_proj_bias": [(part, "bias") for part in _PROJECTIONS]}

    def initial_bound(self, part: str) -> float:
        # Xavier's, of one matrix for all projections if they have equal inputs
        inputs = {"q_proj": self.embed_dim, "k_proj": self.kdim, "v_proj": self.vdim}[part]
        return math.sqrt(6 / (inputs + self.embed_dim * (3 if self._qkv_same_embed_dim else 1)))

    def unpack(self) -> None:
        super().unpack()
        self._modules["out_proj"] = self._modules.pop("out_proj")  # after the others, as it is called
        self.out_proj.__class__ = nn.Linear  # pyright: ignore[reportAttributeAccessIssue]

    def pack(self, parameters: dict[str, nn.Parameter | None] | None = None) -> None:
        super().pack(parameters)
        self.out_proj.__class__ = NonDynamicallyQuantizableLinear

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if is_causal and attn_mask is None:
            raise PassError("is_causal=True needs attn_mask, as in nn.MultiheadAttention")
        batched = query.dim() == 3
        moved = batched and not self.batch_first  # layers get the batch as first dimension
        projections = self.q_proj, self.k_proj, self.v_proj
        inputs = [x.transpose(0, 1) if moved else x for x in (query, key, value)]
        q, k, v = (projection(x) for projection, x in zip(projections, inputs, strict=True))
        if not batched:
            q, k, v = (x.unsqueeze(0) for x in (q, k, v))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        y, weights = self._attend(q, k, v, key_padding_mask, attn_mask, need_weights, is_causal)
        y = self.out_proj(y if batched else y.squeeze(0))
        if weights is not None:
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights if batched else weights.squeeze(0)
        return y.transpose(0, 1).contiguous() if moved else y, weights

    def _attend(
        self,
        q: Tensor,  # (B, L, E), as k and v (B, S, E)
        k: Tensor,
        v: Tensor,
        key_padding_mask: Tensor | None,  # (B, S)
        attn_mask: Tensor | None,  # (L, S) or (B*H, L, S)
        need_weights: bool,
        is_causal: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention output (B, L, E) before `out_proj`, and weights (B, H, L, S) if they are needed."""
        batch = q.shape[0]
        # the hint stands for attn_mask where nothing else needs a mask
        is_causal = is_causal and key_padding_mask is None and not need_weights
        masks = (
            [] if attn_mask is None or is_causal else [attn_mask if attn_mask.dim() == 2 else attn_mask.unflatten(0, (batch, -1))]
        )
        masks += [] if key_padding_mask is None else [key_padding_mask[:, None, None]]
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (torch.cat([x, bias.expand(batch, 1, -1)], 1) for x, bias in ((k, self.bias_k), (v, self.bias_v)))
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in (q, k, v))
        if self.add_zero_attn:
            k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
        mask = None
        if masks:
            more = int(self.bias_k is not None) + int(self.add_zero_attn)  # positions that no mask hides
            mask = sum(F.pad(_additive(m, q.dtype), (0, more)) for m in masks)
            assert isinstance(mask, Tensor)
        dropout = self.dropout if self.training else 0.0
        if not need_weights:
            y, weights = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal), None
        else:
            scores = q @ k.mT / math.sqrt(q.shape[-1])
            weights = F.dropout(torch.softmax(scores if mask is None else scores + mask, -1), dropout)
            y = weights @ v
        return y.transpose(1, 2).flatten(2), weights


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask to add to scores: minus infinity where a boolean mask is True."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -math.inf)
