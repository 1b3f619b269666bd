"""DropConnect against the enumeration of all masks."""

import copy
import itertools
import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal

from bayesify import DropConnect, bayesify

DRAWS = 40_000


@pytest.mark.parametrize("coherent", [False, True])
@pytest.mark.parametrize("layer", ["linear", "convolution"])
def test_weights_are_those_of_all_masks_in_proportion(layer: str, coherent: bool) -> None:
    plain = nn.Linear(3, 1).double() if layer == "linear" else nn.Conv1d(1, 1, 3).double()
    x, p = torch.tensor([[1.0, -2.0, 0.5]]).double(), 0.3
    x = x if layer == "linear" else x.unsqueeze(1)
    values, probabilities = [], []
    for kept in itertools.product((0, 1), repeat=3):
        masked = copy.deepcopy(plain)
        with torch.no_grad():
            masked.weight.mul_(torch.tensor(kept, dtype=torch.float64).reshape(plain.weight.shape) / (1 - p))
        values.append(masked(x).item())
        probabilities.append(math.prod(1 - p if k else p for k in kept))
    bnn = bayesify(nn.Sequential(copy.deepcopy(plain)), DropConnect(p=p))
    with torch.no_grad():
        y = bnn(x, samples=DRAWS, coherent=coherent).outputs.flatten()
    values, probabilities = torch.tensor(values, dtype=torch.float64), torch.tensor(probabilities, dtype=torch.float64)
    distance, which = (y.unsqueeze(1) - values).abs().min(1)
    assert distance.max() < 1e-9, "an output that no mask explains"
    share = torch.bincount(which, minlength=8) / DRAWS
    assert ((share - probabilities).abs() <= 5 * (probabilities * (1 - probabilities) / DRAWS).sqrt()).all()
    assert float(probabilities @ values) == pytest.approx(plain(x).item()), "inverted scaling keeps the mean"


def test_one_mask_serves_the_whole_batch() -> None:
    bnn = bayesify(nn.Linear(4, 3).double(), DropConnect(p=0.5))
    outputs = bnn(torch.ones(5, 4).double(), samples=6).outputs
    torch.testing.assert_close(outputs, outputs[:, :1].expand_as(outputs))
    assert len(outputs[:, 0].detach().unique(dim=0)) > 1


def test_kl_is_the_expected_penalty_over_all_masks() -> None:
    """-E log p(w) + log p(0): second moments under the masks, one weight at a time, and biases as they are."""
    bnn = bayesify(nn.Linear(3, 2).double(), DropConnect(p=0.25, prior_std=0.5))
    prior, zero = Normal(torch.zeros(()).double(), 0.5), torch.zeros(()).double()
    kept = 0.75 * (prior.log_prob(bnn.net.weight / 0.75) - prior.log_prob(zero))
    expected = -kept.sum() - (prior.log_prob(bnn.net.bias) - prior.log_prob(zero)).sum()
    torch.testing.assert_close(bnn.kl(), expected, rtol=1e-9, atol=0)
    assert bayesify(nn.Linear(3, 2), DropConnect()).kl() == 0


@pytest.mark.parametrize("fields", [{"p": 1.0}, {"p": -0.1}, {"prior_std": 0.0}])
def test_errors(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(fields))} must be a"):
        DropConnect(**fields)
