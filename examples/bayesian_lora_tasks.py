"""Multiple-choice questions for `bayesian_lora.py`: docstrings of installed packages for a tiny model, or public data sets."""

import ast
import copy
import importlib.util
import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

Rows = tuple[dict[str, Tensor], Tensor]  # inputs of the network; index of the right answer (N,)
Question = tuple[str, int]  # prompt, index of the right answer


class Problem(NamedTuple):
    """A pretrained model and the rows of one task; training and validation rows depend on the seed."""

    load: Callable[[], Any]  # the pretrained causal language model
    answers: list[int]  # token of every answer
    rows: Callable[[int], dict[str, Rows]]  # from the seed to "train", "validation", "test", "ood"


def encode(tokenizer: Any, questions: Sequence[Question], length: int = 300) -> Rows:
    """Tokens, padded on the left, so that the last position is the end of every prompt."""
    tokenizer.padding_side = tokenizer.truncation_side = "left"
    tokens = tokenizer([text for text, _ in questions], padding=True, truncation=True, max_length=length, return_tensors="pt")
    return {key: tokens[key] for key in ("input_ids", "attention_mask")}, torch.tensor([y for _, y in questions])


def answer_tokens(tokenizer: Any, letters: Sequence[str]) -> list[int]:
    """The token of every letter after a space.

    Raises:
        ValueError: two letters have the same token.
    """
    tokens = [tokenizer(f" {letter}", add_special_tokens=False)["input_ids"][-1] for letter in letters]
    if len(set(tokens)) < len(tokens):
        raise ValueError(f"the tokenizer does not tell {' and '.join(letters)} apart: tokens {tokens}")
    return tokens


# A tiny model, and the packages that its docstrings are from

INSIDE, OUTSIDE, OTHERS = ("pandas", "scipy", "matplotlib", "torch"), ("sympy", "networkx"), ("numpy", "sklearn")
QUICK_INSIDE, QUICK_OUTSIDE = ("email", "http", "logging", "tkinter"), ("asyncio", "unittest")


