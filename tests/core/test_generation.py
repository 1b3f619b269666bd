"""Generation with several draws: equal to `generate` of every drawn network, whether draws are decoded together or not."""

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LogitsProcessor,
    LogitsProcessorList,
    T5Config,
    T5ForConditionalGeneration,
)

from bayesify import EMP, VIFO, WHVI, ConfigurationError, DeepEnsemble, MeanField, PassError, bayesify

SIZES = {"vocab_size": 31, "eos_token_id": 1, "bos_token_id": 2, "pad_token_id": 0}
PROMPT = torch.tensor([[5, 9, 3, 7], [4, 4, 8, 6]])


def gpt2() -> nn.Module:
    return GPT2LMHeadModel(GPT2Config(**SIZES, n_embd=16, n_layer=2, n_head=2, n_positions=32)).eval()


def llama() -> nn.Module:
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
    return LlamaForCausalLM(LlamaConfig(**SIZES, **sizes, hidden_size=16, intermediate_size=32)).eval()


def t5() -> nn.Module:
    config = T5Config(**SIZES, d_model=16, d_kv=4, num_layers=1, num_heads=4, d_ff=32, decoder_start_token_id=0)
    return T5ForConditionalGeneration(config).eval()


class Chain(nn.Module):
    """A language model of the last token only, with a `generate` of its own that ends at token 0."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(6, 8), nn.Linear(8, 6)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.table(ids))

    def generate(self, ids: Tensor, length: int = 6) -> Tensor:
        for _ in range(length):
            following = self(ids)[:, -1].argmax(-1)
            ids = torch.cat([ids, following[:, None]], 1)
            if (following == 0).all():
                break
        return ids


class Averaging(LlamaForCausalLM):
    """The rows of a batch affect each other."""

    def forward(self, *args, **kwargs):
        outputs = super().forward(*args, **kwargs)
        outputs.logits = outputs.logits - outputs.logits.mean(0)
        return outputs


def one_by_one(bnn, seeds, *args, **kwargs) -> list[Tensor]:
    tokens = []
    for seed in seeds:
        with bnn.drawn(seed) as net:
            tokens.append(net.generate(*args, **kwargs))
    return tokens


@pytest.mark.parametrize("method", [MeanField(initial_std=0.5), WHVI(initial_std=0.5), EMP(where="*", spread=1.0)])
@pytest.mark.parametrize("make", [gpt2, llama, t5])
def test_draws_decoded_together_are_those_decoded_one_by_one(make, method) -> None:
    torch.manual_seed(0)
    bnn = bayesify(make(), method, output="logits")
    settings = {"attention_mask": torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]]), "max_new_tokens": 8, "do_sample": False}
    tokens = bnn.generate(PROMPT, samples=3, seed=5, **settings)
    expected = one_by_one(bnn, (5, 6, 7), PROMPT, **settings)
    assert tokens.shape[:2] == (3, 2)
    assert len({run.numpy().tobytes() for run in expected}) > 1, "the draws differ"
    for drawn, run in zip(tokens, expected, strict=True):
        assert torch.equal(drawn[:, : run.shape[1]], run)
        assert (drawn[:, run.shape[1] :] == 0).all()


@pytest.mark.parametrize("samples", [1, 4])
def test_together_every_token_takes_one_call_of_the_network(samples: int) -> None:
    bnn = bayesify(llama(), MeanField(), output="logits")
    rows: list[tuple[int, ...]] = []
    handle = bnn.net.model.embed_tokens.register_forward_hook(lambda module, args, output: rows.append(tuple(args[0].shape)))
    bnn.generate(PROMPT, samples=samples, max_new_tokens=2)  # the first time tests whether draws can be decoded together
    rows.clear()
    bnn.generate(PROMPT, samples=samples, max_new_tokens=3, min_new_tokens=3)
    handle.remove()
    assert rows == [(2 * samples, 4), (2 * samples, 1), (2 * samples, 1)]


def test_rows_that_affect_each_other_are_decoded_draw_by_draw() -> None:
    net = Averaging(llama().config).eval()
    bnn = bayesify(net, MeanField(initial_std=0.3), output="logits")
    settings = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    assert torch.equal(bnn.generate(PROMPT, samples=3, **settings), torch.stack(one_by_one(bnn, range(3), PROMPT, **settings)))
    with pytest.raises(ConfigurationError, match="draws are decoded one after the other"):
        bnn.generate(PROMPT, samples=3, **settings, return_dict_in_generate=True)


def _only_by_row(row: int, ids: Tensor) -> list[int]:
    return [[3, 4, 5], [6, 7, 8]][row]


class _FirstRow(LogitsProcessor):
    """Makes the first row of a batch end in token 9."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores = scores.clone()
        scores[0, 9] = 1e9
        return scores


