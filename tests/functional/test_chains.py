"""Diagnostics of Markov chains, on processes whose autocorrelation is known, and against Pyro's."""

import pytest
import torch
from torch import Tensor

from bayesify.errors import DataError
from bayesify.functional import effective_sample_size, split_r_hat


def autoregressive(chains: int, draws: int, rho: float) -> Tensor:
    """Stationary AR(1) chains (C, S) of variance 1, whose effective sample size is C S (1 - rho) / (1 + rho)."""
    generator = torch.Generator().manual_seed(0)
    x = [torch.randn(chains, generator=generator, dtype=torch.float64)]
    for _ in range(draws - 1):
        x.append(rho * x[-1] + (1 - rho**2) ** 0.5 * torch.randn(chains, generator=generator, dtype=torch.float64))
    return torch.stack(x, 1)


@pytest.mark.parametrize("rho", [0.9, 0.5, 0.0, -0.5])
def test_ess_of_an_autoregressive_process(rho: float):
    size = effective_sample_size(autoregressive(8, 4000, rho))
    assert size / (32000 * (1 - rho) / (1 + rho)) == pytest.approx(1, abs=0.15)


def test_ess_of_chains_that_alternate():
    """The estimated sum of autocorrelations may be negative: more draws than independent ones, never fewer than none."""
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(50)
    size = effective_sample_size(signs + 0.1 * autoregressive(4, 100, 0.0))
    assert size == pytest.approx(400 * torch.tensor(400.0).log10().item())


@pytest.mark.parametrize("shape", [(4,), (2, 3), (0, 8), (2, 0, 3)])
def test_chains_that_are_too_short(shape: tuple[int, ...]):
    for diagnose in (split_r_hat, effective_sample_size):
        with pytest.raises(DataError, match=r"chains must be \(C, S, \*\) with at least 4 draws"):
            diagnose(torch.zeros(shape))


def test_r_hat_of_separate_chains_follows_from_their_means():
    chains = autoregressive(4, 5000, 0.0)
    assert split_r_hat(chains) == pytest.approx(1, abs=2e-3)
    shifted = chains + torch.tensor([-3.0, -1.0, 1.0, 3.0]).unsqueeze(1)
    # halves of variance 1 and means of variance 40 / 7: R-hat is sqrt(1 + 40 / 7)
    assert split_r_hat(shifted) == pytest.approx((1 + 40 / 7) ** 0.5, rel=0.02)
    drifting = chains[:1] + torch.linspace(0, 6, 5000)  # one chain alone: its halves differ by 3
    assert split_r_hat(drifting) > 1.5


def test_every_quantity_is_diagnosed_on_its_own():
    chains = torch.stack([autoregressive(4, 500, 0.8), autoregressive(4, 500, 0.0), torch.ones(4, 500)], -1)
    for diagnose in (split_r_hat, effective_sample_size):
        together = diagnose(chains)
        torch.testing.assert_close(together[:2], torch.stack([diagnose(chains[..., i]) for i in range(2)]))
        assert together[2].isnan()


def test_against_pyro():
    stats = pytest.importorskip("pyro.ops.stats")
    for rho in (0.7, 0.0):
        chains = autoregressive(3, 600, rho) + torch.tensor([0.0, 0.1, 0.2]).unsqueeze(1)
        torch.testing.assert_close(split_r_hat(chains), stats.split_gelman_rubin(chains))
        halves = torch.cat([chains[:, :300], chains[:, 300:]])
        assert effective_sample_size(chains) / stats.effective_sample_size(halves) == pytest.approx(1, abs=0.02)
