"""The layers of low-rank adapters that a method converts."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from bayesify.errors import ConfigurationError, NothingRandomError
from bayesify.formatting import listing

__all__ = ["adapters", "check_where"]


def check_where(where: object) -> None:
    """Raise a `ConfigurationError` unless `where` is a name pattern."""
    if not isinstance(where, str) or not where:
        raise ConfigurationError(f'where must be a name pattern such as "*lora_[Aa]*", got {where!r}')


def adapters(layers: Iterable[str], method: str, where: str) -> list[str]:
    """The names of layers that match a pattern; raise a `NothingRandomError` if there is none."""
    names = list(layers)
    chosen = [name for name in names if fnmatchcase(name, where)]
    if not chosen:
        raise NothingRandomError(
            f"{method}(where={where!r}) matches no layer, so the network has no LoRA adapter; add one first (peft.get_peft_model), "
            f"or name layers by a pattern; the layers are {listing(map(repr, names))}"
        )
    return chosen
