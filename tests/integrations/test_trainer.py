"""`BayesianTrainer`: its loss, gradient accumulation, evaluation, files and resumed runs, against computations by hand."""

import copy
import dataclasses
import itertools
import math
import warnings

import numpy as np
import peft
import pytest
import torch
import transformers
from tiny_models import SIZES, WORDS, adapted, bert, gpt2, llama, masked_bert, t5, tokens
from torch import nn
from torch.utils.data import IterableDataset

from bayesify import (
    HMC,
    IVON,
    SGLD,
    SWAG,
    VIFO,
    WHVI,
    BayesifyWarning,
    Bernoulli,
    Categorical,
    ConfigurationError,
    DataError,
    DeepEnsemble,
    Deterministic,
    Gaussian,
    HeteroscedasticGaussian,
    Laplace,
    LinearWarmup,
    MCDropout,
    MeanField,
    NaturalGradient,
    VariationalDropout,
    bayesify,
    predict,
)
from bayesify.integrations.pretrained import from_pretrained
from bayesify.integrations.transformers import BayesianTrainer
from bayesify.metrics import evaluate

ROWS = 12


def _data(labels: int = 3, rows: int = ROWS) -> list[dict[str, object]]:
    x = tokens(rows).tolist()
    return [{"input_ids": x[i], "attention_mask": [1] * 6, "labels": i % labels, "idx": i} for i in range(rows)]


def _texts(rows: int = ROWS) -> list[dict[str, object]]:
    """Rows of ids whose first and last labels do not count in some rows."""
    x = tokens(rows)
    y = x.clone()
    y[::2, -1] = -100
    y[1::3, :2] = -100
    return [{"input_ids": x[i].tolist(), "labels": y[i].tolist()} for i in range(rows)]


def _numbers(rows: int = ROWS, outputs: int = 0) -> list[dict[str, object]]:
    y = torch.linspace(-1, 1, rows * max(1, outputs)).tolist()
    return [
        {**row, "labels": y[i] if not outputs else y[i * outputs : (i + 1) * outputs]} for i, row in enumerate(_data(rows=rows))
    ]


def _columns(data):
    return {name: torch.tensor([row[name] for row in data]) for name in data[0] if name != "idx"}


def _args(folder, **changes):
    settings = {"max_steps": 4, "per_device_train_batch_size": 4, "per_device_eval_batch_size": 5, "learning_rate": 1e-2}
    settings |= {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "save_strategy": "no", "logging_steps": 1, "seed": 3}
    return transformers.TrainingArguments(str(folder), **{**settings, **changes})


def _trainer(bnn, folder, data, *, beta=1.0, changes=None, **kwargs):
    trainer = BayesianTrainer(bnn, _args(folder, **(changes or {})), train_dataset=data, eval_dataset=data, beta=beta, **kwargs)
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def _loss(trainer, columns):
    trainer.bnn.train()
    trainer.state.max_steps = 10
    torch.manual_seed(5)
    return trainer.compute_loss(trainer.model, dict(columns))


# The loss


@pytest.mark.parametrize("samples", [1, 3])
def test_the_loss_is_the_negative_elbo(samples, tmp_path):
    bnn, data = bayesify(bert(dropout=0.0), MeanField(), output="logits"), _data()
    trainer = _trainer(bnn, tmp_path, data, beta=0.7, samples=samples)
    columns = _columns(data[:4])
    loss = _loss(trainer, columns)
    torch.manual_seed(5)
    draws = bnn(input_ids=columns["input_ids"], attention_mask=columns["attention_mask"], samples=samples)
    log_prob = draws.outputs.log_softmax(-1)[:, torch.arange(4), columns["labels"]]
    torch.testing.assert_close(loss, -(log_prob.mean() - 0.7 * draws.kl / ROWS))


def test_the_local_kl_and_its_weight_enter_the_loss(tmp_path):
    bnn, data = bayesify(bert(dropout=0.0), VIFO(), output="logits"), _data()
    columns = _columns(data[:4])
    one, two = (_loss(_trainer(bnn, tmp_path, data, local_beta=weight), columns) for weight in (1.0, 2.0))
    draws = bnn(input_ids=columns["input_ids"], attention_mask=columns["attention_mask"])
    torch.testing.assert_close(two - one, draws.local_kl.mean())


