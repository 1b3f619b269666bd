r"""Bayesian low-rank adapters (LoRA): which method gives a fine-tuned language model calibrated answers?

    python examples/bayesian_lora.py                                   # a tiny model, pretrained here, on a CPU
    python examples/bayesian_lora.py --model meta-llama/Llama-2-7b-hf --task obqa --ood arc_c      # needs a GPU and `datasets`

A causal language model answers multiple-choice questions: its logits for the answers' letters, after the prompt. Adapters of rank 8
on `q_proj`, `v_proj` and `lm_head` are trained with each method, and 10 draws are averaged for a prediction. One setting per method
(`CANDIDATES`) is chosen by the NLL of validation rows, a part of the training rows; test rows are only evaluated.

By default the model is a small Llama, pretrained on docstrings of installed packages (`bayesian_lora_tasks.py`). Its task is to
tell from which of four packages a part of a docstring is; parts from two other packages are out-of-distribution. With `--model`,
tasks are those of Yang et al., *Bayesian low-rank adaptation for large language models* (2024).

Writes `runs/`, `bayesian_lora.md` and `bayesian_lora.png` to the folder; finished runs are not repeated. The row of last-layer
Laplace needs `pip install laplace-torch`. Results: docs/bayesian-lora.md.
"""

import argparse
import importlib.util
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from bayesian_lora_tasks import TASKS, Problem, Rows, large_problem, tiny_problem
from matplotlib.figure import Figure
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from bayesify import (
    EMP,
    VIFO,
    VSD,
    WHVI,
    BLoB,
    Categorical,
    Deterministic,
    MCDropout,
    MeanField,
    Method,
    ScalaBL,
    bayesify,
    fit,
    predict,
    unbayesify,
)  # fmt: skip
from bayesify.metrics import expected_calibration_error, ood_metrics

A, AB, HEAD = "*lora_A*", "*lora_[AB]*", "lm.base_model.model.lm_head"


class Candidate(NamedTuple):
    """One setting of a method, by name pattern, and the weight of the KL."""

    methods: Mapping[str, Method]
    beta: float = 1.0


BETAS = (1.0, 0.1, 0.01)
CANDIDATES: dict[str, list[Candidate]] = {
    "LoRA (MAP)": [Candidate({AB: Deterministic()})],
    "MC dropout": [Candidate({A: MCDropout(p=p)}) for p in (0.1, 0.3, 0.5)],
    "BLoB": [Candidate({A: BLoB()}, beta) for beta in BETAS],
    "MeanField, A and B": [Candidate({AB: MeanField(prior_std=0.2)}, beta) for beta in BETAS],
    "VSD": [Candidate({A: VSD()}, 0.1 * beta) for beta in BETAS],
    "WHVI": [Candidate({A: WHVI()}, beta) for beta in BETAS],
    "ScalaBL": [Candidate({A: ScalaBL(initial_std=std)}) for std in (0.1, 0.3, 1.0)],
    "EMP, norms": [Candidate({"*norm*": EMP(prior_std=None, spread=spread)}) for spread in (0.1, 0.3, 0.5)],
    "VIFO, head": [Candidate({HEAD: VIFO(eta=eta)}) for eta in (0.1, 0.01, 0.001)],
}
LAPLACE, ENSEMBLE, MEMBERS = "Last-layer Laplace", "Ensemble of 3", 3


class Chooser(nn.Module):
    """Logits (B, K) of the answers, the next token after the prompt."""

    def __init__(self, lm: nn.Module, answers: list[int] | None) -> None:
        super().__init__()
        self.lm, self.answers = lm, answers

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        logits = self.lm(input_ids=input_ids, attention_mask=attention_mask, use_cache=False, logits_to_keep=1).logits[:, -1]
        return logits if self.answers is None else logits[:, self.answers]


def adapted(problem: Problem, seed: int, plain_head: bool) -> Chooser:
    """The pretrained model with new adapters; a plain head is the answers' rows of `lm_head`, trained without an adapter."""
    torch.manual_seed(seed)
    lm: Any = problem.load()
    targets = ["q_proj", "v_proj", "lm_head"]
    if plain_head:
        rows = lm.lm_head.weight.detach()[problem.answers]
        lm.lm_head = nn.Linear(rows.shape[1], len(rows), bias=False, dtype=rows.dtype, device=rows.device)
        lm.lm_head.weight = nn.Parameter(rows.clone())
        targets.remove("lm_head")
    lm = get_peft_model(lm, LoraConfig(r=8, lora_alpha=16, target_modules=targets))
    if plain_head:
        lm.base_model.model.lm_head.requires_grad_(True)
    return Chooser(lm, None if plain_head else problem.answers)


