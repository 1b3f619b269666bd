"""`save_pretrained` and `from_pretrained`: exact round trips, plain folders for the plain libraries, errors for damaged ones."""

import copy
import hashlib
import json
import shutil
import warnings

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_models import adapted, bert, gpt2, llama, tokens
from torch import nn

from bayesify import (
    DVI,
    ECMP,
    ELRG,
    EMP,
    HMC,
    IVON,
    MNF,
    SGHMC,
    SGLD,
    SLANG,
    SNGP,
    SWA,
    SWAG,
    VIFO,
    VMG,
    VOGN,
    VSD,
    WHVI,
    BatchEnsemble,
    BayesifyWarning,
    Categorical,
    ConcreteDropout,
    ConfigurationError,
    DeepEnsemble,
    Deterministic,
    DropConnect,
    Gaussian,
    Laplace,
    MCDropout,
    MeanField,
    Method,
    ModelFileError,
    NoisyAdam,
    NoisyKFAC,
    Radial,
    Rank1,
    RepulsiveEnsemble,
    SpectralNorm,
    TensorFactorized,
    VariationalDropout,
    bayesify,
    predict,
    summary,
    unbayesify,
)
from bayesify.integrations.posterior_files import read_config
from bayesify.integrations.pretrained import from_pretrained, load_posterior, save_pretrained

METHODS = [
    MeanField(prior_std=0.3),
    MeanField(prior_mean="pretrained", noise="shared"),
    VariationalDropout(p=0.3),
    VSD(),
    VSD(hierarchical=True),
    WHVI(),
    WHVI(initial="pretrained", scales="variational"),
    EMP(components=2, learn_probabilities=True),
    ECMP(components=2),
    EMP(components=2, probabilities=(0.25, 0.75)),
    MCDropout(p=0.3),
    VIFO(regularizer="mean-all"),
    VIFO(separate_std=True),
    DropConnect(p=0.3),
    TensorFactorized(),
    ConcreteDropout(),
    BatchEnsemble(),
    Rank1(spread=0.0),
    Radial(),
    MNF(flow_units=3),
    VMG(),
    ELRG(),
    IVON(),
    VOGN(),
    NoisyAdam(),
    NoisyKFAC(),
    SLANG(),
    Deterministic(prior_std=1.0),
    SWA(),
    SWAG(rank=3),
    HMC(),
    SGLD(),
    SGHMC(),
    Laplace(),
    SpectralNorm(),
    {"*classifier*": MeanField(), "*": MCDropout()},
]
_TESTED = {DVI, SNGP, DeepEnsemble, RepulsiveEnsemble, *map(type, METHODS)}
OF_ADAPTERS = [
    kind() for kind in Method.registry.values() if kind.__module__.startswith("bayesify.methods.") and kind not in _TESTED
]


_USUAL = ("MeanField0", "VSD1", "WHVI0", "EMP0", "VIFO1")


def _name(method: Method | dict[str, Method]) -> str:
    return "patterns" if isinstance(method, dict) else type(method).__name__


def _bnn(net: nn.Module, method: Method | dict[str, Method], output: object = "logits"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BayesifyWarning)
        bnn = bayesify(net, method, output=output)
    with torch.no_grad():
        for name, parameter in bnn.named_parameters():
            if parameter.requires_grad and "embeddings" not in name:  # the padding vector stays zero
                parameter.add_(0.05 * torch.randn_like(parameter))
                if bnn.collects:
                    bnn.collect()
    return bnn.eval()


def _draw(bnn, **inputs):
    torch.manual_seed(7)
    return bnn(**inputs, samples=2)


def _check_equal(bnn, again, **inputs):
    a, b = _draw(bnn, **inputs), _draw(again, **inputs)
    assert torch.equal(a.outputs, b.outputs)
    assert torch.equal(a.kl, b.kl)
    assert torch.equal(a.local_kl, b.local_kl)
    assert bnn.report == again.report
    texts: list[str] = []
    for each in (bnn, again):
        torch.manual_seed(1)  # a KL may be an estimate
        texts.append(str(summary(each)))
    assert texts[0] == texts[1]
    ours, theirs = bnn.state_dict(), again.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) and ours[name].dtype == theirs[name].dtype for name in ours)
    trained = [{name for name, p in net.named_parameters() if p.requires_grad} for net in (bnn, again)]
    assert trained[0] == trained[1]
    assert bnn.passes.select == again.passes.select


