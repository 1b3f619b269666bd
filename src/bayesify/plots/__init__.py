"""Figures: does the model know what it does not know? Each function draws on the given matplotlib Axes and returns them."""

from bayesify.plots.calibration import plot_coverage, plot_rejection, plot_reliability, plot_uncertainty_error
from bayesify.plots.predictions import plot_bands, plot_confusion, plot_feature, plot_predictions, plot_uncertainty
from bayesify.plots.training import plot_kl, plot_training

__all__ = [
    "plot_bands",
    "plot_confusion",
    "plot_coverage",
    "plot_feature",
    "plot_kl",
    "plot_predictions",
    "plot_rejection",
    "plot_reliability",
    "plot_training",
    "plot_uncertainty",
    "plot_uncertainty_error",
]
