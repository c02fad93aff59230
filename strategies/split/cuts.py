"""Where a model can be cut, and what is on which side."""

from collections.abc import Iterable
from typing import cast

from torch import nn

from espalier.clients.shared.cut import Cut
from espalier.clients.shared.statistics import is_statistic


def block_names(model: nn.Sequential) -> list[str]:
    """Return the names of a model's blocks, in order."""
    return [name for name, _ in model.named_children()]


def num_outputs(model: nn.Sequential) -> int:
    """Return how many classes a model's head tells apart: one output tells two, by its sign."""
    return max(cast(int, model[-1].out_features), 2)


def client_names(names: Iterable[str], model: nn.Sequential, cut: Cut) -> list[str]:
    """Return those names of weights that belong to the client's blocks of a model."""
    servers = set(block_names(model)[cut.first : cut.last])
    return [name for name in names if name.split(".", 1)[0] not in servers]


def legal_cuts(model: nn.Module) -> range:
    """Return the numbers of blocks that a client can hold: something to train at least, and never the head.

    Raises
    ------
    ValueError
        If the model is not a list of different named blocks, with weights in front of the last, the head.
    """
    if not isinstance(model, nn.Sequential) or not len(model) or not hasattr(model[-1], "out_features"):
        raise ValueError(
            "the model is not an nn.Sequential of blocks that ends with a head with `out_features`, such as an "
            "nn.Linear: it can't be split"
        )
    if len(set(map(id, model))) < len(model):  # its weights would be on both sides, and its name is there once
        raise ValueError("one block stands in the model twice: it can't be split, so make a second block")
    trains = (any(weight.requires_grad for weight in block.parameters()) for block in model)
    first = next((i for i, block_trains in enumerate(trains, start=1) if block_trains), len(model))
    if first == len(model):
        raise ValueError("the model has no weights that train in front of its last block: it can't be split")
    return range(first, len(model))


def weight_on_both_sides(model: nn.Sequential, cut: Cut) -> str:
    """Return the name of a weight, or statistic, that blocks on two sides share, so that a cut would take it apart."""
    place_of: dict[int, int] = {}
    for place, part in enumerate((cut.front(model), cut.server_side(model), cut.tail(model))):
        moves = [*part.named_parameters(), *(own for own in part.named_buffers() if is_statistic(own[0]))]
        for name, tensor in moves:
            if place_of.setdefault(id(tensor), place) != place:
                return name
    return ""


def checked_cut(model: nn.Sequential, cut: Cut | int) -> Cut:
    """Return a cut, see `Cut.of`; ValueError for one that the model does not have."""
    cut = Cut.of(model, cut)
    if cut.first not in (legal := legal_cuts(model)):
        allowed = f"{', '.join(map(str, legal))}; the last block stays at the server"
        raise ValueError(f"cut {cut.first}: allowed are {allowed}")
    if cut.last not in range(cut.first + 1, len(model) + 1):
        allowed = f"{cut.first + 1} to {len(model)}, so that a block is the server's"
        raise ValueError(f"tail from block {cut.last} on, with cut {cut.first}: allowed are {allowed}")
    if shared := weight_on_both_sides(model, cut):
        raise ValueError(
            f"cut {cut.first}: {shared} is a weight of blocks on another side of it too, and can't be on both sides"
        )
    return cut
