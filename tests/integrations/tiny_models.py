"""Tiny models of transformers with random weights, and inputs for them."""

import peft
import torch
import transformers

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

WORDS = 31
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 16,
}


def tokens(rows: int = 4, length: int = 6, seed: int = 1) -> torch.Tensor:
    return torch.randint(3, WORDS, (rows, length), generator=torch.Generator().manual_seed(seed))


def bert(labels: int = 3, dropout: float = 0.1) -> transformers.PreTrainedModel:
    config = transformers.BertConfig(
        vocab_size=WORDS, num_labels=labels, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, **SIZES
    )
    return transformers.BertForSequenceClassification(config)


def masked_bert() -> transformers.PreTrainedModel:
    return transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=WORDS, **SIZES))


def gpt2() -> transformers.PreTrainedModel:
    names = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=WORDS, **names))


def llama() -> transformers.PreTrainedModel:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=WORDS, num_key_value_heads=1, **SIZES))


def t5() -> transformers.PreTrainedModel:
    sizes = {"d_model": 16, "d_kv": 8, "num_layers": 1, "num_heads": 2, "d_ff": 24, "decoder_start_token_id": 0}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=WORDS, **sizes))


def adapted(net: transformers.PreTrainedModel, task: str, targets: list[str]) -> peft.PeftModel:
    config = peft.LoraConfig(task_type=task, target_modules=targets, r=2, lora_alpha=4, init_lora_weights=False)
    return peft.get_peft_model(net, config)
