"""Hooks that a network registers in its first pass, as transformers does for hidden states, are registered once."""

import copy

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from bayesify import Deterministic, bayesify


class Recording(nn.Module):
    """Registers a hook in its first pass, and remembers that in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.is_hooked, self.seen = nn.Linear(3, 2), False, []

    def forward(self, x):
        if not self.is_hooked:
            self.layer.register_forward_hook(lambda module, args, output: self.seen.append(output))
            self.is_hooked = True
        self.seen.clear()
        self.layer(x)
        return torch.stack(self.seen, 1)


@pytest.mark.parametrize("samples", [1, 2])
def test_a_hook_of_the_first_pass_is_registered_once(samples):
    plain, x = Recording(), torch.randn(4, 3)
    bnn = bayesify(copy.deepcopy(plain), Deterministic())
    expected = plain(x)
    torch.testing.assert_close(bnn(x, samples=samples).outputs, expected.expand(samples, *expected.shape))


@pytest.mark.parametrize("samples", [1, 2])
def test_hidden_states_are_those_of_the_plain_model(samples):
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 24}
    plain = LlamaForCausalLM(LlamaConfig(vocab_size=31, use_cache=False, **sizes)).eval()
    ids = torch.randint(3, 31, (3, 6))
    bnn = bayesify(copy.deepcopy(plain), Deterministic()).eval()
    states = bnn(input_ids=ids, output_hidden_states=True, samples=samples).outputs["hidden_states"]
    expected = plain(input_ids=ids, output_hidden_states=True).hidden_states
    assert len(states) == len(expected)
    for actual, state in zip(states, expected, strict=True):
        torch.testing.assert_close(actual, state.expand(samples, *state.shape))
