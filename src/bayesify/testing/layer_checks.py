"""Checks of a method on one layer: functions of a `Case` that raise ContractError where the method breaks the contract.

They run in float64 with fixed seeds; statistical checks state their tolerance in standard errors.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bayesify.core.convert import bayesify
from bayesify.core.model import Bayesian
from bayesify.errors import ContractError, NothingRandomError
from bayesify.testing.cases import Case, seeded_outputs
from bayesify.testing.require import require, require_close, require_equal_means


def check_shapes_and_dtypes(case: Case) -> None:
    """Outputs (S, B, ...), a scalar KL, one local KL per example, all finite."""
    bnn = case.fresh()
    expected = case.plain(case.x).shape
    for samples, coherent in ((1, False), (3, False), (3, True)):
        draws = bnn(case.x, samples=samples, coherent=coherent)
        require(draws.outputs.shape == (samples, *expected), f"outputs {tuple(draws.outputs.shape)} for S={samples}")
        require(draws.kl.shape == (), f"kl has shape {tuple(draws.kl.shape)}")
        if not case.references.noisy_kl and not bnn.members:  # an ensemble's KL is that of the members with draws
            require_close(draws.kl, bnn.kl(), "the KL of a pass differs from kl()")
        require(draws.local_kl.shape == expected[:1], f"local_kl has shape {tuple(draws.local_kl.shape)}")
        require(all(v.isfinite().all() for v in draws if isinstance(v, Tensor)), "not finite")


def check_gradients(case: Case) -> None:
    """Every parameter gets a finite gradient from outputs and KL, also for inputs of zero (0 * inf)."""
    for x in (case.x, torch.zeros_like(case.x)):
        bnn = case.fresh().train()
        case.loss(bnn(x, samples=2)).backward()
        for name, parameter in bnn.named_parameters():
            if parameter.grad is None:
                raise ContractError(f"{name} gets no gradient")
            require(parameter.grad.isfinite().all(), f"the gradient of {name} is not finite")


def check_accumulated_gradients(case: Case) -> None:
    """One backward for several passes gives the same gradients as one for each (noise must not be in a reused buffer)."""
    joint, separate = case.fresh(), case.fresh()
    torch.manual_seed(3)
    torch.stack([case.loss(joint(case.x, samples=2)) for _ in range(3)]).mean().backward()
    torch.manual_seed(3)
    for _ in range(3):
        (case.loss(separate(case.x, samples=2)) / 3).backward()
    for (name, p), (_, q) in zip(joint.named_parameters(), separate.named_parameters(), strict=True):
        require_close(p.grad, q.grad, f"gradient of {name}")


def check_gradients_numerically(case: Case) -> None:
    """Gradients of outputs and KL agree with finite differences, for fixed noise."""
    bnn = case.uneven()
    names, values = zip(*((n, p.detach().clone().requires_grad_()) for n, p in bnn.named_parameters()), strict=True)

    for coherent in (False, True):

        def run(*parameters: Tensor, coherent: bool = coherent) -> tuple[Tensor, Tensor]:
            torch.manual_seed(5)
            state = dict(zip(names, parameters, strict=True))
            draws = functional_call(bnn, state, (case.x,), {"samples": 2, "coherent": coherent})
            return draws.outputs, draws.kl

        require(torch.autograd.gradcheck(run, values, fast_mode=True, atol=1e-5), "gradcheck")


def check_moments(case: Case) -> None:
    """Outputs of `forward` have the mean and variance of those of `sample`, and `mean` is the mean of `sample`."""
    bnn, n = case.uneven(), 4000
    layer = case.layer(bnn)
    with torch.no_grad():
        drawn_weight, drawn_bias = layer.posterior.sample(layer, n)
        for drawn, mean in zip((drawn_weight, drawn_bias), layer.posterior.mean(layer), strict=True):
            if drawn is not None and mean is not None:
                require(drawn.shape == (n, *mean.shape), f"sample returns {tuple(drawn.shape)}")
                require_equal_means(drawn, mean.expand_as(drawn), "mean of the weight draws")
        fast = bnn(case.x, samples=n).outputs
        exact = bnn(case.x, samples=n, coherent=True).outputs
    require_equal_means(fast, exact, "mean of the outputs")
    # with 4,000 draws, variances that differ by 15 % are distinguished
    require_equal_means((fast - fast.mean(0)) ** 2, (exact - exact.mean(0)) ** 2, "variance of the outputs")


def check_noise_of_predictions(case: Case) -> None:
    """Without gradients, outputs have the noise of training: the same means, and covariances of rows, positions and features."""
    bnn = case.uneven()

    def outputs(gradients: bool) -> Tensor:
        with torch.set_grad_enabled(gradients):
            y = bnn(case.x, samples=4000).outputs.detach().flatten(1)
        return y[:, :: max(1, y.shape[1] // 16)]  # among them two positions of a feature

    def products(y: Tensor) -> Tensor:
        y = y - y.mean(0)
        return y.unsqueeze(1) * y.unsqueeze(2)

    training, prediction = outputs(True), outputs(False)
    require_equal_means(prediction, training, "without gradients, the mean of the outputs")
    require_equal_means(products(prediction), products(training), "without gradients, the covariance of the outputs")


def check_coherence(case: Case) -> None:
    """coherent=True: within a draw, equal inputs have equal outputs, and a module used twice is one function."""
    bnn = case.fresh()
    rows = case.x[:1].expand(4, *case.x.shape[1:])
    outputs = bnn(rows, samples=3, coherent=True).outputs
    require_close(outputs, outputs[:, :1].expand_as(outputs), "outputs of equal rows")
    try:
        twice = bayesify(_Twice(copy.deepcopy(case.plain)), case.method)
    except NothingRandomError:  # methods for chains of layers
        return
    first, second = twice(case.x, samples=2, coherent=True).outputs.unbind(2)
    require(torch.equal(first, second), "a module used twice in a coherent pass has different draws")


def check_kl(case: Case) -> None:
    """The KL is not negative, zero at the prior, and agrees with a Monte Carlo estimate from `log_ratio`."""
    references = case.references
    with torch.no_grad():
        if not references.noisy_kl:
            _require_kl(case.fresh(), case)
        _require_kl(case.uneven(), case)
        if references.to_prior is not None:
            bnn = case.fresh()
            references.to_prior(case.layer(bnn))
            require(bnn.kl().abs() < 1e-9, f"the KL at the prior is {bnn.kl()}")


def _require_kl(bnn: Bayesian, case: Case) -> None:
    references, layer = case.references, case.layer(bnn)
    n = 200 if references.noisy_kl else 1
    kl = torch.stack([bnn.kl() for _ in range(n)])
    require(kl.mean() >= -_error(kl), f"the KL is {kl.mean()}")
    if references.noisy_kl:
        of_passes = torch.stack([bnn(case.x, samples=3).kl for _ in range(n // 2)])
        require_equal_means(of_passes, kl, "the mean of the KL of passes with three draws")
    if references.log_ratio is not None:
        ratios = references.log_ratio(layer, *layer.posterior.sample(layer, 20_000))
        error, gap = math.hypot(_error(ratios), _error(kl)), abs(kl.mean() - ratios.mean())
        require(gap <= error + 1e-9, f"the KL is {kl.mean()}, by Monte Carlo {ratios.mean()} +- {error}")


def _error(values: Tensor) -> float:
    """Five standard errors of a mean."""
    return 5 * float(values.std(correction=0)) / math.sqrt(len(values))


def check_collapse(case: Case) -> None:
    """Without variance, outputs are those of the plain network."""
    if case.references.collapse is None:
        return
    bnn = case.fresh()
    case.references.collapse(case.layer(bnn))
    for coherent in (False, True):
        outputs = bnn(case.x, samples=2, coherent=coherent).outputs
        require_close(outputs, case.plain(case.x).expand_as(outputs), "outputs without variance", rtol=1e-5, atol=1e-5)


def check_precision(case: Case) -> None:
    """bfloat16 by autocast and by `.to`: outputs have that dtype, the KL at least float32; the first pass is as good as others."""
    single = case.fresh().float()
    x = case.x.float() if case.x.is_floating_point() else case.x
    reference = single.kl()
    for coherent in (False, True):
        outputs: list[Tensor] = []
        for _ in range(2):
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                outputs.append(seeded_outputs(single, x, coherent).float())
        require_close(outputs[0], outputs[1], "the first pass under autocast", rtol=1e-2, atol=1e-2)
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        draws = single(x, samples=2)
    require(draws.outputs.isfinite().all(), "not finite under autocast")
    require(draws.kl.dtype == torch.float32, f"the KL is {draws.kl.dtype} under autocast")
    if not case.references.noisy_kl:
        require_close(draws.kl, reference, "the KL under autocast", rtol=1e-5, atol=1e-5)
    half = single.to(torch.bfloat16)
    draws = half(x.bfloat16() if x.is_floating_point() else x, samples=2)
    require(draws.outputs.dtype == torch.bfloat16, f"outputs are {draws.outputs.dtype} after .to(bfloat16)")
    require(draws.kl.dtype == torch.float32, f"the KL is {draws.kl.dtype} after .to(bfloat16)")


def check_compile(case: Case) -> None:
    """torch.compile without graph breaks, with the values of the eager network, before and after an eager pass."""
    bnn = case.fresh().train()
    torch.compiler.reset()
    compiled = torch.compile(bnn, fullgraph=True, backend="aot_eager")
    for eager, coherent in ((case.fresh().train(), False), (bnn, True)):
        expected = seeded_outputs(eager, case.x, coherent)
        require_close(seeded_outputs(compiled, case.x, coherent), expected, "compiled and eager outputs")
        case.loss(compiled(case.x, samples=2, coherent=coherent)).backward()


def check_export(case: Case) -> None:
    """torch.export with a dynamic batch."""
    bnn = case.fresh()
    shapes = {"inputs": ({0: torch.export.Dim.DYNAMIC},), "samples": None, "coherent": None}
    program = torch.export.export(bnn, (case.x,), {"samples": 2, "coherent": False}, dynamic_shapes=shapes)
    x = torch.cat([case.x, case.x[:2]])
    outputs = program.module()(x, samples=2, coherent=False).outputs
    require(outputs.shape == bnn(x, samples=2).outputs.shape, f"exported outputs {tuple(outputs.shape)}")


class _Twice(nn.Module):
    """A layer applied twice to the same input."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.net(x), self.net(x)], 1)