@pytest.mark.default(*_USUAL, "SWAG", extended=["MeanField1", "VSD0", "EMP1", "ECMP", "Laplace", "patterns?"])
@pytest.mark.parametrize("method", [*METHODS, *({"*query": method} for method in OF_ADAPTERS)], ids=_name)
def test_a_model_is_restored_exactly_and_loads_at_the_means_without_us(method, tmp_path):
    bnn = _bnn(bert(), method)
    save_pretrained(bnn, tmp_path, Categorical())
    again, likelihood = from_pretrained(tmp_path)
    _check_equal(bnn, again, input_ids=tokens())
    assert not again.training
    assert isinstance(likelihood, Categorical)

    plain, info = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    expected = unbayesify(copy.deepcopy(bnn)).state_dict()
    actual = plain.state_dict()
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], expected[name]) for name in expected)


def test_a_gaussian_process_has_no_plain_model(tmp_path):
    bnn = _bnn(bert(), SNGP())
    with pytest.raises(ConfigurationError, match="no plain layer computes what classifier does"):
        save_pretrained(bnn, tmp_path / "model", Categorical())
    assert not (tmp_path / "model").exists()


@pytest.mark.default(*_USUAL, extended=["MeanField1", "SWAG", "BLoB", "ScalaBL", "patterns"])
@pytest.mark.parametrize("method", [*METHODS, *OF_ADAPTERS], ids=_name)
def test_an_adapter_is_restored_exactly_and_loads_and_merges_at_the_means_without_us(method, tmp_path):
    base = bert()
    bnn = _bnn(adapted(copy.deepcopy(base), "SEQ_CLS", ["query", "value"]), method)
    save_pretrained(bnn, tmp_path, Categorical())
    again, _ = from_pretrained(tmp_path, copy.deepcopy(base))
    _check_equal(bnn, again, input_ids=tokens())
    stored = sum(value.nbytes for value in load_file(tmp_path / "bayesify.safetensors").values())
    assert stored < 0.9 * sum(p.nbytes for p in bnn.parameters())  # no base model

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # peft's, of keys that it does not know
        plain = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path).eval()
    expected = unbayesify(copy.deepcopy(bnn)).eval()
    with torch.no_grad():
        logits = expected(input_ids=tokens()).logits
        torch.testing.assert_close(plain(input_ids=tokens()).logits, logits, rtol=0, atol=0)
        torch.testing.assert_close(plain.merge_and_unload()(input_ids=tokens()).logits, logits)


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("PrefixTuningConfig", MeanField()),
        ("PromptTuningConfig", MeanField()),
        ("PromptEncoderConfig", MeanField()),
        ("PromptEncoderConfig", WHVI()),
    ],
)
def test_prompts_are_restored_exactly_and_load_at_the_means_without_us(kind, method, tmp_path):
    sizes = {"prefix_projection": True, "encoder_hidden_size": 8} if kind == "PrefixTuningConfig" else {}
    base = llama()
    bnn = _bnn(
        peft.get_peft_model(copy.deepcopy(base), getattr(peft, kind)(num_virtual_tokens=3, task_type="CAUSAL_LM", **sizes)), method
    )
    save_pretrained(bnn, tmp_path)
    again, _ = from_pretrained(tmp_path, copy.deepcopy(base))
    _check_equal(bnn, again, input_ids=tokens())
    with torch.no_grad():
        plain = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path).eval()
        expected = unbayesify(copy.deepcopy(bnn)).eval()
        torch.testing.assert_close(plain(input_ids=tokens()).logits, expected(input_ids=tokens()).logits)


