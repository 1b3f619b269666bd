"""The compiled fast transform: its values are those of the dense product, and it is used where PyTorch's operators work."""

import subprocess
import sys
import threading

import pytest
import torch
from scipy import linalg
from torch.fx.experimental.proxy_tensor import make_fx

from bayesify import WHVI, bayesify, errors
from bayesify.functional import fwht, standard_normal
from bayesify.methods import whvi
from bayesify.native import hadamard_calls, hadamard_layer, native_fwht, native_is_used, operators, runs_fused, switch, use_native

F64 = torch.float64
numba = pytest.importorskip("numba", reason="the native operators need bayesify[fast]")


@pytest.fixture(autouse=True)
def _native(monkeypatch):
    monkeypatch.setitem(switch.LIBRARIES, "cpu", "numba")


@pytest.fixture
def native_calls(monkeypatch):
    """The shapes that the kernel transformed."""
    calls, run = [], operators.over_rows
    monkeypatch.setattr(operators, "over_rows", lambda *arguments: calls.append(arguments[2]) or run(*arguments))
    return calls


@pytest.mark.parametrize("dtype", [F64, torch.float32])
@pytest.mark.parametrize("bits", range(4, 13))
def test_against_the_dense_product(bits, dtype):
    x = torch.randn(2, 3, 2**bits, dtype=F64)
    dense = x @ torch.from_numpy(linalg.hadamard(2**bits)).double()
    difference = (native_fwht(x.to(dtype)).double() - dense).abs().max()
    assert difference < 2 * bits * torch.finfo(dtype).eps * dense.abs().max()


