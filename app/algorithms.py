"""The algorithms by name: each builds the two tiers that it is."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from flwr.serverapp.strategy import FedAvg

from app.config import RunConfig
from strategies import Hierarchical

ONE_NODE = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}


class Builder(Protocol):
    """Builds an algorithm for a config and a topology; `options` go to `Hierarchical` as they are."""

    def __call__(self, config: RunConfig, topology: Mapping[str, Sequence[int]], **options: Any) -> Hierarchical:
        """Return the algorithm, ready to run."""


def fedavg(config: RunConfig, topology: Mapping[str, Sequence[int]], **options: Any) -> Hierarchical:
    """Flat federated learning with `cloud-strategy`: the one group of nodes is the cloud's own."""
    return Hierarchical(
        FedAvg(**ONE_NODE),
        lambda name, size: config.cloud.build({**ONE_NODE, "fraction_train": config.participation}),
        topology,
        seed=config.seed,
        evaluate_every=config.evaluate_every,
        **options,
    )


def h_fedavg(config: RunConfig, topology: Mapping[str, Sequence[int]], **options: Any) -> Hierarchical:
    """Hierarchical federated learning: `edge-strategy` at every edge, `cloud-strategy` over the edges."""
    return Hierarchical(
        config.cloud.build(ONE_NODE),
        lambda name, size: config.edge.build({**ONE_NODE, "fraction_train": config.participation}),
        topology,
        edge_rounds=config.edge_rounds,
        seed=config.seed,
        evaluate_every=config.evaluate_every,
        **options,
    )


ALGORITHMS: dict[str, Builder] = {"fedavg": fedavg, "h-fedavg": h_fedavg}