def run(problem: Problem, name: str, candidate: Candidate, seed: int, member: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train once, and predict: probabilities of all rows but the training rows, parameters, seconds of training."""
    rows = problem.rows(seed)
    net = adapted(problem, 100 * member + seed, plain_head=HEAD in candidate.methods)
    bnn = bayesify(net, candidate.methods)
    likelihood, start = Categorical(), time.perf_counter()
    fit(bnn, rows["train"], likelihood, epochs=options.epochs, batch_size=options.batch, beta=candidate.beta, clip_norm=1.0,
        learning_rate=options.learning_rate, seed=100 * member + seed, precision=options.precision, progress=False)  # fmt: skip
    seconds = time.perf_counter() - start
    parameters = sum(p.numel() for p in bnn.parameters() if p.requires_grad)
    if name == LAPLACE:
        probs = laplace(unbayesify(bnn), problem.answers, rows)
    else:
        samples = 1 if name == "LoRA (MAP)" else 10
        with torch.autocast(next(net.parameters()).device.type, torch.bfloat16, enabled=options.precision != "32-true"):
            probs = {
                part: predict(bnn, rows[part][0], likelihood, samples=samples, seed=seed, batch_size=options.batch).mean.cpu()
                for part in ("validation", "test", "ood")
            }
    return {"probs": probs, "y": {part: y for part, (_, y) in rows.items()}, "parameters": parameters, "seconds": seconds}


def laplace(net: nn.Module, answers: list[int], rows: dict[str, Rows]) -> dict[str, Tensor]:
    """Laplace approximation of the answers' rows of `lm_head`, adapter included, with laplace-torch on cached features."""
    from torch.utils.data import DataLoader, TensorDataset

    head: Any = net.get_submodule(HEAD)
    cached: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, args: cached.append(args[0][:, -1].detach()))
    features = {}
    for part, (inputs, _) in rows.items():
        cached.clear()
        with torch.no_grad():
            for k in range(0, len(inputs["input_ids"]), 16):
                net.eval()(**{key: value[k : k + 16].to(head.weight.device) for key, value in inputs.items()})
        features[part] = torch.cat(cached).float().cpu()
    hook.remove()
    linear = nn.Linear(features["train"].shape[1], len(answers), bias=False)
    with torch.no_grad():
        linear.weight.copy_((head.get_base_layer().weight + head.get_delta_weight("default"))[answers])
    loaders = {part: DataLoader(TensorDataset(features[part], rows[part][1]), batch_size=64) for part in ("train", "validation")}
    # Imported by name: the package is optional, and it declares arguments of calls as required that are not.
    library = importlib.import_module("laplace")
    approximation = library.Laplace(linear, "classification", subset_of_weights="all", hessian_structure="kron")
    approximation.fit(loaders["train"])
    approximation.optimize_prior_precision(
        method="gridsearch", pred_type="glm", link_approx="probit", val_loader=loaders["validation"], log_prior_prec_max=6
    )
    return {part: approximation(features[part], link_approx="probit").detach() for part in ("validation", "test", "ood")}


def scores(probs: dict[str, Tensor], y: dict[str, Tensor], part: str = "test") -> dict[str, float]:
    """Accuracy in percent, NLL in nats, ECE in percent (15 bins), AUROC of the entropy for out-of-distribution rows."""
    p, target = probs[part].float(), y[part]
    p = p / p.sum(-1, keepdim=True)
    entropy, outside = (torch.special.entr(q.float()).sum(-1) for q in (p, probs["ood"]))
    return {
        "accuracy (%)": 100 * float((p.argmax(-1) == target).float().mean()),
        "NLL": -float(p[torch.arange(len(p)), target].clamp_min(1e-12).log().mean()),
        "ECE (%)": 100 * float(expected_calibration_error(p, target, bins=15)),
        "OOD AUROC": ood_metrics(entropy, outside)["auroc"],
    }


