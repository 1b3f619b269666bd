"""Networks trained with local noise, predicted with the same noise and with drawn weights, which positions share.

    python tools/noise_of_positions.py     # about five minutes of one core

The 8 x 8 digits of scikit-learn, 600 for training. A convolutional network with batch normalization, with random convolutions
alone and with all layers random, and a transformer over rows of pixels; `MeanField()` with two weights of the KL, and with
`noise="shared"`. Prints means over two seeds: the negative log-likelihood in nats, the error, and confidence minus accuracy of 100
draws for the test images.
"""

import itertools
from collections.abc import Callable

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from bayesify import Categorical, LinearWarmup, MeanField, bayesify, fit, predict
from bayesify.metrics import accuracy, nll

ROWS, EPOCHS, SEEDS = 600, 60, 2


class Transformer(nn.Module):
    """Two layers over the eight rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.position = nn.Linear(8, 32), nn.Parameter(0.1 * torch.randn(8, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(x.squeeze(1)) + self.position).mean(1))


def convolutional() -> nn.Module:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(*block(1, 16), *block(16, 32), nn.MaxPool2d(2), *block(32, 32), nn.Flatten(), nn.Linear(512, 10))


NETS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "convolutions": (convolutional, "[036]*"),
    "convolutional network": (convolutional, "*"),
    "transformer": (Transformer, "*"),
}


def scores(make: Callable[[], nn.Module], layers: str, method: MeanField, beta: float, seed: int) -> np.ndarray:
    """Rows: the noise of training, drawn weights. Columns: NLL, error, confidence minus accuracy."""
    torch.manual_seed(seed)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 8 - 1, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(labels)
    order = torch.randperm(len(x))
    train, test = order[:ROWS], order[ROWS:]
    bnn = bayesify(make(), {layers: method})
    schedule = LinearWarmup(beta=beta, fraction=0.5)
    fit(bnn, (x[train], y[train]), Categorical(), epochs=EPOCHS, batch_size=60, learning_rate=2e-3, beta=schedule, seed=seed)
    rows = []
    for coherent in (False, True):
        probs = predict(bnn, x[test], Categorical(), samples=100, seed=seed, coherent=coherent).probs
        right = accuracy(probs, y[test])
        rows.append([float(nll(probs, y[test])), float(1 - right), float(probs.amax(-1).mean() - right)])
    return np.array(rows)


def main() -> None:
    torch.set_num_threads(1)
    print("network, noise of training, weight of the KL, noise of predictions: NLL, error, confidence - accuracy")
    for (name, (make, layers)), noise, beta in itertools.product(NETS.items(), ("local", "shared"), (1.0, 0.1)):
        results = np.mean([scores(make, layers, MeanField(noise=noise), beta, seed) for seed in range(SEEDS)], 0)
        for predicted, row in zip(("of training", "drawn weights"), results, strict=True):
            print(f"{name}, {noise}, {beta}, {predicted}:", *row.round(3), flush=True)


if __name__ == "__main__":
    main()
