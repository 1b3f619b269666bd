"""`save_pretrained` and `from_pretrained`: Bayesian networks in the folders of transformers models and peft adapters.

The folder is also one of the plain library: its weights are the posterior means, so `AutoModel.from_pretrained` and
`PeftModel.from_pretrained` load it without bayesify. The posterior is in `bayesify.json` and `bayesify.safetensors` next to them.
"""

from __future__ import annotations

import glob
import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bayesify.checksums import verify
from bayesify.core.completion import CompletedPosterior
from bayesify.core.convert import bayesify
from bayesify.core.layer_report import LayerReport
from bayesify.core.method import Method
from bayesify.core.model import Bayesian
from bayesify.core.outputs import OutputSelection
from bayesify.core.restoration import check_plain
from bayesify.core.shards import check_whole
from bayesify.errors import BayesifyWarning, ConfigurationError, MissingDependencyError, ModelFileError
from bayesify.formatting import listing
from bayesify.integrations.plain_networks import adapter_names, at_means, is_adapter, load_plain
from bayesify.integrations.posterior_files import CONFIG, STATE, read_config, read_state, write_posterior
from bayesify.likelihoods import Likelihood

try:
    from transformers import PreTrainedModel
except ImportError as error:
    raise MissingDependencyError("saving and loading pretrained networks", "transformers", extra="transformers") from error

__all__ = ["Pretrained", "from_pretrained", "load_posterior", "save_pretrained"]

_LIKELIHOOD = "likelihood."


class Pretrained(NamedTuple):
    """A loaded network, in eval mode, and the likelihood that was saved with it, or None."""

    bnn: Bayesian
    likelihood: Likelihood | None


def save_pretrained(bnn: Bayesian, directory: str | os.PathLike[str], likelihood: Likelihood | None = None) -> None:
    """Save a Bayesian network so that `from_pretrained` restores it exactly, and the plain library its posterior means.

    Weights of a transformers model, or of the adapter of a peft model, are saved by that library, at the posterior means. Other
    networks are saved without plain weights. All files are safetensors and JSON, which load without executing code.

    Args:
        bnn: what `bayesify` returned.
        directory: a folder, created if it does not exist; its files of the same names are replaced.
        likelihood: saved with the network, with what it learned.

    Raises:
        ConfigurationError: an ensemble, a Gaussian process (SNGP) in a model of these libraries, or a peft model with an adapter
            other than "default".
        PassError: the parameters are sharded (FSDP).
        OSError: no space or no permission.

    Example:
        >>> import tempfile, transformers
        >>> net = transformers.BertForSequenceClassification(transformers.BertConfig(hidden_size=12, num_hidden_layers=1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_pretrained(bayesify(net, MeanField(), output="logits"), folder, Categorical())
        ...     bnn, likelihood = from_pretrained(folder)
        >>> type(bnn.net).__name__, type(likelihood).__name__
        ('BertForSequenceClassification', 'Categorical')
    """
    if not isinstance(bnn, Bayesian):
        raise TypeError(f"bnn must be what bayesify returned, got {type(bnn).__name__}")
    if bnn.members:
        raise ConfigurationError(
            f"bnn consists of {len(bnn.members)} networks; save each one: for k, member in enumerate(bnn.members): "
            'save_pretrained(member, f"{directory}/{k}")'
        )
    check_whole(bnn)
    path = Path(directory)
    net: Any = bnn.net
    adapters = adapter_names(net)
    if adapters not in ([], ["default"]):
        raise ConfigurationError(
            f'the peft model must have one adapter named "default", got {listing(map(repr, adapters))}; else save bnn.state_dict()'
        )
    plain = isinstance(net, PreTrainedModel) or is_adapter(net)
    if plain:
        check_plain(net)
    path.mkdir(parents=True, exist_ok=True)
    (path / CONFIG).unlink(missing_ok=True)
    if plain:
        with at_means(net):
            net.save_pretrained(path)
    state = _tensors(bnn)
    if plain:  # it has the frozen weights
        random = _posterior_names(bnn, state)
        state = {n: x for n, x in state.items() if n in random or x.requires_grad or not isinstance(x, nn.Parameter)}
    if likelihood is not None:
        state.update({_LIKELIHOOD + name: x for name, x in _tensors(likelihood).items()})
    weights = [*path.glob("model*.safetensors"), *path.glob("adapter_model.safetensors")] if plain else []
    write_posterior(path, _describe(bnn, likelihood), state, weights)


