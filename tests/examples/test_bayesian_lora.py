"""The study of Bayesian adapters, with a tiny model and as few steps as possible; its path for large models with a stand-in."""

import copy
import sys
import types
from pathlib import Path

import pytest
import torch

pytest.importorskip("peft")
pytest.importorskip("transformers")
ROOT = Path(__file__).parents[2]
ARC = {"question": "Is it?", "choices": {"text": ["a", "b", "c", "d"], "label": ["1", "2", "3", "4"]}, "answerKey": "3"}


@pytest.fixture
def lora(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    import bayesian_lora

    first = {name: candidates[:1] for name, candidates in bayesian_lora.CANDIDATES.items()}
    monkeypatch.setattr(bayesian_lora, "CANDIDATES", first)
    return bayesian_lora


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.slow
def test_the_study_runs_and_resumes(lora, tmp_path, monkeypatch):
    arguments = ["--small", "--folder", str(tmp_path), "--seeds", "2", "--epochs", "1"]
    text = lora.main([*arguments, "--methods", "MAP", "BLoB"])
    runs = {file: file.stat().st_mtime_ns for file in (tmp_path / "runs").iterdir()}
    lines = text.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:] if "Laplace" not in line] == ["| LoRA (MAP)", "| Ensemble of 3", "| BLoB"]
    assert (tmp_path / "bayesian_lora.md").read_text() == text + "\n"
    assert (tmp_path / "bayesian_lora.png").stat().st_size > 0
    monkeypatch.setattr(lora, "run", None)  # what is finished is not run again
    assert lora.main([*arguments, "--methods", "MAP", "BLoB"]) == text
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "runs").iterdir()} == runs


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.slow
def test_every_method_runs_with_a_large_model_s_tasks(lora, tmp_path, monkeypatch):
    import bayesian_lora_tasks as tasks

    row = {**ARC, "question_stem": "Is it?"}
    module = types.ModuleType("datasets")
    module.load_dataset = lambda name, configuration, split: [row] * (10 if split == "train" else 3) + [{**row, "choices": {
        "text": ["a"], "label": ["1"]}}]  # fmt: skip
    monkeypatch.setitem(sys.modules, "datasets", module)
    tokenizer, model = tasks._pretrained(tmp_path, ["Question: is it? Answer: A B C D"] * 20, quick=True)
    monkeypatch.setattr(tasks.AutoTokenizer, "from_pretrained", lambda name: tokenizer)
    monkeypatch.setattr(tasks.AutoModelForCausalLM, "from_pretrained", lambda name, **_: copy.deepcopy(model).to(torch.bfloat16))
    arguments = [
        "--model",
        "stand-in",
        "--task",
        "obqa",
        "--ood",
        "arc_e",
        "--folder",
        str(tmp_path),
        "--seeds",
        "1",
        "--epochs",
        "1",
    ]
    methods = ["MC dropout", "MeanField", "VSD", "WHVI", "ScalaBL", "EMP", "VIFO"]
    text = lora.main([*arguments, "--methods", *methods])
    assert len(text.splitlines()) == 2 + len(methods)


def test_a_large_model_needs_datasets_and_tasks_with_as_many_answers(lora, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(SystemExit, match="--model needs the package datasets"):
        lora.main(["--model", "x", "--folder", str(tmp_path)])
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=None))
    with pytest.raises(SystemExit, match="--ood boolq has 2 answers and --task obqa has 4"):
        lora.main(["--model", "x", "--folder", str(tmp_path), "--ood", "boolq"])


def test_questions(lora):
    import bayesian_lora_tasks as tasks

    assert tasks.question("arc_c", ARC) == ("Question: Is it?\nA. a\nB. b\nC. c\nD. d\nAnswer:", 2)
    winogrande = {"sentence": "I saw _.", "option1": "him", "option2": "her", "answer": "2"}
    assert tasks.question("winogrande_s", winogrande) == ("Fill in the blank: I saw _.\nA. him\nB. her\nAnswer:", 1)
    boolq = {"passage": "It is.", "question": "is it", "answer": True}
    assert tasks.question("boolq", boolq) == ("It is.\nQuestion: is it?\nA. False\nB. True\nAnswer:", 1)


def test_scores_of_known_probabilities(lora):
    probs = {"test": torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.1, 0.9], [0.9, 0.1]]), "ood": torch.full((3, 2), 0.5)}
    values = lora.scores(probs, {"test": torch.tensor([0, 0, 1, 1])})
    assert values["accuracy (%)"] == pytest.approx(75)
    assert values["ECE (%)"] == pytest.approx(15, abs=1e-4)
    assert values["NLL"] == pytest.approx(-(3 * torch.tensor(0.9).log() + torch.tensor(0.1).log()).item() / 4)
    assert values["OOD AUROC"] == 1.0
