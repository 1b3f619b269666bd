"""Checks of what happens between and around passes: prediction, checkpointing, functions, ensembles."""

from __future__ import annotations

import itertools
import math
import warnings

import torch
from torch import Tensor, nn

from bayesify.core.method import Method
from bayesify.core.model import Bayesian
from bayesify.errors import BayesifyError, ContractError, StaleFunctionError
from bayesify.likelihoods import Gaussian
from bayesify.objectives import elbo
from bayesify.predict import predict
from bayesify.testing.nets import Checkpointed, LateDropout, Normalized, Storing, TwoLayers
from bayesify.testing.require import NotApplicable, require, require_close
from bayesify.testing.trial import convert, need_one_network, need_weights, numbers, quietly

__all__ = ["PASS_CHECKS"]

_LIKELIHOOD = Gaussian(std=0.1)


def check_noise_switched_on_late(method: Method) -> None:
    """Noise of the net's own, switched on after a first `predict`, spreads predictions as it spreads ordinary passes."""
    need_weights(method)
    net, x, n = LateDropout().double(), numbers(4, 4), 800
    bnn = convert(method, net, "head").eval()
    predict(bnn, x, _LIKELIHOOD, samples=12, chunk=4, seed=0)
    net.noisy = True
    epistemic = predict(bnn, x, _LIKELIHOOD, samples=n, chunk=n // 2, seed=1).epistemic
    with torch.no_grad():
        outputs = torch.cat([bnn(x, samples=20).outputs for _ in range(n // 20)])
    squares = (outputs - outputs.mean(0)).square()
    # 6 standard errors of the difference of two variances, about 0.4 of one: a factor of two fails.
    error = 6 * squares.std(0) * math.sqrt(2 / n) + 1e-9
    ratio = (epistemic / squares.mean(0)).sqrt().mean()
    require(((epistemic - squares.mean(0)).abs() <= error).all(), f"the epistemic std is {ratio:.3g} times that of ordinary passes")


def check_hooks_in_prediction(method: Method) -> None:
    """Hooks on certain modules see what they see in ordinary passes, and what they return is used."""
    need_one_network(method)
    net, x = TwoLayers().double(), numbers(3, 4)
    bnn = convert(method, net, "head").eval()
    expected = net.layer(x)
    seen: list[Tensor] = []

    def look(module: nn.Module, args: object, output: Tensor) -> Tensor:
        seen.append(output.detach().clone())
        return 0 * output

    handle = net.layer.register_forward_hook(look)
    mean = predict(bnn, x, _LIKELIHOOD, samples=12, chunk=4, seed=0, coherent=True).mean
    handle.remove()
    require(bnn.one_pass or len(seen) >= 3, f"a hook was called {len(seen)} times in 3 passes")
    for output in seen:
        _require_rows(output, expected, "what a hook was given")
    require_close(mean, mean[:1].expand_as(mean), "coherent predictions, with a hook that makes all rows equal")


def check_stored_features(method: Method) -> None:
    """What a net stores of a pass is the real thing, after `predict` as after any pass."""
    need_one_network(method)
    net, x = Storing().double(), numbers(3, 4)
    bnn = convert(method, net, "head").eval()
    predict(bnn, x, _LIKELIHOOD, samples=12, chunk=4, seed=0)
    _require_rows(net.features, torch.tanh(net.body(x)), "the features that the net has stored")


def check_checkpointed_layers(method: Method) -> None:
    """A layer used twice under activation checkpointing has the gradients it has without, whatever comes before the backward."""
    need_weights(method)
    net = Checkpointed().double()
    bnn = convert(method, net, "layer")
    for coherent in (False, True):
        net.reentrant = None
        expected = _gradients(bnn, "", coherent)
        for reentrant, between in itertools.product((False, True), ("", "pass", "predict")):
            net.reentrant = reentrant
            try:
                gradients = _gradients(bnn, between, coherent)
            except BayesifyError:
                continue  # said clearly
            kind = "reentrant" if reentrant else "non-reentrant"
            then = f" and a {between} before the backward" if between else ""
            require_close(gradients, expected, f"gradients with {kind} checkpoints{then}", rtol=1e-6)


def check_functions(method: Method) -> None:
    """A draw is a function: in eval mode whatever the mode, for any rows, under torch.func, until the net changes."""
    net, x = Normalized(dropout=0.5).double().train(), numbers(5, 4)
    bnn = convert(method, net, "head").train()
    net.norm(net.layer(x))  # running statistics
    f = bnn.function(0)
    y = f(x)
    require(all(module.training for module in net.modules()), "a function changes the mode of the net")
    require_close(f(x), y, "a function called twice")
    require_close(f(x[:2]), y[:2], "a function of other rows")
    require_close(torch.func.vmap(lambda row: f(row[None])[0])(x), y, "a function under vmap")
    wanted = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(f(wanted).sum(), wanted)
    require_close(torch.func.grad(lambda x: f(x).sum())(x), gradient, "a function under grad")
    with torch.no_grad():
        for parameter in bnn.parameters():
            parameter.mul_(0.9)
    _require_stale(f, x, "training")


def check_functions_of_changed_nets(method: Method) -> None:
    """A function says so when a layer was replaced since it was drawn."""
    need_one_network(method)
    net, x = TwoLayers().double(), numbers(5, 4)
    f = convert(method, net, "head").function(0)
    f(x)
    net.head = nn.Linear(3, 2).double()
    _require_stale(f, x, "a layer was replaced")


def check_members_in_training(method: Method) -> None:
    """Every pass in training mode serves all members of an ensemble."""
    bnn = convert(method, TwoLayers(), "layer").train()
    if not bnn.members:
        raise NotApplicable("it is no ensemble")
    x = numbers(5, 4).float()
    draws = bnn(x, samples=1)
    require(draws.outputs.shape[0] % len(bnn.members) == 0, f"{draws.outputs.shape[0]} draws for {len(bnn.members)} members")
    (draws.outputs.square().sum() + draws.kl + draws.local_kl.sum()).backward()
    for k, member in enumerate(bnn.members):
        require(all(p.grad is not None for p in member.parameters()), f"member {k} gets no gradient from a pass with samples=1")


def check_weight_of_the_local_kl(method: Method) -> None:
    """`Draws` carries the weight of the per-example KL that the method asks for, and `elbo` takes it."""
    bnn = convert(method, TwoLayers().double(), "head")
    draws = bnn(numbers(5, 4), samples=2)
    require(draws.local_beta == bnn.local_beta, f"the draws say {draws.local_beta}, the network {bnn.local_beta}")
    log_prob = -draws.outputs.square().sum(-1)
    explicit = elbo(draws, log_prob, n=10, local_beta=bnn.local_beta)
    require_close(elbo(draws, log_prob, n=10), explicit, "elbo without local_beta")


def _gradients(bnn: Bayesian, between: str, coherent: bool) -> list[Tensor | None]:
    """Gradients of outputs and KL for equal noise, with something else between forward and backward."""
    x = numbers(5, 4)
    bnn.zero_grad()
    torch.manual_seed(5)
    with quietly():
        warnings.filterwarnings("ignore", message="None of the inputs have requires_grad")  # in a prediction nothing has
        draws = bnn(x, samples=2, coherent=coherent)
        if between == "pass":
            bnn(x[:3], samples=3, coherent=not coherent)
        elif between == "predict":
            predict(bnn, x[:3], _LIKELIHOOD, samples=4, chunk=2, seed=0)
    (draws.outputs.square().sum() + draws.kl).backward()
    return [None if p.grad is None else p.grad.clone() for p in bnn.parameters()]


def _require_rows(actual: Tensor, rows: Tensor, what: str) -> None:
    """Require rows (B, ...), once or once per draw."""
    require(actual.shape[0] % rows.shape[0] == 0, f"{what} has {actual.shape[0]} rows for {rows.shape[0]} examples")
    folded = actual.unflatten(0, (-1, rows.shape[0]))
    require_close(folded, rows.expand_as(folded), what, rtol=1e-6)


def _require_stale(f: object, x: Tensor, change: str) -> None:
    if not callable(f):
        raise ContractError("a function cannot be called")
    try:
        f(x)
    except StaleFunctionError:
        return
    raise ContractError(f"a function does not say that it is stale after {change}")


PASS_CHECKS = (
    check_noise_switched_on_late,
    check_hooks_in_prediction,
    check_stored_features,
    check_checkpointed_layers,
    check_functions,
    check_functions_of_changed_nets,
    check_members_in_training,
    check_weight_of_the_local_kl,
)