@pytest.mark.parametrize("make", [gpt2, llama, lambda: adapted(gpt2(), "CAUSAL_LM", ["c_attn"])])
def test_causal_models_predict_the_next_token(make, tmp_path):
    """As the library's own loss of the plain model, which is a mean over tokens."""
    net, data = make().eval(), _texts()
    columns = _columns(data[:4])
    with torch.no_grad():
        expected = net(input_ids=columns["input_ids"], labels=columns["labels"]).loss
    bnn = bayesify(net, Deterministic(), output="logits")
    trainer = _trainer(bnn, tmp_path, data)
    loss = trainer.compute_loss(trainer.model, dict(columns))
    per_text = (columns["labels"][:, 1:] != -100).sum() / 4
    torch.testing.assert_close(loss / per_text, expected)


def test_sequence_to_sequence_models_read_their_labels(tmp_path):
    net, data = t5().eval(), _texts()
    columns = _columns(data[:4])
    with torch.no_grad():
        expected = net(**columns).loss
    trainer = _trainer(bayesify(net, Deterministic(), output="logits"), tmp_path, data)
    loss = trainer.compute_loss(trainer.model, dict(columns))
    torch.testing.assert_close(loss / ((columns["labels"] != -100).sum() / 4), expected)
    given = trainer.columns.batch({**columns, "decoder_input_ids": columns["input_ids"]}).inputs
    assert torch.equal(given["decoder_input_ids"], columns["input_ids"])


