"""Predictions and generation with Bayesian transformers, against the plain network.

    python -m benchmarks.pretrained [--rounds 5] [--samples 8] [--quick]

BERT base (110 million weights) classifies 32 texts of 128 tokens in batches of 8; a Llama-like model of 12 layers generates 16
tokens for 2 prompts of 32 tokens. Weights are random: times do not depend on them. Writes results/pretrained.json: milliseconds
and ratios to one pass over the texts, or one generation, of the plain network, interleaved in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayesify import VIFO, WHVI, Bayesian, MeanField, Method, bayesify, predict
from bayesify.likelihoods import Categorical
from benchmarks.measure import interleave, parser, print_timings, write

_ADAPTERS = {"*.lora_A.*": WHVI()}


def bert(size: int, layers: int) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(**_sizes(size, layers, 4))).eval()


def llama(size: int, layers: int) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**_sizes(size, layers, 3), num_key_value_heads=size // 128, vocab_size=32_000)).eval()


def _sizes(size: int, layers: int, factor: int) -> dict[str, Any]:
    return {
        "hidden_size": size, "intermediate_size": factor * size, "num_hidden_layers": layers, "num_attention_heads": size // 64
    }  # fmt: skip


def adapted(net: nn.Module, targets: list[str]) -> nn.Module:
    """The network with LoRA adapters of rank 8."""
    from peft import LoraConfig, get_peft_model

    return get_peft_model(net, LoraConfig(r=8, target_modules=targets, init_lora_weights=False)).eval()


def classification(size: int, layers: int, samples: int) -> Mapping[str, Callable[[], object]]:
    """One pass of BERT, and predictions with several draws."""
    ids = torch.randint(5, 30_000, (32, 128))
    plain = bert(size, layers)

    def one_pass() -> None:
        with torch.no_grad():
            for batch in ids.split(8):
                plain(batch)

    def prediction(net: nn.Module, method: Method | Mapping[str, Method]) -> Callable[[], object]:
        bnn = bayesify(net, method, output="logits")
        return lambda: predict(bnn, ids, Categorical(), samples=samples, batch_size=8, seed=0, progress=False)

    return {
        "one pass": one_pass,
        "MeanField, classifier": prediction(bert(size, layers), {"classifier": MeanField()}),
        "VIFO": prediction(bert(size, layers), VIFO()),
        "WHVI, adapters": prediction(adapted(bert(size, layers), ["query", "value"]), _ADAPTERS),
    }


def generation(size: int, layers: int, samples: int) -> Mapping[str, Callable[[], object]]:
    """One generation of the plain network, and those of several draws, together and one by one."""
    ids = torch.randint(5, 30_000, (2, 32))
    plain, bnn = llama(size, layers), bayesify(adapted(llama(size, layers), ["q_proj", "v_proj"]), _ADAPTERS, output="logits")

    def decode(net: Any) -> Tensor:
        return net.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, min_new_tokens=16, do_sample=False)

    def one_by_one(bnn: Bayesian) -> None:
        for seed in range(samples):
            with bnn.drawn(seed) as net:
                decode(net)

    settings = {"max_new_tokens": 16, "min_new_tokens": 16, "do_sample": False}
    return {
        "one generation": lambda: decode(plain),
        "draws together": lambda: bnn.generate(input_ids=ids, attention_mask=torch.ones_like(ids), samples=samples, **settings),
        "draws one by one": lambda: one_by_one(bnn),
    }


def main() -> None:
    options = parser(__doc__, rounds=5)
    options.add_argument("--samples", type=int, default=8)
    options.add_argument("--quick", action="store_true", help="small networks")
    args = options.parse_args()
    size, layers = (128, 2) if args.quick else (768, 12)
    torch.manual_seed(0)
    nets = dict[str, object]()
    for name, candidates in (("BERT base", classification), ("Llama, 12 layers", generation)):
        timed = interleave(candidates(size, layers, args.samples), args.rounds, warmup=1)
        nets[name] = timed
        print_timings(f"{name} ({args.samples} draws)", timed)
    if not args.dry:
        write("pretrained", {"samples": args.samples, "rounds": args.rounds, "nets": nets})


if __name__ == "__main__":
    main()
