"""Training in shards (FSDP2): every process holds a part of each parameter, gradient and moment of the optimizer."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from bayesify.core.collection import CollectedPosterior
from bayesify.core.layer import BayesianLayer
from bayesify.core.packed import Unpacked
from bayesify.errors import ConfigurationError

if TYPE_CHECKING:
    from lightning.fabric.strategies.model_parallel import ModelParallelStrategy
    from torch.distributed.device_mesh import DeviceMesh

    from bayesify.core.model import Bayesian

__all__ = ["check_shardable", "copy_gathered", "sharding_strategy"]


def check_shardable(bnn: Bayesian, processes: int) -> None:
    """Check that the parameters of a network can be sharded.

    Raises:
        ConfigurationError: there is one process, or the method needs whole parameters or keeps weights in buffers.
    """
    if processes == 1:
        raise ConfigurationError("strategy='fsdp' shards parameters among processes, but there is one; start more, or use 'auto'")
    reason = ""
    if bnn.has_optimizer:
        reason = "its natural-gradient steps need whole parameters"
    elif any(isinstance(layer.posterior, CollectedPosterior) for _, layer in bnn.random_layers()):
        reason = "it collects weights in buffers, which are not sharded"
    elif not bnn.calls_layers:
        reason = "it computes with weights without calling their layers, at which shards are gathered"
    elif bnn.completes:
        reason = "its posterior is made after training, from all data and whole parameters"
    if reason:
        method = next(type(layer.posterior).__name__ for _, layer in bnn.random_layers())
        raise ConfigurationError(f"strategy='fsdp' does not support the method of bnn ({method}): {reason}; use strategy='ddp'")


def sharding_strategy(processes: int) -> ModelParallelStrategy:
    """Return Fabric's strategy that shards an `Objective` among all processes."""
    from lightning.fabric.strategies.model_parallel import ModelParallelStrategy

    return ModelParallelStrategy(parallelize_fn=_shard, data_parallel_size=processes, tensor_parallel_size=1)


def _shard(objective: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Shard in place: each random layer and recurrent network is gathered for itself, everything else together."""
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    _reshape_scalars(objective)
    uses = Counter(p for module in objective.modules() for p in module.parameters(recurse=False))
    recurrent = [module for module in objective.modules() if isinstance(module, Unpacked) and not module.calls_parts]
    uncalled = {part for module in recurrent for part in module.parts.values()}
    for module in reversed([*objective.modules()]):  # children first
        # Weights that other modules read are gathered with the whole, as those modules would find shards.
        alone = isinstance(module, BayesianLayer) and not module.is_read and all(uses[p] == 1 for p in module.parameters())
        if (alone and module not in uncalled) or module in recurrent or module is objective:
            fully_shard(module, mesh=mesh["data_parallel"])
    register_fsdp_forward_method(objective, "log_prob")
    return objective


class _Scalar(nn.Module):
    """A parameter without dimensions, which FSDP cannot shard, from one with an element."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(())

    def right_inverse(self, x: Tensor) -> Tensor:
        return x.reshape(1)


def _reshape_scalars(objective: nn.Module) -> None:
    for module in list(objective.modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.dim() == 0:
                parametrize.register_parametrization(module, name, _Scalar())


@torch.no_grad()
def copy_gathered(objective: nn.Module, **targets: nn.Module) -> None:
    """Copy parameters and buffers of sharded children into ordinary modules of the same structure, by name, in every process."""
    sharded = objective.state_dict()
    for child, target in targets.items():
        for name, value in target.state_dict(prefix=f"{child}.").items():
            prefix, _, leaf = name.rpartition(".")
            shard: Any = sharded[name] if name in sharded else sharded[f"{prefix}.parametrizations.{leaf}.original"]
            value.copy_((shard.full_tensor() if hasattr(shard, "full_tensor") else shard).reshape(value.shape))
