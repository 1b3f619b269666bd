"""A training loop of one's own with accelerate: the same weights as without."""

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from bayesify import VIFO, Categorical, MeanField, bayesify, elbo


def train(method, accelerator: Accelerator | None) -> dict[str, Tensor]:
    torch.manual_seed(0)
    bnn = bayesify(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 3)), method)
    optimizer, likelihood = torch.optim.Adam(bnn.parameters(), lr=0.01), Categorical()
    model, optimizer = (bnn, optimizer) if accelerator is None else accelerator.prepare(bnn, optimizer)
    x, y = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    for _ in range(5):
        optimizer.zero_grad()
        draws = model(x, samples=2)
        loss = -elbo(draws, likelihood.log_prob(draws.outputs, y), n=6)
        loss.backward() if accelerator is None else accelerator.backward(loss)
        optimizer.step()
    return bnn.state_dict()


@pytest.mark.parametrize("method", [MeanField(), VIFO()])
def test_training_is_the_same(method) -> None:
    torch.testing.assert_close(train(method, Accelerator(cpu=True)), train(method, None), rtol=0, atol=0)
