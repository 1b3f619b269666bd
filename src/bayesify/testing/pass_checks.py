"""Checks of prediction, activation checkpointing, drawn functions and ensembles."""

from __future__ import annotations

import itertools
import math
import warnings

import torch
from torch import Tensor, nn

from bayesify.core.method import Method
from bayesify.core.model import Bayesian
from bayesify.errors import ContractError, PassError, StaleFunctionError
from bayesify.likelihoods import Gaussian
from bayesify.objectives import elbo
from bayesify.prediction import predict
from bayesify.testing.nets import Checkpointed, LateDropout, Normalized, Storing, TwoLayers
from bayesify.testing.require import NotApplicable, require, require_close
from bayesify.testing.trial import convert, fixed_inputs, skip_ensembles, skip_unless_weights, warnings_ignored

_LIKELIHOOD = Gaussian(std=0.1)


def check_noise_switched_on_late(method: Method) -> None:
    """The network's own noise, switched on after a first `predict`, has the same effect in predictions as in ordinary passes."""
    skip_unless_weights(method)
    net, x, n = LateDropout().double(), fixed_inputs(4, 4), 800
    bnn = convert(method, net, "head").eval()
    predict(bnn, x, _LIKELIHOOD, samples=12, chunk=4, seed=0)
    net.noisy = True
    epistemic = predict(bnn, x, _LIKELIHOOD, samples=n, chunk=n // 2, seed=1).epistemic
    with torch.no_grad():
        outputs = torch.cat([bnn(x, samples=20).outputs for _ in range(n // 20)])
    squares = (outputs - outputs.mean(0)).square()
    # 6 standard errors of the difference of two variances, about 0.4 of a variance
    error = 6 * squares.std(0) * math.sqrt(2 / n) + 1e-9
    ratio = (epistemic / squares.mean(0)).sqrt().mean()
    require(((epistemic - squares.mean(0)).abs() <= error).all(), f"the epistemic std is {ratio:.3g} times that of ordinary passes")


def check_hooks_in_prediction(method: Method) -> None:
    """Hooks on deterministic modules get the outputs of ordinary passes, and their return value is used."""
    skip_ensembles(method)
    net, x = TwoLayers().double(), fixed_inputs(3, 4)
    bnn = convert(method, net, "head").eval()
    expected = net.layer(x)
    outputs: list[Tensor] = []

    def hook(module: nn.Module, args: object, output: Tensor) -> Tensor:
        outputs.append(output.detach().clone())
        return 0 * output

    handle = net.layer.register_forward_hook(hook)
    bnn(x)  # the first pass with a hook examines the network
    predict(bnn, x, _LIKELIHOOD, samples=4, seed=0)
    outputs.clear()
    mean = predict(bnn, x, _LIKELIHOOD, samples=12, chunk=4, seed=0, coherent=True).mean
    handle.remove()
    require(bnn.one_pass or len(outputs) >= 3, f"a hook was called {len(outputs)} times in 3 passes")
    for output in outputs:
        _require_rows(output, expected, "the output that a hook was given")
    require_close(mean, mean[:1].expand_as(mean), "coherent predictions, with a hook that makes all rows equal")


def check_stored_features(method: Method) -> None:
    """Features that the network stores have their values after `predict`."""
    skip_ensembles(method)
    net, x = Storing().double(), fixed_inputs(3, 4)
    bnn = convert(method, net, "head").eval()
    predict(bnn, x, _LIKELIHOOD, samples=12, chunk=4, seed=0)
    _require_rows(net.features, torch.tanh(net.body(x)), "the features that the network has stored")


def check_checkpointed_layers(method: Method) -> None:
    """Layers under activation checkpointing have the same gradients as without, also with a pass before the backward."""
    skip_unless_weights(method)
    try:
        bnn = convert(method, net := Checkpointed().double(), "layer", "filters")
    except NotApplicable:  # no convolutions
        bnn = convert(method, net := Checkpointed().double(), "layer")
    for coherent in (False, True):
        net.reentrant = None
        expected = _gradients(bnn, "", coherent)
        for reentrant, between in itertools.product((False, True), ("", "pass", "predict")):
            net.reentrant = reentrant
            try:
                gradients = _gradients(bnn, between, coherent)
            except PassError:
                continue  # refused with an explanation
            kind = "reentrant" if reentrant else "non-reentrant"
            then = f" and a {between} before the backward" if between else ""
            require_close(gradients, expected, f"gradients with {kind} checkpoints{then}", rtol=1e-6)


def check_functions(method: Method) -> None:
    """A drawn function runs in eval mode, for any rows and under torch.func, until the network changes."""
    net, x = Normalized(dropout=0.5).double().train(), fixed_inputs(5, 4)
    bnn = convert(method, net, "head").train()
    net.norm(net.layer(x))  # running statistics
    f = bnn.function(0)
    y = f(x)
    require(all(module.training for module in net.modules()), "a function changes the mode of the network")
    require_close(f(x), y, "a function called twice")
    require_close(f(x[:2]), y[:2], "a function of other rows")
    require_close(torch.func.vmap(lambda row: f(row[None])[0])(x), y, "a function under vmap")
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(f(leaf).sum(), leaf)
    require_close(torch.func.grad(lambda x: f(x).sum())(x), gradient, "a function under grad")
    with torch.no_grad():
        for parameter in bnn.parameters():
            parameter.mul_(0.9)
    _require_stale(f, x, "training")


def check_functions_of_changed_nets(method: Method) -> None:
    """A drawn function raises StaleFunctionError after a layer was replaced."""
    skip_ensembles(method)
    net, x = TwoLayers().double(), fixed_inputs(5, 4)
    f = convert(method, net, "head").function(0)
    f(x)
    net.head = nn.Linear(3, 2).double()
    _require_stale(f, x, "a layer was replaced")


def check_members_in_training(method: Method) -> None:
    """Every pass in training mode has draws of all members of an ensemble."""
    bnn = convert(method, TwoLayers(), "layer").train()
    if not bnn.members:
        raise NotApplicable("the method is not an ensemble")
    x = fixed_inputs(5, 4).float()
    draws = bnn(x, samples=1)
    require(draws.outputs.shape[0] % len(bnn.members) == 0, f"{draws.outputs.shape[0]} draws for {len(bnn.members)} members")
    (draws.outputs.square().sum() + draws.kl + draws.local_kl.sum()).backward()
    for k, member in enumerate(bnn.members):
        require(all(p.grad is not None for p in member.parameters()), f"member {k} gets no gradient from a pass with samples=1")


def check_weight_of_the_local_kl(method: Method) -> None:
    """`Draws` has the method's weight of the per-example KL, and `elbo` uses it."""
    bnn = convert(method, TwoLayers().double(), "head")
    draws = bnn(fixed_inputs(5, 4), samples=2)
    require(draws.local_beta == bnn.local_beta, f"local_beta is {draws.local_beta} in draws, {bnn.local_beta} in the network")
    log_prob = -draws.outputs.square().sum(-1)
    explicit = elbo(draws, log_prob, n=10, local_beta=bnn.local_beta)
    require_close(elbo(draws, log_prob, n=10), explicit, "elbo without local_beta")


def _gradients(bnn: Bayesian, between: str, coherent: bool) -> list[Tensor | None]:
    """Gradients of outputs and KL for fixed noise, with another pass between forward and backward."""
    x = fixed_inputs(5, 4)
    bnn.zero_grad()
    torch.manual_seed(5)
    with warnings_ignored():
        warnings.filterwarnings("ignore", message="None of the inputs have requires_grad")  # in predictions
        draws = bnn(x, samples=2, coherent=coherent)
        if between == "pass":
            bnn(x[:3], samples=3, coherent=not coherent)
        elif between == "predict":
            predict(bnn, x[:3], _LIKELIHOOD, samples=4, chunk=2, seed=0)
    (draws.outputs.square().sum() + draws.kl).backward()
    return [None if p.grad is None else p.grad.clone() for p in bnn.parameters()]


def _require_rows(actual: Tensor, rows: Tensor, what: str) -> None:
    """Require that `actual` consists of `rows` (B, ...), once or once per draw."""
    require(actual.shape[0] % rows.shape[0] == 0, f"{what} has {actual.shape[0]} rows for {rows.shape[0]} examples")
    folded = actual.unflatten(0, (-1, rows.shape[0]))
    require_close(folded, rows.expand_as(folded), what, rtol=1e-6)


def _require_stale(f: object, x: Tensor, change: str) -> None:
    if not callable(f):
        raise ContractError("a function is not callable")
    try:
        f(x)
    except StaleFunctionError:
        return
    raise ContractError(f"a function does not raise StaleFunctionError after {change}")
