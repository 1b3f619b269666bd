"""Training: `fit` trains one Bayesian network, `fit_many` many at once."""

from bayesify.train.arguments import Training
from bayesify.train.batch import Weighted
from bayesify.train.fitting import fit
from bayesify.train.history import History
from bayesify.train.many import fit_many

__all__ = ["History", "Training", "Weighted", "fit", "fit_many"]