def from_pretrained(
    directory: str | os.PathLike[str],
    net: nn.Module | type[nn.Module] | None = None,
    *,
    output: Callable[[Any], Any] | None = None,
    **kwargs: Any,
) -> Pretrained:
    """Load a network that `save_pretrained` saved: equal seeds give equal draws.

    Args:
        directory: the folder.
        net: for an adapter its base model; for a network that transformers cannot build from `config.json` the network, or the
            class of the model. None for all others.
        output: the output selection, if it was a function, which is not saved.
        kwargs: for the library that loads the plain weights, such as `device_map`, or `dtype`, which then also holds for the
            posterior.

    Returns:
        The network, in eval mode, and its likelihood.

    Raises:
        ModelFileError: a file is missing, damaged, or from another network.
        ConfigurationError: `net` or `output` is missing.
    """
    path = Path(directory)
    config = read_config(path)
    for name in config["files"]:
        verify(path, config["files"], name)
    selection = config["output"]
    if selection is not None and "function" in selection and output is None:
        raise ConfigurationError(
            f"the output was selected by the function {selection['function']}, which is not saved; give output="
        )
    plain = load_plain(path, config["network"], net, kwargs)
    try:
        methods = {None: None, **{k: Method.from_dict(fields) for k, fields in enumerate(config["methods"])}}
        likelihood = None if config["likelihood"] is None else Likelihood.from_dict(config["likelihood"])
        reports = [LayerReport(r["name"], r["layer"], methods[r["method"]], r["reason"]) for r in config["layers"]]
        chosen = {glob.escape(r.name): r.method for r in reports if r.method is not None}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BayesifyWarning)  # that weights are dropped: their posterior is loaded next
            layout: dict[str, Any] = {name: config[name] for name in ("batch_dim", "fold", "unbatched")}
            bnn = bayesify(plain, chosen, output=output or (selection or {}).get("part"), **layout)
        if lost := [f"{r.name!r}: {r.reason}" for r in bnn.report if r.reason and glob.escape(r.name) in chosen]:
            raise ConfigurationError(f"layers cannot be made random: {listing(lost)}")
    except (ConfigurationError, KeyError, TypeError) as error:
        raise ModelFileError(f"{path / CONFIG} does not fit this network or this version of bayesify: {error}") from error
    bnn.report = tuple(reports)
    load_posterior(bnn, path, likelihood, exact="dtype" not in kwargs)
    trained = set(config["trained"])
    for name, parameter in bnn.named_parameters():
        parameter.requires_grad_(name in trained)
    return Pretrained(bnn.eval(), likelihood)


