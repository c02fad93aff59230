"""Layers that learn their width from the first input: their weights are drawn then, and not when they are made."""

from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy


def lacks_weights(model: nn.Module) -> bool:
    """Return whether a model has weights that are not drawn yet."""
    return any(map(is_lazy, chain(model.parameters(), model.buffers())))


@torch.no_grad()
def draw_weights(model: nn.Module, example: Callable[[], Any]) -> None:
    """Let a model draw the weights that it lacks, for an example; where it does not take that, it goes on to lack them.

    It draws from PyTorch's global generator, as layers do that are not lazy.
    """
    trains = model.training
    with suppress(Exception):
        model.eval()(example())
    model.train(trains)
