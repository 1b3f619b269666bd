"""MC dropout against the enumeration of all masks, and its KL against quadrature."""

import copy
import itertools
import math

import pytest
import torch
from scipy import integrate, stats
from torch import Tensor, nn
from torch.distributions import Categorical, MixtureSameFamily, Normal

from bayesify import MCDropout, bayesify

DRAWS = 40_000
LAYERS = {
    "linear": lambda: (nn.Linear(4, 2), torch.tensor([[1.0, -2.0, 0.5, 3.0]])),
    "convolution": lambda: (nn.Conv2d(3, 2, 2), torch.randn(1, 3, 3, 3)),
    "grouped convolution": lambda: (nn.Conv1d(4, 2, 2, groups=2), torch.randn(1, 4, 3)),
    "transposed convolution": lambda: (nn.ConvTranspose1d(3, 2, 2), torch.randn(1, 3, 2)),
}


def _enumerate(plain: nn.Module, x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """The outputs (2^K, D) for every pattern of dropped input channels, and their probabilities (2^K,)."""
    outputs, probabilities = [], []
    for kept in itertools.product((0, 1), repeat=x.shape[1]):
        mask = torch.tensor(kept, dtype=torch.float64).reshape(1, -1, *[1] * (x.dim() - 2))
        outputs.append(plain(x * mask / (1 - p)).flatten())
        probabilities.append(math.prod(1 - p if k else p for k in kept))
    return torch.stack(outputs).detach(), torch.tensor(probabilities, dtype=torch.float64)


@pytest.mark.parametrize("coherent", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
def test_outputs_are_those_of_all_masks_in_proportion(layer: str, coherent: bool) -> None:
    plain, x = LAYERS[layer]()
    plain, x, p = plain.double(), x.double(), 0.3
    values, probabilities = _enumerate(plain, x, p)
    bnn = bayesify(nn.Sequential(copy.deepcopy(plain)), MCDropout(p=p))
    with torch.no_grad():
        y = bnn(x, samples=DRAWS, coherent=coherent).outputs.flatten(1)
    distances, which = torch.cdist(y, values).min(1)
    assert distances.max() < 1e-6, "an output that no mask explains"
    counts = torch.bincount(which, minlength=len(values))
    assert stats.chisquare(counts.numpy(), (probabilities * DRAWS).numpy()).pvalue > 1e-3
    # the moments, within 5 standard errors
    mean = probabilities @ values
    torch.testing.assert_close(mean, plain(x).flatten().detach(), msg="inverted scaling keeps the mean")
    squares = (values - mean) ** 2
    variance = probabilities @ squares
    assert ((y.mean(0) - mean).abs() < 5 * (variance / DRAWS).sqrt()).all()
    kurtosis_error = 5 * (probabilities @ (squares - variance) ** 2 / DRAWS).sqrt()
    assert (((y - mean) ** 2).mean(0) - variance).abs().le(kurtosis_error).all()


def test_masks_are_independent_across_examples() -> None:
    bnn = bayesify(nn.Sequential(nn.Linear(4, 1).double()), MCDropout(p=0.5))
    x = torch.tensor([[1.0, -2.0, 0.5, 3.0]]).double().expand(2, 4)
    with torch.no_grad():
        y = bnn(x, samples=DRAWS).outputs.flatten(1)
    assert torch.corrcoef(y.T)[0, 1].abs() < 5 / DRAWS**0.5


def _kl_of_narrow_mixture(weight: float, p: float, prior_std: float) -> float:
    """KL(p N(0, t^2) + (1 - p) N(w / (1 - p), t^2) || N(0, s^2)) by quadrature, for a narrow t: a dropped or scaled weight."""
    narrow = 0.005
    centers = torch.tensor([0.0, weight / (1 - p)], dtype=torch.float64)
    shares = torch.tensor([p, 1 - p], dtype=torch.float64)
    q = MixtureSameFamily(Categorical(shares), Normal(centers, torch.full((2,), narrow).double()))
    prior = Normal(torch.zeros(()).double(), prior_std)

    def integrand(w: float) -> float:
        w = torch.tensor(w, dtype=torch.float64)
        return (q.log_prob(w).exp() * (q.log_prob(w) - prior.log_prob(w))).item()

    return sum(integrate.quad(integrand, c - 10 * narrow, c + 10 * narrow, epsabs=1e-8)[0] for c in centers.tolist())


@pytest.mark.parametrize(("p", "prior_std"), [(0.2, 0.5), (0.5, 1.5)])
def test_kl_depends_on_the_weights_like_that_of_a_narrow_mixture(p: float, prior_std: float) -> None:
    weights = (0.3, -1.0, 2.0)
    bnn = bayesify(nn.Sequential(nn.Linear(1, 1, bias=False).double()), MCDropout(p=p, prior_std=prior_std))
    ours, expected = [], []
    for weight in weights:
        nn.init.constant_(bnn.net[0].weight, weight)
        ours.append(bnn.kl().item())
        expected.append(_kl_of_narrow_mixture(weight, p, prior_std))
    # only differences count: the entropy of a point mass is minus infinity, the same for every weight
    for i, j in itertools.combinations(range(3), 2):
        assert ours[i] - ours[j] == pytest.approx(expected[i] - expected[j], rel=1e-4)


def test_kl_adds_over_weights_and_never_drops_biases() -> None:
    bnn = bayesify(nn.Sequential(nn.Linear(3, 2).double()), MCDropout(p=0.25, prior_std=0.5))
    layer, prior = bnn.net[0], Normal(torch.zeros(()).double(), 0.5)

    def penalty() -> Tensor:
        """Second moments under the masks, one weight at a time, and biases as they are."""
        kept = prior.log_prob(layer.weight / 0.75) - prior.log_prob(torch.zeros(()).double())
        return -(0.75 * kept).sum() - (prior.log_prob(layer.bias) - prior.log_prob(torch.zeros(()).double())).sum()

    torch.testing.assert_close(bnn.kl(), penalty(), atol=0, rtol=1e-9)


def test_plain_dropout_has_no_kl() -> None:
    bnn = bayesify(nn.Sequential(nn.Linear(3, 2)), MCDropout(p=0.25))
    assert bnn.kl() == 0


@pytest.mark.parametrize("training", [False, True])
def test_noise_is_the_same_in_training_and_in_evaluation(training: bool) -> None:
    bnn = bayesify(nn.Sequential(nn.Linear(3, 2)), MCDropout(p=0.5)).train(training)
    assert bnn(torch.ones(1, 3), samples=50).outputs.var(0).gt(0).all()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"p": 1.0}, r"p must be a number in \[0, 1\), got 1.0"),
        ({"p": -0.1}, r"p must be a number in \[0, 1\), got -0.1"),
        ({"prior_std": 0.0}, "prior_std must be a finite number above 0, got 0.0"),
    ],
)
def test_errors(fields: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MCDropout(**fields)
