"""The plain networks inside Bayesian ones: models of transformers and adapters of peft."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bayesify.core.layer import BayesianLayer
from bayesify.errors import ConfigurationError, MissingDependencyError

try:
    import transformers
    from transformers.utils.import_utils import is_peft_available
except ImportError as error:
    raise MissingDependencyError("saving and loading pretrained networks", "transformers", extra="transformers") from error

__all__ = ["at_means", "is_adapter", "load_plain", "plain_model", "virtual_tokens"]

_ADAPTER = "adapter_config.json"


def is_adapter(net: nn.Module) -> bool:
    """Whether a network is a model with adapters of peft."""
    if not is_peft_available():
        return False
    import peft

    return isinstance(net, peft.PeftModel)


def plain_model(net: Any) -> Any:
    """Return the network without the wrapper of peft."""
    return net.get_base_model() if is_adapter(net) else net


def virtual_tokens(net: Any) -> int:
    """The number of tokens that an adapter puts before those of a text, and that have outputs (prompt tuning, p-tuning)."""
    if not is_adapter(net) or not net.active_peft_config.is_prompt_learning:
        return 0
    in_cache = net.active_peft_config.peft_type.value in ("PREFIX_TUNING", "CARTRIDGE")
    return 0 if in_cache else net.active_peft_config.num_virtual_tokens


@contextmanager
def at_means(net: nn.Module) -> Iterator[None]:
    """Let the network have the parameters of the plain one, at the posterior means, for libraries that read its state."""
    layers = [layer for layer in net.modules() if isinstance(layer, BayesianLayer)]
    kept = [(layer, dict(layer._parameters), dict(layer._modules)) for layer in layers]
    with torch.no_grad():
        means = [layer.posterior.mean(layer) for layer in layers]
    try:
        for layer, values in zip(layers, means, strict=True):
            del layer._modules["posterior"]
            for name, value in zip(("weight", "bias"), values, strict=True):
                if value is not layer._parameters[name]:
                    layer._parameters[name] = None if value is None else nn.Parameter(value, requires_grad=False)
        yield
    finally:
        for layer, parameters, modules in kept:
            layer._parameters.update(parameters)
            layer._modules.update(modules)


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
        import peft

        return peft.PeftModel.from_pretrained(net, str(path), **{"is_trainable": True, **kwargs})
    if isinstance(net, nn.Module):
        if isinstance(net, transformers.PreTrainedModel):
            raise ConfigurationError(f"{path} has all weights of the model: leave net out, or give its class")
        return net
    known = net if isinstance(net, type) else getattr(transformers, kind, None)
    if not (isinstance(known, type) and issubclass(known, transformers.PreTrainedModel)):
        raise ConfigurationError(f"transformers has no model {kind}: give the network, or the class of the model, as net")
    return known.from_pretrained(path, **kwargs)
