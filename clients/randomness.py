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
    return any(
        type(part) not in _NEVER_DRAW or part._forward_hooks or part._forward_pre_hooks for part in module.modules()
    )
