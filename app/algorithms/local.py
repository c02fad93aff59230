"""Local training alone: every client goes on with a model of its own, and sends nothing."""

from torch import nn

from espalier.app.algorithms.algorithm import Algorithm, Site
from espalier.app.algorithms.strategies import edge_of_halves
from espalier.clients.half import ClientHalf
from espalier.strategies import AlgorithmEdge


def all_names(model: nn.Module) -> list[str]:
    """Return the names of all weights of a model."""
    return list(model.state_dict())


LOCAL_CLIENT = ClientHalf(stays=all_names)


def local_edge(site: Site) -> AlgorithmEdge:
    """Return ``edge-strategy`` over nothing: it selects clients."""
    return edge_of_halves(site, LOCAL_CLIENT)


LOCAL = Algorithm(
    name="local",
    summary="Local training alone, the floor of personal models: nothing is averaged, and no weight leaves a client.",
    make_edge=local_edge,
    tiers="one or two",
    strategy_key="edge-strategy",
    averages=False,
    client=LOCAL_CLIENT,
)