def study(problem: Problem, options: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """Scores of every method and seed. The candidate with the lowest validation NLL for seed 0 is trained for all seeds."""

    def stored(name: str, k: int, seed: int, member: int = 0) -> dict[str, Any]:
        file = options.folder / "runs" / f"{re.sub(r'[^A-Za-z]+', '-', name)}-{k}-{seed}-{member}.pt"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            candidates = CANDIDATES.get(name, CANDIDATES["LoRA (MAP)"])
            torch.save(run(problem, name, candidates[k], seed, member, options), file)
        return torch.load(file)

    table: dict[str, list[dict[str, float]]] = {}
    for name, candidates in CANDIDATES.items():
        if options.methods and not any(part in name for part in options.methods):
            continue
        nlls = []
        for k in range(len(candidates)):
            result = stored(name, k, seed=0)
            nlls.append(scores(result["probs"], result["y"], "validation")["NLL"])
        best = nlls.index(min(nlls))
        print(f"{name}: candidate {best + 1} of validation NLLs {', '.join(f'{nll:.3f}' for nll in nlls)}", flush=True)
        results = [stored(name, best, seed) for seed in range(options.seeds)]
        table[name] = [_row(result) for result in results]
        if name == "LoRA (MAP)":
            table[ENSEMBLE] = []
            for seed in range(options.seeds):
                members = [stored(name, best, seed, member) for member in range(MEMBERS)]
                probs = {part: sum(m["probs"][part] for m in members) / MEMBERS for part in ("validation", "test", "ood")}
                total = {key: sum(m[key] for m in members) for key in ("parameters", "seconds")}
                table[ENSEMBLE].append(_row({"probs": probs, "y": members[0]["y"], **total}))
            if importlib.util.find_spec("laplace"):
                table[LAPLACE] = [_row(stored(LAPLACE, best, seed)) for seed in range(options.seeds)]
            else:
                print("laplace-torch is not installed: no last-layer Laplace")
    return table


def _row(result: dict[str, Any]) -> dict[str, float]:
    return {"parameters": result["parameters"], **scores(result["probs"], result["y"]), "seconds": result["seconds"]}


def report(table: dict[str, list[dict[str, float]]], folder: Path) -> str:
    """A table in Markdown, mean ± standard error over seeds, and a figure of NLL and ECE."""
    columns = {"accuracy (%)": 1, "NLL": 3, "ECE (%)": 1, "OOD AUROC": 3, "seconds": 1}
    lines = ["| method | parameters | " + " | ".join(columns) + " |", "|:---|" + "---:|" * (len(columns) + 1)]
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for k, (name, rows) in enumerate(table.items()):
        cells = [f"{rows[0]['parameters']:,.0f}"]
        for column, digits in columns.items():
            values = torch.tensor([row[column] for row in rows])
            error = float(values.std() / len(values) ** 0.5) if len(values) > 1 else 0.0
            cells.append(f"{values.mean():.{digits}f} ± {error:.{digits}f}" if column != "seconds" else f"{values.mean():.1f}")
            if column in ("NLL", "ECE (%)"):
                axes[int(column != "NLL")].errorbar(values.mean(), k, xerr=error, fmt="o", color="#0072b2", capsize=2, markersize=4)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    axes[0].set(yticks=range(len(table)), yticklabels=list(table), xlabel="NLL of test rows (nats)")
    axes[0].invert_yaxis()
    axes[1].set(xlabel="ECE of test rows (%)")
    figure.savefig(folder / "bayesian_lora.png", dpi=110)
    (folder / "bayesian_lora.md").write_text("\n".join(lines) + "\n")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> str:
    parser = argparse.ArgumentParser(description="Bayesian low-rank adapters")
    parser.add_argument("--folder", type=Path, default=Path("bayesian-lora"), help="results, and the tiny model")
    parser.add_argument("--model", help="name of a causal language model for AutoModelForCausalLM; None for the tiny one")
    parser.add_argument("--task", choices=TASKS, default="obqa")
    parser.add_argument(
        "--ood", choices=TASKS, default="arc_c", help="task with as many answers, whose rows are out-of-distribution"
    )
    parser.add_argument("--methods", nargs="*", help="parts of the names of methods; all by default")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--precision", choices=["32-true", "bf16-mixed"], help="bf16-mixed by default with --model")
    parser.add_argument("--small", action="store_true", help="a quick run of every part, without meaning")
    options = parser.parse_args(arguments)
    options.precision = options.precision or ("bf16-mixed" if options.model else "32-true")
    options.folder.mkdir(parents=True, exist_ok=True)
    problem = (
        large_problem(options.model, options.task, options.ood) if options.model else tiny_problem(options.folder, options.small)
    )
    text = report(study(problem, options), options.folder)
    print(text)
    return text


if __name__ == "__main__":
    main()
