"""Training: `fit` trains one Bayesian network, `fit_many` many at once; `ensemble_of_draws` is for batch normalization."""

from bayesify.train.arguments import Training
from bayesify.train.batch import Weighted
from bayesify.train.draws import ensemble_of_draws
from bayesify.train.fitting import fit
from bayesify.train.history import History
from bayesify.train.many import fit_many
from bayesify.train.row_groups import RowGroups

__all__ = ["History", "RowGroups", "Training", "Weighted", "ensemble_of_draws", "fit", "fit_many"]
