"""The algorithms by name: each says what its edges do. The cloud's side is the same for all."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg, Strategy
from torch import nn

from app.centralised import CentralisedEdge
from app.config import RunConfig
from app.errors import bad_value
from app.tasks.images import centralised_task, compute_device, input_shape, new_model
from clients.task import LocalTraining
from clients.training import make_optimizer
from strategies import EdgeRounds, Hierarchical, StrategyEdge
from strategies.randomness import derived_seed
from strategies.split import Relay, SplitFedV1, SplitFedV2
from strategies.split.server_block import legal_cuts

ONE_NODE = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}

# Makes the edge of a name and a number of nodes.
MakeEdge = Callable[[str, int], Strategy | EdgeRounds]


def build_algorithm(
    config: RunConfig, topology: Mapping[str, Sequence[int]], client_of: Mapping[int, int], **options: Any
) -> Hierarchical:
    """Return the config's algorithm, ready to run.

    Parameters
    ----------
    config : RunConfig
        The run.
    topology : Mapping[str, Sequence[int]]
        Node ids by edge; a flat algorithm's one group of clients.
    client_of : Mapping[int, int]
        Client number by node id.
    **options
        Go to `Hierarchical` as they are.
    """
    return Hierarchical(
        # Over its one group a flat algorithm has nothing to aggregate.
        FedAvg(**ONE_NODE) if config.is_flat else config.cloud.build(ONE_NODE),
        ALGORITHMS[config.algorithm](config, client_of),
        topology,
        edge_rounds=1 if config.is_flat else config.edge_rounds,
        seed=config.seed,
        evaluate_every=config.evaluate_every,
        **options,
    )


def fedavg(config: RunConfig, client_of: Mapping[int, int]) -> MakeEdge:
    """Flat federated learning: the one group of clients runs `cloud-strategy`."""
    return lambda name, size: config.cloud.build({**ONE_NODE, "fraction_train": config.participation})


def h_fedavg(config: RunConfig, client_of: Mapping[int, int]) -> MakeEdge:
    """Hierarchical federated learning: `edge-strategy` at every edge."""
    return lambda name, size: config.edge.build({**ONE_NODE, "fraction_train": config.participation})


def centralised(config: RunConfig, client_of: Mapping[int, int]) -> MakeEdge:
    """Centralised SGD: all data in one place, as many epochs."""
    return lambda name, size: CentralisedEdge(centralised_task(config), StrategyEdge(FedAvg(**ONE_NODE)))


def sfl_v1(config: RunConfig, client_of: Mapping[int, int]) -> MakeEdge:
    """SFL-V1: a server block per client. HSFL is the same under a cloud, PHSFL has a frozen head besides."""
    cuts = checked_cuts(config)

    def cut_of(node_id: int) -> int:
        return cuts[client_of[node_id] % len(cuts)]

    return lambda name, size: SplitFedV1(edge_model(config), cut_of, **split_options(config, name))


def sfl_v2(config: RunConfig, client_of: Mapping[int, int]) -> MakeEdge:
    """SFL-V2: one server block per edge, for all of its clients."""
    (cut,) = set(checked_cuts(config))
    one_by_one = config.server_order == "one-by-one"
    return lambda name, size: SplitFedV2(edge_model(config), cut, one_by_one=one_by_one, **split_options(config, name))


def sl(config: RunConfig, client_of: Mapping[int, int]) -> MakeEdge:
    """SL: the clients of an edge train one after the other."""
    (cut,) = set(checked_cuts(config))
    return lambda name, size: Relay(edge_model(config), cut, **split_options(config, name))


ALGORITHMS: dict[str, Callable[[RunConfig, Mapping[int, int]], MakeEdge]] = {
    "fedavg": fedavg,
    "h-fedavg": h_fedavg,
    "sl": sl,
    "sfl-v1": sfl_v1,
    "sfl-v2": sfl_v2,
    "hsfl": sfl_v1,
    "phsfl": sfl_v1,
    "centralised": centralised,
}


def frozen_head(config: RunConfig) -> ArrayRecord:
    """Return the head's initial weights for an algorithm that freezes them, else nothing."""
    if config.algorithm != "phsfl":
        return ArrayRecord()
    head = ArrayRecord(new_model(config)[-1].state_dict())
    return ArrayRecord({f"head.{name}": array for name, array in head.items()})


def checked_cuts(config: RunConfig) -> tuple[int, ...]:
    """Return the clients' cuts; UserError for one that the model does not have."""
    model = new_model(config)
    names = [name for name, _ in model.named_children()]
    for cut in config.cuts:
        if cut not in legal_cuts(model):
            allowed = ", ".join(f"{i} (after {names[i - 1]})" for i in legal_cuts(model))
            raise bad_value("cut-layer", config.cut_layer, f"{allowed}: the head, {names[-1]}, stays at the server")
    return config.cuts


def edge_model(config: RunConfig) -> nn.Sequential:
    """Return a model of an edge's own, on the device that it computes on."""
    return new_model(config).to(compute_device(config))


def split_options(config: RunConfig, edge: str) -> dict[str, Any]:
    """Return what all split edges take."""
    server = LocalTraining(
        optimizer=config.server_optimizer,
        learning_rate=config.server_learning_rate or config.learning_rate,
        momentum=config.server_momentum,
        weight_decay=config.server_weight_decay,
    )
    return {
        "make_optimizer": partial(make_optimizer, training=server),
        "input_shape": input_shape(config),
        "evaluation": StrategyEdge(FedAvg(**ONE_NODE)),
        "label_policy": config.label_policy,
        "frozen": frozen_head(config) or None,
        "participation": config.participation,
        "seed": derived_seed(config.seed, "split", edge),
    }
