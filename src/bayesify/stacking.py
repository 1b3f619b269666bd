"""Stacking: weights of several predictive distributions, by the likelihood of held-out rows.

Shapes: N rows, K distributions.
"""

from __future__ import annotations

from torch import Tensor

from bayesify.errors import DataError

__all__ = ["stacking_weights"]

_STEPS, _PRECISION = 10_000, 1e-9


def stacking_weights(log_probs: Tensor, sample_weight: Tensor | None = None) -> Tensor:
    r"""Return the weights (K,) of the mixture that gives held-out rows the highest likelihood.

    $$w = \arg\max_w \sum_i v_i \log \sum_k w_k\, p_k(y_i), \quad w_k \ge 0, \quad \sum_k w_k = 1$$

    The objective is concave. It is maximized by expectation maximization, whose steps never decrease it.

    Source: Yao, Vehtari, Simpson & Gelman, *Using stacking to average Bayesian predictive distributions* (2018), arXiv 1704.02030,
    equation (4), with held-out rows in place of leave-one-out densities.

    Args:
        log_probs: (N, K), the log density or probability of every row's target under each distribution, which was not trained on
            the row. A distribution that gives a row 0, whose log is -inf, may still get a weight.
        sample_weight: v, (N,), at least 0; None for equal weights.

    Raises:
        DataError: wrong shapes; NaN or +inf; a row that is impossible under every distribution; no row with a weight.

    Example:
        >>> stacking_weights(torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8]]).log())
        tensor([0.8472, 0.1528])
    """
    if log_probs.dim() != 2 or 0 in log_probs.shape:
        raise DataError(f"log_probs must be (rows, distributions), at least one of each, got {tuple(log_probs.shape)}")
    if sample_weight is None:
        sample_weight = log_probs.new_ones(len(log_probs))
    if sample_weight.shape != log_probs.shape[:1] or not (sample_weight >= 0).all() or not sample_weight.sum() > 0:
        raise DataError(f"sample_weight must be ({len(log_probs)},), at least 0 and not all 0, got {tuple(sample_weight.shape)}")
    highest = log_probs.double().amax(1, keepdim=True)  # of every row, so that none underflows
    if not highest.isfinite().all():
        raise DataError("log_probs must not have NaN or inf, nor a row in which all are -inf")
    likelihood = (log_probs.double() - highest).exp()
    counted = sample_weight > 0
    likelihood, shares = likelihood[counted], sample_weight[counted].double() / sample_weight[counted].double().sum()
    weights = likelihood.new_full(log_probs.shape[1:], 1 / log_probs.shape[1])
    for _ in range(_STEPS):
        before = weights
        weights = weights * (shares @ (likelihood / (likelihood @ weights).unsqueeze(1)))
        if (weights - before).abs().max() < _PRECISION:
            break
    return (weights / weights.sum()).to(log_probs.dtype)
