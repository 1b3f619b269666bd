"""Scores of the tokens of given texts under a mixture of language models, with memory for one batch and one draw.

Shapes: S draws, N texts, B texts in a batch, T tokens, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from bayesify.core.call_arguments import arguments_of
from bayesify.core.checks import check_integer
from bayesify.core.generators import own_noise
from bayesify.core.model import Bayesian
from bayesify.core.modes import eval_mode
from bayesify.core.turns import turn
from bayesify.errors import DataError
from bayesify.likelihoods import Categorical
from bayesify.prediction.inputs import batches_of, warn_of_lost_rows
from bayesify.predictive.discrete import CategoricalPredictive
from bayesify.progress import ProgressBar

__all__ = ["TokenScores", "score_tokens"]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TokenScores:
    r"""Scores of N texts of T tokens under S draws, in nats; all are zero where `valid` is False.

    Attributes:
        log_prob: log of the mean probability of each token given those before it, (N, T).
        entropy: predictive entropy of the mixture at each position, (N, T).
        expected_entropy: mean over draws of the entropy, (N, T).
        text_log_prob: $\log \frac1S \sum_s \prod_t p(y_t \mid y_{<t}, w_s)$ of each text, (N,): a draw writes the whole text.
        valid: whether a token counts, (N, T).
        samples: S.
    """

    log_prob: Tensor
    entropy: Tensor
    expected_entropy: Tensor
    text_log_prob: Tensor
    valid: Tensor
    samples: int

    @property
    def mutual_information(self) -> Tensor:
        """Mutual information of token and weights: the epistemic part of `entropy`, (N, T)."""
        return (self.entropy - self.expected_entropy).clamp_min(0)

    @property
    def nll(self) -> Tensor:
        """Mean of -`log_prob` over all valid tokens, a scalar."""
        return -self.log_prob.sum() / self.valid.sum()

    @property
    def perplexity(self) -> Tensor:
        """The exponential of `nll`, a scalar."""
        return self.nll.exp()

    def __repr__(self) -> str:
        shape = tuple(self.log_prob.shape)
        return f"TokenScores(texts={shape[0]}, tokens={int(self.valid.sum())}, samples={self.samples}, nll={float(self.nll):.4g})"


def score_tokens(
    bnn: Bayesian,
    inputs: Any,
    targets: Tensor,
    samples: int = 10,
    *,
    shift: int = 1,
    ignore_index: int = -100,
    batch_size: int = 8,
    seed: int = 0,
    progress: bool | None = None,
) -> TokenScores:
    r"""Log probability and uncertainty of every token of given texts, such as held-out texts or those of `generate`.

    Draws are coherent: a draw is one language model for all texts. The mixture is accumulated draw by draw and reduced to numbers
    per token at once, so that the memory is that of B texts and one draw: B T V numbers, independent of S and N.

    Args:
        bnn: a Bayesian language model whose outputs are logits (B, T, V): `bayesify(lm, method, output="logits")`.
        inputs: a tensor, tuple or mapping of tensors, as for `predict`: `{"input_ids": ids, "attention_mask": mask}`.
        targets: the tokens to be predicted (N, T); for a causal language model, `ids`.
        samples: S, the number of draws; for an ensemble, rounded up to a multiple of its members.
        shift: how many positions the outputs are ahead: 1 if the output at a position predicts the next token (causal language
            models), 0 if it predicts the target at the same position (encoder-decoder and masked models).
        ignore_index: targets that do not count, such as padding: `targets.masked_fill(mask == 0, -100)`.
        batch_size: B, texts per batch.
        seed: of the draws.
        progress: as for `predict`.

    Returns:
        Scores of the targets from position `shift` on.

    Raises:
        TypeError, ConfigurationError, DataError: as for `predict`; targets that are no labels, or none that counts.

    Example:
        >>> from bayesify import MeanField, bayesify
        >>> lm = torch.nn.Sequential(torch.nn.Embedding(7, 4), torch.nn.Linear(4, 7))
        >>> ids = torch.tensor([[1, 5, 2], [3, 3, 6]])
        >>> scores = score_tokens(bayesify(lm, MeanField()), ids, ids, samples=4)
        >>> scores.log_prob.shape, scores.text_log_prob.shape
        (torch.Size([2, 2]), torch.Size([2]))
    """
    if not isinstance(bnn, Bayesian):
        raise TypeError(f"bnn must be what bayesify returned, got {type(bnn).__name__}")
    for name, value, least in (("samples", samples, 1), ("shift", shift, 0), ("batch_size", batch_size, 1), ("seed", seed, 0)):
        check_integer(name, value, least)
    members = max(1, len(bnn.members))
    samples = -(-samples // members) * members
    bnn.check_collected()
    bnn.check_completed()
    tensors = [*bnn.parameters(), *bnn.buffers()]
    device = tensors[0].device
    with turn():  # loaders draw from the random generator
        batches, count = batches_of(inputs, batch_size, 0, device)
        warn_of_lost_rows(inputs)
    labels = _labels(targets, shift, ignore_index)
    scores = list[tuple[Tensor, ...]]()
    with (
        turn(), torch.no_grad(), eval_mode(bnn), own_noise(tensors) as reseed, ProgressBar("score", progress, count) as bar
    ):  # fmt: skip
        for index, batch in enumerate(batches):
            args, kwargs = arguments_of(tree_map(lambda leaf: leaf.to(device), batch))
            rows = labels[index * batch_size : (index + 1) * batch_size].to(device)
            with bnn.predicting(args, kwargs, True, reseed, samples=samples):
                reseed(seed)
                outputs = _outputs(bnn, args, kwargs, samples, members, shift)
                scores.append(tuple(x.to(targets.device) for x in _reduced(outputs, rows, ignore_index)))
            bar.advance(1)
    columns = [torch.cat(column) for column in zip(*scores, strict=True)]
    names = ("log_prob", "entropy", "expected_entropy", "text_log_prob", "valid")
    return TokenScores(**dict(zip(names, columns, strict=True)), samples=samples)


def _labels(targets: object, shift: int, ignore_index: int) -> Tensor:
    if not isinstance(targets, Tensor) or targets.dim() != 2 or targets.is_floating_point():
        got = f"{tuple(targets.shape)}, {targets.dtype}" if isinstance(targets, Tensor) else type(targets).__name__
        raise DataError(f"targets must be integer tokens (N, T), got {got}")
    labels = targets[:, shift:]
    if not (labels != ignore_index).any():
        raise DataError(
            f"targets {tuple(targets.shape)} have no token that counts after shift={shift} and ignore_index={ignore_index}"
        )
    return labels.long()


def _outputs(
    bnn: Bayesian, args: tuple[Any, ...], kwargs: dict[str, Any], samples: int, members: int, shift: int
) -> Iterator[Tensor]:
    """Logits (M, B, T, V) that predict the targets, of M draws at a time."""
    for _ in range(samples // members):
        outputs = bnn(*args, samples=members, coherent=True, **kwargs).outputs
        Categorical().check_outputs(outputs)
        yield outputs[:, :, : outputs.shape[2] - shift]


def _reduced(outputs: Iterator[Tensor], labels: Tensor, ignore_index: int) -> tuple[Tensor, ...]:
    """The fields of `TokenScores` for one batch with labels (B, T)."""
    mixture: CategoricalPredictive | None = None
    texts = list[Tensor]()
    valid = labels != ignore_index
    for logits in outputs:
        likelihood = Categorical(ignore_index)
        likelihood.check_targets(labels, logits)
        texts.append(likelihood.log_prob(logits, labels))
        part = CategoricalPredictive.from_logits(logits)
        mixture = part if mixture is None else mixture.mix(part)
    assert mixture is not None, "there is at least one draw"
    chosen = mixture.log_probs.gather(-1, torch.where(valid, labels, 0).unsqueeze(-1)).squeeze(-1)
    text_log_prob = torch.cat(texts).logsumexp(0) - torch.tensor(float(mixture.draws)).log()
    per_token = (torch.where(valid, x, 0) for x in (chosen, mixture.entropy, mixture.expected_entropy))
    return (*per_token, text_log_prob, valid)
