"""Class probabilities that fit held-out rows: temperature scaling, vector scaling and isotonic regression."""

from bayesify.calibration.probability_maps import IsotonicCalibration, ProbabilityMap, VectorScaling
from bayesify.calibration.temperature import fit_temperature

__all__ = ["IsotonicCalibration", "ProbabilityMap", "VectorScaling", "fit_temperature"]
