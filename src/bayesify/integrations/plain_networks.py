"""The plain networks inside Bayesian ones: models of transformers and adapters of peft."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesify.core.layer import BayesianLayer
from bayesify.core.restoration import as_plain
from bayesify.errors import ConfigurationError, MissingDependencyError

try:
    import transformers
    from transformers.utils.import_utils import is_peft_available
except ImportError as error:
    raise MissingDependencyError("saving and loading pretrained networks", "transformers", extra="transformers") from error

__all__ = ["adapter_names", "at_means", "is_adapter", "load_plain", "plain_model", "virtual_tokens"]

_ADAPTER = "adapter_config.json"


def is_adapter(net: nn.Module) -> bool:
    """Whether a network is a model with adapters of peft."""
    if not is_peft_available():
        return False
    import peft

    return isinstance(net, peft.PeftModel)


def adapter_names(net: Any) -> list[str]:
    """The names of the adapters of a peft model, or of a model of transformers to which `add_adapter` added some."""
    added = isinstance(net, transformers.PreTrainedModel) and getattr(net, "_hf_peft_config_loaded", False)
    return list(net.peft_config) if added or is_adapter(net) else []


def plain_model(net: Any) -> Any:
    """Return the network without the wrapper of peft."""
    return net.get_base_model() if is_adapter(net) else net


def virtual_tokens(net: Any) -> int:
    """The number of tokens that an adapter puts before those of a text, and that have outputs (prompt tuning, p-tuning)."""
    if not is_adapter(net) or not net.active_peft_config.is_prompt_learning:
        return 0
    in_cache = net.active_peft_config.peft_type.value in ("PREFIX_TUNING", "CARTRIDGE")
    return 0 if in_cache else net.active_peft_config.num_virtual_tokens


def at_means(net: nn.Module) -> AbstractContextManager[None]:
    """Let the network be the plain one, at the posterior means, for libraries that read its state or call its layers."""
    layers = [layer for layer in net.modules() if isinstance(layer, BayesianLayer)]
    with torch.no_grad():
        means = {layer: layer.posterior.mean(layer) for layer in layers}
    return as_plain({layer: (_unstored(layer, "weight", w), _unstored(layer, "bias", b)) for layer, (w, b) in means.items()})


def _unstored(layer: BayesianLayer, name: str, mean: Tensor | None) -> Tensor | None:
    """A mean that is not the layer's own parameter, which needs no copy."""
    return None if mean is layer._parameters[name] else mean


def load_plain(path: Path, kind: str, net: Any, kwargs: dict[str, Any]) -> nn.Module:
    """Load the plain network, or the base model with the adapter, by the library that saved it.

    Args:
        path: the folder.
        kind: the name of its class.
        net, kwargs: as in `from_pretrained`.

    Raises:
        ConfigurationError: `net` is missing or of the wrong kind.
    """
    if (path / _ADAPTER).is_file():
        if not isinstance(net, nn.Module):
            raise ConfigurationError(f"{path} has an adapter: give its base model, from_pretrained(directory, net)")
        return _with_adapter(path, kind, net, kwargs)
    if isinstance(net, nn.Module):
        if isinstance(net, transformers.PreTrainedModel):
            raise ConfigurationError(f"{path} has all weights of the model: leave net out, or give its class")
        return net
    known = net if isinstance(net, type) else getattr(transformers, kind, None)
    if not (isinstance(known, type) and issubclass(known, transformers.PreTrainedModel)):
        raise ConfigurationError(f"transformers has no model {kind}: give the network, or the class of the model, as net")
    return known.from_pretrained(path, **kwargs)


def _with_adapter(path: Path, kind: str, net: Any, kwargs: dict[str, Any]) -> nn.Module:
    """The base model with the adapter of a folder, ready for training."""
    import peft

    if type(net).__name__ == kind:  # by `add_adapter` of transformers, without a wrapper
        net.load_adapter(str(path), **{"is_trainable": True, **kwargs})
        return net
    config: Any = peft.PeftConfig.from_pretrained(str(path))
    if not config.is_prompt_learning:
        return peft.PeftModel.from_pretrained(net, str(path), **{"is_trainable": True, **kwargs})
    config.inference_mode = False  # with the layers that compute prompts, whose weights are part of the posterior's file
    if hasattr(config, "prompt_tuning_init"):
        config.prompt_tuning_init = peft.PromptTuningInit.RANDOM
    return peft.get_peft_model(net, config)
