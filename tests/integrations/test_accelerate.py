"""A training loop of one's own with accelerate: the same weights as without. Networks with its hooks."""

import pytest
import tiny_models
import torch
from accelerate import Accelerator, cpu_offload, dispatch_model
from torch import Tensor, nn

from bayesify import VIFO, Categorical, ConfigurationError, MeanField, NothingRandomError, bayesify, elbo


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


@pytest.mark.parametrize("adapted", [False, True])
def test_offloaded_parameters_are_refused(adapted: bool) -> None:
    """With adapters, draws were those of arbitrary memory."""
    net = cpu_offload(tiny_models.llama(), execution_device="cpu")
    if adapted:
        net = tiny_models.adapted(net, "CAUSAL_LM", ["q_proj"])
    with pytest.raises(ConfigurationError, match=r"accelerate offloads trainable parameters, such as '.*'.* without offloading"):
        bayesify(net, MeanField(), output="logits")


def test_adapters_of_a_network_with_hooks_are_random() -> None:
    """Layers with hooks are not, and say why."""
    base = dispatch_model(tiny_models.llama(), device_map={"": "cpu"}, force_hooks=True)
    with pytest.raises(NothingRandomError, match="a hook of accelerate: convert the network first, then dispatch it"):
        bayesify(base, MeanField())
    adapted = tiny_models.adapted(base, "CAUSAL_LM", ["q_proj"]).eval()
    ids = tiny_models.tokens()
    with torch.no_grad():
        expected = adapted(ids).logits
        bnn = bayesify(adapted, MeanField(initial_std=1e-8), output="logits").eval()
        torch.testing.assert_close(bnn(input_ids=ids, samples=2).outputs, expected.expand(2, *expected.shape))
    assert all("lora_" in name for name, _ in bnn.random_layers())
