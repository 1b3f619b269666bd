"""The training engine: `fit` a Bayesian network to data, with checkpoints it can go on from exactly."""

from bayesify.train.engine import fit
from bayesify.train.history import History

__all__ = ["History", "fit"]
