"""Local training alone: every client goes on with a model of its own, and sends nothing."""

from torch import nn

from espalier.app.algorithms.algorithm import Algorithm
from espalier.app.algorithms.strategies import edge_of_halves
from espalier.clients.half import ClientHalf


def all_names(model: nn.Module) -> list[str]:
    """Return the names of all weights of a model."""
    return list(model.state_dict())


LOCAL_CLIENT = ClientHalf(stays=all_names)

LOCAL = Algorithm(
    name="local",
    summary="Local training alone, the floor of personal models: nothing is averaged, and no weight leaves a client.",
    make_edge=edge_of_halves(LOCAL_CLIENT),
    tiers="one or two",
    strategy_key="edge-strategy",
    averages=False,
    client=LOCAL_CLIENT,
)
