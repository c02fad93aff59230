"""The losses of several models' mini-batches at once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .gradients import Loss


def stacked_losses(losses: Sequence[Loss], outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the losses (n,) of n mini-batches that are equally large, each as its own function gives it, to rounding.

    Where they have one function, it is called once for all, which takes a GPU a few operations instead of a few for
    each. A function that can't be called so, as one that reads a number from its tensors, is called for each.

    Parameters
    ----------
    losses : Sequence[Loss]
        Called with the outputs and labels of a mini-batch: the mean.
    outputs : Tensor
        (n, B, ...).
    labels : Tensor
        (n, B, ...), on the device of the outputs.
    """
    first = losses[0]
    if all(loss == first for loss in losses):
        try:
            together: Tensor = torch.func.vmap(first)(outputs, labels)
            return together
        except Exception:  # the loss may be foreign code; if something is wrong with a mini-batch, it says so below
            pass
    return torch.stack([loss(*own) for loss, *own in zip(losses, outputs, labels, strict=True)])