@pytest.mark.parametrize("bits", range(13, 21))
def test_large_sizes(bits):
    # entry (i, j) is the parity of i and j's common bits
    n = 2**bits
    x = torch.randn(1, n, dtype=F64)
    y = native_fwht(x)
    torch.testing.assert_close(native_fwht(y), n * x, rtol=1e-12, atol=1e-10 * n**0.5)
    j = torch.arange(n)
    for i in (0, 1, 3, 1234, n - 1):
        parity = torch.zeros(n, dtype=torch.int64)
        for bit in range(bits):
            parity ^= (j >> bit) & (i >> bit) & 1
        torch.testing.assert_close(y[0, i], (x[0] * (1 - 2 * parity)).sum(), rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(dtype):
    x = torch.randn(4, 512).to(dtype)
    y = native_fwht(x)
    assert y.dtype == dtype
    assert torch.equal(y, (x.double() @ torch.from_numpy(linalg.hadamard(512)).double()).float().to(dtype))


def test_the_same_values_on_any_number_of_threads(monkeypatch):
    monkeypatch.setattr(operators, "THREAD", 1)
    x = torch.randn(7, 1024)
    one, threads = native_fwht(x), torch.get_num_threads()
    for count in (2, 3, 8):
        monkeypatch.setattr(torch, "get_num_threads", lambda count=count: count)
        assert torch.equal(native_fwht(x), one)
    monkeypatch.undo()
    assert torch.get_num_threads() == threads


def test_calls_from_several_threads():
    x, results = torch.randn(64, 4096), {}
    expected = native_fwht(x)
    workers = [threading.Thread(target=lambda i=i: results.setdefault(i, native_fwht(x))) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(torch.equal(results[i], expected) for i in range(4))


def test_the_input_is_left_alone_and_layouts_do_not_matter():
    x = torch.randn(512, 6, dtype=F64).T
    before = x.clone()
    torch.testing.assert_close(native_fwht(x), x @ torch.from_numpy(linalg.hadamard(512)).double())
    assert torch.equal(x, before)
    assert native_fwht(torch.zeros(0, 3, 256)).shape == (0, 3, 256)
    unaligned = torch.randn(2 * 256 + 1)[1:].view(2, 256)
    torch.testing.assert_close(native_fwht(unaligned), native_fwht(unaligned.clone()), rtol=0, atol=0)


def test_gradients_of_first_and_second_order(native_calls):
    x = torch.randn(2, 256, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: fwht(v).square(), x, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda v: fwht(v, normalize=True) ** 3, x, fast_mode=True)
    assert native_calls


def test_opcheck():
    torch.library.opcheck(torch.ops.bayesify.fwht.default, (torch.randn(3, 32, requires_grad=True),))
    torch.library.opcheck(torch.ops.bayesify.fwht.default, (torch.randn(64, 3).T,))


def test_forward_mode_derivatives(native_calls):
    x, t = torch.randn(2, 2, 512, dtype=F64)
    _, tangent = torch.func.jvp(fwht, (x,), (t,))
    torch.testing.assert_close(tangent, fwht(t))
    with torch.autograd.forward_ad.dual_level():
        y = fwht(torch.autograd.forward_ad.make_dual(x, t))
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(y).tangent, fwht(t))
    hessian = torch.func.hessian(lambda v: (fwht(v) ** 3).sum())(torch.ones(256, dtype=F64))
    h = torch.from_numpy(linalg.hadamard(256)).double()
    torch.testing.assert_close(hessian, 6 * h @ torch.diag(h.sum(0)) @ h)
    assert native_calls


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_vmap_and_per_example_gradients(dim, native_calls):
    x = torch.randn(3, 4, 256, dtype=F64).movedim(0, dim)
    expected = x.movedim(dim, 0) @ torch.from_numpy(linalg.hadamard(256)).double()
    torch.testing.assert_close(torch.vmap(fwht, in_dims=dim)(x), expected)
    gradients = torch.vmap(torch.func.grad(lambda v: fwht(v).square().sum()))(x.movedim(dim, 0))
    torch.testing.assert_close(gradients, 2 * 256 * x.movedim(dim, 0))
    assert native_calls


def test_compiled_functions_call_the_operator_and_are_not_recompiled_for_another_batch(native_calls):
    x = torch.randn(5, 256, dtype=F64, requires_grad=True)
    compiled = torch.compile(fwht, fullgraph=True, backend="aot_eager", dynamic=True)
    compiled(x).square().sum().backward()
    torch.testing.assert_close(x.grad, 2 * 256 * x.detach())
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled(torch.randn(9, 256, dtype=F64, requires_grad=True))
    assert native_calls == [5, 5, 9]


def test_compiled_per_example_gradients():
    gradients = torch.vmap(torch.func.grad(lambda v: fwht(v).square().sum()))
    x = torch.randn(3, 256, dtype=F64)
    torch.testing.assert_close(torch.compile(gradients, backend="aot_eager", fullgraph=True)(x), 2 * 256 * x)


def test_exported_programs_have_no_operator_of_bayesify():
    class Net(torch.nn.Module):
        def forward(self, x):
            return fwht(x)

    program = torch.export.export(Net(), (torch.randn(3, 512),))
    assert "bayesify" not in str(program.graph)


def test_traced_graphs_have_the_operator():
    x = torch.randn(3, 512)
    graph = make_fx(lambda v: fwht(v), tracing_mode="fake", _allow_non_fake_inputs=True)(x)  # noqa: PLW0108 - arguments are counted
    assert "bayesify.fwht" in graph.code
    torch.testing.assert_close(graph(x), fwht(x))


def test_autocast_lowers_the_precision_of_the_result():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert fwht(torch.randn(3, 512)).dtype == torch.bfloat16
        assert fwht(torch.randn(3, 512, dtype=F64)).dtype == F64


def test_the_switch(native_calls):
    x = torch.randn(2, 512)
    use_native(False)
    products = fwht(x)
    assert not native_calls
    assert not native_is_used()
    use_native()
    torch.testing.assert_close(fwht(x), products, rtol=1e-5, atol=1e-4)
    assert native_calls == [2]


def test_missing_and_broken_numba(monkeypatch):
    monkeypatch.setattr(switch, "_is_installed", lambda package: False)
    with pytest.raises(errors.MissingDependencyError, match=r'use_native\(True, \'cpu\'\) requires numba; .*"bayesify\[fast\]"'):
        use_native(True)
    with pytest.raises(errors.MissingDependencyError, match=r"requires triton; install it with: pip install triton"):
        use_native(True, "cuda")
    with pytest.raises(errors.ConfigurationError, match=r"device must be one of \['cpu', 'cuda'\], got 'tpu'"):
        use_native(True, "tpu")
    with pytest.warns(errors.BayesifyWarning, match="numba is installed but cannot be imported, so its native operators are off"):
        assert switch.load_kernels("kernels_that_do_not_exist") is None
    assert not native_is_used()


def test_triton_that_cannot_run_kernels(monkeypatch):
    pytest.importorskip("triton", reason="Triton is not installed")

    def fails():
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(switch, "_probe", fails)
    use_native(True, "cuda")
    message = "triton is installed but cannot run kernels here, so its native operators are off: Failed to find C compiler"
    with pytest.warns(errors.BayesifyWarning, match=message):
        assert switch.load_kernels.__wrapped__("channel_kernels", "triton") is None
    assert not native_is_used("cuda")


def test_old_gpus_have_no_kernels(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (7, 5))
    with pytest.raises(errors.ConfigurationError, match=r"compute capability below 8\.0"):
        switch._probe.__wrapped__()


def _numba_is_loaded(code, **environment):
    program = f"import sys, torch, bayesify; {code}; print('numba' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path), **environment},
        check=True,
    )
    return result.stdout.strip() == "True"


