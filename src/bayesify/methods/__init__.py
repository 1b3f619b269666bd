"""One file per method, one paper per file. Importing this package fills `Method.registry`."""

from bayesify.methods.deep_ensemble import DeepEnsemble
from bayesify.methods.deterministic import Deterministic
from bayesify.methods.drop_connect import DropConnect
from bayesify.methods.emp import ECMP, EMP
from bayesify.methods.mc_dropout import MCDropout
from bayesify.methods.mean_field import MeanField
from bayesify.methods.variational_dropout import VariationalDropout
from bayesify.methods.vsd import VSD

__all__ = ["ECMP", "EMP", "VSD", "Deterministic", "DropConnect", "MCDropout", "MeanField", "VariationalDropout"]
from bayesify.methods.vifo import VIFO

__all__ = ["VIFO", "DeepEnsemble", "Deterministic", "MCDropout", "MeanField", "VariationalDropout"]
