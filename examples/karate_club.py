"""Members of Zachary's karate club by a graph network that knows the sides of four, with the uncertainty of the others.

    python examples/karate_club.py [--out examples/karate_club.png]

The graph of 34 members and 78 friendships is that of networkx, which PyTorch installs: W. Zachary, *An information flow model for
conflict and fission in small groups* (1977). The club split into two; two members of each side are labeled.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib
import networkx
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from bayesify import VSD, Bayesian, Categorical, bayesify, elbo, predict
from bayesify.plots.style import INK, THEME
from bayesify.predictive import CategoricalPredictive

CLUB = networkx.karate_club_graph()
LABELED = torch.tensor([0, 1, 32, 33])


class GraphNetwork(nn.Module):
    """Two graph convolutions (Kipf & Welling 2017): linear layers of features averaged over neighbors."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(features, hidden), nn.Linear(hidden, classes)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        hidden = (adjacency @ self.first(x)).relu()
        return adjacency @ self.second(hidden)


def inputs() -> tuple[Tensor, Tensor]:
    """One feature per member, who it is, and the normalized adjacency matrix."""
    adjacency = torch.eye(len(CLUB))
    for a, b in CLUB.edges:
        adjacency[a, b] = adjacency[b, a] = 1
    scale = adjacency.sum(1).rsqrt()
    return torch.eye(len(CLUB)), scale[:, None] * adjacency * scale


def sides() -> Tensor:
    """Which club every member joined: 0 for the instructor's, 1 for the officers'."""
    return torch.tensor([int(CLUB.nodes[member]["club"] == "Officer") for member in CLUB])


def train(steps: int = 300) -> Bayesian:
    """Train on the labeled members; all others are part of the graph."""
    torch.manual_seed(0)
    bnn = bayesify(GraphNetwork(len(CLUB), 16, 2), VSD(), fold=False).train()
    optimizer = torch.optim.Adam(bnn.parameters(), lr=1e-2)
    likelihood, y = Categorical(), sides()[LABELED]
    for _ in range(steps):
        draws = bnn(*inputs()).rows(LABELED)
        loss = -elbo(draws, likelihood.log_prob(draws.outputs, y), n=len(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return bnn


def draw(prediction: CategoricalPredictive, path: Path) -> None:
    """Draw the graph: colors are probabilities, areas grow with the entropy."""
    settings: dict = {**THEME, "font.size": 10}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(8, 5), layout="constrained")
        ax = figure.subplots()
        places = networkx.kamada_kawai_layout(CLUB)
        networkx.draw_networkx_edges(CLUB, places, ax=ax, edge_color="#bbbbbb")
        circles = networkx.draw_networkx_nodes(
            CLUB, places, ax=ax, node_color=prediction.probs[:, 1].tolist(), node_size=(80 + 900 * prediction.entropy).tolist(),
            cmap="coolwarm", vmin=0, vmax=1, edgecolors=[INK if member in LABELED else "none" for member in CLUB],
        )  # fmt: skip
        networkx.draw_networkx_labels(CLUB, places, ax=ax, font_size=8, font_color=INK)
        figure.colorbar(circles, label="probability of the officers' club", shrink=0.7)
        ax.set_title("Labeled members have a border; the larger a circle, the higher its entropy")
        ax.set_axis_off()
        figure.savefig(path, dpi=130, facecolor="white")


def main() -> None:
    """Train, print the most uncertain members, draw the graph."""
    parser = argparse.ArgumentParser(description="Members of a karate club, by a Bayesian graph network.")
    parser.add_argument("--out", type=Path, default=Path("karate_club.png"), help="where to write the picture")
    args = parser.parse_args()
    prediction = predict(train(), [(inputs(),)], Categorical(), samples=200, seed=0)
    assert isinstance(prediction, CategoricalPredictive)
    right = prediction.probs.argmax(1) == sides()
    print(f"{int(right.sum())} of {len(CLUB)} right; the most uncertain members:")
    for member in prediction.entropy.argsort(descending=True)[:6].tolist():
        joined = "officers" if sides()[member] else "instructor"
        print(
            f"{member:>3}  entropy {prediction.entropy[member]:.2f}, officers {prediction.probs[member, 1]:.2f}, joined: {joined}"
        )
    draw(prediction, args.out)


if __name__ == "__main__":
    main()
