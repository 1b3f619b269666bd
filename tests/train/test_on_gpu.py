"""Training and prediction on a GPU: every method, every precision, seeds, many models, compiled code, CUDA graphs and kernels."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

sys.path.append(str(Path(__file__).parents[1] / "contract"))
from contract_methods import METHODS

from bayesify import (
    EMP,
    HMC,
    MNF,
    VIFO,
    VSD,
    WHVI,
    BLoB,
    DeepEnsemble,
    Deterministic,
    Gaussian,
    Laplace,
    MCDropout,
    MeanField,
    ScalaBL,
    VariationalDropout,
    bayesify,
    elbo,
    predict,
)
from bayesify.native import switch
from bayesify.train import Training, fit, fit_many

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GPU = torch.device("cuda")
ONE_OF_EACH = {type(method): method for method, _ in METHODS if not isinstance(method, BLoB | ScalaBL)}  # those need LoRA
ONE_OF_EACH |= {HMC: HMC(draws=4, chains=1, warmup=5)}
OF_THE_PAPERS = (VariationalDropout(), VSD(), WHVI(), EMP(), VIFO(), MeanField())


def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(256, 4, generator=generator, device="cpu")
    return x, x[:, 0] - 0.5 * x[:, 1] + 0.1 * torch.randn(256, generator=generator, device="cpu")


def network(method):
    torch.manual_seed(3)
    return bayesify(nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1)).to("cpu"), method)


def trained(method, **settings):
    """A network, its likelihood and the history of its training on the GPU."""
    bnn, likelihood = network(method), Gaussian(std=0.3, learn=True)
    settings = {"epochs": 4, "batch_size": 64, "learning_rate": 0.02, "accelerator": "cuda", "seed": 5, **settings}
    return bnn, likelihood, fit(bnn, settings.pop("data", data()), likelihood, **settings)


@pytest.mark.parametrize("method", ONE_OF_EACH.values(), ids=lambda method: type(method).__name__)
def test_every_method_trains_and_predicts(method):
    for kind, library in ((Laplace, "laplace"), (HMC, "pyro")):
        if isinstance(method, kind):
            pytest.importorskip(library)
    x, y = data()
    bnn, likelihood, history = trained(method)
    assert all(torch.tensor(history.loss).isfinite())
    assert {p.device.type for p in bnn.parameters()} == {"cpu"}, "fit moves the network back"
    kl = bnn.kl().detach()
    bnn.to(GPU)
    likelihood.to(GPU)
    if not isinstance(method, MNF):  # whose KL is an estimate by draws
        torch.testing.assert_close(bnn.kl().detach().cpu(), kl, rtol=1e-3, atol=1e-3)
    p = predict(bnn, x, likelihood, samples=8, seed=1)
    again = predict(bnn, x.to(GPU), likelihood, samples=8, seed=1)
    assert p.mean.is_cpu, "predictions are where the inputs are"
    torch.testing.assert_close(p.mean, again.mean.cpu())  # means over draws, on the CPU and on the GPU
    assert p.log_prob(y).isfinite().all()


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
@pytest.mark.parametrize("method", OF_THE_PAPERS, ids=lambda method: type(method).__name__)
def test_every_precision_learns(method, precision):
    *_, history = trained(method, precision=precision, epochs=20)
    assert history.loss[-1] < history.loss[0] - 0.5


@pytest.mark.parametrize("method", OF_THE_PAPERS, ids=lambda method: type(method).__name__)
def test_seeds_fix_everything_and_leave_no_trace(method):
    runs = [trained(method) for _ in range(2)]
    assert runs[0][2].loss == runs[1][2].loss
    (bnn, likelihood, _), (x, _) = runs[0], data()
    bnn.to(GPU)
    torch.manual_seed(3)
    states = torch.get_rng_state(), torch.cuda.get_rng_state()
    predictions = [predict(bnn, x, likelihood.to(GPU), samples=4, seed=seed).mean for seed in (1, 1, 2)]
    assert torch.equal(predictions[0], predictions[1])
    assert torch.equal(torch.get_rng_state(), states[0])
    assert torch.equal(torch.cuda.get_rng_state(), states[1])
    if not isinstance(method, VIFO):
        assert not torch.equal(predictions[0], predictions[2])
        assert torch.equal(bnn.function(4)(x.to(GPU)), bnn.function(4)(x.to(GPU)))


def test_loaders_of_the_cpu_and_tensors_of_the_gpu():
    x, y = data()
    for source in (DataLoader(TensorDataset(x, y), batch_size=64, pin_memory=True), (x.to(GPU), y.to(GPU))):
        *_, history = trained(MeanField(), data=source)
        assert all(torch.tensor(history.loss).isfinite())


@pytest.mark.parametrize("rows", [256, 400_000])  # the second take milliseconds to copy
def test_tensors_of_the_gpu_train_on_the_cpu_as_those_of_the_cpu(rows):
    x, y = (part.repeat(rows // 256 + 1, *[1] * (part.dim() - 1))[:rows] for part in data())
    losses = [
        trained(Deterministic(), data=source, accelerator="cpu", epochs=1, batch_size=rows // 4)[2].loss
        for source in ((x, y), (x.to(GPU), y.to(GPU)))
    ]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("method", [MeanField(), WHVI(), VSD(), DeepEnsemble(members=3)], ids=lambda method: type(method).__name__)
def test_many_models_train_as_alone(method):
    def trainings():
        return [Training(bnn=network(method), data=data(), likelihood=Gaussian(std=0.3), seed=seed) for seed in (1, 2)]

    settings = {"epochs": 3, "batch_size": 64, "accelerator": "cuda", "progress": False}
    together, alone = trainings(), trainings()
    histories = fit_many(together, together=True, **settings)
    for history, training in zip(histories, alone, strict=True):
        expected = fit(training.bnn, training.data, training.likelihood, seed=training.seed, **settings)
        torch.testing.assert_close(torch.tensor(history.loss), torch.tensor(expected.loss), rtol=1e-3, atol=1e-3)


@pytest.mark.extended
@pytest.mark.parametrize("method", OF_THE_PAPERS, ids=lambda method: type(method).__name__)
def test_compiled_training(method):
    *_, history = trained(method, compile=True, epochs=20)
    assert history.loss[-1] < history.loss[0] - 0.5


@pytest.mark.parametrize("native", [None, "triton"], ids=["composed", "kernels"])
@pytest.mark.parametrize("method", OF_THE_PAPERS, ids=lambda method: type(method).__name__)
def test_a_captured_step_draws_new_noise_at_every_replay(method, native, monkeypatch):
    monkeypatch.setitem(switch.LIBRARIES, "cuda", native)
    bnn, (x, y) = network(method).to(GPU), (part.to(GPU) for part in data())
    likelihood, optimizer = Gaussian(std=0.3).to(GPU), torch.optim.Adam(bnn.parameters(), lr=0.01, capturable=True)

    def step():
        optimizer.zero_grad(set_to_none=False)
        draws = bnn(x)
        loss = -elbo(draws, likelihood.log_prob(draws.outputs, y), n=len(x))
        loss.backward()
        optimizer.step()
        return loss.detach()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(4):  # those that bayesify observes
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    losses = []
    for _ in range(100):
        graph.replay()
        losses.append(loss.item())
    assert torch.tensor(losses).isfinite().all()
    assert len(set(losses)) > 90
    assert sum(losses[-10:]) < sum(losses[:10])


@pytest.mark.parametrize("method", [MeanField(noise="shared"), *OF_THE_PAPERS], ids=str)
def test_kernels_train_as_the_composed_operators(method, monkeypatch):
    losses = []
    for library in (None, "triton"):
        monkeypatch.setitem(switch.LIBRARIES, "cuda", library)
        *_, history = trained(method)
        losses.append(torch.tensor(history.loss))
    torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("method", OF_THE_PAPERS, ids=lambda method: type(method).__name__)
def test_predictions_have_the_moments_of_those_on_a_cpu(method):
    bnn, likelihood, _ = trained(method)
    x = data()[0][:32]
    on_cpu = predict(bnn, x, likelihood, samples=4000, seed=1)
    on_gpu = predict(bnn.to(GPU), x, likelihood.to(GPU), samples=4000, seed=1)
    std = on_cpu.std
    torch.testing.assert_close(on_gpu.mean.cpu(), on_cpu.mean, rtol=0, atol=float(0.1 * std.max()))  # six standard errors
    torch.testing.assert_close(on_gpu.std.cpu(), std, rtol=0.1, atol=0)


class Sequences(nn.Module):
    """A prediction from the last of several states (B, 6, 4) -> (B, 1)."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.out = layer, nn.Linear(8 if isinstance(layer, nn.RNNBase) else 4, 1)

    def forward(self, x):
        states = self.layer(x)
        return self.out((states[0] if isinstance(states, tuple) else states)[:, -1])


