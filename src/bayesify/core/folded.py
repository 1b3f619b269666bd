"""The default root: draws are folded into the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from bayesify.core.checks import check_integer
from bayesify.core.generators import own_noise
from bayesify.core.model import Bayesian, Draws
from bayesify.core.posterior import Posterior
from bayesify.core.prefix import Prefix
from bayesify.core.sites import Site
from bayesify.core.tracking import Rows, RowsError, mark

__all__ = ["Folded"]


class Folded(Bayesian):
    """The default root: S draws are folded into the batch, so one pass over S*B rows serves them all.

    With `fold=False`, or where the batch is not the first dimension, one pass per draw is made instead: the layers in between
    could not tell which rows belong to which draw. So it is where a random layer is given something that has no rows (positions):
    the first pass with several draws finds that out.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        # Whether a prefix agrees with ordinary passes, by the kind of the inputs.
        self._agreements: dict[object, bool] = {}
        # Whether a folded pass has shown that its random layers are given rows of all draws.
        self._rows_arrive = False

    def forward(self, *inputs: Any, samples: int = 1, coherent: bool = False, **kwargs: Any) -> Draws:
        check_integer("samples", samples)
        named = self._named(inputs)
        batch = self._batch_size({**named, **kwargs})
        self.drawing.coherent = coherent
        self.drawing.kls = {} if self.pays_kl else None
        folded = None if samples == 1 or not self.fold else self._folded(samples, batch, named, kwargs)
        if folded is None:
            runs, scores = zip(*[self._run(1, batch, named, kwargs) for _ in range(samples)], strict=True)
            outputs = tree_map(lambda *ys: self._stack(ys, batch), *runs)
            score = None if scores[0] is None else torch.cat(scores)
        else:
            outputs, score = folded
        kl = self.kl_of_pass()
        if self.drawing.kls:  # those of a pass end with it; that a backward which repeats layers finds the question is as before
            self.drawing.kls = {}
        return Draws(outputs, kl, torch.zeros(batch, dtype=kl.dtype, device=kl.device), score)

    def _folded(self, samples: int, batch: int, named: dict[str, Any], kwargs: dict[str, Any]) -> tuple[Any, Tensor | None] | None:
        """The outputs (S, B, ...) of one pass and its score; None if it turns out that one cannot serve all draws."""
        # Asked first: a compiled pass is compiled anew when an attribute that it has read changes.
        compiling = torch.compiler.is_compiling()
        watched = compiling or self._rows_arrive or self.drawing.watch is not None
        if not watched:
            self.drawing.watch = Rows(samples * batch)
        try:
            outputs, score = self._run(samples, batch, named, kwargs)
            if not compiling:
                self._rows_arrive = True
        except RowsError:
            self.fold = False
            return None
        finally:
            if not watched:
                self.drawing.watch = None
        return tree_map(lambda y: _unfold(y, samples, batch), outputs), score

    def _run(self, samples: int, batch: int, named: dict[str, Any], kwargs: dict[str, Any]) -> tuple[Any, Tensor | None]:
        """What the net returns for all draws of a pass, and the score of the choices made."""
        watch = self.drawing.watch
        prefix = watch if isinstance(watch, Prefix) else None

        def lay_out(x: Any) -> Any:
            if prefix is not None:
                return prefix.certain(x)
            x = _fold(x, samples, batch)
            return x if watch is None or not isinstance(x, Tensor) else mark(x.view_as(x), True)

        if prefix is not None:
            prefix.begin(samples)
        args = tuple(x if name in self.shared else tree_map(lay_out, x) for name, x in named.items())
        keywords = {name: x if name in self.shared else tree_map(lay_out, x) for name, x in kwargs.items()}
        self.drawing.samples = samples
        self.drawing.drawn = {}
        try:
            with watch if isinstance(watch, TorchFunctionMode) else nullcontext():
                outputs = self.net(*args, **keywords)
            if prefix is None:
                return outputs, self.drawing.score
            if prefix.idle and self.drawing.watch is prefix:  # all is random from the beginning: later passes do without
                self.drawing.watch = None
            return prefix.end(outputs), self.drawing.score
        finally:
            self.drawing.drawn = self.drawing.score = None

    @contextmanager
    def predicting(
        self, inputs: tuple[Any, ...], kwargs: dict[str, Any], coherent: bool, reseed: Callable[[int], object]
    ) -> Iterator[None]:
        with super().predicting(inputs, kwargs, coherent, reseed):
            if self._has_prefix() and self._prefix_agrees(inputs, kwargs, coherent, reseed):
                self.drawing.watch = Prefix(self._batch_size({**self._named(inputs), **kwargs}), self.fold)
            try:
                yield
            finally:
                self.drawing.watch = None

    def _has_prefix(self) -> bool:
        """Whether anything that takes time can come before random outputs."""
        return not self.training and any(_before_noise(part) for part in self.net.modules() if not isinstance(part, Posterior))

    @torch.no_grad()
    def _prefix_agrees(
        self, inputs: tuple[Any, ...], kwargs: dict[str, Any], coherent: bool, reseed: Callable[[int], object]
    ) -> bool:
        """Whether passes with a prefix give what ordinary ones do, for a few of the rows and equal noise."""
        named = {**self._named(inputs), **kwargs}
        batch = self._batch_size(named)
        key = (coherent, self.fold, str(tree_map(lambda x: (x.dim(), x.dtype) if isinstance(x, Tensor) else type(x), named)))
        if key not in self._agreements:
            few = min(batch, 3)
            cut = tree_map(lambda x: self._rows(x, batch, few), named)
            passes: list[list[Tensor]] = []
            try:
                for prefix in (None, Prefix(few, self.fold)):
                    reseed(0)
                    self.drawing.watch = prefix
                    args, rest = tuple(cut[name] for name in self._named(inputs)), {name: cut[name] for name in kwargs}
                    results = [self(*args, samples=2, coherent=coherent, **rest).outputs for _ in range(2)]
                    passes.append([y for y in tree_leaves(results) if isinstance(y, Tensor)])
                self._agreements[key] = all(_close(a, b) for a, b in zip(*passes, strict=True))
            except Exception:  # whatever a prefix cannot follow; if the net itself is wrong, the ordinary pass will say so
                self._agreements[key] = False
            finally:
                self.drawing.watch = None
        return self._agreements[key]

    def _rows(self, x: Any, batch: int, few: int) -> Any:
        has_rows = isinstance(x, Tensor) and x.dim() > self.batch_dim and x.shape[self.batch_dim] == batch
        return x.narrow(self.batch_dim, 0, few) if has_rows else x

    def function(self, seed: int) -> Callable[..., Any]:
        check_integer("seed", seed, least=0)
        drawing, drawn = self.drawing, {}
        with torch.no_grad(), own_noise(self.parameters()) as reseed:
            reseed(seed)
            drawing.samples, drawing.drawn = 1, drawn
            try:
                for _, site in self.sites():
                    site.draw()
            finally:
                drawing.drawn = None

        def function(*inputs: Any, **kwargs: Any) -> Any:
            drawing.samples, drawing.coherent, drawing.drawn = 1, True, dict(drawn)
            try:
                return self.net(*inputs, **kwargs)
            finally:
                drawing.coherent, drawing.drawn = False, None

        return function

    def _stack(self, runs: tuple[Any, ...], batch: int) -> Any:
        for y in runs:
            _check_output(y, batch, self.batch_dim, 1)
        return torch.stack([y.movedim(self.batch_dim, 0) for y in runs]) if isinstance(runs[0], Tensor) else runs[0]


