"""Divisions of rows that keep the rows of a group together."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesify.errors import DataError
from bayesify.train.process_state import seed_for

__all__ = ["fold_groups", "hold_out_groups", "order_groups"]


def fold_groups(groups: Tensor, folds: int, seed: int) -> list[Tensor]:
    """Return the rows of every fold, sorted: whole groups at random, so that folds have almost equal numbers of rows.

    Args:
        groups: (N,) integer codes of the groups.
        folds: their number; fewer groups have one fold each.
        seed: of the order in which groups of equal size are assigned.

    Raises:
        DataError: there is a single group.

    Example:
        >>> [rows.tolist() for rows in fold_groups(torch.tensor([5, 5, 5, 2, 2, 7]), 2, seed=0)]
        [[0, 1, 2], [3, 4, 5]]
    """
    codes, sizes, order = _groups(groups, seed)
    rows = [0] * min(folds, len(sizes))
    fold_of = torch.empty_like(sizes)
    for group in order[sizes[order].argsort(descending=True, stable=True)].tolist():
        fold = rows.index(min(rows))
        fold_of[group] = fold
        rows[fold] += int(sizes[group])
    return [(fold_of[codes] == fold).nonzero().squeeze(1) for fold in range(len(rows))]


def hold_out_groups(groups: Tensor, rows: int, seed: int) -> Tensor:
    """Return which rows are held out, (N,) booleans: random groups with about this number of rows, at least one and not all.

    Raises:
        DataError: there is a single group.

    Example:
        >>> int(hold_out_groups(torch.arange(10) // 2, 3, seed=0).sum()) in (2, 4)
        True
    """
    codes, sizes, order = _groups(groups, seed)
    count = int((sizes[order].cumsum(0)[:-1] - rows).abs().argmin()) + 1
    return torch.isin(codes, order[:count])


def order_groups(groups: Tensor, seed: int) -> Tensor:
    """Return, for every row, the place of its group in a random order of the groups, from 0, (N,).

    Groups of the first places are a random sample, whatever their numbers of rows, unlike those of the other functions.

    Raises:
        DataError: there is a single group.

    Example:
        >>> sorted(set(order_groups(torch.tensor([5, 5, 5, 2, 2, 7]), seed=0).tolist()))
        [0, 1, 2]
    """
    codes, _, order = _groups(groups, seed)
    return order.argsort()[codes]


def _groups(groups: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the number of the group of every row from 0, the sizes of the groups, and a random order of them."""
    _, codes, sizes = groups.cpu().unique(return_inverse=True, return_counts=True)
    if len(sizes) < 2:
        raise DataError(
            f"groups has a single group in the {len(groups)} rows to divide, and rows of a group stay together, so none can be "
            "held out; give rows of two groups or more, or leave groups out"
        )
    generator = torch.Generator().manual_seed(seed_for(seed, "groups"))
    return codes, sizes, torch.randperm(len(sizes), generator=generator, device="cpu")
