"""Scores of tokens, against dense mixtures over explicit draws of the weights."""

import math

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

from bayesify import VIFO, DeepEnsemble, MeanField, bayesify
from bayesify.prediction import score_tokens

IDS = torch.tensor([[5, 9, 3, 7, 2], [4, 4, 8, 6, 0], [1, 2, 0, 0, 0]])
MASK = (IDS != 0).long()
TARGETS = IDS.masked_fill(MASK == 0, -100)


def llama() -> nn.Module:
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
    return LlamaForCausalLM(LlamaConfig(vocab_size=11, hidden_size=16, intermediate_size=32, **sizes)).eval()


def reference(log_probs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
    """Scores from log probabilities (S, N, T, V) of all draws at once, token by token."""
    mean = log_probs.exp().mean(0)
    scores = {name: torch.zeros(targets.shape, dtype=log_probs.dtype) for name in ("log_prob", "entropy", "expected_entropy")}
    texts = torch.zeros(log_probs.shape[:2], dtype=log_probs.dtype)
    for n in range(targets.shape[0]):
        for t in range(targets.shape[1]):
            if (y := int(targets[n, t])) != -100:
                scores["log_prob"][n, t] = mean[n, t, y].log()
                scores["entropy"][n, t] = torch.distributions.Categorical(probs=mean[n, t]).entropy()
                per_draw = [torch.distributions.Categorical(logits=log_probs[s, n, t]).entropy() for s in range(len(log_probs))]
                scores["expected_entropy"][n, t] = torch.stack(per_draw).mean()
                texts[:, n] += log_probs[:, n, t, y]
    return {**scores, "text_log_prob": texts.exp().mean(0).log()}


@pytest.mark.parametrize("batch_size", [3, 2])
def test_scores_are_those_of_the_dense_mixture(batch_size: int) -> None:
    torch.manual_seed(0)
    bnn = bayesify(llama().double(), MeanField(initial_std=0.3), output="logits").double()
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    found = score_tokens(bnn, inputs, TARGETS, samples=6, batch_size=batch_size, seed=4)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(4)
        draws = torch.cat([bnn(**inputs, samples=1, coherent=True).outputs for _ in range(6)])
    expected = reference(draws[:, :, :-1].log_softmax(-1), TARGETS[:, 1:])
    for name, value in expected.items():
        torch.testing.assert_close(getattr(found, name), value)
    torch.testing.assert_close(found.mutual_information, expected["entropy"] - expected["expected_entropy"])
    count = int((TARGETS[:, 1:] != -100).sum())
    assert float(found.perplexity) == pytest.approx(math.exp(-float(expected["log_prob"].sum()) / count))
    assert found.samples == 6


def test_without_shift_targets_are_those_of_the_same_position() -> None:
    config = T5Config(vocab_size=11, d_model=16, d_kv=4, num_layers=1, num_heads=4, d_ff=32, decoder_start_token_id=0)
    bnn = bayesify(T5ForConditionalGeneration(config), {"*.SelfAttention.*": MeanField(initial_std=0.3)}, output="logits").eval()
    inputs = {"input_ids": IDS, "decoder_input_ids": torch.cat([torch.zeros(3, 1, dtype=torch.long), IDS[:, :-1]], 1)}
    found = score_tokens(bnn, inputs, TARGETS, samples=3, shift=0)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        draws = torch.cat([bnn(**inputs, samples=1, coherent=True).outputs for _ in range(3)])
    torch.testing.assert_close(found.log_prob, reference(draws.log_softmax(-1), TARGETS)["log_prob"])


def test_ensembles_and_random_outputs_have_scores() -> None:
    ensemble = bayesify([llama(), llama()], DeepEnsemble(members=2), output="logits").eval()
    found = score_tokens(ensemble, IDS, TARGETS, samples=3)
    assert found.samples == 4
    with torch.no_grad():
        draws = torch.stack([member.net(IDS).logits for member in ensemble.members])
    torch.testing.assert_close(found.log_prob, reference(draws[:, :, :-1].log_softmax(-1), TARGETS[:, 1:])["log_prob"])
    assert score_tokens(bayesify(llama(), VIFO(), output="logits"), IDS, TARGETS, samples=3).mutual_information.max() > 0


def test_memory_does_not_grow_with_draws_and_texts(monkeypatch) -> None:
    sizes: list[tuple[int, ...]] = []
    bnn = bayesify(llama(), MeanField(), output="logits")
    bnn.register_forward_hook(lambda module, args, draws: sizes.append(tuple(draws.outputs.shape)))
    score_tokens(bnn, IDS.repeat(10, 1), TARGETS.repeat(10, 1), samples=5, batch_size=2)
    assert max(math.prod(size) for size in sizes) <= 2 * 2 * 5 * 11, "two draws of two texts, in the test of replay"
    assert len(sizes) >= 15 * 5


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (TARGETS.float(), r"targets must be integer tokens \(N, T\), got \(3, 5\), torch.float32"),
        (TARGETS[0], r"targets must be integer tokens \(N, T\), got \(5,\)"),
        (torch.full_like(TARGETS, -100), "have no token that counts"),
        (TARGETS[:, :4], r"y has shape \(3, 3\) but the outputs require \(3, 4\)"),
        (TARGETS + 20, "labels"),
    ],
)
def test_invalid_targets(targets: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        score_tokens(bayesify(llama(), MeanField(), output="logits"), IDS, targets)
