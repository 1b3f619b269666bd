"""What must be true of a pretrained model that was made Bayesian, compared with the plain model.

Shapes: S draws, B batch.
"""

import copy
import dataclasses
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from pretrained import Pretrained, in_float64
from torch import Tensor, nn
from torch.func import functional_call

from bayesify import Bayesian, DeepEnsemble, RepulsiveEnsemble, bayesify, predict
from bayesify.core.layer import BayesianLayer
from bayesify.core.method import Method
from bayesify.core.outputs import Draws
from bayesify.core.switches import observer
from bayesify.errors import BayesifyWarning
from bayesify.likelihoods import Categorical
from bayesify.testing.trial import captured_weights

__all__ = ["Cell", "calls_counted", "equal"]

_DRAWS = 3


@dataclasses.dataclass
class Cell:
    """A method on a model in float64, in eval mode.

    Attributes:
        model: the model.
        plain: it, unchanged.
        inputs: its keyword inputs.
        bnn: it, made Bayesian.
        said: the warnings of the conversion and of the first pass.
    """

    model: Pretrained
    plain: nn.Module
    inputs: dict[str, Tensor]
    bnn: Bayesian
    said: list[str]

    @classmethod
    def make(cls, model: Pretrained, adapter: str, method: Method) -> "Cell":
        plain = model.make(adapter).double()
        inputs = in_float64(model.inputs())
        nets = [copy.deepcopy(plain)]
        if isinstance(method, DeepEnsemble | RepulsiveEnsemble):
            nets += [model.make(adapter, seed=k).double() for k in range(1, method.members)]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            bnn = bayesify(nets if len(nets) > 1 else nets[0], method, output="logits").eval()
            bnn(**inputs, samples=_DRAWS)
        said = [str(w.message) for w in caught if issubclass(w.category, BayesifyWarning)]
        return cls(model, plain, inputs, bnn, said)

    @property
    def rounding(self) -> float:
        """Relative error of the plain model: some libraries normalize in float32 whatever the model."""
        return 1e-11 if any(isinstance(module, nn.LayerNorm) for module in self.plain.modules()) else 1e-5

    def check_draws(self) -> None:
        """Coherent draws, and all draws of separate passes, are the plain model with their weights."""
        for coherent in (True, False):
            with calls_counted(self.bnn) as calls, captured_weights(self.bnn) as weights, torch.no_grad():
                draws = self.bnn(**self.inputs, samples=_DRAWS, coherent=coherent).outputs
            if coherent or len(calls) == _DRAWS:
                expected = torch.stack([self.plain_logits(each) for each in weights[-_DRAWS:]])
                equal(draws, expected, self.rounding)

    def plain_logits(self, weights: dict[str, Tensor]) -> Tensor:
        """Outputs of the plain model with these weights."""
        return functional_call(self.plain, weights, (), self.inputs).logits

    def check_gradients(self) -> None:
        """Parameters have gradients where those of the plain model have some, and its frozen ones have none."""
        plain = copy.deepcopy(self.plain)
        plain(**self.inputs).logits.square().sum().backward()
        reached = {name for name, p in plain.named_parameters() if p.grad is not None and float(p.grad.abs().max()) > 1e-9}
        frozen = {name for name, p in plain.named_parameters() if not p.requires_grad}
        self.bnn.zero_grad()
        draws = self.bnn(**self.inputs, samples=_DRAWS)
        (draws.outputs.square().sum() + draws.kl).backward()
        layers = dict(self.bnn.random_layers())
        for name in reached:
            layer = name.rpartition(".")[0]
            if layer in layers:
                assert all(p.grad is not None for p in layers[layer].parameters() if p.requires_grad), name
                assert any(_moves(p) for p in layers[layer].parameters()), name
            else:
                assert _moves(self.bnn.net.get_parameter(name)), name
        assert not [name for name, p in self.bnn.net.named_parameters() if name in frozen and (p.requires_grad or _moves(p))]
        self.bnn.zero_grad()

    def check_kl(self) -> None:
        """The KL of a pass is the sum over layers."""
        expected = torch.stack([layer.posterior.kl(layer).double() for _, layer in self.bnn.random_layers()]).sum()
        torch.testing.assert_close(self.bnn(**self.inputs, samples=2).kl.double(), expected)

    def check_predictions(self) -> None:
        """`predict`, which replays, is the mixture of ordinary passes with equal noise, which hooks on the model ask for."""
        for coherent in (False, True):
            replayed = self._predicted(coherent)
            draws: list[Tensor] = []

            def record(root: nn.Module, args: Any, output: Draws, draws: list[Tensor] = draws) -> None:
                draws.append(output.outputs)

            handle = self.bnn.register_forward_hook(record)
            with _ordinary_passes(self.bnn):
                ordinary = self._predicted(coherent)
            handle.remove()
            equal(replayed, ordinary, self.rounding)
            equal(ordinary, torch.cat(draws[-2:]).softmax(-1).mean(0), 1e-11)

    def _predicted(self, coherent: bool) -> Tensor:
        return predict(self.bnn, self.inputs, Categorical(), samples=4, chunk=2, seed=0, coherent=coherent, progress=False).mean

    @torch.no_grad()
    def check_drawn(self) -> None:
        """`function`, `drawn` and `sample_network` are one draw, also in `generate`."""
        function = self.bnn.function(3)(**self.inputs)
        sampled = self.bnn.sample_network(3)
        assert not any(isinstance(module, BayesianLayer) for module in sampled.modules())
        prompts = {name: self.inputs[name] for name in self.model.generates}
        options: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}

        def results(net: Any) -> tuple[Tensor, Tensor | None]:
            return net(**self.inputs).logits, net.generate(**prompts, **options) if prompts else None

        with self.bnn.drawn(3) as net:
            logits, tokens = results(net)
        equal(logits, function, 1e-11)
        logits, expected = results(sampled)
        equal(logits, function, self.rounding)
        if tokens is not None and expected is not None:
            assert torch.equal(tokens, expected)


@contextmanager
def calls_counted(bnn: Bayesian) -> Iterator[list[None]]:
    """Collect an element for every call of the network."""
    calls: list[None] = []
    handle = bnn.net.register_forward_hook(observer(lambda *_: calls.append(None)))
    try:
        yield calls
    finally:
        handle.remove()


@contextmanager
def _ordinary_passes(bnn: Bayesian) -> Iterator[None]:
    """Hooks on the networks, which `predict` does not replay."""
    handles = [root.net.register_forward_hook(observer(lambda *_: None)) for root in (bnn.members or (bnn,))]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def equal(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Require equality up to this share of the largest value."""
    assert actual.shape == expected.shape
    assert torch.isfinite(actual).all()
    error = float((actual - expected).detach().abs().max() / expected.detach().abs().max())
    assert error <= tolerance, f"they differ by {error:.2g} of the largest value"


def _moves(parameter: Tensor) -> bool:
    return parameter.grad is not None and bool((parameter.grad != 0).any())
