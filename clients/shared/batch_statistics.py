"""Layers in which the examples of a mini-batch change each other."""

from torch import nn


def layer_with_statistics(model: nn.Module) -> tuple[str, nn.Module] | None:
    """Return the first layer that computes statistics over a mini-batch, as BatchNorm, and its name; None for none."""
    for name, layer in model.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) or getattr(layer, "track_running_stats", False):
            return name, layer
    return None
