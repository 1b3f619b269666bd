"""`BayesianTrainer`: the trainer of transformers for Bayesian networks."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from bayesify.core.model import Bayesian
from bayesify.errors import ConfigurationError, DataError, MissingDependencyError
from bayesify.integrations.completion import check_completable, complete_posterior, rehearse_completion
from bayesify.integrations.elbo_settings import ELBOSettings, check_trainable, examples_of
from bayesify.integrations.language import Columns
from bayesify.integrations.plain_networks import plain_model
from bayesify.integrations.pretrained import load_posterior, save_pretrained
from bayesify.integrations.scores import metrics_of, predictions_of, statistics_of
from bayesify.integrations.trained_network import Collection, TrainedNetwork
from bayesify.integrations.trainer_arguments import check_arguments, joined_rows
from bayesify.likelihoods import Categorical, Likelihood
from bayesify.objectives import KLSchedule
from bayesify.prediction import predict

try:
    import transformers
    from transformers.trainer_utils import EvalLoopOutput, EvalPrediction, TrainOutput
except ImportError as error:
    raise MissingDependencyError("BayesianTrainer", "transformers and accelerate", extra="transformers") from error

__all__ = ["BayesianTrainer"]


class BayesianTrainer(transformers.Trainer):
    r"""`transformers.Trainer` for Bayesian networks: the loss is the negative ELBO, evaluation is of the predictive distribution.

    Everything else is as in `transformers.Trainer`: arguments, callbacks, checkpoints, mixed precision, several processes (DDP).
    The loss is in nats per example, and an example is a row, such as a whole text. Targets are the column "labels", or the one of
    `TrainingArguments(label_names=[...])`. In causal language models the output at a token predicts the next token.

    `evaluate()` returns `eval_nll`, also as `eval_loss`, in nats per example (per token for sequences), and `eval_accuracy` and
    `eval_ece` for classification, `eval_rmse` for regression. `predict()` returns the log probabilities of the mixture, or for
    regression the pair of mean and standard deviation; `compute_metrics` gets the same. Checkpoints and saved models are folders
    of `save_pretrained`, which `from_pretrained` loads.

    A posterior that is made after training (HMC, SGLD) is made from the training data at the end of `train()`. Until then,
    evaluation is of the trained weights alone, and checkpoints have no posterior; `save_model()` saves it.

    Args:
        model: what `bayesify(net, method, output="logits")` returned.
        args: the training arguments. Weight decay applies to weights and their means, except in biases and normalizations.
        likelihood: of the targets; its parameters are trained and saved too. None for `Categorical()`.
        n: the number of examples in the whole training set, by which the KL is divided; None for the length of `train_dataset`. If
            a data collator joins several texts in one row, the number of rows in an epoch.
        samples: S, posterior draws per example and step.
        beta: weight of the KL, or its schedule, evaluated at every step.
        local_beta: weight of the per-example KL of methods that have one; None for that of the method.
        eval_samples: draws of the predictive distribution; equal seeds (`args.seed`) give equal evaluations.
        shift_labels: whether the output at a token predicts the next one; None decides by the class of the network.
        train_dataset, compute_metrics, preprocess_logits_for_metrics, kwargs: as in `transformers.Trainer`.

    Raises:
        TypeError, ConfigurationError: arguments that do not go together, before any work.

    Example:
        >>> import tempfile
        >>> net = transformers.BertForSequenceClassification(transformers.BertConfig(hidden_size=12, num_hidden_layers=1))
        >>> data = [{"input_ids": [1, 2, 3], "labels": 0}, {"input_ids": [4, 5, 6], "labels": 1}]
        >>> bnn = bayesify(net, MeanField(), output="logits")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     args = transformers.TrainingArguments(folder, max_steps=1, use_cpu=True, report_to="none", disable_tqdm=True)
        ...     trainer = BayesianTrainer(bnn, args, train_dataset=data, eval_dataset=data)
        ...     _ = trainer.train()
        ...     sorted(trainer.evaluate())[:5]
        {'train_runtime': ...}
        {'eval_...}
        ['epoch', 'eval_accuracy', 'eval_ece', 'eval_loss', 'eval_nll']
    """

    model: TrainedNetwork

    def __init__(
        self,
        model: Bayesian,
        args: transformers.TrainingArguments | None = None,
        *,
        likelihood: Likelihood | None = None,
        n: int | None = None,
        samples: int = 1,
        beta: float | KLSchedule = 1.0,
        local_beta: float | None = None,
        eval_samples: int = 16,
        shift_labels: bool | None = None,
        train_dataset: Any = None,
        compute_metrics: Callable[[EvalPrediction], dict[str, Any]] | None = None,
        preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        likelihood = Categorical() if likelihood is None else likelihood
        check_trainable(model, likelihood)
        self.settings = ELBOSettings(samples=samples, beta=beta, local_beta=local_beta, eval_samples=eval_samples)
        self.n, self._counts_examples = examples_of(train_dataset, n), n is None
        check_arguments(model, args, kwargs)
        labels = (args.label_names if args is not None else None) or ["labels"]
        ignored = likelihood.ignore_index if isinstance(likelihood, Categorical) else -100
        self.columns = Columns(model.net, labels[0], ignored, shift_labels)
        self._metrics, self._preprocess, self._kl = compute_metrics, preprocess_logits_for_metrics, None
        self._batches, self._keeps_predictions = 0, True  # of an evaluation
        network: Any = TrainedNetwork(model, likelihood)
        super().__init__(network, args, train_dataset=train_dataset, compute_metrics=self._all_metrics, **kwargs)
        self.add_callback(Collection(model))
        self.label_names = [self.columns.labels]
        inputs = inspect.signature(plain_model(model.net).forward).parameters
        self._signature_columns = [*inputs, *dict.fromkeys(["label", "label_ids", *self.label_names])]

    @property
    def bnn(self) -> Bayesian:
        """The Bayesian network."""
        return self.model.bnn

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood, with what it learned."""
        return self.model.likelihood

    # Training

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """As in `transformers.Trainer`; a posterior that is made after training (SGLD) is made then, from the training data.

        Raises:
            ConfigurationError: `beta` ends at 0, or the method cannot serve the likelihood.
        """
        if not self.bnn.completes:
            output = super().train(*args, **kwargs)
            self.bnn.tell_of_optimizer()
            return output
        beta, processes = self.settings.last_beta, self.args.world_size
        check_completable(self.bnn, self.likelihood, self.get_train_dataloader(), beta, processes)
        self.bnn.forget()
        output = super().train(*args, **kwargs)
        assert self.n is not None, "checked by compute_loss"
        complete_posterior(
            self.bnn,
            self.likelihood,
            self.get_train_dataloader(),
            lambda item: self.columns.batch(self._prepare_inputs(item)),
            n=self.n,
            beta=beta,
            processes=processes,
            seed=self.args.seed,
            progress=False if self.args.disable_tqdm else None,
        )
        return output

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Tensor | int | None]:
        """The batches of one optimizer step, and their number of examples.

        Raises:
            ConfigurationError: before the first step, a posterior that cannot be made after training with such batches.
        """
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        loader = self.callback_handler.train_dataloader
        if self.state.global_step == 0 and batches and self._counts_examples:
            rows = len(batches[0].get(self.columns.labels, ()))
            if finding := joined_rows(loader, rows, self.n or rows, self.args.world_size):
                self.bnn.tell(finding)
        if self.state.global_step == 0 and self.bnn.completes and batches:
            batch = self.columns.batch(self._prepare_inputs(batches[0]))
            rehearse_completion(self.bnn, self.likelihood, loader, batch, self.args.world_size)
        return batches, sum(len(batch.get(self.columns.labels, ())) for batch in batches) or None

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The negative ELBO per example, of the share of this batch in the examples of the optimizer step.

        Raises:
            ConfigurationError: neither `train_dataset` nor `n` was given.
            TypeError, DataError: in the first step, labels that do not fit the likelihood.
        """
        if self.n is None:
            raise ConfigurationError("there is no train_dataset, by whose length the KL is divided: give n=")
        batch = self.columns.batch(inputs)
        if self.state.global_step == 0:
            if isinstance(self.likelihood, Categorical) and batch.y.is_floating_point():
                raise DataError(
                    f"{self.columns.labels!r} are {batch.y.dtype}, but the likelihood is {self.likelihood!r}: give "
                    "likelihood=Gaussian(learn=True) for numbers, Bernoulli() for several labels per example"
                )
            self.likelihood.check_targets(batch.y)
        beta = self.settings.beta_at(self.state.global_step, max(1, self.state.max_steps))
        loss, nll, self._kl = model(batch, self.settings.samples, self.n, beta, self.settings.local_beta)
        if num_items_in_batch is not None:  # the trainer divides the loss by the number of accumulated batches
            loss = loss * (batch.size * self.current_gradient_accumulation_steps / int(num_items_in_batch))
        return (loss, {"nll": nll, "kl": self._kl}) if return_outputs else loss

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """As in `transformers.Trainer`; a method that has an optimizer (IVON) gets it, with `args.learning_rate` as its rate."""
        if self.optimizer is None and self.bnn.has_optimizer:
            self.optimizer = self.bnn.optimizer(self.likelihood, learning_rate=self.args.learning_rate)
        return super().create_optimizer(model)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Names of weights and their means, without biases, normalizations, other variational parameters and the likelihood."""
        decayed = {p for group in self.bnn.parameter_groups(1.0) if group["weight_decay"] for p in group["params"]}
        names = {name for name, p in model.named_parameters() if p in decayed}
        return [name for name in super().get_decay_parameter_names(model) if name in names]

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log also the KL, in nats."""
        if "loss" in logs and self._kl is not None:
            logs["kl"] = float(self._kl)
        super().log(logs, *args, **kwargs)

    # Evaluation

    def evaluation_loop(self, dataloader: Any, description: str, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """As in `transformers.Trainer`, with log probabilities or moments of the mixture as predictions."""
        self._batches, self._keeps_predictions = 0, description == "Prediction" or self._metrics is not None
        output = super().evaluation_loop(dataloader, description, *args, **kwargs)
        results: Any = output.predictions
        return output._replace(predictions=None if results is None else results.get("predictions"))

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Any, Any, Any]:
        """Predict one batch: its loss if nothing else is wanted, otherwise predictions and statistics, and its labels."""
        inputs = self._prepare_inputs(inputs)
        labels = inputs.get(self.columns.labels)
        seed = self.args.seed + self._batches * max(1, self.args.world_size) + self.args.process_index
        self._batches += 1
        chunk = 1 if self.columns.is_language_model else None  # the memory of one draw
        with self.accelerator.autocast(), self.bnn.while_training() if self.is_in_train else nullcontext():
            predictive = predict(
                self.bnn,
                self.columns.inputs(inputs),
                self.likelihood,
                self.settings.eval_samples,
                chunk=chunk,
                seed=seed,
                progress=False,
            )
        results: dict[str, Any] = {}
        if labels is not None:
            results["statistics"] = statistics_of(predictive, self.columns.batch(inputs).y)
            if prediction_loss_only:
                return torch.tensor(metrics_of(results["statistics"])["nll"], device=labels.device), None, None
        if self._keeps_predictions:
            values = predictions_of(predictive)
            results["predictions"] = values if self._preprocess is None else self._preprocess(values, labels)
        return None, None if prediction_loss_only else results or None, labels

    def _all_metrics(self, evaluation: EvalPrediction) -> dict[str, Any]:
        results: Any = evaluation.predictions
        metrics: dict[str, Any] = metrics_of(results["statistics"])
        metrics["loss"] = metrics["nll"]
        if self._metrics is not None:
            own = EvalPrediction(results["predictions"], evaluation.label_ids, evaluation.inputs, evaluation.losses)
            metrics.update(self._metrics(own))
        return metrics

    # Files

    def _save(self, output_dir: str | None = None, state_dict: Mapping[str, Any] | None = None) -> None:
        if not self.args.should_save:
            return
        directory = output_dir or self.args.output_dir or os.curdir
        save_pretrained(self.bnn, directory, self.likelihood)
        tokenizer = self.processing_class or getattr(self.data_collator, "tokenizer", None)
        if tokenizer is not None:
            tokenizer.save_pretrained(directory)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        load_posterior(self.bnn, resume_from_checkpoint, self.likelihood)

    def _load_best_model(self) -> None:
        assert self.state.best_model_checkpoint is not None
        load_posterior(self.bnn, self.state.best_model_checkpoint, self.likelihood)