@pytest.mark.extended
def test_numba_is_imported_at_the_first_large_transform():
    large = "bayesify.functional.fwht(torch.zeros(4, 512))"
    assert not _numba_is_loaded("bayesify.functional.fwht(torch.zeros(4, 8))")
    assert _numba_is_loaded(large)
    assert not _numba_is_loaded(large, BAYESIFY_NATIVE="0")


# --- the fused layer


def _arguments(rows, blocks, n, dtype=F64, inputs=None, outputs=None, draws=0):
    """The tensors of a layer, and those of its bias if there are draws of it."""
    outputs = blocks * n if outputs is None else outputs
    scales = [torch.randn(blocks, n, dtype=dtype, requires_grad=True) for _ in range(4)]
    bias = [torch.randn(outputs, dtype=dtype, requires_grad=True) for _ in range(2)] + [torch.randn(draws, outputs, dtype=dtype)]
    x = torch.randn(rows, n if inputs is None else inputs, dtype=dtype, requires_grad=True)
    return [x, *scales, torch.randn(rows, blocks, n, dtype=dtype)], bias if draws else []


def _dense(tensors, bias, unit, outputs, bias_prior_std):
    """Weights and biases of every row as dense matrices, and the KL by `torch.distributions`."""
    x, s1, s2, mean, log_std, eps = tensors
    h = torch.from_numpy(linalg.hadamard(s1.shape[1])).to(x.dtype)
    weights = s1[..., None] * (h @ torch.diag_embed(mean + log_std.exp() * eps) @ h) * s2[..., None, :]  # (R, K, n, n)
    weights = weights.flatten(1, 2)[:, :outputs, : x.shape[1]]
    y, kl = [unit * weights[r] @ x[r] for r in range(len(x))], _kl(mean, log_std, 1.0)
    if bias:
        center, log_std, noise = bias
        y = [y[r] + center + log_std.exp() * noise[r // (len(x) // len(noise))] for r in range(len(x))]
        kl = kl + _kl(center, log_std, bias_prior_std)
    return torch.stack(y), kl


def _kl(mean, log_std, prior_std):
    normal = torch.distributions.Normal
    return torch.distributions.kl_divergence(normal(mean, log_std.exp()), normal(torch.zeros_like(mean), prior_std)).sum()


LAYERS = [  # rows, blocks, n, inputs, outputs, draws of the bias; rows of 1, 2, 4, 8, 16 and more vectors of both dtypes
    (1, 1, 16, 16, 16, 1),
    (70, 1, 64, 64, 64, 2),
    (33, 3, 32, 20, 70, 3),
    (5, 2, 512, 512, 1024, 1),
    (40, 1, 128, 100, 10, 0),
    (9, 2, 256, 256, 300, 9),
]


@pytest.mark.default("layer1-dtype1-*", "layer2-dtype0-*", "layer4-dtype1-*")
@pytest.mark.parametrize(("dtype", "tolerance"), [(F64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("layer", LAYERS)
def test_the_layer_and_its_gradients_against_dense_weights(layer, dtype, tolerance):
    rows, blocks, n, inputs, outputs, draws = layer
    tensors, bias = _arguments(rows, blocks, n, inputs=inputs, outputs=outputs, draws=draws)
    narrow, narrow_bias = ([t.detach().to(dtype).requires_grad_(t.requires_grad) for t in ts] for ts in (tensors, bias))
    leaves, narrow_leaves = ([t for t in ts if t.requires_grad] for ts in (tensors + bias, narrow + narrow_bias))
    assert len(leaves) == (7 if draws else 5)
    assert runs_fused(*narrow, *narrow_bias)
    found, expected = hadamard_layer(*narrow, narrow_bias, 0.7, outputs, 1.6), _dense(tensors, bias, 0.7, outputs, 1.6)
    upstream = torch.randn_like(expected[0]), torch.tensor(0.4, dtype=F64)
    pairs = zip(
        (*found, *torch.autograd.grad(found, narrow_leaves, [g.to(dtype) for g in upstream])),
        (*expected, *torch.autograd.grad(expected, leaves, upstream)),
        strict=True,
    )
    for native, expected in pairs:
        assert native.dtype == dtype
        assert native.shape == expected.shape
        assert (native.double() - expected).abs().max() < tolerance * expected.abs().max()


def test_layouts_do_not_matter_to_the_layer():
    (x, s1, *others), bias = _arguments(6, 2, 16, draws=2)
    expected, _ = hadamard_layer(x, s1, *others, bias)
    spread = [t.repeat_interleave(2, -1)[..., ::2] for t in bias]
    strided, _ = hadamard_layer(x.T.contiguous().T, s1.T.contiguous().T, *others, spread)
    assert torch.equal(strided, expected)
    upstream = torch.randn(32, 6, dtype=F64).T
    for a, b in zip(torch.autograd.grad(strided, (x, s1), upstream), torch.autograd.grad(expected, (x, s1), upstream), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("outputs", "draws"), [(32, 0), (32, 1), (20, 3)])
def test_second_derivatives_of_the_layer(outputs, draws):
    (*leaves, eps), bias = _arguments(3, 2, 16, inputs=12, outputs=outputs, draws=draws)
    leaves, noise = [*leaves, *bias[:2]], bias[2:]

    def layer(*tensors):
        return hadamard_layer(*tensors[:5], eps, [*tensors[5:], *noise], 0.7, outputs, 1.6)

    def squares(*tensors):
        return [t.square() for t in layer(*tensors)]

    assert torch.autograd.gradcheck(layer, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(squares, leaves, fast_mode=True)
    frozen = [leaf.detach() for leaf in leaves]
    mean = leaves[3]
    assert torch.autograd.gradgradcheck(lambda mean: squares(*frozen[:3], mean, *frozen[4:]), mean)


def test_the_outputs_or_the_kl_of_the_layer_alone():
    tensors, bias = _arguments(3, 2, 16, inputs=12, outputs=20, draws=1)
    leaves = [*tensors[:5], *bias[:2]]
    for end, used in ((0, leaves), (1, [*leaves[3:5], *bias[:2]])):
        for graph in (False, True):
            of_layer = hadamard_layer(*tensors, bias, 0.7, 20, 1.6)[end].sum()
            of_dense = _dense(tensors, bias, 0.7, 20, 1.6)[end].sum()
            pairs = zip(torch.autograd.grad(of_layer, used, create_graph=graph), torch.autograd.grad(of_dense, used), strict=True)
            for found, expected in pairs:
                torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("rows", "blocks", "n"), [(65, 1, 64), (40, 2, 128), (33, 5, 32), (3, 1, 2048), (2, 1, 64)])
def test_the_layer_draws_the_noise_of_eager_code(rows, blocks, n, monkeypatch):
    tensors, bias = _arguments(rows, blocks, n, torch.float32, draws=1)
    for threads in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        torch.manual_seed(3)
        drawn, _ = hadamard_layer(*tensors[:5], None, bias)
        after = torch.rand(2)
        torch.manual_seed(3)
        eps = standard_normal(rows, blocks, n, like=tensors[0])
        given, _ = hadamard_layer(*tensors[:5], eps, bias)
        assert torch.equal(drawn, given)
        assert torch.equal(after, torch.rand(2))
        upstream = torch.randn_like(given)
        pairs = (torch.autograd.grad(y, tensors[:5], upstream) for y in (drawn, given))
        for a, b in zip(*pairs, strict=True):
            assert torch.equal(a, b)


def test_the_layer_and_its_gradients_are_the_same_on_any_number_of_threads(monkeypatch):
    monkeypatch.setattr(hadamard_calls, "_THREAD", 1)
    tensors, bias = _arguments(200, 1, 64, torch.float32, draws=2)
    leaves = [*tensors[:5], *bias[:2]]
    upstream = torch.randn(200, 64)
    one, _ = hadamard_layer(*tensors, bias)
    gradients = torch.autograd.grad(one, leaves, upstream)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    three, _ = hadamard_layer(*tensors, bias)
    for a, b in zip((one, *gradients), (three, *torch.autograd.grad(three, leaves, upstream)), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("inputs", "outputs", "bias"), [(64, 64, True), (50, 30, True), (30, 150, True), (64, 64, False)])
def test_whvi_computes_the_same_with_and_without_the_fused_layer(inputs, outputs, bias, monkeypatch):
    fused, composed, kl = [], [], whvi.HadamardPosterior.kl
    monkeypatch.setattr(whvi, "hadamard_layer", lambda *arguments: fused.append(1) or hadamard_layer(*arguments))
    monkeypatch.setattr(whvi.HadamardPosterior, "kl", lambda *arguments: composed.append(1) or kl(*arguments))
    bnn = bayesify(torch.nn.Linear(inputs, outputs, bias), WHVI()).double()
    x, results = torch.randn(6, inputs, dtype=F64), []
    for native in (True, False):
        use_native(native)
        torch.manual_seed(1)
        y, kl_of_pass, *_ = bnn(x, samples=2)
        gradients = torch.autograd.grad(y.square().sum() + 3 * kl_of_pass, list(bnn.parameters()))
        results.append((y, kl_of_pass, *gradients, torch.rand(3)))
        assert composed == ([] if native else [1])
    assert fused == [1]
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_an_input_of_the_wrong_width_is_refused():
    for inputs in (50, 64):
        bnn = bayesify(torch.nn.Linear(inputs, 64), WHVI())
        for width in (inputs - 1, inputs + 1):
            with pytest.raises(RuntimeError, match="size of tensor"):
                bnn.net(torch.randn(4, width))


def test_a_parametrized_posterior_is_not_fused():
    site = bayesify(torch.nn.Linear(64, 64), WHVI()).double().net
    x, state = torch.randn(4, 64, dtype=F64), torch.random.get_rng_state()
    expected = site(x)
    torch.nn.utils.parametrize.register_parametrization(site.posterior, "s1", torch.nn.Identity())
    torch.random.set_rng_state(state)
    torch.testing.assert_close(site(x), expected)


def test_the_layer_is_not_fused_where_something_traces_or_transforms():
    arguments = [t.detach() for t in _arguments(2, 1, 16)[0]]
    assert runs_fused(*arguments)
    assert not runs_fused(arguments[0].float(), *arguments[1:])
    assert not runs_fused(*(t.half() for t in arguments))
    assert not runs_fused(*(t.to("meta") for t in arguments))
    assert not runs_fused(*(t[..., :8] for t in arguments))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not runs_fused(*arguments)
    assert not torch.vmap(lambda x: x + runs_fused(x, *arguments[1:]))(torch.zeros(3, 2, 16, dtype=F64)).any()
    graph = make_fx(lambda x: x + runs_fused(x, *arguments[1:]))(arguments[0])
    assert torch.equal(graph(arguments[0]), arguments[0])
