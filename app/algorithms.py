"""The algorithms by name: each says what its edges do. The cloud's side is the same for all."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg, QFedAvg, Strategy
from torch import nn

from espalier.app.centralised import CentralisedEdge
from espalier.app.config.sections import VIDEO_CACHING, RunConfig
from espalier.app.errors import UserError, bad_value
from espalier.app.measured import MeasuredWorld
from espalier.app.tasks.caching import client_data, examples_available
from espalier.app.tasks.common import compute_device
from espalier.app.tasks.family import family
from espalier.app.top_popular import TopPopularEdge
from espalier.app.wireless import WirelessWorld, World, solver_for
from espalier.app.work import Work, split_work, whole_model_work
from espalier.clients.task import LocalTraining
from espalier.clients.training import make_optimizer
from espalier.strategies import (
    AccumulatedGradients,
    EdgeRounds,
    EqualWeights,
    Hierarchical,
    Profile,
    ResourceAware,
    StrategyEdge,
)
from espalier.strategies.edges import innermost, nodes_needed
from espalier.strategies.randomness import derived_seed
from espalier.strategies.split import Relay, SplitEdge, SplitFedV1, SplitFedV2
from espalier.strategies.split.server_block import legal_cuts
from espalier.strategies.split.transports import Transport
from espalier.strategies.state import UnsavableError, strategy_state

ONE_NODE = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}

# Makes the edge of a name and a number of nodes.
MakeEdge = Callable[[str, int], Strategy | EdgeRounds]
# The number of blocks on a client, by its node id.
CutOf = Callable[[int], int]


def build_algorithm(
    config: RunConfig,
    topology: Mapping[str, Sequence[int]],
    client_of: Mapping[int, int],
    world: World | None = None,
    transport_of: Callable[[str], Transport] | None = None,
    **options: Any,
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
    world : World, optional (default: None)
        For a config whose rounds are planned: what the plans are made for, see `world_of`.
    transport_of : Callable[[str], Transport], optional (default: None)
        For split training: how the mini-batches of an edge's clients travel, by its name. None: by messages.
    **options
        Go to `Hierarchical` as they are.
    """
    make_edge = ALGORITHMS[config.algorithm](config, client_of, cut_rule(config, client_of, world))
    if transport_of is not None:
        make_edge = over(transport_of, make_edge)
    if world is not None:
        make_edge = planned(make_edge, config, world)
    if config.train.weighting == "equal":
        make_edge = equally_weighted(make_edge)
    return under_cloud(config, make_edge, topology, **options)


def under_cloud(
    config: RunConfig, make_edge: MakeEdge, topology: Mapping[str, Sequence[int]], **options: Any
) -> Hierarchical:
    """Return edges, wherever they run, under the config's cloud strategy; parameters as for `build_algorithm`.

    Raises
    ------
    UserError
        If the state of a strategy can't be saved, so that a run could not be resumed.
    """
    hierarchical = Hierarchical(
        # Over its one group a flat algorithm has nothing to aggregate.
        FedAvg(**ONE_NODE) if config.is_flat else config.federation.cloud_strategy.build(ONE_NODE),
        make_edge,
        topology,
        edge_rounds=1 if config.is_flat else config.federation.edge_rounds,
        seed=config.seed,
        evaluate_every=config.report.evaluate_every,
        **options,
    )
    check_states(hierarchical)
    return hierarchical


def check_states(hierarchical: Hierarchical) -> None:
    """Refuse a strategy with attributes that can't be saved; what saves itself may need a round first."""
    of_edges = [getattr(innermost(edge), "strategy", None) for edge in hierarchical.edges.values()]
    for strategy in (hierarchical.cloud, *of_edges):
        if isinstance(strategy, Strategy) and not hasattr(strategy, "state_dict"):
            with unsavable_as_user_error():
                strategy_state(strategy)


@contextmanager
def unsavable_as_user_error() -> Iterator[None]:
    """Make a UserError of a strategy's state that can't be saved."""
    try:
        yield
    except UnsavableError as error:
        raise UserError(str(error)) from None


def check_averages(config: RunConfig, model: nn.Module) -> None:
    """Refuse a strategy that can't average the model: QFedAvg multiplies all of it by numbers, integers too."""
    integers = [name for name, tensor in model.state_dict().items() if not tensor.is_floating_point()]
    for spec in [config.federation.cloud_strategy] * (config.deploy.role != "edge") + [
        config.federation.edge_strategy
    ] * (config.deploy.role != "cloud"):
        if integers and issubclass(spec.kind, QFedAvg):
            allowed = f"another strategy: {spec.name} can't average integers, such as the model's {integers[0]}"
            raise bad_value(spec.key, spec.text, allowed)


def over(transport_of: Callable[[str], Transport], make_edge: MakeEdge) -> MakeEdge:
    """Give every split edge a transport of its own."""

    def make(name: str, size: int) -> Strategy | EdgeRounds:
        edge = make_edge(name, size)
        if isinstance(edge, SplitEdge):
            edge.transport = transport_of(name)
        return edge

    return make