def load_posterior(
    bnn: Bayesian, directory: str | os.PathLike[str], likelihood: Likelihood | None = None, *, exact: bool = True
) -> None:
    """Load the posterior of a folder into a network of the same structure, in place; frozen plain weights stay as they are.

    Args:
        bnn: what `bayesify` returned, from the same network and methods.
        directory: a folder of `save_pretrained`.
        likelihood: also loaded, if given.
        exact: load tensors in the precision in which they were saved, not in that of the network.

    Raises:
        ModelFileError: a file is missing, damaged, or of another network or likelihood. Nothing has changed.

    Example:
        >>> import tempfile, transformers
        >>> config = transformers.BertConfig(hidden_size=12, num_hidden_layers=1)
        >>> nets = [transformers.BertForSequenceClassification(config) for _ in range(2)]
        >>> saved, loaded = [bayesify(net, MeanField(), output="logits") for net in nets]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_pretrained(saved, folder)
        ...     load_posterior(loaded, folder)
        >>> torch.equal(saved.net.classifier.weight, loaded.net.classifier.weight)
        True
    """
    path = Path(directory)
    config = read_config(path)
    state = read_state(path, config)
    modules: dict[str, nn.Module] = {"": bnn} if likelihood is None else {"": bnn, _LIKELIHOOD: likelihood}
    own = {prefix + name: x for prefix, module in modules.items() for name, x in _tensors(module).items()}
    needed = _posterior_names(bnn, own)
    loaded = {name: x for name, x in state.items() if likelihood is not None or not name.startswith(_LIKELIHOOD)}
    resizable = _resizable(bnn)
    wrong = [f"{name} is missing" for name in needed - loaded.keys()]
    for name, x in loaded.items():
        if name not in own:
            wrong.append(f"{name} is unknown")
        elif own[name].shape != x.shape and name not in resizable:
            wrong.append(f"{name} has shape {tuple(x.shape)} instead of {tuple(own[name].shape)}")
        elif own[name].is_floating_point() != x.is_floating_point():
            wrong.append(f"{name} has type {x.dtype} instead of {own[name].dtype}")
        elif x.is_floating_point() and x.isnan().any():
            wrong.append(f"{name} has NaN")
    if wrong:
        raise ModelFileError(
            f"{path / STATE} belongs to another network or other methods: {listing(sorted(wrong), separator='; ')}"
        )
    for name in resizable.keys() & loaded.keys():
        posterior, buffer = resizable[name]
        posterior.resize(buffer, loaded[name].shape)
        own[name] = posterior.get_buffer(buffer)
    with torch.no_grad():
        for name, x in loaded.items():
            if exact and own[name].dtype != x.dtype:
                own[name].data = x.to(own[name].device)
            else:
                own[name].copy_(x)


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers; shared ones once."""
    kept = module.state_dict().keys()
    return {name: x for name, x in (*module.named_parameters(), *module.named_buffers()) if name in kept}


def _resizable(bnn: Bayesian) -> dict[str, tuple[CompletedPosterior, str]]:
    """Posterior and buffer, by full name, for buffers without elements until a posterior is made after training."""
    return {
        f"net.{name}.".replace("..", ".") + f"posterior.{buffer}": (layer.posterior, buffer)
        for name, layer in bnn.random_layers()
        if isinstance(layer.posterior, CompletedPosterior)
        for buffer in layer.posterior.stored
    }


def _posterior_names(bnn: Bayesian, names: Iterable[str]) -> set[str]:
    """The names of tensors that belong to random layers or to the root."""
    layers = tuple(f"net.{name}." if name else "net." for name, _ in bnn.random_layers())
    return {name for name in names if name.startswith(layers) or not name.startswith("net.")}


def _describe(bnn: Bayesian, likelihood: Likelihood | None) -> dict[str, Any]:
    methods = list(dict.fromkeys(report.method for report in bnn.report if report.method is not None))
    select = bnn.passes.select
    part = select.part if isinstance(select, OutputSelection) else None
    selection = None if part is None else {"part": part} if isinstance(part, str | int) else {"function": repr(part)}
    return {
        "network": type(bnn.net).__name__,
        "methods": [method.to_dict() for method in methods],
        "layers": [
            {"name": r.name, "layer": r.layer, "method": None if r.method is None else methods.index(r.method), "reason": r.reason}
            for r in bnn.report
        ],
        "batch_dim": bnn.batch_dim,
        "fold": bnn.fold,
        "unbatched": list(bnn.unbatched),
        "output": selection,
        "likelihood": None if likelihood is None else likelihood.to_dict(),
        "trained": [name for name, parameter in bnn.named_parameters() if parameter.requires_grad],
    }