def _before_noise(part: nn.Module) -> bool:
    """Whether a module, if it comes first, computes something that all draws share."""
    if not isinstance(part, Site):
        return bool(part._parameters)
    return part.posterior.log_ensemble_size(part) == 0 or type(part.posterior).moments is not Posterior.moments


def _fold(x: Any, samples: int, batch: int) -> Any:
    """(B, ...) to (S*B, ...), all rows of draw 0 first."""
    if samples == 1 or not isinstance(x, Tensor) or x.dim() == 0 or x.shape[0] != batch:
        return x
    return x.expand(samples, *x.shape).flatten(0, 1)


def _unfold(y: Any, samples: int, batch: int) -> Any:
    """(S*B, ...) to (S, B, ...)."""
    _check_output(y, batch, 0, samples)
    return y.unflatten(0, (samples, batch)) if isinstance(y, Tensor) else y


def _check_output(y: Any, batch: int, batch_dim: int, samples: int) -> None:
    """Every tensor the net returns has a batch; an object that may hide tensors cannot be split into draws."""
    if not isinstance(y, Tensor):
        if y is not None and not isinstance(y, bool | int | float | str):
            raise TypeError(
                f"the net returned a {type(y).__name__}, whose tensors cannot be told apart by draw; return tensors, or tuples, "
                "lists or dicts of them, or register the type with torch.utils._pytree.register_pytree_node"
            )
    elif y.dim() <= batch_dim or y.shape[batch_dim] != samples * batch:
        raise ValueError(
            f"the net returned a tensor of shape {tuple(y.shape)} for {batch} examples and {samples} draws in one pass; its "
            f"dimension {batch_dim} must be the batch ({samples * batch} rows). If the batch is another dimension, "
            "say so: bayesify(net, method, batch_dim=1); if it is moved in between: bayesify(net, method, fold=False)"
        )


def _close(a: Tensor, b: Tensor) -> bool:
    """Equal but for rounding."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point():
        return bool((a == b).all())
    tolerance = min(0.05, 1000 * torch.finfo(a.dtype).eps)
    return torch.allclose(a, b, rtol=0, atol=tolerance * float(a.nan_to_num(0, 0, 0).abs().max()), equal_nan=True)