@pytest.mark.parametrize(
    "functions", [{"prefix_allowed_tokens_fn": _only_by_row}, {"logits_processor": LogitsProcessorList([_FirstRow()])}]
)
def test_functions_that_look_at_rows_see_those_of_one_draw(functions) -> None:
    torch.manual_seed(0)
    bnn = bayesify(llama(), MeanField(initial_std=0.5), output="logits")
    settings = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, **functions}
    expected = torch.stack(one_by_one(bnn, range(3), PROMPT, **settings))
    assert torch.equal(bnn.generate(PROMPT, samples=3, **settings), expected)


@pytest.mark.parametrize("assisted", [True, False])
def test_decoding_of_a_single_row_decodes_draw_by_draw(assisted: bool) -> None:
    torch.manual_seed(0)
    bnn = bayesify(llama(), MeanField(initial_std=0.5), output="logits")
    settings = {"assistant_model": llama()} if assisted else {"prompt_lookup_num_tokens": 2}
    settings |= {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    expected = torch.stack(one_by_one(bnn, range(3), PROMPT[:1], **settings))
    assert torch.equal(bnn.generate(PROMPT[:1], samples=3, **settings), expected)


def test_a_cache_for_several_draws_is_refused() -> None:
    bnn = bayesify(llama(), MeanField(), output="logits")
    with pytest.raises(ConfigurationError, match="past_key_values would be filled by the first draw"):
        bnn.generate(PROMPT, samples=2, past_key_values=DynamicCache(), max_new_tokens=2)
    assert bnn.generate(PROMPT, past_key_values=DynamicCache(), max_new_tokens=2).shape == (1, 2, 6)


def test_scores_and_several_sequences_have_a_dimension_of_draws() -> None:
    bnn = bayesify(llama(), MeanField(), output="logits")
    settings = {"max_new_tokens": 3, "min_new_tokens": 3, "num_beams": 3, "num_return_sequences": 2, "do_sample": False}
    found = bnn.generate(PROMPT, samples=2, **settings, return_dict_in_generate=True, output_scores=True)
    assert found.sequences.shape == (2, 4, 7)
    for drawn, run in zip(found.sequences, one_by_one(bnn, range(2), PROMPT, **settings), strict=True):
        assert torch.equal(drawn, run)
    assert found.sequences_scores.shape == (2, 4)


def test_sampled_tokens_depend_on_the_seed_alone() -> None:
    bnn = bayesify(gpt2(), MeanField(), output="logits")
    settings = {"samples": 3, "max_new_tokens": 8, "do_sample": True}
    first = bnn.generate(PROMPT, seed=1, **settings)
    torch.rand(5)
    assert torch.equal(bnn.generate(PROMPT, seed=1, **settings), first)
    assert not torch.equal(bnn.generate(PROMPT, seed=2, **settings), first)


def test_any_network_with_generate() -> None:
    torch.manual_seed(3)
    bnn = bayesify(Chain(), MeanField(initial_std=1.0))
    ids = torch.tensor([[1, 2], [3, 4]])
    tokens, expected = bnn.generate(ids, samples=6), one_by_one(bnn, range(6), ids)
    assert len({run.shape[1] for run in expected}) > 1, "some draws end early"
    for drawn, run in zip(tokens, expected, strict=True):
        assert torch.equal(drawn[:, : run.shape[1]], run)
        assert (drawn[:, run.shape[1] :] == 0).all()


def test_members_of_an_ensemble_take_turns() -> None:
    bnn = bayesify([gpt2(), gpt2()], DeepEnsemble(members=2), output="logits")
    settings = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}
    tokens = bnn.generate(PROMPT, samples=4, **settings)
    for s in range(4):
        assert torch.equal(tokens[s], bnn.members[s % 2].net.generate(PROMPT, **settings))


def test_what_cannot_generate_says_so() -> None:
    with pytest.raises(TypeError, match="Linear has no method `generate`; use"):
        bayesify(nn.Linear(3, 2), MeanField()).generate(torch.zeros(2, 3))
    with pytest.raises(NotImplementedError, match="draws outputs, not networks"):
        bayesify(gpt2(), VIFO(), output="logits").generate(PROMPT, samples=2)
    bnn = bayesify(gpt2(), MeanField(), output="logits")
    with pytest.raises(ConfigurationError, match="samples"):
        bnn.generate(PROMPT, samples=0)
    with bnn.drawn(0), pytest.raises(PassError, match="a draw of this network is held"):
        bnn.generate(PROMPT, samples=2)
