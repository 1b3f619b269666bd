"""Figures of calibration, predictions and training; each function draws on matplotlib Axes and returns them."""

from bayesify.errors import MissingDependencyError

try:
    import matplotlib  # noqa: F401
except ImportError as error:
    raise MissingDependencyError("figures", "matplotlib", extra="plots") from error

from bayesify.plots.calibration import plot_coverage, plot_rejection, plot_reliability, plot_uncertainty_error
from bayesify.plots.explanations import plot_dependence, plot_effects, plot_importance
from bayesify.plots.history import plot_kl, plot_training
from bayesify.plots.predictions import plot_bands, plot_confusion, plot_feature, plot_predictions, plot_uncertainty

__all__ = [
    "plot_bands",
    "plot_confusion",
    "plot_coverage",
    "plot_dependence",
    "plot_effects",
    "plot_feature",
    "plot_importance",
    "plot_kl",
    "plot_predictions",
    "plot_rejection",
    "plot_reliability",
    "plot_training",
    "plot_uncertainty",
    "plot_uncertainty_error",
]