def test_models_without_a_function_for_decoder_inputs_get_shifted_labels(tmp_path):
    config = transformers.WhisperConfig(
        vocab_size=WORDS, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=16, decoder_ffn_dim=16, num_mel_bins=4, max_source_positions=5, max_target_positions=8, pad_token_id=0,
        bos_token_id=2, eos_token_id=1, decoder_start_token_id=2, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    net = transformers.WhisperForConditionalGeneration(config).eval()
    columns = {"input_features": torch.randn(4, 4, 10), "labels": _columns(_texts(4))["labels"]}
    with torch.no_grad():
        expected = net(**columns).loss
    trainer = _trainer(bayesify(net, Deterministic(), output="logits"), tmp_path, _texts())
    loss = trainer.compute_loss(trainer.model, columns)
    torch.testing.assert_close(loss / ((columns["labels"] != -100).sum() / 4), expected)


def test_masked_models_predict_the_token_itself_and_the_shift_can_be_chosen(tmp_path):
    net, data = masked_bert().eval(), _texts()
    columns = _columns(data[:4])
    with torch.no_grad():
        expected = net(**columns).loss
    bnn = bayesify(net, Deterministic(), output="logits")
    trainer = _trainer(bnn, tmp_path, data)
    loss = trainer.compute_loss(trainer.model, dict(columns))
    torch.testing.assert_close(loss / ((columns["labels"] != -100).sum() / 4), expected)
    y = _trainer(bnn, tmp_path, data, shift_labels=True).columns.batch(columns).y
    assert torch.equal(y[:, :-1], columns["labels"][:, 1:])
    assert (y[:, -1] == -100).all()


@pytest.mark.parametrize("kind", ["PromptTuningConfig", "PromptEncoderConfig", "PrefixTuningConfig"])
def test_outputs_at_virtual_tokens_have_no_labels(kind, tmp_path):
    config = getattr(peft, kind)(num_virtual_tokens=3, task_type="CAUSAL_LM")
    net, data = peft.get_peft_model(llama(), config).eval(), _texts()
    columns = {"attention_mask": torch.ones(4, 6, dtype=torch.long), **_columns(data[:4])}
    with torch.no_grad():
        expected = net(**columns).loss
    trainer = _trainer(bayesify(net, {"*prompt_encoder*": MeanField(initial_std=1e-9)}, output="logits"), tmp_path, data, beta=0.0)
    loss = trainer.compute_loss(trainer.model, dict(columns))
    y = trainer.columns.batch(columns).y
    torch.testing.assert_close(loss / ((y != -100).sum() / 4), expected)


def test_other_causal_models_predict_the_next_token_too(tmp_path):
    """Named otherwise by their library."""
    config = transformers.BertGenerationConfig(vocab_size=WORDS, is_decoder=True, bos_token_id=1, eos_token_id=2, **SIZES)
    net, data = transformers.BertGenerationDecoder(config).eval(), _texts()
    columns = _columns(data[:4])
    with torch.no_grad():
        expected = net(**columns).loss
    trainer = _trainer(bayesify(net, Deterministic(), output="logits"), tmp_path, data)
    loss = trainer.compute_loss(trainer.model, dict(columns))
    torch.testing.assert_close(loss / ((columns["labels"][:, 1:] != -100).sum() / 4), expected)


@pytest.mark.parametrize("kind", ["Bart", "T5"])
def test_labels_of_a_text_are_no_inputs_of_the_decoder(kind, tmp_path):
    """Several labels per text, in encoder-decoder models."""
    sizes = {"d_model": 16, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 2, "vocab_size": WORDS, "num_labels": 6}
    if kind == "Bart":
        layers = {f"{part}_{field}": n for part in ("encoder", "decoder") for field, n in (("layers", 1), ("attention_heads", 2))}
        sizes |= {**layers, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 16}
    else:
        sizes |= {"d_kv": 8, "num_layers": 1, "num_heads": 2, "d_ff": 24}
    net = getattr(transformers, f"{kind}ForSequenceClassification")(getattr(transformers, f"{kind}Config")(**sizes)).eval()
    x = tokens(4)
    x[:, -1] = 2
    y = (torch.arange(24).view(4, 6) % 3 == 0).long()
    with torch.no_grad():
        logits = net(input_ids=x).logits
    expected = nn.functional.binary_cross_entropy_with_logits(logits, y.float())
    trainer = _trainer(bayesify(net, Deterministic(), output="logits"), tmp_path, _data(), likelihood=Bernoulli())
    torch.testing.assert_close(trainer.compute_loss(trainer.model, {"input_ids": x, "labels": y}) / 6, expected)


@pytest.mark.parametrize("n", [None, 3])
def test_a_collator_that_joins_texts_needs_n(n, tmp_path):
    """The loss with n=3 is that of texts in rows of their own, times the texts in a row."""
    net, data = llama(), [{**row, "attention_mask": [1] * 6} for row in _texts()]
    bnn = bayesify(net, MeanField(initial_std=1e-6), output="logits")
    losses = []
    for collator in (None, transformers.DataCollatorWithFlattening()):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            number = None if collator is None else n
            changes = {"max_steps": 1, "learning_rate": 0.0, "train_sampling_strategy": "sequential"}
            trainer = _trainer(bnn, tmp_path, data, data_collator=collator, n=number, changes=changes)
            trainer.train()
        losses.append(trainer.state.log_history[0]["loss"])
        told = [str(w.message) for w in caught if "data collator joins" in str(w.message)]
        assert len(told) == (collator is not None and n is None)
    assert (losses[1] == pytest.approx(4 * losses[0], rel=1e-4)) == (n == 3)


@pytest.mark.extended
def test_the_kl_weight_follows_its_schedule(tmp_path):
    data, weights = _data(), []

    class Recorded(BayesianTrainer):
        def compute_loss(self, *args, **kwargs):
            weights.append(self.settings.beta_at(self.state.global_step, self.state.max_steps))
            return super().compute_loss(*args, **kwargs)

    bnn = bayesify(bert(), MeanField(), output="logits")
    Recorded(bnn, _args(tmp_path), train_dataset=data, beta=LinearWarmup(fraction=0.5, beta=0.8)).train()
    assert weights == pytest.approx([0, 0.4, 0.8, 0.8])


# Gradient accumulation


@pytest.mark.default(extended=["3-3"])
@pytest.mark.parametrize(("size", "accumulated"), [(2, 2), (2, 3), (3, 3), (1, 5)])
def test_accumulated_batches_step_like_one_large_batch(size, accumulated, tmp_path):
    """Without noise and in order; the last step has smaller batches (2 * 3), or fewer of them (1 * 5)."""
    start, states = bayesify(bert(dropout=0.0), Deterministic(prior_std=1.0), output="logits"), []
    for batch, steps in ((size * accumulated, 1), (size, accumulated)):
        changes = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": steps, "max_steps": -1, "optim": "sgd"}
        changes |= {"num_train_epochs": 1, "train_sampling_strategy": "sequential", "learning_rate": 0.1, "max_grad_norm": 0.0}
        trainer = _trainer(copy.deepcopy(start), tmp_path, _data(rows=11), changes=changes)
        trainer.train()
        states.append((trainer.bnn.state_dict(), [log["loss"] for log in trainer.state.log_history if "loss" in log]))
    (one, losses), (other, others) = states
    assert losses == pytest.approx(others, rel=1e-4)
    assert any(not torch.equal(one[name], x) for name, x in start.state_dict().items())
    for name, x in one.items():
        torch.testing.assert_close(other[name], x, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_gradient_checkpointing_gives_the_same_weights(tmp_path):
    start, states = bayesify(gpt2(), MeanField(), output="logits"), []
    for checkpointing in (False, True):
        names = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
        name = "activation_checkpointing" if "activation_checkpointing" in names else "gradient_checkpointing"
        trainer = _trainer(copy.deepcopy(start), tmp_path, _texts(), changes={"max_steps": 2, name: checkpointing})
        trainer.train()
        states.append(trainer.bnn.state_dict())
    for name, x in states[0].items():
        torch.testing.assert_close(states[1][name], x)


# Optimizer, logging, precision


@pytest.mark.parametrize("method", [MeanField(), WHVI(), VariationalDropout()])
def test_weight_decay_applies_to_weights_and_means_alone(method, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bnn = bayesify(bert(labels=1), method, output="logits")
    trainer = _trainer(bnn, tmp_path, _numbers(), likelihood=Gaussian(learn=True), changes={"weight_decay": 0.1})
    groups = trainer.create_optimizer().param_groups
    names = {p: name for name, p in trainer.model.named_parameters()}
    decayed = {names[p] for group in groups if group["weight_decay"] for p in group["params"]}
    plain = {names[p] for group in groups if not group["weight_decay"] for p in group["params"]}
    assert len(decayed) + len(plain) == len(names)
    assert not [
        name for name in decayed if any(part in name for part in ("bias", "LayerNorm", "log_std", "log_alpha", "likelihood"))
    ]
    query = "bnn.net.bert.encoder.layer.0.attention.self.query."
    assert query + ("posterior.g.mean" if isinstance(method, WHVI) else "weight") in decayed
    assert "likelihood.log_std" in plain


def test_a_learned_likelihood_is_trained_and_the_kl_is_logged(tmp_path):
    bnn = bayesify(bert(labels=1), MeanField(), output="logits")
    trainer = _trainer(bnn, tmp_path, _numbers(), likelihood=Gaussian(std=1.0, learn=True))
    trainer.train()
    assert float(trainer.likelihood.std) != 1.0
    logs = [log for log in trainer.state.log_history if "loss" in log]
    assert len(logs) == 4
    assert all(log["kl"] > 0 for log in logs)


@pytest.mark.extended
def test_unused_columns_are_removed_and_labels_do_not_reach_the_network(tmp_path):
    for net in (bert(), adapted(bert(), "SEQ_CLS", ["query"])):
        bnn, seen = bayesify(net, MeanField(), output="logits"), []
        bnn.register_forward_pre_hook(
            lambda _, args, kwargs, seen=seen: seen.append({*kwargs} - {"samples", "coherent"}), with_kwargs=True
        )
        data = [{**row, "label": row["labels"]} for row in _data()]
        for row in data:
            del row["labels"]
        trainer = _trainer(bnn, tmp_path, data, changes={"max_steps": 1})
        trainer.train()
        trainer.evaluate()
        assert {frozenset(names) for names in seen} == {frozenset({"input_ids", "attention_mask"})}


def test_mixed_precision_trains_and_evaluates(tmp_path):
    bnn = bayesify(bert(), MeanField(), output="logits")
    trainer = _trainer(bnn, tmp_path, _data(), changes={"bf16": True, "max_steps": 2})
    trainer.train()
    assert all(math.isfinite(value) for value in trainer.evaluate().values())
    assert {p.dtype for p in bnn.parameters()} == {torch.float32}


def test_any_network_can_be_trained(tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, x):
            return self.layer(x)

    data = [{"x": [float(i), 1.0], "labels": [2.0 * i], "name": i} for i in range(ROWS)]
    trainer = _trainer(bayesify(Net(), MeanField()), tmp_path, data, likelihood=Gaussian(std=1.0))
    before = trainer.evaluate()["eval_nll"]
    trainer.train()
    assert trainer.evaluate()["eval_nll"] < before


# Evaluation


def _mixture(trainer, data, sizes=5, chunk=None):
    """Predictive distributions of the batches, as documented: seeds count up from that of the trainer."""
    for i, batch in enumerate(itertools.batched(data, sizes) if hasattr(itertools, "batched") else _batched(data, sizes)):
        columns = _columns(batch)
        y = columns.pop("labels")
        yield predict(trainer.bnn, columns, trainer.likelihood, 16, seed=trainer.args.seed + i, chunk=chunk), y


def _joined(parts):
    predictives, targets = zip(*parts, strict=True)
    return predictives[0].cat(*predictives[1:]), torch.cat(targets)


def _batched(data, size):
    return [data[i : i + size] for i in range(0, len(data), size)]


def test_evaluation_is_that_of_the_predictive_distribution(tmp_path):
    data = _data()
    trainer = _trainer(bayesify(bert(), MeanField(initial_std=0.5), output="logits"), tmp_path, data)
    mixture, y = _joined(_mixture(trainer, data))
    expected, actual = evaluate(mixture, y), trainer.evaluate()
    for name in ("nll", "accuracy", "ece"):
        assert actual[f"eval_{name}"] == pytest.approx(expected[name], rel=1e-4)
    assert actual["eval_loss"] == actual["eval_nll"]
    assert trainer.evaluate()["eval_nll"] == actual["eval_nll"]
    result = trainer.predict(data)
    np.testing.assert_allclose(result.predictions, mixture.log_probs, rtol=1e-5)
    assert result.label_ids.tolist() == y.tolist()
    assert result.metrics["test_nll"] == pytest.approx(expected["nll"], rel=1e-4)


def test_language_models_are_evaluated_per_token(tmp_path):
    data = _texts()
    trainer = _trainer(bayesify(gpt2(), MeanField(initial_std=0.5), output="logits"), tmp_path, data)
    total, hits, count = 0.0, 0.0, 0
    for mixture, y in _mixture(trainer, data, chunk=1):
        log_probs, targets = mixture.log_probs[:, :-1], y[:, 1:]
        valid = targets != -100
        total -= float(log_probs.gather(-1, targets.clamp_min(0).unsqueeze(-1)).squeeze(-1)[valid].sum())
        hits += float((log_probs.argmax(-1) == targets)[valid].sum())
        count += int(valid.sum())
    actual = trainer.evaluate()
    assert actual["eval_nll"] == pytest.approx(total / count, rel=1e-4)
    assert actual["eval_accuracy"] == pytest.approx(hits / count)


@pytest.mark.slow
def test_language_models_are_evaluated_one_draw_at_a_time(tmp_path):
    draws = []
    for net, data in ((gpt2(), _texts()), (masked_bert(), _texts()), (t5(), _texts()), (bert(), _data())):
        bnn = bayesify(net, MCDropout(), output="logits")
        bnn.register_forward_pre_hook(lambda _, args, kwargs: draws.append(kwargs["samples"]), with_kwargs=True)
        trainer = _trainer(bnn, tmp_path, data)
        draws.clear()
        trainer.evaluate()
        assert max(draws) == (16 if data[0].keys() >= {"idx"} else 2)  # two in the test whether passes can be replayed


def test_texts_of_different_lengths_are_evaluated(tmp_path):
    """Of two batches of different lengths, the metrics weight every token equally."""
    long, short = _texts(5), [{name: value[:4] for name, value in row.items()} for row in _texts(5)]
    trainer = _trainer(bayesify(gpt2(), Deterministic(), output="logits"), tmp_path, long)
    counts = [sum(label != -100 for row in part for label in row["labels"][1:]) for part in (long, short)]
    parts = [trainer.evaluate(part) for part in (long, short)]
    whole = trainer.evaluate([*long, *short])
    for name in ("eval_nll", "eval_accuracy"):
        expected = sum(n * part[name] for n, part in zip(counts, parts, strict=True)) / sum(counts)
        assert whole[name] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("likelihood", "width", "outputs"),
    [
        (Gaussian(std=0.5), 1, 0),
        (Gaussian(std=0.5, learn=True), 2, 2),
        (HeteroscedasticGaussian(), 2, 0),
        (HeteroscedasticGaussian(), 4, 2),
    ],
)
def test_regression_is_evaluated(likelihood, width, outputs, tmp_path):
    data = _numbers(outputs=outputs)
    trainer = _trainer(bayesify(bert(labels=width), MeanField(), output="logits"), tmp_path, data, likelihood=likelihood)
    mixture, y = _joined(_mixture(trainer, data))
    expected, actual = evaluate(mixture, y), trainer.evaluate()
    assert actual["eval_nll"] == pytest.approx(expected["nll"], rel=1e-4)
    assert actual["eval_rmse"] == pytest.approx(expected["rmse"], rel=1e-4)
    mean, std = trainer.predict(data).predictions
    np.testing.assert_allclose(mean, mixture.mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(std, mixture.std, rtol=1e-4)


def test_several_labels_are_evaluated(tmp_path):
    data = [{**row, "labels": [float(i % 2), float(i % 3 > 0)]} for i, row in enumerate(_data())]
    trainer = _trainer(bayesify(bert(labels=2), MCDropout(), output="logits"), tmp_path, data, likelihood=Bernoulli())
    mixture, y = _joined(_mixture(trainer, data))
    expected, actual = evaluate(mixture, y), trainer.evaluate()
    for name in ("nll", "accuracy", "ece"):
        assert actual[f"eval_{name}"] == pytest.approx(expected[name], rel=1e-4)


def test_own_metrics_get_log_probabilities(tmp_path):
    data, seen = _data(), []

    def metrics(evaluation):
        seen.append(evaluation)
        return {"own": 1.0}

    bnn = bayesify(bert(), MeanField(), output="logits")
    trainer = _trainer(bnn, tmp_path, data, compute_metrics=metrics, preprocess_logits_for_metrics=lambda x, labels: x.exp())
    assert trainer.evaluate()["eval_own"] == 1.0
    assert seen[0].predictions.shape == (ROWS, 3)
    np.testing.assert_allclose(seen[0].predictions.sum(-1), 1, rtol=1e-5)
    assert seen[0].label_ids.tolist() == [row["labels"] for row in data]


def test_data_without_labels_are_predicted(tmp_path):
    data = [{name: value for name, value in row.items() if name != "labels"} for row in _data()]
    trainer = _trainer(bayesify(bert(), MeanField(), output="logits"), tmp_path, _data())
    result = trainer.predict(data)
    assert result.predictions.shape == (ROWS, 3)
    assert result.label_ids is None
    assert "test_nll" not in result.metrics


def test_the_loss_alone_can_be_evaluated(tmp_path):
    data = _data(rows=10)
    bnn = bayesify(bert(), MeanField(), output="logits")
    whole = _trainer(bnn, tmp_path, data).evaluate()
    alone = _trainer(bnn, tmp_path, data, changes={"prediction_loss_only": True}).evaluate()
    assert alone["eval_loss"] == pytest.approx(whole["eval_loss"], rel=1e-4)
    assert "eval_accuracy" not in alone


# Files and resumed runs


@pytest.mark.parametrize("make", [bert, lambda: adapted(bert(), "SEQ_CLS", ["query", "value"])], ids=["model", "adapter"])
@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_weights(make, tmp_path):
    """Resumed in the first epoch and at its end."""
    start, changes = make(), {"save_strategy": "steps", "save_steps": 1, "max_steps": 5, "eval_strategy": "steps", "eval_steps": 1}

    def run(resume=None):
        bnn = bayesify(copy.deepcopy(start), MeanField(), output="logits")
        trainer = _trainer(bnn, tmp_path, _data(), changes=changes)
        trainer.train(resume_from_checkpoint=resume)
        return bnn.state_dict(), [log["eval_nll"] for log in trainer.state.log_history if "eval_nll" in log]

    expected, scores = run()
    for step in (2, 3):
        state, resumed_scores = run(str(tmp_path / f"checkpoint-{step}"))
        assert all(torch.equal(x, expected[name]) for name, x in state.items())
        assert resumed_scores == scores


def test_a_learned_likelihood_is_resumed(tmp_path):
    states = []
    for resume in (None, str(tmp_path / "checkpoint-2")):
        torch.manual_seed(0)
        bnn = bayesify(bert(labels=1), MeanField(), output="logits")
        trainer = _trainer(
            bnn, tmp_path, _numbers(), likelihood=Gaussian(learn=True), changes={"save_strategy": "steps", "save_steps": 2}
        )
        trainer.train(resume_from_checkpoint=resume)
        states.append(trainer.model.state_dict())
    assert all(torch.equal(x, states[1][name]) for name, x in states[0].items())


@pytest.mark.extended
def test_the_best_model_is_loaded_at_the_end_and_saved(tmp_path):
    changes = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "load_best_model_at_end": True}
    bnn = bayesify(bert(), MeanField(), output="logits")
    trainer = _trainer(bnn, tmp_path, _data(), changes={**changes, "max_steps": 3, "learning_rate": 0.3})
    trainer.train()
    scores = [log["eval_loss"] for log in trainer.state.log_history if "eval_loss" in log]
    assert min(scores) < scores[-1]
    assert trainer.evaluate()["eval_loss"] == min(scores)
    trainer.save_model(str(tmp_path / "saved"))
    again, likelihood = from_pretrained(tmp_path / "saved")
    x = {"input_ids": tokens()}
    expected = predict(bnn, x, Categorical(), 4, seed=0).log_probs
    assert torch.equal(expected, predict(again, x, likelihood, 4, seed=0).log_probs)


def test_the_checkpoint_of_an_adapter_is_an_adapter(tmp_path):
    base = bert()
    bnn = bayesify(adapted(copy.deepcopy(base), "SEQ_CLS", ["query"]), MeanField(), output="logits")
    _trainer(bnn, tmp_path, _data(), changes={"save_strategy": "steps", "save_steps": 4}).train()
    plain = peft.PeftModel.from_pretrained(base, tmp_path / "checkpoint-4")
    weight = "base_model.model.bert.encoder.layer.0.attention.self.query.lora_A.default.weight"
    assert torch.equal(plain.state_dict()[weight], bnn.net.state_dict()[weight])


# What is refused


class _Endless(IterableDataset):
    def __iter__(self):
        return itertools.cycle(_data())


def test_data_without_a_length_need_n(tmp_path):
    bnn = bayesify(bert(), MeanField(), output="logits")
    with pytest.raises(ConfigurationError, match=r"have no length.*give n="):
        BayesianTrainer(bnn, _args(tmp_path), train_dataset=_Endless())
    trainer = _trainer(bnn, tmp_path, _Endless(), n=ROWS)
    trainer.train()
    assert trainer.n == ROWS
    with pytest.warns(UserWarning, match="n=3 is below the 12 examples"):
        BayesianTrainer(bnn, _args(tmp_path), train_dataset=_data(), n=3)


def test_what_the_trainer_cannot_do_is_refused(tmp_path):
    bnn = bayesify(bert(), MeanField(), output="logits")
    with pytest.raises(TypeError, match="what bayesify returned"):
        BayesianTrainer(bert(), _args(tmp_path))
    with pytest.raises(TypeError, match="likelihood must be"):
        BayesianTrainer(bnn, _args(tmp_path), likelihood="categorical")
    with pytest.raises(ConfigurationError, match='output="logits"'):
        BayesianTrainer(bayesify(bert(), MeanField()), _args(tmp_path))
    with pytest.raises(ConfigurationError, match="member by member"):
        BayesianTrainer(bayesify([bert(), bert()], DeepEnsemble(members=2), output="logits"), _args(tmp_path))
    with pytest.raises(ConfigurationError, match="eta_aux"):
        BayesianTrainer(bayesify(bert(), VIFO(eta_aux=0.5), output="logits"), _args(tmp_path))
    with pytest.raises(ConfigurationError, match="compute_loss_func"):
        BayesianTrainer(bnn, _args(tmp_path), compute_loss_func=max)
    for changes, message in (
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor"),
        ({"batch_eval_metrics": True}, "batch_eval_metrics"),
        ({"label_names": ["a", "b"]}, "one column"),
        ({"eval_do_concat_batches": False}, "eval_do_concat_batches"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            BayesianTrainer(bnn, _args(tmp_path, **changes))
    args = _args(tmp_path)
    args._n_gpu = 2
    with pytest.raises(ConfigurationError, match="torchrun"):
        BayesianTrainer(bnn, args)
    for settings in ({"samples": 0}, {"eval_samples": 0}, {"beta": -1.0}, {"local_beta": float("nan")}, {"n": 0}):
        with pytest.raises(ConfigurationError, match=next(iter(settings))):
            BayesianTrainer(bnn, _args(tmp_path), **settings)


@pytest.mark.extended
def test_batches_without_labels_and_wrong_labels_are_refused(tmp_path):
    bnn = bayesify(bert(), MeanField(), output="logits")
    data = [{"input_ids": row["input_ids"], "answer": row["labels"]} for row in _data()]
    with pytest.raises(DataError, match=r"no 'labels'.*label_names"):
        _trainer(bnn, tmp_path, data).train()
    _trainer(bnn, tmp_path, data, changes={"label_names": ["answer"], "max_steps": 1}).train()
    with pytest.raises(DataError, match="class labels"):
        _trainer(bnn, tmp_path, [{**row, "labels": -1} for row in _data()]).train()
    with pytest.raises(DataError, match=r"'labels' is a list, not a tensor .* object detectors; write the loop"):
        _trainer(bnn, tmp_path, _data()).columns.batch({"labels": [{"boxes": torch.zeros(1, 4)}]})
    with pytest.raises(DataError, match=r"'labels' are torch.float32, .* Categorical.*: give likelihood=Gaussian"):
        _trainer(bnn, tmp_path, _numbers()).train()


def test_the_loss_of_a_router_is_missing_and_this_is_said(tmp_path):
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "num_key_value_heads": 1, "output_router_logits": True}
    net = transformers.MixtralForCausalLM(transformers.MixtralConfig(vocab_size=WORDS, **experts, **SIZES))
    with pytest.warns(BayesifyWarning, match="a loss that balances the experts, which is no part of"):
        _trainer(bayesify(net, {"lm_head": MeanField()}, output="logits"), tmp_path, _texts())


@pytest.mark.slow
def test_a_posterior_is_collected_along_training_and_saved(tmp_path):
    bnn, data = bayesify(bert(dropout=0.0), SWAG(start=0.5, snapshots=4, rank=2), output="logits"), _data()
    changes = {"max_steps": 8, "save_strategy": "steps", "save_steps": 6, "eval_strategy": "steps", "eval_steps": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayesifyWarning)  # of evaluations before the first snapshot
        _trainer(bnn, tmp_path, data, changes=changes).train()
    counts = {int(layer.posterior.count) for _, layer in bnn.random_layers()}
    assert counts == {4}
    resumed = bayesify(bert(dropout=0.0), SWAG(start=0.5, snapshots=4, rank=2), output="logits")
    _trainer(resumed, tmp_path, data, changes={"max_steps": 8}).train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    for name, value in bnn.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], value, msg=name)


@pytest.mark.extended
def test_a_method_with_an_optimizer_is_trained_by_it(tmp_path):
    bnn, data = bayesify(bert(dropout=0.0), IVON(), output="logits"), _data()
    trainer = _trainer(
        bnn, tmp_path, data, changes={"max_steps": 4, "learning_rate": 0.05, "save_strategy": "steps", "save_steps": 2}
    )
    trainer.train()
    assert isinstance(bnn.passes.optimizer, NaturalGradient)
    assert {float(layer.posterior.ess) for _, layer in bnn.random_layers()} == {ROWS}
    resumed = bayesify(bert(dropout=0.0), IVON(), output="logits")
    again = _trainer(resumed, tmp_path, data, changes={"max_steps": 4, "learning_rate": 0.05})
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for name, value in bnn.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], value, msg=name)


