"""Adapters of low rank (LoRA, arXiv:2106.09685): a layer stays as it is, and a product of two small matrices trains."""

from math import sqrt

import torch
from torch import Tensor, nn

SCALE = 2.0  # what the original calls alpha / r


class LowRank(nn.Module):
    """A linear layer with an adapter beside it, which gives 0 before training.

    Parameters
    ----------
    layer : nn.Module
        The layer: an `nn.Linear`, or GPT-2's `Conv1D`, which keeps its weights transposed.
    rank : int
        Of the product.
    """

    def __init__(self, layer: nn.Module, rank: int) -> None:
        super().__init__()
        self.layer = layer
        shape = tuple(layer.weight.shape)
        self.out_features, in_features = shape if isinstance(layer, nn.Linear) else shape[::-1]
        self.down = nn.Parameter(torch.empty(rank, in_features))
        self.up = nn.Parameter(torch.zeros(self.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=sqrt(5))

    def forward(self, values: Tensor) -> Tensor:
        """Return what the layer gives, and what the adapter adds."""
        return self.layer(values) + SCALE * (values @ self.down.T) @ self.up.T


def add_adapters(model: nn.Module, layers: tuple[str, ...], rank: int) -> None:
    """Freeze a model, and put an adapter beside each of its layers that has one of these names."""
    model.requires_grad_(False)
    for path, layer in list(model.named_modules()):
        parent, _, name = path.rpartition(".")
        if name in layers:
            setattr(model.get_submodule(parent), name, LowRank(layer, rank))


def of_rank(name: str, shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Return the shape of the part of a weight that adapters of a lower rank have; all of what is no adapter's."""
    kind = name.rpartition(".")[2]
    return {"down": (rank, *shape[1:]), "up": (*shape[:1], rank)}.get(kind, shape)
