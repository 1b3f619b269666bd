"""Methods, one file and one paper each. Importing this package fills `Method.registry`."""

from bayesify.methods.blob import BLoB
from bayesify.methods.concrete_dropout import ConcreteDropout
from bayesify.methods.deep_ensemble import DeepEnsemble
from bayesify.methods.deterministic import Deterministic
from bayesify.methods.drop_connect import DropConnect
from bayesify.methods.dvi import DVI
from bayesify.methods.elrg import ELRG
from bayesify.methods.emp import ECMP, EMP
from bayesify.methods.hmc import HMC
from bayesify.methods.ivon import IVON
from bayesify.methods.laplace import Laplace
from bayesify.methods.mc_dropout import MCDropout
from bayesify.methods.mean_field import MeanField
from bayesify.methods.mnf import MNF
from bayesify.methods.noisy_adam import NoisyAdam
from bayesify.methods.noisy_kfac import NoisyKFAC
from bayesify.methods.radial import Radial
from bayesify.methods.rank1 import BatchEnsemble, Rank1
from bayesify.methods.repulsive import RepulsiveEnsemble
from bayesify.methods.scalabl import ScalaBL
from bayesify.methods.sgmcmc import SGHMC, SGLD
from bayesify.methods.slang import SLANG
from bayesify.methods.swag import SWA, SWAG
from bayesify.methods.tensor_factorized import TensorFactorized
from bayesify.methods.variational_dropout import VariationalDropout
from bayesify.methods.vifo import VIFO
from bayesify.methods.vmg import VMG
from bayesify.methods.vogn import VOGN
from bayesify.methods.vsd import VSD
from bayesify.methods.whvi import WHVI

__all__ = [
    "DVI",
    "ECMP",
    "ELRG",
    "EMP",
    "HMC",
    "IVON",
    "MNF",
    "SGHMC",
    "SGLD",
    "SLANG",
    "SWA",
    "SWAG",
    "VIFO",
    "VMG",
    "VOGN",
    "VSD",
    "WHVI",
    "BLoB",
    "BatchEnsemble",
    "ConcreteDropout",
    "DeepEnsemble",
    "Deterministic",
    "DropConnect",
    "Laplace",
    "MCDropout",
    "MeanField",
    "NoisyAdam",
    "NoisyKFAC",
    "Radial",
    "Rank1",
    "RepulsiveEnsemble",
    "ScalaBL",
    "TensorFactorized",
    "VariationalDropout",
]
