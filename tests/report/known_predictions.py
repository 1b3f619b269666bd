"""Predictions with targets of known distribution."""

import torch

from bayesify.predictive import CategoricalPredictive, GaussianPredictive


def gaussian(rows, spread=1.0, outputs=None, seed=0):
    """Predictions whose targets have standard deviation `spread` where the model says 1, and means that matter."""
    generator = torch.Generator().manual_seed(seed)
    shape = (rows,) if outputs is None else (rows, outputs)
    mean = 3 * torch.randn(shape, generator=generator)
    p = GaussianPredictive(mean.expand(4, *shape).contiguous(), torch.tensor(1.0))
    return p, mean + spread * torch.randn(shape, generator=generator)


def categorical(rows, k=3, sharpen=1.0, seed=0):
    """Predictions whose logits are `sharpen` times those the labels are drawn with."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(1, rows, k, generator=generator)
    y = torch.multinomial(logits[0].softmax(-1), 1, generator=generator)[:, 0]
    return CategoricalPredictive.from_logits(sharpen * logits), y
