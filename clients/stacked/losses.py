"""The losses of several models' mini-batches at once."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..gradients import Loss


def stacked_losses(losses: Sequence[Loss], outputs: Tensor, labels: Sequence[Tensor]) -> Tensor:
    """Return the losses (n,) of n mini-batches that are equally large, each as its own function gives it, to rounding.

    On a GPU cross-entropy, which is the default, takes a few operations for all of them. Other functions are called for
    each: they may be anybody's, and keep or draw something.

    Parameters
    ----------
    losses : Sequence[Loss]
        Called with the outputs and labels of a mini-batch: the mean.
    outputs : Tensor
        (n, B, ...).
    labels : Sequence[Tensor]
        Of each mini-batch, (B, ...), on the device of the outputs.
    """
    form = torch.int64, labels[0].shape
    are_alike = all(loss is cross_entropy for loss in losses) and all((own.dtype, own.shape) == form for own in labels)
    if are_alike and outputs.device.type != "cpu":
        return cross_entropies(outputs, torch.stack(list(labels)))
    return torch.stack([loss(*own) for loss, *own in zip(losses, outputs, labels, strict=True)])


def cross_entropies(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropies (n,) of outputs (n, B, classes, ...) and class indices (n, B, ...)."""
    together: Tensor = torch.func.vmap(cross_entropy)(outputs, labels)
    return together
