"""`fit(compile=True)`: the losses and weights of `fit`, the code it compiles, and what it refuses.

Most tests compile with "aot_eager", which traces forward and backward as the default does and generates no code.
"""

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import torch._dynamo.testing
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

sys.path.append(str(Path(__file__).parents[1] / "contract"))
from contract_methods import METHODS

from bayesify import (
    DVI,
    EMP,
    SWAG,
    VIFO,
    BLoB,
    DeepEnsemble,
    Gaussian,
    LinearWarmup,
    MeanField,
    ScalaBL,
    bayesify,
)
from bayesify.errors import ConfigurationError
from bayesify.train import Weighted, fit

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler")
ONE_OF_EACH = list({type(method): method for method, _ in METHODS if not isinstance(method, BLoB | ScalaBL)}.values())  # need LoRA
QUICK, EXTENDED = (MeanField,), (VIFO, EMP, DVI)


def marks(method):
    if type(method) in QUICK:
        return ()
    return pytest.mark.extended if type(method) in EXTENDED else pytest.mark.slow


torch.manual_seed(0)
X = torch.randn(37, 4)
Y = X[:, 0] - 0.5 * X[:, 1]


@pytest.fixture
def counter(monkeypatch):
    """Compile with "aot_eager"; `frame_count` is the number of versions."""
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    original = torch.compile

    def compile(model=None, *, options=None, **kwargs):
        return original(model, backend=counter, **kwargs)

    monkeypatch.setattr(torch, "compile", compile)
    return counter


def network(method=None, extra=None, dtype=torch.float64):
    torch.manual_seed(3)
    layers = [nn.Linear(4, 8), nn.ReLU(), *([extra()] if extra else []), nn.Linear(8, 1)]
    return bayesify(nn.Sequential(*layers).to(dtype), method or MeanField())


def trained(compile, method=None, data=None, likelihood=None, extra=None, dtype=torch.float64, rows=32, **settings):
    """The history and the state of a network after training."""
    bnn, likelihood = network(method, extra, dtype), likelihood() if likelihood else Gaussian(std=0.3).to(dtype)
    settings = {"epochs": 2, "batch_size": 16, "learning_rate": 0.01, "accelerator": "cpu", "seed": 1, **settings}
    data = data or (X[:rows].to(dtype), Y[:rows].to(dtype))
    history = fit(bnn, data, likelihood, compile=compile, **settings)
    return history, {**bnn.state_dict(), **{f"likelihood.{k}": v for k, v in likelihood.state_dict().items()}}


def assert_equal_training(**settings):
    (eager, expected), (compiled, state) = trained(False, **settings), trained(True, **settings)
    torch.testing.assert_close(compiled.loss, eager.loss)
    torch.testing.assert_close(compiled.kl, eager.kl)
    torch.testing.assert_close(compiled.validation_nll, eager.validation_nll)
    torch.testing.assert_close(state, expected)


REFUSED = [type(method) for method in ONE_OF_EACH if network(method).has_optimizer]


@pytest.mark.parametrize(
    "method",
    [pytest.param(method, id=type(method).__name__, marks=marks(method)) for method in ONE_OF_EACH if type(method) not in REFUSED],
)
def test_every_method_trains_as_without(counter, method):
    """In float64, where rounding is far below any mistake: equal noise, losses and weights."""
    assert_equal_training(method=method)
    if not isinstance(method, DeepEnsemble):  # trained by fit_many
        assert counter.frame_count > 0, "nothing was compiled"


@pytest.mark.parametrize("method", REFUSED)
def test_methods_with_an_optimizer_are_refused(method):
    with pytest.raises(ConfigurationError, match="compile=True is not possible for the method"):
        trained(True, method=method())


@pytest.mark.default("samples-rows", extended=["beta", "extra"])
@pytest.mark.parametrize(
    "settings",
    [
        {"samples": 3, "rows": 37},
        {"beta": LinearWarmup(fraction=0.7)},
        {"validation": (X[:9].double(), Y[:9].double()), "patience": 5},
        {"accumulate": 2, "clip_norm": 0.1},
        {"data": Weighted((X.double(), Y.double()), torch.linspace(0, 2, 37).double())},
        {"data": DataLoader(TensorDataset(X.double(), Y.double()), batch_size=10)},
        {"extra": lambda: nn.Dropout(0.2)},
        {"extra": lambda: nn.BatchNorm1d(8), "samples": 2},
        {"method": VIFO(eta_aux=0.3)},
        {"method": VIFO(eta_aux=0.3), "auxiliary": 3 * X[:20].double()},
        {"method": SWAG(start=0.5)},
        {"likelihood": lambda: Gaussian(learn=True).double()},
    ],
    ids="-".join,
)
def test_settings(counter, settings):
    assert_equal_training(**settings)
    assert counter.frame_count > 0


