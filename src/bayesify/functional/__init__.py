"""Pure functions of tensors: no modules, no state, only PyTorch."""

from bayesify.functional.beta_distribution import incomplete_beta
from bayesify.functional.bounded import bounded_exp, bounded_gaussian_nll
from bayesify.functional.chains import effective_sample_size, split_r_hat
from bayesify.functional.drawing import bernoulli, standard_normal, standard_uniform
from bayesify.functional.flows import masked_flow, planar_flow, planar_flow_inverse, planar_identity
from bayesify.functional.hadamard import fwht, hadamard_matrix
from bayesify.functional.hadamard_weights import (
    Structure,
    hadamard_blocks,
    hadamard_core,
    hadamard_product,
    hadamard_second_moments,
)
from bayesify.functional.hyperprior import (
    kl_lognormal_gamma,
    kl_lognormal_half_cauchy,
    kl_lognormal_inverse_gamma,
    vsd_hierarchical_kl,
)
from bayesify.functional.kl import (
    at_least_float32,
    dropout_kl,
    gaussian_kl,
    gaussian_kl_and_spread,
    gaussian_kl_sum,
    low_rank_gaussian_kl,
    matrix_normal_kl,
    radial_kl,
)
from bayesify.functional.log_uniform import log_uniform_kl, log_uniform_kl_cubic, log_uniform_kl_sigmoid
from bayesify.functional.low_rank import identity_plus_gram_root
from bayesify.functional.moments import relu_covariance, relu_moments
from bayesify.functional.noise import (
    at_most,
    bernoulli_mask,
    concrete_mask,
    gaussian_factors,
    gaussian_factors_and_kl,
    local_reparameterization,
    normal_like,
)
from bayesify.functional.particles import log_kernel_density, median_bandwidth
from bayesify.functional.projection import hadamard_projection
from bayesify.functional.reflections import (
    CompactForm,
    compact_form,
    householder,
    induced_regularizer,
    structured_noise,
    structured_noise_and_kl,
    vsd_kl,
)
from bayesify.functional.regularizers import (
    vifo_empirical_bayes,
    vifo_empirical_bayes_all,
    vifo_mean,
    vifo_mean_all,
    vifo_mean_variance,
    vifo_mean_variance_all,
    vifo_naive,
)

__all__ = [
    "CompactForm",
    "Structure",
    "at_least_float32",
    "at_most",
    "bernoulli",
    "bernoulli_mask",
    "bounded_exp",
    "bounded_gaussian_nll",
    "compact_form",
    "concrete_mask",
    "dropout_kl",
    "effective_sample_size",
    "fwht",
    "gaussian_factors",
    "gaussian_factors_and_kl",
    "gaussian_kl",
    "gaussian_kl_and_spread",
    "gaussian_kl_sum",
    "hadamard_blocks",
    "hadamard_core",
    "hadamard_matrix",
    "hadamard_product",
    "hadamard_projection",
    "hadamard_second_moments",
    "householder",
    "identity_plus_gram_root",
    "incomplete_beta",
    "induced_regularizer",
    "kl_lognormal_gamma",
    "kl_lognormal_half_cauchy",
    "kl_lognormal_inverse_gamma",
    "local_reparameterization",
    "log_kernel_density",
    "log_uniform_kl",
    "log_uniform_kl_cubic",
    "log_uniform_kl_sigmoid",
    "low_rank_gaussian_kl",
    "masked_flow",
    "matrix_normal_kl",
    "median_bandwidth",
    "normal_like",
    "planar_flow",
    "planar_flow_inverse",
    "planar_identity",
    "radial_kl",
    "relu_covariance",
    "relu_moments",
    "split_r_hat",
    "standard_normal",
    "standard_uniform",
    "structured_noise",
    "structured_noise_and_kl",
    "vifo_empirical_bayes",
    "vifo_empirical_bayes_all",
    "vifo_mean",
    "vifo_mean_all",
    "vifo_mean_variance",
    "vifo_mean_variance_all",
    "vifo_naive",
    "vsd_hierarchical_kl",
    "vsd_kl",
]
