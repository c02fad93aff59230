"""Auxiliary heads: small models behind a client's blocks, whose loss stands for that of the edge's blocks."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..messages.split_names import AUXILIARY_HEAD
from ..shared.crossing import Crossing
from ..shared.cut import Cut, copied, part_of
from ..shared.generators import seeded_torch
from ..shared.lazy_layers import draw_weights, lacks_weights

# Called with the edge's blocks, which it may copy from, the activations of one example and the number of outputs.
MakeHead = Callable[[nn.Sequential, Tensor, int], nn.Module]


def linear_head(blocks: nn.Sequential, activations: Tensor, num_outputs: int) -> nn.Module:
    """Return one linear layer; behind images (N, C, H, W), the mean over each channel is in front of it."""
    layers = [nn.AdaptiveAvgPool2d(1)] if activations.dim() == 4 else []
    width = activations.shape[1] if activations.dim() == 4 else activations[0].numel()
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width, num_outputs))


def first_block_head(blocks: nn.Sequential, activations: Tensor, num_outputs: int) -> nn.Module:
    """Return a copy of the first of the edge's blocks, and `linear_head` behind it (FSL-SAGE's stage 3 and linear)."""
    first = part_of(blocks, 0, 1)
    with torch.no_grad():
        behind = copied(first).eval()(activations)
    return nn.Sequential(copied(first), linear_head(blocks, behind, num_outputs))


def new_head(
    make: MakeHead, model: nn.Sequential, cut: Cut, example: Any, num_outputs: int, seed: int
) -> nn.Sequential:
    """Return a new auxiliary head on the CPU, the same for the same seed; its weights have names of their own.

    Parameters
    ----------
    make : Callable
        Makes it.
    model : nn.Sequential
        The whole model, as a list of blocks, before any training.
    cut : Cut
        Where it is cut.
    example : Any
        A batch of one example as the model takes it, on the CPU.
    num_outputs : int
        Of the model's head.
    seed : int
        For the head's weights.

    Raises
    ------
    ValueError
        If it gives no module, or one that makes something else than (1, num_outputs) of the activations.
    """
    cpu = torch.device("cpu")
    model = copied(model).to(cpu)
    with seeded_torch(seed, cpu):
        with torch.no_grad():
            activations = cut.front(model).eval()(example)
        if (crossing := Crossing.of(activations, 1)).time_first or crossing.has_lengths:
            raise ValueError("a model whose client's blocks give a row for each sample, and no lengths")
        made = make(cut.server_side(model), activations, num_outputs)
        if not isinstance(made, nn.Module):
            raise ValueError(f"a function that returns an nn.Module, not a {type(made).__name__}")
        made = made.to(next(model.parameters()).dtype)
        if lacks_weights(made):
            draw_weights(made, lambda: activations)
        with torch.no_grad():
            outputs = copied(made).eval()(activations)
    if (shape := tuple(getattr(outputs, "shape", ()))) != (1, num_outputs):
        raise ValueError(f"a head that makes (1, {num_outputs}) of activations {tuple(activations.shape)}, not {shape}")
    return nn.Sequential(OrderedDict([(AUXILIARY_HEAD, made)]))
