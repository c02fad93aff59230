"""What is made of clients' weights: their average, and copies on the CPU."""

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from .loop import State


def average(models: Mapping[int, State], num_examples: Mapping[int, int]) -> State:
    """Return the average weighted by examples, summed in the order of `models`; integers are rounded."""
    total = sum(num_examples[n] for n in models)
    result: State = {}
    for name, first in next(iter(models.values())).items():
        exact = first.dtype if first.is_floating_point() else torch.float64
        parts = (model[name].to(exact) * (num_examples[n] / total) for n, model in models.items())
        summed = cast(Tensor, sum(parts))  # of one model at least
        result[name] = summed if first.is_floating_point() else summed.round().to(first.dtype)
    return result


def on_cpu(weights: State) -> State:
    """Return weights on the CPU, without their graph."""
    return {name: tensor.detach().cpu() for name, tensor in weights.items()}
