"""Inputs and targets of the networks of transformers: which tokens are predicted, and what a decoder reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayesify.errors import DataError
from bayesify.integrations.plain_networks import plain_model, virtual_tokens
from bayesify.train.batch import Batch

__all__ = ["Columns"]

# endings of class names
_CAUSAL = (
    *("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "BertGenerationDecoder", "ModelWithLMHead", "DoubleHeadsModel"),
    *("ForCausalImageModeling", "ForVisionText2Text", "ForProteinText2Text"),
)
_LANGUAGE = *_CAUSAL, "ForMaskedLM"
_NOT_CAUSAL = "XLNetLMHeadModel", "XLMWithLMHeadModel", "FlaubertWithLMHeadModel"
_DECODER_INPUTS = "decoder_input_ids", "decoder_inputs_embeds"


@dataclasses.dataclass(frozen=True)
class Columns:
    """How the columns of a batch become inputs and targets of a network.

    Attributes:
        net: the network of transformers or any other, or a peft model.
        labels: the column of the targets.
        ignore_index: the label of targets that do not count.
        shift: whether the output at one token predicts the next one; None decides by the class of the network.
    """

    net: nn.Module
    labels: str = "labels"
    ignore_index: int = -100
    shift: bool | None = None

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether the network is a sequence-to-sequence model."""
        return bool(getattr(getattr(self.net, "config", None), "is_encoder_decoder", False))

    @property
    def is_causal(self) -> bool:
        """Whether the output at one token predicts the next one."""
        if self.shift is not None:
            return self.shift
        names = self._class_names()
        return any(name.endswith(_CAUSAL) for name in names) and not (self.is_encoder_decoder or set(names) & set(_NOT_CAUSAL))

    @property
    def is_language_model(self) -> bool:
        """Whether outputs are large: logits of a vocabulary for every token."""
        return any(name.endswith(_LANGUAGE) for name in self._class_names())

    def batch(self, columns: Mapping[str, Any]) -> Batch:
        """Return the inputs and targets of a batch; the targets of a causal model are shifted by one token.

        Raises:
            DataError: there are no targets, or they are no tensor.
        """
        inputs = {name: value for name, value in columns.items() if name != self.labels}
        y = columns.get(self.labels)
        if y is None:
            raise DataError(
                f"the batch has no {self.labels!r}, only {', '.join(map(repr, columns)) or 'nothing'}; rename the column of the "
                'targets, or give its name: TrainingArguments(label_names=["..."])'
            )
        if not isinstance(y, Tensor):
            raise DataError(
                f"{self.labels!r} is a {type(y).__name__}, not a tensor with a row per example, so that no likelihood takes it, as "
                "with the boxes of object detectors; write the loop, with the loss of the model for the log likelihood of each draw"
            )
        return Batch(self._with_decoder_inputs(inputs, y), self._shifted(y))

    def inputs(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs of a batch that may have no targets."""
        if columns.get(self.labels) is None:
            return {name: value for name, value in columns.items() if name != self.labels}
        inputs: Any = self.batch(columns).inputs
        return inputs

    def _class_names(self) -> list[str]:
        return [kind.__name__ for kind in type(plain_model(self.net)).__mro__]

    def _shifted(self, y: Tensor) -> Tensor:
        """Labels at the position of the output that predicts them; outputs at virtual tokens and the last one predict nothing."""
        if not self.is_causal:
            return y
        before, after = (y.new_full((len(y), count), self.ignore_index) for count in (virtual_tokens(self.net), 1))
        return torch.cat([before, y, after], 1)[:, 1:]

    def _with_decoder_inputs(self, inputs: dict[str, Any], y: Tensor) -> dict[str, Any]:
        """Let the decoder of a sequence-to-sequence model read the labels, shifted by one token."""
        model: Any = plain_model(self.net)
        if not self.is_encoder_decoder or y.dim() != 2 or any(inputs.get(name) is not None for name in _DECODER_INPUTS):
            return inputs
        if not callable(head := getattr(model, "get_output_embeddings", None)) or head() is None:
            return inputs  # labels of a text, no tokens
        if callable(prepare := getattr(model, "prepare_decoder_input_ids_from_labels", None)):
            return {**inputs, "decoder_input_ids": prepare(labels=y)}
        start, padding = model.config.decoder_start_token_id, model.config.pad_token_id
        shifted = torch.cat([torch.full_like(y[:, :1], start), y[:, :-1]], 1)
        return {**inputs, "decoder_input_ids": shifted.masked_fill(shifted == self.ignore_index, padding)}
