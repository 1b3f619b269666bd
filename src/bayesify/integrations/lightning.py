"""`BayesianModule`: a Bayesian network and its likelihood for `lightning.Trainer`."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from bayesify.core.model import Bayesian
from bayesify.errors import ConfigurationError, MissingDependencyError
from bayesify.integrations.completion import check_completable, complete_posterior, rehearse_completion
from bayesify.integrations.elbo_settings import ELBOSettings, check_trainable, examples_of
from bayesify.integrations.scores import metrics_of, statistics_of
from bayesify.likelihoods import Likelihood
from bayesify.objectives import KLSchedule
from bayesify.prediction import predict
from bayesify.predictive import Predictive
from bayesify.train.batch import Batch, as_batch
from bayesify.train.dataset_size import loader_examples
from bayesify.train.objective import Objective

try:
    import lightning
    from lightning.pytorch.trainer.states import TrainerFn
    from lightning.pytorch.utilities.types import OptimizerLRScheduler
except ImportError as error:
    raise MissingDependencyError("BayesianModule", "lightning", extra="train") from error

__all__ = ["BayesianModule"]


class BayesianModule(lightning.LightningModule):
    """A module whose training loss is the negative ELBO, and whose validation is of the predictive distribution.

    Batches are `(inputs, y)`; inputs are one tensor, a tuple (positional) or a dict (keyword arguments of the network). Override
    any method as in every LightningModule. It logs `train_loss` in nats per example, `train_kl` in nats, and in validation and
    test `val_nll` and `test_nll`, with `accuracy` or `rmse` of the same prefix.

    A posterior that is made after training (Laplace, HMC, SGLD) is made from the training loader at the end of `Trainer.fit`. Until
    then, validation is of the trained weights alone, and checkpoints have no posterior; save one with `Trainer.save_checkpoint`.

    Args:
        bnn: what `bayesify` returned.
        likelihood: of the targets; its parameters are trained and saved too.
        n: the number of examples in the whole training set, by which the KL is divided; None for those that the training loader
            can visit.
        samples: S, posterior draws per example and step.
        beta: weight of the KL, or its schedule, evaluated at every step.
        local_beta: weight of the per-example KL of methods that have one; None for that of the method.
        eval_samples: draws of the predictive distribution, with the same noise in every evaluation.
        learning_rate: of Adam, and of natural-gradient steps (IVON); ignored with `optimizer`.
        optimizer: a function from the list of parameters to what `configure_optimizers` returns.

    Raises:
        TypeError, ConfigurationError: invalid arguments.

    Example:
        >>> x = torch.randn(64, 3)
        >>> loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1)), batch_size=16)
        >>> module = BayesianModule(bayesify(nn.Linear(3, 1), MeanField()), Gaussian(std=0.1))
        >>> trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        ...                             enable_progress_bar=False, enable_model_summary=False)
        >>> trainer.fit(module, loader)
        >>> module.n
        64
    """

    def __init__(
        self,
        bnn: Bayesian,
        likelihood: Likelihood,
        *,
        n: int | None = None,
        samples: int = 1,
        beta: float | KLSchedule = 1.0,
        local_beta: float | None = None,
        eval_samples: int = 16,
        learning_rate: float = 1e-3,
        optimizer: Callable[[list[torch.nn.Parameter]], OptimizerLRScheduler] | None = None,
    ) -> None:
        super().__init__()
        check_trainable(bnn, likelihood)
        if optimizer is not None and bnn.has_optimizer:
            raise ConfigurationError("the method of bnn has an optimizer of its own, of rate `learning_rate`; leave optimizer out")
        self.n = examples_of(None, n)
        self.settings = ELBOSettings(samples=samples, beta=beta, local_beta=local_beta, eval_samples=eval_samples)
        self.objective = Objective(bnn, likelihood)
        self.learning_rate, self.optimizer = learning_rate, optimizer
        self._statistics: list[dict[str, Tensor]] = []
        self._steps = 0  # up to which snapshots were taken

    @property
    def bnn(self) -> Bayesian:
        """The Bayesian network."""
        return self.objective.bnn

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood, with what it learned."""
        return self.objective.likelihood

    def forward(self, inputs: Any, seed: int | None = None) -> Predictive:
        """The predictive distribution of inputs."""
        return predict(self.bnn, inputs, self.likelihood, self.settings.eval_samples, seed=seed, progress=False)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Adam, the optimizer of a method that has one (IVON), or what `optimizer` returns."""
        if self.bnn.has_optimizer:
            return self.bnn.optimizer(self.likelihood, learning_rate=self.learning_rate)
        parameters = [p for p in self.parameters() if p.requires_grad]
        return torch.optim.Adam(parameters, lr=self.learning_rate) if self.optimizer is None else self.optimizer(parameters)

    def on_fit_start(self) -> None:
        """Determine the number of training examples, if it was not given, and check that a posterior can be made after training.

        Raises:
            ConfigurationError: it is unknown, or the posterior cannot be made.
            MissingDependencyError: making it needs a package that is not installed.
        """
        if self.n is None or self.bnn.completes:
            self.trainer.fit_loop.setup_data()
        loader = self.trainer.train_dataloader
        check_completable(self.bnn, self.likelihood, loader, self.settings.last_beta, self.trainer.world_size)
        if self.n is None:
            self.n = loader_examples(loader) if isinstance(loader, torch.utils.data.DataLoader) else None
        if self.n is None:
            raise ConfigurationError(
                "the number of training examples, by which the KL is divided, is unknown: give BayesianModule(n=...)"
            )

    def on_train_start(self) -> None:
        """Check that the number of steps is known, if the posterior is collected along training; forget one made after training.

        Raises:
            ConfigurationError: it is not.
        """
        self._steps = self.trainer.global_step
        self.bnn.forget()
        if self.bnn.collects and not 0 < self.trainer.estimated_stepping_batches < math.inf:
            raise ConfigurationError(
                "the posterior is collected by the fraction of training that is done, which is unknown: give Trainer(max_steps=...)"
            )

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Check, before the first step, that a posterior can be made after training of a network with such batches.

        Raises:
            ConfigurationError: it cannot be made.
        """
        if self.trainer.global_step == 0 and batch_idx == 0:
            loader = self.trainer.train_dataloader
            rehearse_completion(self.bnn, self.likelihood, loader, as_batch("a batch", batch), self.trainer.world_size)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Take the snapshots that are due of a posterior collected along training."""
        before, self._steps = self._steps, self.trainer.global_step  # equal where gradients are accumulated
        if self.bnn.collects and self._steps > before:
            total = self.trainer.estimated_stepping_batches
            self.bnn.collect_due(before / total, self._steps / total)

    def on_train_end(self) -> None:
        """Make the posterior, if it is made after training."""
        self.bnn.tell_of_optimizer()
        assert self.n is not None, "set by on_fit_start"
        complete_posterior(
            self.bnn,
            self.likelihood,
            self.trainer.train_dataloader,
            lambda item: as_batch("a batch", self.trainer.strategy.batch_to_device(item)),
            n=self.n,
            beta=self.settings.last_beta,
            processes=self.trainer.world_size,
            seed=0,
            progress=None if self.trainer.progress_bar_callback else False,
        )

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The negative ELBO per example."""
        assert self.n is not None, "set by on_fit_start"
        rows = as_batch("a batch", batch)
        steps = self.trainer.estimated_stepping_batches if isinstance(self.settings.beta, KLSchedule) else 1
        beta = self.settings.beta_at(self.trainer.global_step, steps)
        loss, _, kl = self.objective(rows, self.settings.samples, self.n, beta, self.settings.local_beta)
        self.log("train_loss", loss.detach(), batch_size=rows.size, prog_bar=True)
        self.log("train_kl", kl, batch_size=rows.size)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Store the statistics of a batch of validation data."""
        self._evaluate(as_batch("a batch", batch), batch_idx)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Store the statistics of a batch of test data."""
        self._evaluate(as_batch("a batch", batch), batch_idx)

    def on_validation_epoch_end(self) -> None:
        """Log the metrics of all validation data."""
        self._log_metrics("val")

    def on_test_epoch_end(self) -> None:
        """Log the metrics of all test data."""
        self._log_metrics("test")

    def _evaluate(self, batch: Batch, index: int) -> None:
        seed = index * self.trainer.world_size + self.global_rank
        with self.bnn.while_training() if self.trainer.state.fn == TrainerFn.FITTING else nullcontext():
            predictive = self(batch.inputs, seed=seed)
        self._statistics.append(statistics_of(predictive, batch.y))

    def _log_metrics(self, prefix: str) -> None:
        parts, self._statistics = self._statistics, []
        merged = {name: torch.cat([part[name].flatten() for part in parts]) for name in (parts[0] if parts else ())}
        rows = len(merged["log_prob"]) if merged else 1
        for name, value in metrics_of(merged).items() if merged else ():
            self.log(f"{prefix}_{name}", value, batch_size=rows, sync_dist=True, prog_bar=name == "nll")
