"""Fine-tuning of a head, or of a whole model: the same at the edge and on a device."""

from collections.abc import Callable, Collection, Iterable

import torch
from torch import Tensor, nn

from .cut import copied


def fine_tuned(
    head: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    learning_rate: float,
    loss: Callable[[Tensor, Tensor], Tensor],
    only: Collection[str] | None = None,
) -> nn.Module:
    """Return a copy of a head after an SGD step on each mini-batch (PHSFL, Section III-B).

    Parameters
    ----------
    head : nn.Module
        To start from; it stays as it is. Weights without ``requires_grad``, and those that travel nowhere
        (`espalier.clients.whole.frozen`), do not train.
    batches : Iterable[tuple[Tensor, Tensor]]
        What comes into the head, of shape (N, ...), and labels of shape (N,).
    learning_rate : float
        Of the steps.
    loss : Callable[[Tensor, Tensor], Tensor]
        Of outputs and labels, the mean over a mini-batch.
    only : Collection[str], optional (default: None)
        The names of the weights that train. None: all.

    Raises
    ------
    ValueError
        If weights are not finite any more.
    """
    head = copied(head)
    trains = head.state_dict().keys() if only is None else head.state_dict().keys() & set(only)
    for name, weight in head.named_parameters():
        weight.requires_grad_(weight.requires_grad and name in trains)
    if not any(weight.requires_grad for weight in head.parameters()):
        return head
    for inputs, labels in batches:
        head.zero_grad()
        loss(head(inputs), labels).backward()
        # torch.optim's SGD does the same, but first imports PyTorch's compiler, which takes about a second.
        with torch.no_grad():
            for weights in head.parameters():
                if weights.grad is not None:
                    weights.sub_(weights.grad, alpha=learning_rate)
    if not all(torch.isfinite(p).all() for p in head.parameters()):
        raise ValueError("the fine-tuned head holds NaN or Inf: lower fine-tune.rate")
    return head
