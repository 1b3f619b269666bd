r"""Methods whose family contains the posterior are calibrated where the truth is drawn from the prior.

A linear layer with K outputs and one input is K regressions at once, with independent weights $w_k \sim N(0, 1)$ and targets
$y_{ik} = w_k x_i + \epsilon_{ik}$: the posterior of every weight is the same normal around another mean. The rank u of the truth
among the draws, divided by its largest value, is uniform, so that $3 (2u - 1)^2$ has mean 1 and standard deviation 0.89. Standard
deviations that are wrong by a factor of $\sqrt2$ give 0.65 or 1.36, and a wrong mean more.

Other methods cannot be calibrated here. Members of ensembles and of `EMP` and the outputs of `VIFO` do not spread over the
posterior, and dropout has the spread of its rate. `tests/methods/test_linear_model_posteriors.py` shows what the others are
instead: `NoisyAdam` is too wide unless batches are single examples, the damping of `NoisyKFAC` makes it too narrow, and the free
factors of `TensorFactorized` have no fixed prior. `SLANG` has one precision for all outputs of a layer, whose squared gradients
correlate the K regressions; with one output it has the exact posterior. `VOGN` squares gradients of single examples, whose mean is
the curvature for many rows: it has 64. `experiments/posterior/calibration` shows what all that means for a network.
"""

import pytest
import torch
from torch import Tensor, nn

from bayesify import (
    DVI,
    ELRG,
    HMC,
    IVON,
    MNF,
    SGHMC,
    SGLD,
    VMG,
    VOGN,
    Gaussian,
    Laplace,
    LinearWarmup,
    MeanField,
    bayesify,
    predict,
)
from bayesify.core.method import Method
from bayesify.train import fit

COUNT, ROWS, DRAWS = 800, 4, 400


def _simulate(seed: int, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs (N, 1) of sum of squares 1, targets (N, K) with noise N(0, 1), and weights (K,) from N(0, 1)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.full((rows, 1), rows**-0.5)
    truth = torch.randn(COUNT, generator=generator)
    return x, x * truth + torch.randn(rows, COUNT, generator=generator), truth


def _statistic(method: Method, learning_rate: float, epochs: int, beta: float = 1.0, rows: int = ROWS) -> float:
    """Mean of 3 (2u - 1)^2."""
    x, y, truth = _simulate(0, rows)
    torch.manual_seed(0)
    bnn, likelihood = bayesify(nn.Linear(1, COUNT, bias=False), method), Gaussian(std=1.0)
    schedule = None if bnn.collects else lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, epochs)
    fit(
        bnn, (x, y), likelihood, epochs=epochs, batch_size=rows, learning_rate=learning_rate, scheduler=schedule, samples=4,
        beta=LinearWarmup(beta=beta, fraction=0.1), accelerator="cpu", progress=False,
    )  # fmt: skip
    p = predict(bnn, torch.ones(1, 1), likelihood, DRAWS, seed=0, coherent=True, progress=False)
    draws = p.draw_means.squeeze(1)  # (S, K), the weights
    below = (draws < truth).sum(0) + torch.rand(COUNT, generator=torch.Generator().manual_seed(1))
    return float((3 * (2 * below / (len(draws) + 1) - 1).square()).mean())


TOLERANCE = 3.3 * 0.894 / COUNT**0.5


@pytest.mark.parametrize(
    ("method", "learning_rate", "epochs", "rows"),
    [
        pytest.param(MeanField(), 0.03, 600, ROWS, id="MeanField"),
        pytest.param(VOGN(hessian_rate=0.01, initial_std=0.4), 0.05, 1000, 64, id="VOGN", marks=pytest.mark.slow),
        *(
            pytest.param(method, rate, epochs, ROWS, id=type(method).__name__, marks=pytest.mark.slow)
            for method, rate, epochs in (
                (DVI(), 0.03, 600),
                (ELRG(), 0.03, 1000),
                (VMG(), 0.03, 1000),
                (MNF(), 0.03, 1000),
                (IVON(hessian_rate=0.01, initial_std=0.4), 0.05, 1000),  # rates at which 1,000 steps suffice
                (Laplace(layers="all", structure="diagonal"), 0.03, 600),
                (HMC(draws=100, warmup=100), 0.03, 300),
                (SGLD(step_size=0.05), 0.03, 200),
                (SGHMC(step_size=0.01), 0.03, 200),
            )
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_ranks_of_the_truth_are_uniform(method, learning_rate, epochs, rows) -> None:
    assert _statistic(method, learning_rate, epochs, rows=rows) == pytest.approx(1.0, abs=TOLERANCE)


@pytest.mark.extended
def test_half_the_weight_of_the_kl_is_noticed() -> None:
    """It doubles the precision of the likelihood: with standard deviations of 0.577 for 0.707, the mean is 1.288 by quadrature."""
    assert _statistic(MeanField(), 0.03, 600, beta=0.5) == pytest.approx(1.288, abs=TOLERANCE)
    assert TOLERANCE < 0.288 / 2
