"""Stacking weights against SciPy's constrained optimizer and their optimality conditions."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from bayesify.stacking import stacking_weights


@pytest.mark.parametrize("weighted", [False, True])
def test_maximizes_the_likelihood_of_the_mixture(rng, weighted):
    log_probs = rng.normal(loc=(0.0, -0.1, -0.6, -0.2), size=(200, 4))
    rows = rng.uniform(0, 3, 200) if weighted else np.ones(200)

    def loss(w):
        return -(rows * np.log(np.exp(log_probs) @ w)).sum()

    simplex = {"type": "eq", "fun": lambda w: w.sum() - 1}
    expected = minimize(loss, np.full(4, 0.25), bounds=[(0, 1)] * 4, constraints=simplex, options={"ftol": 1e-14}).x
    weights = stacking_weights(torch.from_numpy(log_probs), torch.from_numpy(rows) if weighted else None)
    np.testing.assert_allclose(weights, expected, atol=2e-4)
    ratios = rows / rows.sum() @ (np.exp(log_probs) / (np.exp(log_probs) @ weights.numpy())[:, None])
    np.testing.assert_allclose(ratios[weights > 1e-3], 1, atol=1e-4)  # Karush-Kuhn-Tucker
    assert (ratios < 1 + 1e-4).all()


def test_tails_and_impossible_rows():
    # one row only under the second, the others 10,000 nats better under the first
    log_probs = torch.tensor([[-torch.inf, -3.0], *[[0.0, -1e4]] * 3])
    torch.testing.assert_close(stacking_weights(log_probs), torch.tensor([0.75, 0.25]))
    ignored = stacking_weights(log_probs, torch.tensor([0.0, 1.0, 1.0, 1.0]))
    torch.testing.assert_close(ignored, torch.tensor([1.0, 0.0]))


@pytest.mark.parametrize(
    ("log_probs", "rows", "message"),
    [
        (torch.zeros(3), None, r"must be \(rows, distributions\), at least one of each, got \(3,\)"),
        (torch.zeros(0, 2), None, r"got \(0, 2\)"),
        (torch.full((3, 2), torch.nan), None, "NaN"),
        (torch.full((3, 2), -torch.inf), None, "all are -inf"),
        (torch.zeros(3, 2), torch.zeros(3), r"sample_weight must be \(3,\), at least 0 and not all 0"),
        (torch.zeros(3, 2), torch.ones(2), r"sample_weight must be \(3,\)"),
    ],
)
def test_bad_input(log_probs, rows, message):
    with pytest.raises(ValueError, match=message):
        stacking_weights(log_probs, rows)
