"""What `transformers.Trainer` trains: a Bayesian network and its likelihood, as one module that answers as a model."""

from __future__ import annotations

from typing import Any

import transformers

from bayesify.core.model import Bayesian
from bayesify.train.objective import Objective

__all__ = ["Collection", "TrainedNetwork"]


class TrainedNetwork(Objective):
    """Network and likelihood; what callbacks and the trainer ask of a model, its network answers."""

    accepts_loss_kwargs = False
    answered = (
        *("config", "main_input_name", "get_input_embeddings", "num_parameters"),
        *("activation_checkpointing_enable", "gradient_checkpointing_enable", "gradient_checkpointing_disable"),
    )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bnn.net, name) if name in self.answered else super().__getattr__(name)


class Collection(transformers.TrainerCallback):
    """Takes the snapshots of a posterior collected along training."""

    def __init__(self, bnn: Bayesian) -> None:
        self.bnn = bnn

    def on_step_end(self, args: Any, state: transformers.TrainerState, control: Any, **kwargs: Any) -> None:
        total = max(1, state.max_steps)
        self.bnn.collect_due((state.global_step - 1) / total, state.global_step / total)
