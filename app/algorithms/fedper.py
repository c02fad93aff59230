"""FedPer: the head never leaves a client (arXiv:1912.00818)."""

from torch import nn

from espalier.app.algorithms.algorithm import Algorithm
from espalier.app.algorithms.strategies import edge_of_halves
from espalier.clients.half import ClientHalf
from espalier.clients.shared.cut import as_blocks


def head_names(model: nn.Module) -> list[str]:
    """Return the names of the weights of a model's last block; ValueError if it has none, or there are no blocks."""
    names = [
        f"{name}.{key}" for name, block in list(as_blocks(model).named_children())[-1:] for key in block.state_dict()
    ]
    if not names:
        raise ValueError("a model whose last block, the head, has weights")
    return names


FEDPER_CLIENT = ClientHalf(stays=head_names)

FEDPER = Algorithm(
    name="fedper",
    summary="Personal heads: the last block never leaves a client, the others are averaged at every edge.",
    make_edge=edge_of_halves(FEDPER_CLIENT),
    tiers="one or two",
    strategy_key="edge-strategy",
    client=FEDPER_CLIENT,
)
