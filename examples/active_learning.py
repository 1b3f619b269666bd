r"""Active learning of handwritten digits with BALD and BatchBALD.

    python examples/active_learning.py [FOLDER]

A small network starts with 20 labeled images (8 x 8 pixels, from scikit-learn) and acquires ten labels per round. Each function
drawn with `bnn.function(seed)` is evaluated on the whole pool, which gives joint predictions. Acquisition strategies:

* random;
* BALD (Houlsby et al., 2011): the ten images with the largest mutual information between label and weights,
  $I(y_i; w) = H[y_i] - E_w H[y_i \mid w]$;
* BatchBALD (Kirsch et al., 2019): ten images with a large joint mutual information $I(y_1 \dots y_n; w)$, selected greedily.

Writes `active_learning.png`, in ten minutes. With 100 labels, the test accuracy (mean of five runs, ± standard error) is 86.2 ±
1.3 % for random acquisition, 85.8 ± 1.4 % for BALD and 90.5 ± 0.9 % for BatchBALD. BALD acquires redundant images, mostly in the
first rounds.
"""

import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import Tensor, nn

from bayesify import Bayesian, Categorical, MCDropout, bayesify, fit, predict

START, BATCH, ROUNDS, FUNCTIONS, CONFIGURATIONS = 20, 10, 8, 100, 2000


def entropy(p: Tensor) -> Tensor:
    """Entropy of probabilities in the last dimension, nats."""
    return torch.special.entr(p).sum(-1)


def class_probabilities(bnn: Bayesian, x: Tensor, functions: int = FUNCTIONS) -> Tensor:
    """Class probabilities (S, N, K) of S functions from the posterior."""
    with torch.no_grad():
        return torch.stack([bnn.function(seed)(x).softmax(-1) for seed in range(functions)])


def bald(p: Tensor, count: int) -> list[int]:
    """Indices of the images with the largest mutual information."""
    return (entropy(p.mean(0)) - entropy(p).mean(0)).topk(count).indices.tolist()


def batch_bald(p: Tensor, count: int, generator: torch.Generator) -> list[int]:
    """Indices of images with a large joint mutual information, selected greedily.

    The joint entropy of n labels is a sum over K^n configurations. Large sums are estimated from configurations drawn from their
    distribution, by importance weighting.
    """
    samples, _, classes = p.shape
    conditional = entropy(p).mean(0)
    joint, weight = p.new_ones(samples, 1), p.new_ones(1)  # p(configuration | function), importance weights
    selected: list[int] = []
    for _ in range(count):
        mean = torch.einsum("sm,snk->nmk", joint, p) / samples
        score = (torch.special.entr(mean).sum(-1) * weight).sum(-1) - conditional[selected].sum() - conditional
        score[selected] = -torch.inf
        best = int(score.argmax())
        selected.append(best)
        joint = (joint[:, :, None] * p[:, best, None, :]).flatten(1)
        weight = weight.repeat_interleave(classes)
        if joint.shape[1] > CONFIGURATIONS:
            probability = joint.mean(0) * weight
            drawn = probability.multinomial(CONFIGURATIONS, replacement=True, generator=generator)
            joint, weight = joint[:, drawn], probability.sum() * (weight / probability)[drawn] / CONFIGURATIONS
    return selected


def run(strategy: str, seed: int, rounds: int = ROUNDS) -> list[float]:
    """Test accuracy in percent after every round."""
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(x), generator=generator)
    test, pool, labeled = order[:600], order[600:], order[600 : 600 + START]
    accuracies = []
    for i in range(rounds + 1):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
        bnn = bayesify(net, {"0": MCDropout(p=0.1), "*": MCDropout(p=0.4)})
        fit(bnn, (x[labeled], y[labeled]), Categorical(), epochs=150, batch_size=32, seed=seed, accelerator="cpu", progress=False)
        p = predict(bnn, x[test], Categorical(), samples=50, seed=seed, progress=False)
        accuracies.append(100 * float((p.mean.argmax(-1) == y[test]).float().mean()))
        if i < rounds:
            unlabeled = pool[~torch.isin(pool, labeled)]
            if strategy == "random":
                acquired = torch.randperm(len(unlabeled), generator=generator)[:BATCH].tolist()
            elif strategy == "BALD":
                acquired = bald(class_probabilities(bnn, x[unlabeled]), BATCH)
            else:
                acquired = batch_bald(class_probabilities(bnn, x[unlabeled]), BATCH, generator)
            labeled = torch.cat([labeled, unlabeled[acquired]])
    return accuracies


def main(folder: Path, seeds: int = 5) -> None:
    figure = Figure(figsize=(5.5, 3.6), layout="constrained")
    ax = figure.subplots()
    labels = [START + BATCH * i for i in range(ROUNDS + 1)]
    for strategy, color in (("random", "#6b7785"), ("BALD", "#0072b2"), ("BatchBALD", "#d55e00")):
        runs = torch.tensor([run(strategy, seed) for seed in range(seeds)])
        mean, error = runs.mean(0), runs.std(0) / seeds**0.5
        ax.errorbar(labels, mean, error, color=color, marker="o", markersize=3, capsize=2, label=strategy)
        print(f"{strategy:10s}", "  ".join(f"{m:.1f} ± {e:.1f}" for m, e in zip(mean, error, strict=True)))
    ax.set(xlabel="labeled images", ylabel="test accuracy (%)", title=f"mean of {seeds} runs, with standard errors")
    ax.legend()
    figure.savefig(folder / "active_learning.png", dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path())
