"""One file per method, one paper per file. Importing this package fills `Method.registry`."""

from bayesify.methods.deterministic import Deterministic
from bayesify.methods.mc_dropout import MCDropout
from bayesify.methods.mean_field import MeanField
from bayesify.methods.tensor_factorised import TensorFactorised
from bayesify.methods.variational_dropout import VariationalDropout
from bayesify.methods.vsd import VSD
from bayesify.methods.whvi import WHVI

__all__ = ["VSD", "WHVI", "Deterministic", "MCDropout", "MeanField", "TensorFactorised", "VariationalDropout"]
