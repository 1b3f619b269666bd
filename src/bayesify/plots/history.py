"""Figures of training: the terms of the ELBO by epoch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from bayesify.plots.style import BLUE, MUTED, ORANGE, axes, label, legend

if TYPE_CHECKING:
    from bayesify.train import History

__all__ = ["plot_kl", "plot_training"]


def plot_training(history: History, ax: Axes | None = None) -> Axes:
    """Plot the negative ELBO, the negative log likelihood and, if there is one, the validation loss, with the selected epoch.

    The loss is the negative ELBO; its gap to the negative log likelihood (NLL) is the weighted KL per example, and it is left out
    if it equals the NLL. Values far above the rest are cut off. No epoch is marked for members with different ones.

    Args:
        history: from `bayesify.train.fit`.
        ax: Axes to draw on; a new figure if None.

    Returns:
        The Axes.

    Example:
        >>> from bayesify.train import History
        >>> plot_training(History(loss=[3.0, 2.0], nll=[2.5, 1.8], kl=[9.0, 8.0], beta=[1.0, 1.0])).get_ylabel()
        'nats per example'
    """
    ax = axes(ax)
    epochs = range(1, len(history) + 1)
    curves = [history.nll]
    if has_penalty(history):
        ax.plot(epochs, history.loss, color=MUTED, label="training loss")
        curves.append(history.loss)
    ax.plot(epochs, history.nll, color=BLUE, label="training NLL")
    if history.validation_nll:
        ax.plot(epochs, history.validation_nll, color=ORANGE, label="validation NLL")
        curves.append(history.validation_nll)
    if len(history.kept_epochs) == 1:
        best = history.kept_epochs[0]
        ax.plot([best], [history.validation_nll[best - 1]], color=ORANGE, marker="o", markersize=6, linestyle="")
        ax.axvline(best, color=ORANGE, linewidth=0.8, linestyle=(0, (2, 3)), label=f"selected: epoch {best}")
    finite = sorted(v for curve in curves for v in curve if math.isfinite(v))
    if len(history) >= 10 and finite:
        low, high = finite[0], finite[int(0.95 * (len(finite) - 1))]
        ax.set_ylim(low - 0.08 * (high - low + 1e-9), high + 0.08 * (high - low + 1e-9))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    label(ax, "epoch", "nats per example")
    legend(ax)
    return ax


def has_penalty(history: History) -> bool:
    """Whether the loss has more than the negative log likelihood: a weighted KL, or a regularizer of the outputs."""
    return any(not math.isclose(loss, nll, rel_tol=1e-5, abs_tol=1e-6) for loss, nll in zip(history.loss, history.nll, strict=True))


def plot_kl(history: History, ax: Axes | None = None) -> Axes:
    """Plot the KL between posterior and prior (sum over the network, nats) and, shaded, its weight in the loss.

    Args:
        history: from `bayesify.train.fit`.
        ax: Axes to draw on; a new figure if None. The weight has a second axis on the right.

    Returns:
        The Axes.

    Example:
        >>> from bayesify.train import History
        >>> plot_kl(History(loss=[3.0, 2.0], nll=[2.5, 1.8], kl=[9.0, 8.0], beta=[0.5, 1.0])).get_xlabel()
        'epoch'
    """
    ax = axes(ax)
    epochs = range(1, len(history) + 1)
    weight = ax.twinx()
    weight.set_zorder(ax.get_zorder() - 1)
    weight.fill_between(epochs, 0, history.beta, color=MUTED, alpha=0.15, linewidth=0)
    weight.set_ylim(0, 1.25 * max([*history.beta, 1e-12]))
    weight.spines[:].set_visible(False)
    weight.tick_params(colors=MUTED, length=0)
    weight.set_ylabel("KL weight beta (shaded)", color=MUTED)
    ax.plot(epochs, history.kl, color=BLUE)
    ax.set_ylim(bottom=min(0.0, *history.kl))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    label(ax, "epoch", "KL (nats)")
    return ax
