"""The training engine: `fit` a Bayesian network to data, `fit_many` of them at once."""

from bayesify.train.api import fit
from bayesify.train.history import History
from bayesify.train.many import fit_many
from bayesify.train.training import Training

__all__ = ["History", "Training", "fit", "fit_many"]
