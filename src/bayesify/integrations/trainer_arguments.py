"""Arguments and data that `BayesianTrainer` does not support."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import transformers

from bayesify.core.model import Bayesian
from bayesify.errors import ConfigurationError
from bayesify.formatting import plural
from bayesify.methods import Laplace

__all__ = ["check_arguments", "joined_rows"]

_UNSUPPORTED = {"compute_loss_func": "the loss is the negative ELBO", "model_init": "give the network as model"}


def check_arguments(bnn: Bayesian, args: transformers.TrainingArguments | None, others: Mapping[str, Any]) -> None:
    """Raise a `ConfigurationError` for what the trainer cannot do, and warn of what it does not do."""
    for name, reason in _UNSUPPORTED.items():
        if others.get(name) is not None:
            raise ConfigurationError(f"BayesianTrainer has no {name}: {reason}")
    if isinstance(bnn.net, transformers.PreTrainedModel) and bnn.passes.select is None:
        raise ConfigurationError('the network returns more than logits: convert it with bayesify(net, method, output="logits")')
    if any(isinstance(report.method, Laplace) for report in bnn.report):
        raise ConfigurationError("Laplace() takes networks with one input tensor, not the columns of transformers; use SGLD()")
    if getattr(getattr(bnn.net, "config", None), "output_router_logits", False):
        bnn.tell(
            "config.output_router_logits asks for a loss that balances the experts, which is no part of the evidence lower bound: "
            "BayesianTrainer trains without it"
        )
    if args is None:
        return
    reasons = {
        "label_smoothing_factor is not supported: it is not a likelihood": args.label_smoothing_factor,
        "batch_eval_metrics is not supported: metrics of evaluation need all batches": args.batch_eval_metrics,
        "eval_do_concat_batches=False is not supported: metrics of evaluation need all batches": not args.eval_do_concat_batches,
        "label_names must name one column, that of the targets; let the data collator put several into one, such as "
        "torch.stack([start_positions, end_positions], 1) for outputs (B, 2, T)": len(args.label_names or []) > 1,
        "FSDP and DeepSpeed are not supported: start one process per device with torchrun": args.fsdp or args.deepspeed,
        "DataParallel is not supported: start one process per GPU with torchrun": args.n_gpu > 1,
    }
    if reason := next((reason for reason, is_wrong in reasons.items() if is_wrong), None):
        raise ConfigurationError(reason)


def joined_rows(loader: Any, rows: int, n: int, processes: int) -> str:
    """A sentence if the rows of a batch are not the examples that `n` counts; otherwise an empty string.

    Args:
        loader: of the training data.
        rows: of its first batch.
        n: the length of the training data.
        processes: that share the data.
    """
    size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    if size is None or rows in (0, size, size // processes, min(size, n)):
        return ""
    return (
        f"a batch of {plural(size, 'example')} has {plural(rows, 'row')}: the data collator joins or splits examples, as "
        f"DataCollatorWithFlattening does, but the KL is divided by {n} examples; give n=, the number of rows in an epoch"
    )