def world_of(
    config: RunConfig,
    topology: Mapping[str, Sequence[int]],
    client_of: Mapping[int, int],
    profiles: Sequence[Profile],
) -> World:
    """Return what the plans of a config are made for: its clients' measurements, or the simulated radio world.

    Parameters
    ----------
    config, topology, client_of
        As for `build_algorithm`.
    profiles : Sequence[Profile]
        The clients, in client order.
    """
    num_examples = [profile.num_train_examples for profile in profiles]
    if config.plan.resources == "simulated":
        return make_world(config, topology, client_of, num_examples)
    return MeasuredWorld(
        config, topology, client_of, work_of(config), profiles, examples_of_local_rounds(config, num_examples)
    )


def make_world(
    config: RunConfig,
    topology: Mapping[str, Sequence[int]],
    client_of: Mapping[int, int],
    num_examples: Sequence[int],
) -> WirelessWorld:
    """Return the simulated radio world of a config whose rounds are planned.

    Parameters
    ----------
    config, topology, client_of
        As for `build_algorithm`.
    num_examples : Sequence[int]
        Training examples by client.
    """
    values, examples = prod(family(config).input_shape(config)), examples_of_local_rounds(config, num_examples)
    return WirelessWorld(config, topology, client_of, work_of(config), values, examples)


def work_of(config: RunConfig) -> Work:
    """Return what a client's part of the training takes, for each cut that a plan may choose from."""
    model = family(config).new_model(config)
    if not config.is_split:
        return whole_model_work(model)
    payload = config.stream.payload if config.split.transport == "stream" else "float32"
    return split_work(model, family(config).input_shape(config), sorted(set(checked_cuts(config))), payload)


