"""How images lie in memory on both sides of a cut: some layers take but one layout, and sums round by it."""

import torch
from torch import Tensor


def layout_of(values: Tensor) -> torch.memory_format:
    """Return ``torch.channels_last`` for images (N, C, H, W) that lie so, ``torch.contiguous_format`` for all else."""
    if values.dim() != 4:
        return torch.contiguous_format
    # Not `is_contiguous`, which with one channel is true of both; the first stride of a batch of one can be anything.
    there = torch.empty(values.shape, device="meta", memory_format=torch.channels_last)
    return torch.channels_last if values.stride()[1:] == there.stride()[1:] else torch.contiguous_format


def laid_out(values: Tensor, layout: torch.memory_format) -> Tensor:
    """Return a copy, into which the layer that takes it may write, as ``nn.ReLU(inplace=True)`` does."""
    return values.clone(memory_format=layout)


def as_laid_out(gradient: Tensor, output: Tensor) -> Tensor:
    """Return the gradient of an output on its device, of its data type, and laid out as it is."""
    return torch.empty_like(output).copy_(gradient)
