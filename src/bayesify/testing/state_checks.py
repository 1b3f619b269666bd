"""Checks of what a method on one layer is saved as, copied to and restored from: functions of a `Case`, as in `layer_checks`."""

from __future__ import annotations

import copy
import io
import json
import pickle

import torch
from torch import Tensor, nn

from bayesify.core.convert import unbayesify
from bayesify.core.method import Method
from bayesify.core.model import Bayesian
from bayesify.errors import ConfigurationError, ContractError
from bayesify.testing.cases import Case, seeded_outputs
from bayesify.testing.require import require


def check_configuration(case: Case) -> None:
    """The method can be saved as JSON."""
    text = json.dumps(case.method.to_dict())
    require(Method.from_dict(json.loads(text)) == case.method, text)


def check_declared_means(case: Case) -> None:
    """The names in `means` are those of parameters of the posterior."""
    posterior = case.layer(case.fresh()).posterior
    known = [name for name, _ in posterior.named_parameters()]
    unknown = [name for name in posterior.means if name not in known and not hasattr(posterior, name)]  # None without a bias
    require(not unknown, f"`means` names {unknown}, but the parameters of the posterior are {known}")


def check_copies(case: Case) -> None:
    """deepcopy, pickle and state_dict give equal draws with equal seeds."""
    bnn = case.uneven()
    loaded = case.other()
    loaded.load_state_dict(bnn.state_dict())
    copies = (("a deep copy", copy.deepcopy(bnn)), ("a pickled copy", pickle.loads(pickle.dumps(bnn))), ("load_state_dict", loaded))
    for name, other in copies:
        for coherent in (False, True):
            y, expected = (seeded_outputs(each, case.x, coherent) for each in (other, bnn))
            require(torch.equal(y, expected), f"{name} draws differently: is some state not in buffers?")
    buffer = io.BytesIO()
    torch.save(bnn.state_dict(), buffer)
    buffer.seek(0)
    loaded.load_state_dict(torch.load(buffer, weights_only=True))


def check_plain_checkpoint(case: Case) -> None:
    """A checkpoint of the plain network loads: only keys of the posterior are missing, and its weights are the posterior means."""
    bnn = case.fresh()
    result = bnn.net.load_state_dict(case.other_plain.state_dict(), strict=False)
    loaded, converted, again = (_mean(each, case) for each in (bnn, case.other(seed=7), case.other(seed=8)))
    most = 3 * (again - converted).norm() + 1e-6 * converted.norm()  # a conversion may draw initial values
    gap = (loaded - converted).norm()
    require(gap <= most, f"a checkpoint leads to posterior means that differ by {gap:.4g} from those of a network with its weights")
    foreign = [key for key in result.missing_keys if ".posterior." not in key]
    require(not foreign, f"missing keys {foreign}")
    replaced = {"0.weight", "0.bias"} - {name for name, _ in bnn.net.named_parameters()}
    unexpected = [key for key in result.unexpected_keys if key not in replaced]
    require(not unexpected, f"unexpected keys {unexpected}")


def check_return(case: Case) -> None:
    """unbayesify restores the original class and keys, with the posterior mean, or refuses where no plain layer has it."""
    bnn = case.fresh()
    layer = case.layer(bnn)
    if not layer.posterior.is_plain:
        before = bnn(case.x).outputs.shape
        try:
            unbayesify(bnn)
        except ConfigurationError:
            require(bnn(case.x).outputs.shape == before, "a refused unbayesify changes the network")
            return
        raise ContractError("unbayesify restores a plain layer, although the posterior declares that there is none")
    means = [None if mean is None else mean.detach().clone() for mean in layer.posterior.mean(layer)]
    net = unbayesify(bnn)
    if not isinstance(net, nn.Sequential):
        raise ContractError(f"the network is a {type(net).__name__}, not a Sequential")
    require(type(net[0]) is type(case.plain[0]), f"the class of the layer is {type(net[0])}")
    require(list(net.state_dict()) == list(case.plain.state_dict()), "the keys of the state_dict changed")
    for name, mean in zip(("weight", "bias"), means, strict=True):
        if mean is not None:
            require(torch.equal(net.state_dict()[f"0.{name}"], mean), f"{name} is not the posterior mean")
    require(vars(net[0]).keys() == vars(case.plain[0]).keys(), "the layer has attributes left over")


def _mean(bnn: Bayesian, case: Case) -> Tensor:
    """The posterior mean of weight and bias as one vector."""
    layer = case.layer(bnn)
    return torch.cat([mean.detach().flatten() for mean in layer.posterior.mean(layer) if mean is not None])