def examples_of_local_rounds(config: RunConfig, num_examples: Sequence[int]) -> list[int]:
    """Return the examples of a local round by client, from those that each has: `mini_batches`.

    Where data grow, mini-batches count as full, as the RawHFL paper has it.
    """
    batches, size = config.train.batches_per_epoch, config.train.batch_size
    if not batches:
        return list(num_examples)
    if config.data.dataset == VIDEO_CACHING:
        return [batches * size] * len(num_examples)
    permutations = [divmod(batches, -(-n // size)) if n else (0, 0) for n in num_examples]
    return [whole * n + rest * size for n, (whole, rest) in zip(num_examples, permutations, strict=True)]


def planned(make_edge: MakeEdge, config: RunConfig, world: World) -> MakeEdge:
    """Put the selection in front of every edge."""

    def make(name: str, size: int) -> EdgeRounds:
        edge, solve = make_edge(name, size), solver_for(config, world.edges[name])
        if isinstance(edge, AccumulatedGradients):
            return ResourceAware(edge, world.edges[name], solve, idle_weight=edge.WEIGHT)
        if isinstance(edge, Strategy):
            selected = config.plan.selected_per_edge * (config.cells if config.is_flat else 1)
            if getattr(edge, "fraction_train", 1.0) < 1:
                spec = config.federation.cloud_strategy if config.is_flat else config.federation.edge_strategy
                raise bad_value(spec.key, spec.text, "fraction_train = 1.0: plans select the clients")
            if (needed := nodes_needed(edge, "train", selected)) > selected:
                least = -(-needed * config.plan.selected_per_edge // selected)
                allowed = f"at least {least}: its {type(edge).__name__} needs {needed} clients"
                raise bad_value("plan.selected-per-edge", config.plan.selected_per_edge, allowed)
        return ResourceAware(edge, world.edges[name], solve)

    return make


def equally_weighted(make_edge: MakeEdge) -> MakeEdge:
    """Let all clients of an edge weigh the same, and all edges."""
    return lambda name, size: EqualWeights(make_edge(name, size))


def cut_rule(config: RunConfig, client_of: Mapping[int, int], world: World | None) -> CutOf:
    """Return the number of blocks on a client, by its node id: by `cut-layer`, or as its plan says."""
    if not config.is_split:
        return lambda node_id: 0
    cuts = checked_cuts(config)
    if not config.split.cut_layer.is_best:
        return lambda node_id: cuts[client_of[node_id] % len(cuts)]
    assert world is not None
    return lambda node_id: cuts[world.option_of(client_of[node_id])]


def fedavg(config: RunConfig, client_of: Mapping[int, int], cut_of: CutOf) -> MakeEdge:
    """Flat federated learning: the one group of clients runs `cloud-strategy`."""
    return lambda name, size: config.federation.cloud_strategy.build(
        {**ONE_NODE, "fraction_train": config.federation.participation}
    )


def h_fedavg(config: RunConfig, client_of: Mapping[int, int], cut_of: CutOf) -> MakeEdge:
    """Hierarchical federated learning: `edge-strategy` at every edge."""
    return lambda name, size: config.federation.edge_strategy.build(
        {**ONE_NODE, "fraction_train": config.federation.participation}
    )


def rawhfl(config: RunConfig, client_of: Mapping[int, int], cut_of: CutOf) -> MakeEdge:
    """RawHFL: each edge steps along the accumulated gradients of those whom its plan selects.

    The variants of H-FedAvg, and FedAvg-UB, that it is compared with differ in the rule of the plan alone.
    """
    return lambda name, size: AccumulatedGradients(config.train.learning_rate, StrategyEdge(FedAvg(**ONE_NODE)))


def centralised(config: RunConfig, client_of: Mapping[int, int], cut_of: CutOf) -> MakeEdge:
    """Centralised SGD: all data in one place, as many epochs."""
    task = family(config).centralised_task(config)
    return lambda name, size: CentralisedEdge(task, StrategyEdge(FedAvg(**ONE_NODE)))


def top_popular(config: RunConfig, client_of: Mapping[int, int], cut_of: CutOf) -> MakeEdge:
    """Top-Popular: no training."""
    clients = client_data(config)
    available = [examples_available(config, data.train_slots, config.federation.edge_rounds) for data in clients]
    return lambda name, size: TopPopularEdge(clients, lambda t: [at(t) for at in available], client_of)


def sfl_v1(config: RunConfig, client_of: Mapping[int, int], cut_of: CutOf) -> MakeEdge:
    """SFL-V1: a server block per client. HSFL is the same under a cloud, PHSFL has a frozen head besides."""
    return lambda name, size: SplitFedV1(edge_model(config), cut_of, **split_options(config, name))


def sfl_v2(config: RunConfig, client_of: Mapping[int, int], cut_of: CutOf) -> MakeEdge:
    """SFL-V2: one server block per edge, for all of its clients."""
    (cut,) = set(checked_cuts(config))
    one_by_one = config.split.server_order == "one-by-one"
    return lambda name, size: SplitFedV2(edge_model(config), cut, one_by_one=one_by_one, **split_options(config, name))


def sl(config: RunConfig, client_of: Mapping[int, int], cut_of: CutOf) -> MakeEdge:
    """SL: the clients of an edge train one after the other."""
    (cut,) = set(checked_cuts(config))
    return lambda name, size: Relay(edge_model(config), cut, **split_options(config, name))


ALGORITHMS: dict[str, Callable[[RunConfig, Mapping[int, int], CutOf], MakeEdge]] = {
    "fedavg": fedavg,
    "h-fedavg": h_fedavg,
    "sl": sl,
    "sfl-v1": sfl_v1,
    "sfl-v2": sfl_v2,
    "hsfl": sfl_v1,
    "phsfl": sfl_v1,
    "rawhfl": rawhfl,
    "h-fedavg-m1": rawhfl,
    "h-fedavg-m2": rawhfl,
    "h-fedavg-ub": rawhfl,
    "fedavg-ub": rawhfl,
    "centralised": centralised,
    "top-popular": top_popular,
}


def frozen_head(config: RunConfig) -> ArrayRecord:
    """Return the head's initial weights for an algorithm that freezes them, else nothing."""
    if config.algorithm != "phsfl":
        return ArrayRecord()
    head = ArrayRecord(family(config).new_model(config)[-1].state_dict())
    return ArrayRecord({f"head.{name}": array for name, array in head.items()})


def checked_cuts(config: RunConfig) -> tuple[int, ...]:
    """Return the clients' cuts, all there are for ``cut-layer = "best"``; UserError for one that the model has not."""
    model = family(config).new_model(config)
    names = [name for name, _ in model.named_children()]
    for cut in config.split.cut_layer.numbers:
        if cut not in legal_cuts(model):
            allowed = ", ".join(f"{i} (after {names[i - 1]})" for i in legal_cuts(model))
            raise bad_value(
                "cut-layer", config.split.cut_layer.text, f"{allowed}: the head, {names[-1]}, stays at the server"
            )
    return config.split.cut_layer.numbers or tuple(legal_cuts(model))


def edge_model(config: RunConfig) -> nn.Sequential:
    """Return a model of an edge's own, on the device that it computes on."""
    return family(config).new_model(config).to(compute_device(config))


def split_options(config: RunConfig, edge: str) -> dict[str, Any]:
    """Return what all split edges take."""
    server = LocalTraining(
        optimizer=config.split.server_optimizer,
        learning_rate=config.split.server_learning_rate or config.train.learning_rate,
        momentum=config.split.server_momentum,
        weight_decay=config.split.server_weight_decay,
    )
    return {
        "make_optimizer": partial(make_optimizer, training=server),
        "input_shape": family(config).input_shape(config),
        "evaluation": StrategyEdge(FedAvg(**ONE_NODE)),
        "label_policy": config.split.label_policy,
        "frozen": frozen_head(config) or None,
        "participation": config.federation.participation,
        "max_batch": config.train.batch_size,
        "seed": derived_seed(config.seed, "split", edge),
    }
