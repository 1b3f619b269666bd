"""Networks whose input is an object with tensors inside, a graph, and whose rows are nodes, of which several make an example."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import DataLoader, Dataset

from bayesify import (
    EMP,
    SWAG,
    VIFO,
    VSD,
    WHVI,
    BatchEnsemble,
    DeepEnsemble,
    Deterministic,
    MCDropout,
    MeanField,
    RepulsiveEnsemble,
    bayesify,
    elbo,
    fit,
    predict,
)
from bayesify.core.method import Method
from bayesify.core.objects import moved
from bayesify.errors import BayesifyWarning, ConfigurationError, DataError, PassError
from bayesify.likelihoods import Categorical, Gaussian
from bayesify.testing.trial import captured_weights

F64 = torch.float64

pytestmark = pytest.mark.filterwarnings("ignore:every draw takes a separate pass:bayesify.errors.BayesifyWarning")


@dataclasses.dataclass(slots=True)
class Graphs:
    """Several graphs as one, as in libraries for molecules; `to` moves it in place."""

    x: Tensor
    edges: Tensor
    graph: Tensor  # of each node
    y: Tensor

    def to(self, device: torch.device) -> None:
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name).to(device))


def graphs(*sizes: int) -> Graphs:
    """Chains of nodes with random features, and labels of the graphs."""
    edges = [torch.stack([torch.arange(n - 1), torch.arange(1, n)]) + sum(sizes[:k]) for k, n in enumerate(sizes)]
    index = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return Graphs(torch.randn(sum(sizes), 4, dtype=F64), torch.cat(edges, 1), index, torch.arange(len(sizes)) % 2)


class Chains(Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        return index


def collate(indices: list[int]) -> Graphs:
    torch.manual_seed(indices[0])
    return graphs(*(3 + i % 4 for i in indices))


class Pooled(nn.Module):
    """A row of outputs per graph."""

    def __init__(self, outputs: int = 2) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 3), nn.Linear(3, outputs)

    def features(self, x: Tensor, edges: Tensor, graph: Tensor) -> Tensor:
        h = self.first(x)
        h = (h + torch.zeros_like(h).index_add(0, edges[1], h[edges[0]])).tanh()
        return h.new_zeros(int(graph.max()) + 1, 3).index_add(0, graph, h)

    def forward(self, x: Tensor, edges: Tensor, graph: Tensor) -> Tensor:
        return self.last(self.features(x, edges, graph))


class OfObject(Pooled):
    def forward(self, data: Graphs) -> Tensor:
        return super().forward(data.x, data.edges, data.graph)


def arguments(net: nn.Module, data: Graphs) -> tuple[Any, ...]:
    return (data,) if isinstance(net, OfObject) else (data.x, data.edges, data.graph)


@pytest.mark.parametrize("make", [Pooled, OfObject])
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize(
    "method", [Deterministic(), MeanField(initial_std=1e-10), VSD(p=1e-18), EMP(spread=0), BatchEnsemble(spread=0)]
)
def test_without_noise_the_draws_are_the_plain_network(method: Method, samples: int, make: Callable[[], nn.Module]) -> None:
    net, data = make().double(), graphs(3, 5, 4, 2)
    expected = net(*arguments(net, data)).detach()
    bnn = bayesify(net, method)
    for mode in (bnn.eval(), bnn.train()):
        draws = mode(*arguments(net, data), samples=samples)
        assert draws.outputs.shape == (samples, 4, 2)
        assert draws.local_kl.shape == (4,)
        torch.testing.assert_close(draws.outputs.detach(), expected.expand(samples, 4, 2), rtol=0, atol=1e-7)


@pytest.mark.parametrize("make", [Pooled, OfObject])
def test_a_draw_is_one_function_of_all_graphs(make: Callable[[], nn.Module]) -> None:
    """Its outputs are linear in the features of the graphs, with one matrix for all."""
    net, data = make().double(), graphs(3, 5, 4, 2, 6, 3, 4, 5)
    bnn = bayesify(net, {"last": MeanField(initial_std=0.5)}).eval()
    features = torch.cat([net.features(data.x, data.edges, data.graph).detach(), torch.ones(8, 1, dtype=F64)], 1)
    outputs = bnn(*arguments(net, data), samples=3).outputs.detach()
    for draw in outputs:
        fitted = features @ torch.linalg.lstsq(features, draw).solution
        torch.testing.assert_close(fitted, draw, rtol=0, atol=1e-9)
    assert float(outputs.std(0).min()) > 0.01


@pytest.mark.parametrize("make", [Pooled, OfObject])
@pytest.mark.parametrize(
    "method",
    [
        MeanField(),
        MCDropout(),
        WHVI(),
        EMP(),
        DeepEnsemble(members=2),
        RepulsiveEnsemble(members=2),
        VIFO(),
        VIFO(separate_std=True),
    ],
    ids=lambda method: type(method).__name__ + "-std" * getattr(method, "separate_std", False),
)
def test_bounds_are_of_graphs(method: Method, make: Callable[[], nn.Module]) -> None:
    members = getattr(method, "members", 1)
    bnn = bayesify([make().double() for _ in range(members)] if members > 1 else make().double(), method)
    data = graphs(3, 5, 4)
    draws = bnn(*arguments(make(), data), samples=2)
    loss = -elbo(draws, Categorical().log_prob(draws.outputs, data.y), n=12)
    loss.backward()
    assert draws.outputs.shape == (2, 3, 2)
    assert all(p.grad is not None for p in bnn.parameters() if p.requires_grad)


@pytest.mark.parametrize("make", [Pooled, OfObject])
def test_moments_of_vifo_are_those_of_graphs(make: Callable[[], nn.Module]) -> None:
    """Means are the plain network's outputs, and standard deviations depend on the graph's own features alone."""
    net, data = make().double(), graphs(3, 5, 4)
    expected = net(*arguments(net, data)).detach()
    features = net.features(data.x, data.edges, data.graph).detach()
    method = VIFO()
    bnn = bayesify(net, method).eval()
    ((_, layer),) = bnn.random_layers()
    with torch.no_grad():
        layer.posterior.weight.normal_()
    normal = bnn.normal_outputs(*arguments(net, data))
    torch.testing.assert_close(normal.mean.detach(), expected)
    torch.testing.assert_close(normal.std.detach(), method.std(features @ layer.posterior.weight.T + layer.posterior.bias).detach())


def test_predictions_have_a_row_per_graph_in_order() -> None:
    net, loader = OfObject().double(), DataLoader(Chains(), batch_size=5, collate_fn=collate)
    expected = torch.cat([net(batch).softmax(1) for batch in loader]).detach()
    assert len(expected) == 12
    bnn = bayesify(net, MeanField(initial_std=1e-10))
    batches = [collate([0, 1, 2, 3, 4]), collate([5, 6, 7, 8, 9]), collate([10, 11])]
    for inputs in (loader, batches, [(batch,) for batch in batches], [(batch, batch.y) for batch in batches]):
        assert_near(predict(bnn, inputs, Categorical(), samples=3).mean, expected)
    assert_near(predict(bnn, batches[0], Categorical(), samples=3).mean, expected[:5])


def assert_near(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected.to(actual.dtype), rtol=0, atol=1e-6)


@pytest.mark.parametrize("labels", ["of the object", "beside it"])
def test_training_counts_graphs(labels: str) -> None:
    bnn = bayesify(OfObject().double(), MeanField())

    def pairs(indices: list[int]) -> Any:
        data = collate(indices)
        return data if labels == "of the object" else (data, data.y)

    loader = DataLoader(Chains(), batch_size=5, collate_fn=pairs)
    history = fit(bnn, loader, Categorical(), epochs=2, validation=DataLoader(Chains(), batch_size=12, collate_fn=pairs))
    assert history.n == 12
    assert len(history.validation_nll) == 2
    kl = bnn.kl().item()
    data = collate([0, 1, 2])
    draws = bnn(data, samples=1)
    log_prob = Categorical().log_prob(draws.outputs, data.y)
    torch.testing.assert_close(elbo(draws, log_prob, n=12), log_prob.mean() - kl / 12)


def test_data_in_memory_are_tensors() -> None:
    data = graphs(3, 5)
    with pytest.raises(TypeError, match="inputs of data must be a tensor, got Graphs; give batches of objects, a DataLoader"):
        fit(bayesify(OfObject().double(), MeanField()), (data, data.y), Categorical(), epochs=1)


def test_nodes_and_graphs_together_need_a_choice() -> None:
    class Both(OfObject):
        def forward(self, data: Graphs) -> tuple[Tensor, Tensor]:
            return super().forward(data), self.first(data.x)

    data = graphs(3, 5)
    with pytest.raises(
        ConfigurationError, match=r"shape \(8, 3\) for 2 examples .*of graphs and not of nodes, is selected by .*output="
    ):
        bayesify(Both().double(), MeanField())(data)
    assert bayesify(Both().double(), MeanField(), output=0)(data, samples=2).outputs.shape == (2, 2, 2)
    assert bayesify(Both().double(), MeanField(), output=1)(data, samples=2).outputs.shape == (2, 8, 3)


def test_tokens_with_offsets() -> None:
    """Texts of several lengths as one row of tokens, in which each begins at an offset."""

    class Texts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bags, self.last = nn.EmbeddingBag(10, 4), nn.Linear(4, 2)

        def forward(self, tokens: Tensor, offsets: Tensor) -> Tensor:
            return self.last(self.bags(tokens, offsets))

    net, inputs = Texts().double(), (torch.randint(10, (9,)), torch.tensor([0, 2, 7]))
    expected = net(*inputs).detach()
    draws = bayesify(net, {"last": MeanField(initial_std=1e-10)})(*inputs, samples=2)
    torch.testing.assert_close(draws.outputs.detach(), expected.expand(2, 3, 2), rtol=0, atol=1e-7)
    assert draws.local_kl.shape == (3,)


class Bag(nn.Module):
    """One output of a set (N, 4) of any size, as in multiple-instance learning."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.attention, self.last = nn.Linear(4, 3), nn.Linear(3, 1), nn.Linear(3, 2)

    def forward(self, bag: Tensor) -> Tensor:
        h = self.first(bag).tanh()
        return self.last((self.attention(h).softmax(0) * h).sum(0, keepdim=True))


