"""Pure tensor mathematics: no modules, no state, torch alone."""

from bayesify.functional.householder import householder, induced_regularizer, structured_noise, vsd_kl
from bayesify.functional.hyperprior import kl_lognormal_gamma, kl_lognormal_inverse_gamma, vsd_hierarchical_kl
from bayesify.functional.kl import (
    at_least_float32,
    gaussian_kl,
    gaussian_kl_sum,
    log_uniform_kl,
    log_uniform_kl_cubic,
    log_uniform_kl_sigmoid,
)
from bayesify.functional.noise import at_most, bernoulli_mask, local_reparameterization, normal_like

__all__ = [
    "at_least_float32",
    "at_most",
    "bernoulli_mask",
    "gaussian_kl",
    "gaussian_kl_sum",
    "householder",
    "induced_regularizer",
    "kl_lognormal_gamma",
    "kl_lognormal_inverse_gamma",
    "local_reparameterization",
    "log_uniform_kl",
    "log_uniform_kl_cubic",
    "log_uniform_kl_sigmoid",
    "normal_like",
    "structured_noise",
    "vsd_hierarchical_kl",
    "vsd_kl",
]