def test_an_adapter_that_transformers_added_is_restored_exactly(tmp_path):
    base = llama()
    net = copy.deepcopy(base)
    net.add_adapter(peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    bnn = _bnn(net, MeanField())
    save_pretrained(bnn, tmp_path)
    again, _ = from_pretrained(tmp_path, copy.deepcopy(base))
    _check_equal(bnn, again, input_ids=tokens())
    plain = copy.deepcopy(base)
    plain.load_adapter(str(tmp_path))
    with torch.no_grad():
        torch.testing.assert_close(
            plain.eval()(input_ids=tokens()).logits, unbayesify(copy.deepcopy(bnn)).eval()(input_ids=tokens()).logits
        )
    net.add_adapter(peft.LoraConfig(r=2, target_modules=["q_proj"]), "other")
    with pytest.raises(ConfigurationError, match="must have one adapter"):
        save_pretrained(bnn, tmp_path)


def test_tied_weights_and_mixed_precision_are_restored(tmp_path):
    net = gpt2().bfloat16()
    net.transformer.ln_f.float()
    bnn = bayesify(net, {"*mlp*": MeanField()}, output="logits").eval()
    save_pretrained(bnn, tmp_path)
    again, likelihood = from_pretrained(tmp_path)
    assert likelihood is None
    assert again.net.lm_head.weight is again.net.transformer.wte.weight
    assert {name: x.dtype for name, x in bnn.state_dict().items()} == {name: x.dtype for name, x in again.state_dict().items()}
    assert all(torch.equal(x, again.state_dict()[name]) for name, x in bnn.state_dict().items())


def test_a_precision_that_is_asked_for_is_that_of_the_posterior(tmp_path):
    bnn = _bnn(bert(), MeanField())
    save_pretrained(bnn, tmp_path)
    again, _ = from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {x.dtype for x in again.parameters()} == {torch.bfloat16}
    for name, x in bnn.named_parameters():
        assert torch.equal(again.state_dict()[name], x.bfloat16())


def test_frozen_parts_are_stored_once(tmp_path):
    net = bert()
    net.bert.requires_grad_(False)
    bnn = bayesify(net, MeanField(), output="logits").eval()
    save_pretrained(bnn, tmp_path)
    _check_equal(bnn, from_pretrained(tmp_path)[0], input_ids=tokens())
    assert (tmp_path / "bayesify.safetensors").stat().st_size < 0.2 * (tmp_path / "model.safetensors").stat().st_size


def test_what_the_likelihood_learned_is_restored(tmp_path):
    bnn, x = _bnn(bert(labels=1), MeanField()), {"input_ids": tokens()}
    learned = Gaussian(std=0.5, learn=True)
    learned.log_std.data.fill_(-1.5)
    save_pretrained(bnn, tmp_path, learned)
    again, likelihood = from_pretrained(tmp_path)
    assert likelihood.to_dict() == learned.to_dict()
    assert torch.equal(likelihood.log_std, learned.log_std)
    expected, actual = predict(bnn, x, learned, 5, seed=0), predict(again, x, likelihood, 5, seed=0)
    assert torch.equal(expected.means, actual.means)
    assert torch.equal(expected.stds, actual.stds)


def test_other_networks_are_restored_into_a_given_one(tmp_path):
    def make():
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))

    net = make()
    net[0].requires_grad_(False)
    bnn = bayesify(net, MeanField(), fold=False)
    bnn(torch.randn(8, 3))  # running statistics
    save_pretrained(bnn.eval(), tmp_path)
    again, _ = from_pretrained(tmp_path, make())
    assert again.fold is False
    x = torch.randn(5, 3)
    torch.manual_seed(7)
    expected = bnn(x, samples=2).outputs
    torch.manual_seed(7)
    assert torch.equal(expected, again(x, samples=2).outputs)


@pytest.mark.parametrize("output", ["logits", 0])
def test_a_selected_output_is_restored(output, tmp_path):
    net = bert()
    net.config.return_dict = output == "logits"
    bnn = _bnn(net, MeanField(), output)
    save_pretrained(bnn, tmp_path)
    _check_equal(bnn, from_pretrained(tmp_path)[0], input_ids=tokens())


def test_an_output_function_has_to_be_given_again(tmp_path):
    def select(output):
        return output.logits * 2

    bnn = _bnn(bert(), MeanField(), select)
    save_pretrained(bnn, tmp_path)
    with pytest.raises(ConfigurationError, match=r"function .*select.* give output="):
        from_pretrained(tmp_path)
    _check_equal(bnn, from_pretrained(tmp_path, output=select)[0], input_ids=tokens())


def test_saving_again_replaces_the_network(tmp_path):
    for method in (MeanField(), WHVI()):
        bnn = _bnn(bert(), method)
        save_pretrained(bnn, tmp_path)
        _check_equal(bnn, from_pretrained(tmp_path)[0], input_ids=tokens())


def test_saving_leaves_the_network_as_it_is(tmp_path):
    for method in (MeanField(), WHVI(), VSD(hierarchical=True)):
        bnn = _bnn(bert(), method)
        before, names = _draw(bnn, input_ids=tokens()).outputs, list(bnn.state_dict())
        save_pretrained(bnn, tmp_path)
        assert torch.equal(before, _draw(bnn, input_ids=tokens()).outputs)
        assert names == list(bnn.state_dict())


def _saved(path):
    save_pretrained(_bnn(bert(), MeanField()), path, Categorical())
    return path


