"""The training engine: `fit` a Bayesian network to data, `fit_many` of them at once."""

from bayesify.train.engine import fit
from bayesify.train.history import History
from bayesify.train.many import Training, fit_many

__all__ = ["History", "Training", "fit", "fit_many"]
