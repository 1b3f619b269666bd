"""Every test starts from the same random state; doctests find torch in their namespace."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