def test_a_posterior_is_made_after_training_and_saved(tmp_path):
    bnn, data = bayesify(bert(dropout=0.0), {"classifier": SGLD(draws=4, burn_in=2, thinning=1)}, output="logits"), _data()
    changes = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2, "load_best_model_at_end": True}
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayesifyWarning)
        warnings.filterwarnings("ignore", message="the chains have not mixed")
        trainer = _trainer(bnn, tmp_path, data, changes=changes)
        trainer.train()
        trainer.evaluate()
    weight = bnn.net.classifier.weight.detach().flatten()
    draws = bnn.net.classifier.posterior.draws
    assert draws.shape == (4 * 4, 48 + 3)
    assert 0 < (draws[:, :48] - weight).abs().max() < 1  # chains start from the trained weights
    trainer.save_model(str(tmp_path / "saved"))
    loaded, _ = from_pretrained(tmp_path / "saved")
    assert torch.equal(loaded.net.classifier.posterior.draws, draws)
    without, _ = from_pretrained(tmp_path / "checkpoint-2")
    assert not without.net.classifier.posterior.is_complete


def test_what_stands_against_a_posterior_is_said_before_training(tmp_path):
    bnn = bayesify(bert(dropout=0.0), SGLD(), output="logits")
    with pytest.warns(BayesifyWarning, match=r"stream without length, so no posterior.*call `bnn.complete\("):
        _trainer(bnn, tmp_path, _Endless(), n=ROWS).train()
    assert not bnn.net.classifier.posterior.is_complete
    with pytest.raises(ConfigurationError, match="one input tensor"):
        BayesianTrainer(bayesify(bert(), Laplace(), output="logits"), _args(tmp_path))


def test_what_the_first_batch_shows_is_said_before_the_first_step(tmp_path):
    pytest.importorskip("pyro")

    class Fixed(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x.float())

    net = bert(dropout=0.0)
    net.classifier = Fixed(net.classifier)
    trainer = _trainer(bayesify(net, {"classifier*": HMC(draws=4, warmup=2)}, output="logits"), tmp_path, _data())
    with pytest.raises(ConfigurationError, match=r"computed in torch\.float64, but the network fails in it"):
        trainer.train()
    assert trainer.state.global_step == 0
