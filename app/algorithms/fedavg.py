"""Flat federated learning, with any strategy (FedAvg: arXiv:1602.05629)."""

from espalier.app.algorithms.algorithm import Algorithm
from espalier.app.algorithms.strategies import cloud_strategy

FEDAVG = Algorithm(
    name="fedavg",
    summary="Flat: clients under the cloud, with any Flower strategy as cloud-strategy.",
    make_edge=cloud_strategy,
    tiers="one",
    strategy_key="cloud-strategy",
)