class DenseGraph(Bag):
    """One output of a graph with an adjacency matrix (N, N)."""

    def forward(self, bag: Tensor, adjacency: Tensor) -> Tensor:
        return super().forward(adjacency @ bag)


@pytest.mark.parametrize("make", [Bag, DenseGraph])
@pytest.mark.parametrize("coherent", [False, True])
def test_a_set_is_one_example_if_no_input_has_rows(make: Callable[[], Bag], coherent: bool) -> None:
    """Every draw is the plain network with weights that are drawn once for the set, whatever its size."""
    net = make().double()
    names = ["bag"] if type(net) is Bag else ["bag", "adjacency"]
    with pytest.raises(ConfigurationError, match=r"one example, such as a set or a graph, name all inputs: .*unbatched="):
        bayesify(copy.deepcopy(net), MeanField(initial_std=0.5))(*bags(net, 7))
    bnn = bayesify(copy.deepcopy(net), MeanField(initial_std=0.5), unbatched=names).eval()
    for size in (7, 1, 4):
        inputs = bags(net, size)
        with captured_weights(bnn) as weights:
            draws = bnn(*inputs, samples=3, coherent=coherent)
            expected = torch.stack([functional_call(net, each, inputs) for each in weights[-3:]])
        torch.testing.assert_close(draws.outputs, expected)
        assert float(expected.std(0).min()) > 0
        assert draws.local_kl.shape == (1,)