OF_SEQUENCES = {
    "LSTM": lambda: nn.LSTM(4, 8, num_layers=2, batch_first=True),
    "GRU": lambda: nn.GRU(4, 4, batch_first=True, bidirectional=True),
    "encoder": lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
}


@pytest.mark.parametrize("layer", OF_SEQUENCES.values(), ids=OF_SEQUENCES)
@pytest.mark.parametrize("method", [MCDropout(p=0.2), *OF_THE_PAPERS], ids=lambda method: type(method).__name__)
def test_layers_of_sequences_have_the_moments_of_those_on_a_cpu(method, layer):
    torch.manual_seed(3)
    bnn, likelihood, x = bayesify(Sequences(layer()), method), Gaussian(std=0.3), torch.randn(256, 6, 4)
    history = fit(bnn, (x, x[:, -1, 0]), likelihood, epochs=4, batch_size=64, learning_rate=0.02, accelerator="cuda", seed=5)
    assert history.loss[-1] < history.loss[0]
    on_cpu = predict(bnn, x[:32], likelihood, samples=2000, seed=1)
    on_gpu = predict(bnn.to(GPU), x[:32], likelihood.to(GPU), samples=2000, seed=1)
    std = on_cpu.std
    torch.testing.assert_close(on_gpu.mean.cpu(), on_cpu.mean, rtol=0, atol=float(0.15 * std.max()))  # five standard errors
    torch.testing.assert_close(on_gpu.std.cpu(), std, rtol=0.1, atol=0)


