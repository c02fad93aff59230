"""A client's random numbers: derived from the run's seed, the client and the round, and from nothing else."""

import random

import torch
from torch import nn

# Modules whose forward pass draws no random numbers.
_NEVER_DRAW = frozenset(
    {nn.Sequential, nn.Identity, nn.Flatten, nn.Linear, nn.Embedding}
    | {nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool2d}
    | {nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh}
    | {nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm}
)
# Likewise, of a library that may not be there.
_NEVER_DRAW_BY_NAME = frozenset({f"torchvision.models.resnet.{name}" for name in ("BasicBlock", "Bottleneck")})
# Those that draw in training mode alone.
_DROPOUT = frozenset({nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout})


def client_generator(seed: int, partition_id: int, server_round: int, purpose: str) -> torch.Generator:
    """Return a generator of this client's own for one purpose in one round.

    Parameters
    ----------
    seed : int
        Seed of the run.
    partition_id : int
        The client.
    server_round : int
        The round as its server counts it.
    purpose : str
        What it is for, e.g. ``"batches"``.
    """
    return torch.Generator().manual_seed(client_seed(seed, partition_id, server_round, purpose))


def client_seed(seed: int, partition_id: int, server_round: int, purpose: str) -> int:
    """Return the seed of `client_generator`."""
    return random.Random(f"{seed}/{partition_id}/{server_round}/{purpose}").getrandbits(63)


def may_draw(module: nn.Module) -> bool:
    """Return whether a forward pass may draw from PyTorch's generator: that of a module not known to draw nothing."""
    return not all(map(_is_known, module.modules()))


def may_draw_in_evaluations(module: nn.Module) -> bool:
    """Return whether a forward pass in eval mode may draw from PyTorch's generator."""
    return not all(_is_known(part) or (type(part) in _DROPOUT and not _has_hooks(part)) for part in module.modules())


def has_dropout(module: nn.Module) -> bool:
    """Return whether a module holds one of PyTorch's layers that draw in training mode alone."""
    return any(type(part) in _DROPOUT or _drops_within(part) for part in module.modules())


def without_dropout(module: nn.Module) -> nn.Module:
    """Return the module, whose layers that draw in training mode alone let all through and draw nothing from now on."""
    for part in module.modules():
        if type(part) in _DROPOUT:
            part.p = 0.0  # type: ignore[assignment]
        elif _drops_within(part):
            part.dropout = 0.0  # type: ignore[assignment]
    return module


def _drops_within(part: nn.Module) -> bool:
    """Return whether a layer drops by itself, without a layer for it."""
    return isinstance(part, nn.MultiheadAttention | nn.RNNBase) and part.dropout > 0


def _is_known(part: nn.Module) -> bool:
    """Return whether a module, but for those in it, is known to draw nothing."""
    kind = type(part)
    by_name = f"{kind.__module__}.{kind.__qualname__}" in _NEVER_DRAW_BY_NAME
    return (kind in _NEVER_DRAW or by_name) and not _has_hooks(part)


def _has_hooks(part: nn.Module) -> bool:
    return bool(part._forward_hooks or part._forward_pre_hooks)
