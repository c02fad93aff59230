"""Hierarchical federated learning: any strategy at every edge, any over the edges."""

from espalier.app.algorithms.algorithm import Algorithm
from espalier.app.algorithms.strategies import edge_strategy

H_FEDAVG = Algorithm(
    name="h-fedavg",
    summary="Two tiers: edge-strategy at every edge for edge-rounds rounds, then cloud-strategy over the edges.",
    make_edge=edge_strategy,
    strategy_key="edge-strategy",
)