def test_sets_are_trained_and_predicted_one_by_one() -> None:
    torch.manual_seed(0)
    data = [(torch.randn(3 + i % 4, 4), torch.tensor([i % 2])) for i in range(12)]
    bnn = bayesify(Bag(), MeanField(), unbatched=["bag"], fold=False)
    history = fit(bnn, DataLoader(data, batch_size=None, shuffle=True), Categorical(), epochs=2, n=12, accelerator="cpu")
    assert history.n == 12
    net = Bag()
    bnn = bayesify(copy.deepcopy(net), MeanField(initial_std=1e-10), unbatched=["bag"], fold=False)
    expected = torch.cat([net(bag).softmax(1) for bag, _ in data]).detach()
    assert_near(predict(bnn, [bag for bag, _ in data], Categorical(), samples=3).mean, expected)


@pytest.mark.parametrize(
    "method", [VIFO(), EMP(), VSD(), DeepEnsemble(members=2), SWAG()], ids=lambda method: type(method).__name__
)
def test_every_method_takes_sets(method: Method) -> None:
    members = getattr(method, "members", 1)
    bnn = bayesify([Bag() for _ in range(members)] if members > 1 else Bag(), method, unbatched=["bag"], fold=False)
    draws = bnn(torch.randn(5, 4), samples=2)
    assert draws.outputs.shape == (2, 1, 2)
    (-elbo(draws, Categorical().log_prob(draws.outputs, torch.tensor([1])), n=12)).backward()


def bags(net: nn.Module, size: int) -> tuple[Tensor, ...]:
    bag = torch.randn(size, 4, dtype=F64)
    return (bag,) if type(net) is Bag else (bag, torch.rand(size, size, dtype=F64))


