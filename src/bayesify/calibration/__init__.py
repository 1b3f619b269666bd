"""Class probabilities that fit held-out rows: temperature and vector scaling, isotonic regression and histogram binning."""

from bayesify.calibration.probability_maps import HistogramBinning, IsotonicCalibration, ProbabilityMap, VectorScaling
from bayesify.calibration.temperature import fit_temperature

__all__ = ["HistogramBinning", "IsotonicCalibration", "ProbabilityMap", "VectorScaling", "fit_temperature"]
