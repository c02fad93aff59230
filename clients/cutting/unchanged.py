"""A model that is looked at, and is afterwards as it was."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """Put back a module's modes, buffers and gradients at the end of the block."""
    parts = list(module.modules())
    modes = [part.training for part in parts]
    buffers = [
        (part, name, buffer, buffer.detach().clone())
        for part in parts
        for name, buffer in part.named_buffers(recurse=False)
    ]
    gradients = [(weight, weight.grad) for weight in module.parameters()]
    try:
        yield
    finally:
        for part, was_training in zip(parts, modes, strict=True):
            part.training = was_training
        for part, name, buffer, values in buffers:
            part._buffers[name] = buffer  # a forward pass can have put another in its place
            with torch.no_grad():
                buffer.copy_(values)
        for weight, gradient in gradients:
            weight.grad = gradient
