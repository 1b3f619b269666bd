"""Stand-in for the module that the rebuilt core brings under this name; to be replaced by it."""

from bayesify.core.posterior import Posterior
from bayesify.core.sites import Site as BayesianLayer

__all__ = ["BayesianLayer", "Posterior"]