def _edit(path, change):
    config = json.loads((path / "bayesify.json").read_text())
    change(config)
    (path / "bayesify.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / "bayesify.json").unlink(), "no bayesify.json"),
        (lambda path: (path / "bayesify.json").write_text("{"), "not valid JSON"),
        (lambda path: (path / "bayesify.json").write_text('{"a": 1}'), "not written by"),
        (lambda path: _edit(path, lambda config: config.update(fold=True)), "edited or damaged"),
        (lambda path: _edit(path, lambda config: config.update(format_version=99)), "pip install --upgrade"),
        (lambda path: (path / "bayesify.safetensors").unlink(), "bayesify.safetensors is missing"),
        (lambda path: (path / "bayesify.safetensors").write_bytes(b"x"), "bayesify.safetensors is damaged"),
        (lambda path: bert().save_pretrained(path), r"model.safetensors is damaged or from another model"),
        (shutil.rmtree, "no bayesify.json"),
    ],
)
def test_damaged_folders_are_refused(damage, message, tmp_path):
    path = _saved(tmp_path / "model")
    damage(path)
    with pytest.raises(ModelFileError, match=message):
        from_pretrained(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": {}}, "methods must be a list"),
        ({"methods": []}, r"layers\[0\]\.method must be the index of one of 0 methods"),
        ({"batch_dim": -1}, "batch_dim must be a whole number from 0"),
        ({"trained": "all"}, "trained must be a list"),
        ({"output": {"part": [1]}}, r"output\.part must be a key or a position"),
        ({"format_version": True}, "format_version must be a whole number"),
        ({"files": []}, "files must map names to checksums"),
    ],
)
def test_invalid_values_with_valid_checksums_are_refused(change, message, tmp_path):
    path = _saved(tmp_path / "model")
    config = json.loads((path / "bayesify.json").read_text()) | change
    del config["checksum"]
    config["checksum"] = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    (path / "bayesify.json").write_text(json.dumps(config))
    with pytest.raises(ModelFileError, match=rf"bayesify\.json is invalid: {message}"):
        from_pretrained(path)


@pytest.mark.parametrize(
    ("change", "message"), [(lambda x: x.long(), "has type torch.int64 instead of"), (lambda x: x * torch.nan, "has NaN")]
)
def test_weights_of_another_type_or_without_values_are_refused(change, message, tmp_path):
    bnn, path = _bnn(bert(), MeanField()), _saved(tmp_path / "model")
    state = load_file(path / "bayesify.safetensors")
    name = next(name for name, x in state.items() if x.is_floating_point())
    save_file(state | {name: change(state[name])}, path / "bayesify.safetensors")
    config = read_config(path)
    config["files"]["bayesify.safetensors"] = hashlib.sha256((path / "bayesify.safetensors").read_bytes()).hexdigest()
    del config["checksum"]
    config["checksum"] = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    (path / "bayesify.json").write_text(json.dumps(config))
    with pytest.raises(ModelFileError, match=message):
        load_posterior(bnn, path)


def test_the_posterior_of_another_network_is_refused_and_changes_nothing(tmp_path):
    _saved(tmp_path)
    for other, part in ((bert(labels=5), "instead of"), (gpt2(), "is unknown")):
        bnn = _bnn(other, MeanField())
        before = copy.deepcopy(bnn.state_dict())
        with pytest.raises(ModelFileError, match=part):
            load_posterior(bnn, tmp_path)
        assert all(torch.equal(x, bnn.state_dict()[name]) for name, x in before.items())
    with pytest.raises(ModelFileError, match=r"posterior.* is missing"):
        load_posterior(_bnn(bert(), VSD()), tmp_path)
    with pytest.raises(ModelFileError, match=r"likelihood\.log_std is missing"):
        load_posterior(_bnn(bert(), MeanField()), tmp_path, Gaussian(std=1.0, learn=True))


def test_what_cannot_be_saved_or_loaded_is_refused_with_a_way_out(tmp_path):
    with pytest.raises(TypeError, match="what bayesify returned"):
        save_pretrained(bert(), tmp_path)
    with pytest.raises(ConfigurationError, match=r"for k, member in enumerate\(bnn.members\)"):
        save_pretrained(bayesify([bert(), bert()], DeepEnsemble(members=2), output="logits"), tmp_path)
    _saved(tmp_path / "model")
    with pytest.raises(ConfigurationError, match="leave net out"):
        from_pretrained(tmp_path / "model", bert())
    net = adapted(bert(), "SEQ_CLS", ["query"])
    save_pretrained(_bnn(net, MeanField()), tmp_path / "adapter")
    with pytest.raises(ConfigurationError, match="give its base model"):
        from_pretrained(tmp_path / "adapter")
    twice = adapted(bert(), "SEQ_CLS", ["query"])
    twice.add_adapter("second", twice.peft_config["default"])
    with pytest.raises(ConfigurationError, match="one adapter"):
        save_pretrained(bayesify(twice, MeanField(), output="logits"), tmp_path)


def test_the_members_of_an_ensemble_are_saved_one_by_one(tmp_path):
    bnn = bayesify([bert(), bert()], DeepEnsemble(members=2, base=MeanField()), output="logits")
    for k, member in enumerate(bnn.members):
        save_pretrained(member.eval(), f"{tmp_path}/{k}")
        _check_equal(member, from_pretrained(f"{tmp_path}/{k}")[0], input_ids=tokens())