def test_an_object_beside_a_tensor() -> None:
    """A number for each graph, and outputs for each node."""

    class Timed(Pooled):
        def forward(self, data: Graphs, time: Tensor) -> Tensor:
            return self.last(self.first(data.x).tanh() + time[data.graph].unsqueeze(1))

    net, data, time = Timed().double(), graphs(3, 5), torch.tensor([0.1, 0.7], dtype=F64)
    expected = net(data, time).detach()
    draws = bayesify(net, MeanField(initial_std=1e-10))(data, time, samples=3)
    torch.testing.assert_close(draws.outputs.detach(), expected.expand(3, 8, 2), rtol=0, atol=1e-7)
    assert draws.local_kl.shape == (8,)


def test_outputs_without_rows_are_refused() -> None:
    class Sum(OfObject):
        def forward(self, data: Graphs) -> Tensor:
            return super().forward(data).sum()

    with pytest.raises(ConfigurationError, match=r"tensor of shape \(\) for \d+ examples"):
        bayesify(Sum().double(), MeanField())(graphs(3, 5))


def test_features_in_another_order_are_still_refused() -> None:
    """Without indices, rows are examples, and outputs with fewer are wrong."""

    class TimeFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: Tensor, static: Tensor | None = None) -> Tensor:
            return self.layer(x).movedim(1, 0)

    x = torch.randn(4, 6, 3, dtype=F64)
    bnn = bayesify(TimeFirst().double(), MeanField())
    for inputs in ((x,), (x, torch.zeros(4, 2, dtype=torch.long)), (x, torch.tensor([6, 2, 4, 3]))):
        with pytest.raises(ConfigurationError, match=r"for 4 examples and 1 draws in one pass"):
            bnn(*inputs)


def test_the_reason_of_separate_passes_names_the_object() -> None:
    with pytest.warns(BayesifyWarning, match="because its input is an object, a Graphs, whose rows cannot be repeated"):
        bayesify(OfObject().double(), MeanField())(graphs(3, 5), samples=2)


def test_a_network_that_changes_its_graph_is_refused() -> None:
    class Changing(OfObject):
        def forward(self, data: Graphs) -> Tensor:
            data.x = data.x.tanh()
            return super().forward(data)

    with pytest.raises(PassError, match=r"changes its input, a Graphs, .* change a copy \(copy.copy\)"):
        bayesify(Changing().double(), MeanField())(graphs(3, 5), samples=2)


def test_objects_without_tensors_are_refused() -> None:
    class Empty:
        pass

    bnn = bayesify(OfObject().double(), MeanField())
    with pytest.raises(DataError, match=r"needs an input with a batch dimension 0, a tensor or an object with tensors, got"):
        bnn(Empty())
    with pytest.raises(TypeError, match="batch 0 must be a tensor or consist of tensors, got Empty"):
        predict(bnn, [Empty()], Gaussian(std=1.0))


def test_objects_are_moved() -> None:
    data, meta = graphs(3), torch.device("meta")
    assert moved(data, meta) is data
    assert data.x.is_meta
    assert moved(data, meta) is data

    @dataclasses.dataclass
    class Fixed:
        x: Tensor

    fixed = Fixed(torch.zeros(2))
    assert moved(fixed, torch.device("cpu")) is fixed
    with pytest.raises(TypeError, match=r"a Fixed with tensors that are not on meta, and no method to\(device\)"):
        moved(fixed, meta)


def test_batches_of_torch_geometric() -> None:
    data = pytest.importorskip("torch_geometric.data", reason="torch_geometric is not installed")
    loader = pytest.importorskip("torch_geometric.loader")
    layers = pytest.importorskip("torch_geometric.nn")

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.last = layers.GraphConv(4, 8), nn.Linear(8, 2)

        def forward(self, data: Any) -> Tensor:
            return self.last(layers.global_mean_pool(self.layer(data.x, data.edge_index).relu(), data.batch))

    chains = [
        data.Data(x=torch.randn(n, 4), edge_index=torch.stack([torch.arange(n - 1), torch.arange(1, n)]), y=torch.tensor([n % 2]))
        for n in (3, 4, 5, 6)
    ]
    bnn = bayesify(net := Net(), MeanField(initial_std=1e-6))
    assert fit(bnn, loader.DataLoader(chains, 2, shuffle=True), Categorical(), epochs=1).n == 4
    p = predict(bnn, loader.DataLoader(chains, 3), Categorical(), samples=3)
    with torch.no_grad(), bnn.drawn(0):
        expected = net(data.Batch.from_data_list(chains)).softmax(1)
    torch.testing.assert_close(p.mean, expected, rtol=0, atol=1e-3)