def test_half_precision(counter):
    (eager, _), (compiled, state) = (trained(c, dtype=torch.float32, precision="bf16-mixed") for c in (False, True))
    torch.testing.assert_close(compiled.loss, eager.loss, rtol=1e-3, atol=0)
    assert all(tensor.dtype == torch.float32 for tensor in state.values())


@pytest.mark.extended
def test_one_version_per_size_of_batch(counter):
    """37 rows give batches of 16, 16 and 5; a changing weight of the KL gives none.

    In float64 the compiler would start a version again, because it takes scalar tensors for Python's numbers at first.
    """
    trained(True, dtype=torch.float32, epochs=3, rows=37, beta=LinearWarmup(fraction=0.9))
    assert counter.frame_count == 2


@pytest.mark.slow
def test_loaders_of_many_sizes_have_two_versions(counter):
    class Sizes:
        def __iter__(self):
            return iter([list(range(start, stop)) for start, stop in ((0, 7), (7, 12), (12, 20), (20, 31), (31, 37))])

        def __len__(self):
            return 5

    data = DataLoader(TensorDataset(X, Y), batch_sampler=Sizes())
    trained(True, dtype=torch.float32, data=data)
    assert counter.frame_count == 2


@pytest.mark.slow
def test_more_networks_than_the_recompile_limit(counter):
    """PyTorch compiles 8 versions of one code; those of networks that were trained before do not count."""
    for scale in range(10):
        trained(True, dtype=torch.float32, method=MeanField(prior_std=1.0 + scale), epochs=1)
    assert counter.frame_count == 10  # of one size of batch each


@pytest.mark.slow
def test_resumes_what_was_trained_without(counter, tmp_path):
    expected = trained(False, epochs=4)
    for first, second in ((True, False), (False, True), (True, True)):
        path = tmp_path / f"{first}-{second}.pt"
        trained(first, epochs=2, checkpoint=path)
        history, state = trained(second, epochs=4, checkpoint=path)
        assert len(history) == 4
        torch.testing.assert_close((history.loss, state), (expected[0].loss, expected[1]))
        assert not any("_orig_mod" in name for name in torch.load(path)["module"])


@pytest.mark.extended
def test_the_network_is_not_compiled_afterwards(counter):
    bnn = network()
    fit(bnn, (X.double(), Y.double()), Gaussian(std=0.3).double(), epochs=1, compile=True, accelerator="cpu")
    assert all(module._compiled_call_impl is None for module in bnn.modules())
    versions = counter.frame_count
    bnn(X.double())
    assert counter.frame_count == versions


def test_code_that_looks_at_values_is_explained(counter):
    class Looks(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else 2 * x

    with pytest.raises(ConfigurationError, match=r"compile=True: PyTorch cannot compile .*leave compile out"):
        trained(True, extra=Looks)


@pytest.mark.extended
def test_a_missing_compiler_is_explained():
    from torch._inductor import config

    without = config.patch({"cpp.cxx": (None, "no-such-compiler"), "force_disable_caches": True})
    with without, pytest.raises(ConfigurationError, match=r"No working C\+\+ compiler found.*leave compile out"):
        trained(True)


@pytest.mark.extended
@needs_compiler
def test_generated_code():
    """The default compiler, in float32: the values of eager code up to rounding, with plain dropout, whose noise is PyTorch's."""
    settings = {"dtype": torch.float32, "extra": lambda: nn.Dropout(0.2), "epochs": 1, "batch_size": 37}
    (eager, expected), (compiled, state) = trained(False, **settings), trained(True, **settings)
    torch.testing.assert_close(compiled.loss, eager.loss, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")
def test_two_processes(tmp_path):
    """Data parallel, compiled and not: equal losses and weights, without noise."""
    script = tmp_path / "ddp.py"
    script.write_text(
        textwrap.dedent("""
            import sys

            import torch
            from torch import nn

            from bayesify import Deterministic, bayesify
            from bayesify.likelihoods import Gaussian
            from bayesify.train import fit

            if __name__ == "__main__":
                original = torch.compile
                torch.compile = lambda model, *, options=None, **settings: original(model, backend="aot_eager", **settings)
                torch.manual_seed(0)
                x = torch.randn(22, 3)
                bnn = bayesify(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)), Deterministic(prior_std=0.5))
                history = fit(
                    bnn, (x, x.sum(1)), Gaussian(learn=True), epochs=3, batch_size=4, accelerator="cpu", devices=2, progress=False,
                    compile=sys.argv[1] == "compiled",
                )
                torch.save((history.loss, bnn.state_dict()), f"{sys.argv[2]}/{sys.argv[1]}.pt")
            """)
    )
    for kind in ("eager", "compiled"):
        subprocess.run([sys.executable, str(script), kind, str(tmp_path)], check=True, timeout=300, capture_output=True)
    compiled, eager = (torch.load(tmp_path / f"{kind}.pt") for kind in ("compiled", "eager"))
    torch.testing.assert_close(compiled, eager)
