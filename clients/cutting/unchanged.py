"""A model that is looked at, and is afterwards as it was."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """Put back a module's modes, tensors, values of buffers, and gradients at the end of the block."""
    modes = [(part, part.training) for part in module.modules()]
    tensors = tensors_of(module)
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    gradients = [(weight, weight.grad) for weight in module.parameters()]
    try:
        yield
    finally:
        for part, was_training in modes:
            part.training = was_training
        for holder, name, tensor in tensors:
            holder[name] = tensor  # a forward pass can have put another in its place
        with torch.no_grad():
            for buffer, values in buffers:
                buffer.copy_(values)
        for weight, gradient in gradients:
            weight.grad = gradient


def tensors_of(module: nn.Module) -> list[tuple[dict[str, Any], str, Tensor]]:
    """Return a module's buffers, and the tensors that are not registered, each behind what holds it and its name."""
    holders = [holder for part in module.modules() for holder in (part._buffers, vars(part))]
    return [
        (holder, name, tensor) for holder in holders for name, tensor in holder.items() if isinstance(tensor, Tensor)
    ]
