"""Switch off PyTorch's fused transformer kernels, which read weights and bypass random layers."""

from __future__ import annotations

from torch import nn

from bayesify.core.layer import BayesianLayer

__all__ = ["disable_fast_paths", "restore_fast_paths"]


class _FastPathOff:
    """A forward pre-hook that does nothing: PyTorch uses no fused kernel in modules with hooks."""

    of_bayesify = True

    def __init__(self, nested: bool) -> None:
        self.nested = nested

    def __call__(self, module: nn.Module, args: object) -> None:
        pass


def disable_fast_paths(net: nn.Module) -> None:
    """Register a hook in every transformer module with random layers, so that PyTorch calls the layers."""
    for module in net.modules():
        if not any(isinstance(m, BayesianLayer) for m in module.modules()):
            continue
        if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerEncoder):
            encoder = isinstance(module, nn.TransformerEncoder)
            module.register_forward_pre_hook(_FastPathOff(encoder and module.use_nested_tensor))
            if encoder:
                module.use_nested_tensor = False


def restore_fast_paths(net: nn.Module) -> None:
    """Undo `disable_fast_paths`."""
    for module in net.modules():
        for key, hook in list(module._forward_pre_hooks.items()):
            if isinstance(hook, _FastPathOff):
                del module._forward_pre_hooks[key]
                if isinstance(module, nn.TransformerEncoder):
                    module.use_nested_tensor = hook.nested
