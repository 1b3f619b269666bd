"""Training on MNIST as in Kingma et al. (2015): Adam, temporal averaging, the best epoch on validation rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bayesify import Bayesian, Categorical, predict
from bayesify.methods.variational_dropout import InputNoisePosterior, WeightNoisePosterior
from bayesify.train import fit
from experiments.harness.protocol import Unit
from experiments.protocols.digits_net import bayesian_net, posterior_mean, sites

__all__ = ["TemporalAverage", "dropout_rates", "error", "train_and_test"]

Part = tuple[Tensor, Tensor]


class TemporalAverage:
    r"""Bias-corrected exponential moving average of parameters.

    $$\bar\theta_t = d\,\bar\theta_{t-1} + (1 - d)\,\theta_t, \qquad \bar\theta_0 = 0,
      \qquad \hat\theta_t = \bar\theta_t / (1 - d^t)$$

    Args:
        parameters: averaged over the calls of `update`.
        decay: d in [0, 1).

    Source: Kingma & Ba, *Adam* (2015), section 7.2.

    Example:
        >>> weight = torch.nn.Parameter(torch.tensor(1.0))
        >>> average = TemporalAverage([weight], decay=0.5)
        >>> average.update()
        >>> weight.data.fill_(4.0)
        tensor(4.)
        >>> average.update()
        >>> with average.in_place():
        ...     weight.item()
        3.0
        >>> weight.item()
        4.0
    """

    def __init__(self, parameters: Sequence[nn.Parameter], decay: float) -> None:
        self.parameters, self.decay = [p.data for p in parameters], decay
        self.sums = [torch.zeros_like(p) for p in self.parameters]
        self.steps = 0

    def update(self) -> None:
        """Add the present values of the parameters."""
        for total, parameter in zip(self.sums, self.parameters, strict=True):
            total.lerp_(parameter, 1 - self.decay)
        self.steps += 1

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Replace the parameters with their average inside the context."""
        original = [p.clone() for p in self.parameters]
        for parameter, total in zip(self.parameters, self.sums, strict=True):
            parameter.copy_(total / (1 - self.decay**self.steps))
        try:
            yield
        finally:
            for parameter, value in zip(self.parameters, original, strict=True):
                parameter.copy_(value)


def train_and_test(
    settings: Mapping[str, Any], seed: int, train: Part, validation: Part, test: Part, progress: Callable[[float], object]
) -> Unit:
    """Train one network, select the averaged weights of the first epoch with the lowest validation error, test them."""
    bnn = bayesian_net(train[0].shape[1], settings["hidden"], settings["posterior"], settings["rates"], seed)
    average: TemporalAverage | None = None
    curve: list[float] = []
    seconds: list[float] = []
    best: dict[str, Tensor] = {}

    def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        nonlocal average
        average = TemporalAverage(parameters, settings["averaging"])
        update = average.update
        adam = torch.optim.Adam(parameters, lr=settings["learning_rate"], fused=True)
        adam.register_step_post_hook(lambda *_: update())
        return adam

    def after(record: dict[str, float]) -> None:
        nonlocal best
        assert average is not None
        with average.in_place():
            curve.append(error(bnn, validation))
            if curve[-1] < min(curve[:-1], default=float("inf")):
                best = {name: value.clone() for name, value in bnn.state_dict().items()}
        seconds.append(record["seconds"])
        progress(record["epoch"] / settings["epochs"])

    fit(
        bnn, train, Categorical(), epochs=settings["epochs"], batch_size=settings["batch_size"], beta=settings["beta"],
        optimizer=optimizer, seed=seed, accelerator="cpu", loggers=[after], progress=False,
    )  # fmt: skip
    bnn.load_state_dict(best)
    predictive = predict(bnn, test[0], Categorical(), samples=settings["samples"], seed=seed, progress=False)
    rates = dropout_rates(bnn)
    return {
        "test error": error(bnn, test),
        "predictive error": 100 * float((predictive.prediction != test[1]).double().mean()),
        "predictive nll": -float(predictive.log_prob(test[1]).double().mean()),
        "validation error": min(curve),
        "kept epoch": curve.index(min(curve)) + 1,
        "validation errors": curve,
        "parameters": sum(p.numel() for p in bnn.parameters()),
        "seconds per epoch": sum(seconds) / len(seconds),
        **({"input rate": rates[0], "hidden rate": sum(rates[1:]) / len(rates[1:])} if rates else {}),
    }


def error(bnn: Bayesian, data: Part) -> float:
    """Error of the mean weights, in percent."""
    with torch.no_grad():
        return 100 * float((posterior_mean(bnn, data[0]).argmax(-1) != data[1]).double().mean())


def dropout_rates(bnn: Bayesian) -> list[float]:
    """Mean of alpha / (1 + alpha) per layer from bottom to top; empty if alpha is not learned."""
    learned = [
        site.posterior
        for site in sites(bnn)
        if isinstance(site.posterior, InputNoisePosterior | WeightNoisePosterior) and list(site.posterior.parameters())
    ]
    return [float(torch.sigmoid(posterior.bounded_log_alpha().detach()).mean()) for posterior in learned]