def tiny_problem(folder: Path, quick: bool) -> Problem:
    """Pretrain a small Llama on docstrings, or load it from the folder; the task's docstrings are not among them."""
    inside, outside, others = (QUICK_INSIDE, QUICK_OUTSIDE, ()) if quick else (INSIDE, OUTSIDE, OTHERS)
    train, validation, test, ood = (3, 2, 4, 8) if quick else (40, 30, 75, 120)  # per package; ood in total
    texts = {package: docstrings(package, 20 if quick else 250) for package in (*inside, *outside, *others)}
    corpus = [text for p in (*inside, *others) for text in texts[p][train + validation + test if p in inside else 0 :]]
    tokenizer, model = _pretrained(folder, corpus, quick)

    def rows(seed: int) -> dict[str, Rows]:
        """Training and validation rows are drawn from a pool by the seed; all seeds have the same test rows."""
        parts: dict[str, list[Question]] = {"train": [], "validation": [], "test": [], "ood": []}
        for k, package in enumerate(inside):
            pool = random.Random(seed).sample(texts[package][test : test + train + validation], train + validation)
            for part, chosen in (("train", pool[:train]), ("validation", pool[train:]), ("test", texts[package][:test])):
                parts[part] += [(_prompt(text), k) for text in chosen]
        parts["ood"] = [(_prompt(text), 0) for package in outside for text in texts[package][: ood // len(outside)]]
        return {part: encode(tokenizer, questions, 48) for part, questions in parts.items()}

    return Problem(lambda: copy.deepcopy(model), answer_tokens(tokenizer, "ABCD"), rows)


def docstrings(package: str, files: int = 250) -> list[str]:
    """Docstrings of a package, without duplicates and without names of packages, in random order; always the same."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError(f"the tiny task needs the package {package}")
    paths = [path for path in sorted(Path(spec.submodule_search_locations[0]).rglob("*.py")) if "test" not in path.name]
    names = "|".join((*INSIDE, *OUTSIDE, *OTHERS, "np", "pd", "plt", "nx"))
    found = dict[str, None]()
    for path in random.Random(0).sample(paths, min(len(paths), files)):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                text = " ".join(re.sub(rf"\b({names})\b", "package", ast.get_docstring(node) or "", flags=re.IGNORECASE).split())
                if len(text) > 150:
                    found[text] = None
    return random.Random(0).sample(list(found), len(found))


def _prompt(text: str) -> str:
    """A random part of a docstring, 100 characters."""
    start = random.Random(text).randrange(len(text) - 100)
    return f"{text[start : start + 100]} The package is"


def _pretrained(folder: Path, corpus: list[str], quick: bool) -> tuple[Any, LlamaForCausalLM]:
    """A tokenizer and a small Llama, trained to predict the next token."""
    width, steps, vocabulary = (16, 2, 300) if quick else (96, 1200, 2048)
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(corpus, vocab_size=vocabulary, special_tokens=["<pad>"], show_progress=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, pad_token="<pad>")
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=vocabulary, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=3, pad_token_id=0,
                    num_attention_heads=4, max_position_embeddings=512, bos_token_id=None, eos_token_id=None)
    )  # fmt: skip
    file = folder / "pretrained.pt"
    if file.exists():
        model.load_state_dict(torch.load(file))
        return tokenizer, model.eval()
    tokens = torch.tensor([token for text in corpus for token in tokenizer(text)["input_ids"]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for step in range(steps):
        starts = torch.randint(len(tokens) - 64, (32,))
        batch = tokens[starts[:, None] + torch.arange(64)]
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"pretraining on {len(tokens):,} tokens, step {step}: {loss.item():.2f} nats per token", flush=True)
    torch.save(model.state_dict(), file)
    return tokenizer, model.eval()


# Public data sets, for large models

# data set, configuration, split of the test rows
TASKS = {
    "winogrande_s": ("allenai/winogrande", "winogrande_s", "validation"),
    "winogrande_m": ("allenai/winogrande", "winogrande_m", "validation"),
    "arc_c": ("allenai/ai2_arc", "ARC-Challenge", "test"),
    "arc_e": ("allenai/ai2_arc", "ARC-Easy", "test"),
    "obqa": ("allenai/openbookqa", "main", "test"),
    "boolq": ("google/boolq", None, "validation"),
}


def question(task: str, row: Mapping[str, Any]) -> Question | None:
    """Prompt and index of the right answer for a row of a data set; None for the few rows without exactly four choices."""
    if task.startswith("winogrande"):
        choices, text, right = [row["option1"], row["option2"]], f"Fill in the blank: {row['sentence']}", int(row["answer"]) - 1
    elif task == "boolq":
        choices, text, right = ["False", "True"], f"{row['passage']}\nQuestion: {row['question']}?", int(row["answer"])
    else:
        labels, choices = row["choices"]["label"], row["choices"]["text"]
        if len(choices) != 4:
            return None
        text, right = f"Question: {row['question_stem' if task == 'obqa' else 'question']}", labels.index(row["answerKey"])
    listed = "\n".join(f"{letter}. {choice}" for letter, choice in zip("ABCD", choices, strict=False))
    return f"{text}\n{listed}\nAnswer:", right


def large_problem(name: str, task: str, ood: str) -> Problem:
    """A pretrained model and a public task; a random 20 % of its training rows, drawn by the seed, are for validation."""
    try:
        from datasets import load_dataset  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise SystemExit("--model needs the package datasets: pip install datasets") from None
    answers = {t: 2 if t.startswith(("winogrande", "boolq")) else 4 for t in TASKS}
    if answers[task] != answers[ood]:
        raise SystemExit(f"--ood {ood} has {answers[ood]} answers and --task {task} has {answers[task]}; choose tasks with as many")
    tokenizer = AutoTokenizer.from_pretrained(name)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token

    def questions(key: str, split: str) -> list[Question]:
        dataset, configuration, _ = TASKS[key]
        return [q for row in load_dataset(dataset, configuration, split=split) if (q := question(key, row)) is not None]

    def rows(seed: int) -> dict[str, Rows]:
        trained = questions(task, "train")
        trained = random.Random(seed).sample(trained, len(trained))
        cut = len(trained) // 5
        parts = {"train": trained[cut:], "validation": trained[:cut]}
        parts |= {"test": questions(task, TASKS[task][2]), "ood": questions(ood, TASKS[ood][2])}
        return {part: encode(tokenizer, pairs) for part, pairs in parts.items()}

    def load() -> Any:
        return AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16, device_map="auto")

    return Problem(load, answer_tokens(tokenizer, "ABCD"[: answers[task]]), rows)
