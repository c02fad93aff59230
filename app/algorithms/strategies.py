"""Edges made from Flower strategies of the run config."""

from flwr.serverapp.strategy import FedAvg, Strategy

from espalier.app.algorithms.algorithm import ONE_NODE, Site
from espalier.strategies import StrategyEdge


def cloud_strategy(site: Site) -> Strategy:
    """Return ``cloud-strategy``, for the clients of a federation without edges."""
    return site.federation.cloud_strategy.build({**ONE_NODE, "fraction_train": site.federation.participation})


def edge_strategy(site: Site) -> Strategy:
    """Return ``edge-strategy``."""
    return site.federation.edge_strategy.build({**ONE_NODE, "fraction_train": site.federation.participation})


def fedavg_of_all() -> StrategyEdge:
    """Return FedAvg of all clients, for edges that leave averages or evaluation to it."""
    return StrategyEdge(FedAvg(**ONE_NODE))