@pytest.mark.parametrize("method", [Laplace(), HMC(draws=4, chains=1, warmup=5)], ids=lambda method: type(method).__name__)
def test_densities_of_complex_weights(method):
    pytest.importorskip("laplace" if isinstance(method, Laplace) else "pyro")

    class Spectral(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, dtype=torch.complex64))
            self.out = nn.Linear(4, 1)

        def forward(self, x):
            return self.out(torch.fft.irfft(self.weight * torch.fft.rfft(x), n=4))

    torch.manual_seed(3)
    bnn, likelihood = bayesify(Spectral(), {"out": method}), Gaussian(std=0.3)
    fit(bnn, data(), likelihood, epochs=4, batch_size=64, accelerator="cuda", seed=5)
    x = data()[0]
    means = [predict(bnn.to(device), x, likelihood.to(device), samples=64, seed=1).mean.cpu() for device in ("cpu", "cuda")]
    torch.testing.assert_close(*means, rtol=0, atol=0.15)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("native", [None, "triton"], ids=["composed", "kernels"])
@pytest.mark.parametrize("method", OF_THE_PAPERS, ids=lambda method: type(method).__name__)
def test_the_kl_is_the_same_under_autocast(method, native, dtype, monkeypatch):
    monkeypatch.setitem(switch.LIBRARIES, "cuda", native)
    bnn, x = network(method).to(GPU), data()[0].to(GPU)
    with torch.autocast("cuda", dtype=dtype):
        kl = bnn(x).kl
    torch.testing.assert_close(kl, bnn.kl(), rtol=1e-5, atol=1e-5)


def test_estimators():
    pytest.importorskip("skops")
    from bayesify.estimators import BayesianRegressor

    x, y = (part.numpy() for part in data())
    regressor = BayesianRegressor(epochs=20, accelerator="cuda", random_state=1).fit(x[:200], y[:200])
    mean, std = regressor.predict(x[200:], return_std=True)
    assert abs(mean - y[200:]).mean() < 0.5
    assert (std > 0).all()


def test_what_was_trained_on_a_gpu_loads_on_a_cpu(tmp_path):
    bnn, *_ = trained(WHVI())
    bnn.to(GPU)
    torch.save(bnn.state_dict(), tmp_path / "state.pt")
    other = network(WHVI())
    other.load_state_dict(torch.load(tmp_path / "state.pt", map_location="cpu", weights_only=True))
    torch.testing.assert_close(other.kl(), bnn.kl().cpu(), rtol=1e-4, atol=1e-4)


@pytest.mark.extended
@pytest.mark.parametrize("accumulate", [1, 3])
def test_compiled_training_takes_the_steps_of_eager_code(accumulate):
    """Without noise: the compiler's draws are others than PyTorch's on a GPU."""
    runs = [trained(Deterministic(), compile=compile, accumulate=accumulate, batch_size=32) for compile in (False, True)]
    torch.testing.assert_close(torch.tensor(runs[0][2].loss), torch.tensor(runs[1][2].loss), rtol=1e-3, atol=1e-3)
