"""The edges of a run that are in this process, and the algorithm over edges, wherever they are."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from flwr.serverapp.strategy import DifferentialPrivacyClientSideAdaptiveClipping, Strategy
from torch import nn

from espalier.app.algorithms.algorithm import ONE_NODE, Algorithm, Site
from espalier.app.algorithms.auxiliary_heads import auxiliary_head
from espalier.app.algorithms.split_edges import cuts_of
from espalier.app.algorithms.strategies import check_edge_fits
from espalier.app.features.case import Case
from espalier.app.features.feature import MakeEdge, MakeHierarchical, Part, Scene
from espalier.app.features.table import FEATURES, withheld_by
from espalier.app.ground.errors import FAULTS, UserError, bad_value
from espalier.app.ground.object_spec import error_and_place
from espalier.app.ground.strategy_spec import PLAIN_MEAN, StrategySpec
from espalier.app.meters.bytes import ByteMeter
from espalier.app.meters.seconds import SecondsMeter
from espalier.app.tasks.common import compute_device
from espalier.app.tasks.task import Task
from espalier.app.wiring.cloud import check_states, checked_by_profiles, cut_rule, equally_weighted, evaluating_on_some
from espalier.app.wiring.streams import Streams
from espalier.clients.messages.train import NORM_BIT, TRAIN_LOSS
from espalier.clients.shared.lanes import Lanes
from espalier.strategies import EdgeRounds, Guard, Hierarchical, Observer
from espalier.strategies.corners import EdgeOverCorners
from espalier.strategies.profiles import profiles_by_node
from espalier.strategies.randomness import derived_seed
from espalier.strategies.split.fused import FusedTransport
from espalier.strategies.split.transports import Transport


def transports(
    config: Case, meter: ByteMeter, streams: Streams | None, lanes: Lanes | None
) -> Callable[[str], Transport] | None:
    """Return what makes the transport of an edge of a name; None where mini-batches travel by messages."""
    if streams and config.trains_by_stream:
        return partial(streams.transport, meter)
    if lanes and config.split.execution == "fused":
        return lambda edge: FusedTransport(lanes, on_passed=partial(meter.on_passed, edge))
    return None


def edges_here(
    scene: Scene,
    task: Task,
    model: nn.Module,
    transport_of: Callable[[str], Transport] | None,
    parts: Sequence[Part] = (),
) -> MakeEdge:
    """Return the function that makes the edges that run in this process, with what features put in front of them."""
    config, profiles, world = scene.case, scene.profiles, scene.world
    algorithm, federation, client_of = config.algorithm, config.federation, scene.client_of
    cuts = cuts_of(algorithm, config.split, model)
    cut_of = cut_rule(cuts, client_of, world, is_best=config.split.cut_layer.is_best)
    epochs = config.plan.max_local_rounds if config.rule else task.training.local_epochs
    most = replace(task.training, local_epochs=epochs)
    profile_of = profiles_by_node(profiles)
    head = auxiliary_head(config.split, task, config.seed) if algorithm.auxiliary else None

    def make(name: str, size: int) -> Any:
        site = Site(
            name=name,
            size=size,
            seed=derived_seed(config.seed, "split", name),
            cut_of=cut_of,
            client_of=client_of,
            transport=transport_of(name) if transport_of else None,
            task=task,
            federation=federation,
            train=config.train,
            split=config.split,
            device=compute_device(config.device),
            max_steps=lambda node_id: most.num_steps(profile_of[node_id].num_train_examples),
            stacks=config.decided.stack > 0,
            own=config.of_algorithm,
            auxiliary=head,
        )
        made = own_edge(algorithm, site) if algorithm.written else algorithm.make_edge(site)
        check_edge_fits(algorithm, model, made)
        if not task.has_corners:
            return made
        if not algorithm.averages:
            allowed = "one that averages, where clients have parts of weights, which this would pass on as the whole"
            raise bad_value("algorithm", algorithm.name, allowed)
        whole = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
        return EdgeOverCorners(made, cache(lambda node_id: task.corners(client_of[node_id])), whole)

    make_edge: MakeEdge = make
    for part in parts:
        make_edge = part.edges(make_edge)
    if config.report.evaluate_clients < 1:
        make_edge = evaluating_on_some(make_edge, config.report.evaluate_clients, config.seed)
    for feature in FEATURES:
        make_edge = feature.in_front(scene, make_edge)
    if config.train.weighting == "equal":
        make_edge = equally_weighted(make_edge)
    return checked_by_profiles(
        make_edge,
        profiles,
        task.objective,
        task.top_m,
        validates=config.data.validation_share > 0,
        is_personal=algorithm.client.personal is not None,
        train_metrics=train_metrics_of(config),
    )


def train_metrics_of(config: Case) -> set[str]:
    """Return what clients tell of their training: the loss, and norm bits where a strategy clips by them."""
    spec = config.answered
    clips = spec is not None and spec.has_any(DifferentialPrivacyClientSideAdaptiveClipping)
    return {TRAIN_LOSS, *[NORM_BIT] * clips} - withheld_by(config)


def own_edge(algorithm: Algorithm, site: Site) -> Strategy | EdgeRounds:
    """Return an edge of an algorithm of the user's own; UserError where it can't be made."""
    try:
        made = algorithm.make_edge(site)
    except UserError:
        raise
    except FAULTS as error:  # it is foreign code
        reason = error_and_place(error, algorithm.files)
        raise bad_value("algorithm", algorithm.text, f"one whose make_edge(site) does not fail ({reason})") from None
    if not (isinstance(made, Strategy) or callable(getattr(made, "train_round", None))):
        allowed = f"one whose make_edge(site) returns a Flower strategy or EdgeRounds, not a {type(made).__name__}"
        raise bad_value("algorithm", algorithm.text, allowed)
    return made


def algorithm_over(
    config: Case,
    cloud: StrategySpec,
    make_edge: MakeEdge,
    topology: Mapping[str, Sequence[int]],
    client_of: Mapping[int, int],
    observers: Sequence[Any],
    parts: Sequence[Part] = (),
    **options: Any,
) -> Hierarchical:
    """Return the config's algorithm over edges, wherever they run; UserError where strategies don't suit them."""
    over_edges: MakeHierarchical = Hierarchical
    for part in parts:
        over_edges = part.over_edges(over_edges)
    try:
        hierarchical = over_edges(
            cloud.build(ONE_NODE),
            make_edge,
            topology,
            edge_rounds=config.edge_rounds,
            seed=config.seed,
            evaluate_every=config.report.evaluate_every,
            observers=observers,
            guard=Guard(config.guard.mode, config.guard.update_norm, config.guard.activation_norm),
            node_name=lambda node_id: f"client {client_of.get(node_id, node_id)}",
            **options,
        )
        check_states(hierarchical)
        return hierarchical
    except ValueError as error:
        raise UserError(f"{error} (see {config.here.hint})") from None


def one_edge(
    scene: Scene,
    task: Task,
    model: nn.Module,
    observers: Sequence[Observer],
    transport_of: Callable[[str], Transport] | None,
) -> Hierarchical:
    """Return the algorithm of one edge that runs by itself: on a host of its own, or in a worker.

    Parameters
    ----------
    scene : Scene
        Its topology is of this edge alone; profiles are of its clients, with or without those of other edges.
    task : Task
        What clients train for.
    model : nn.Module
        The whole model.
    observers : Sequence[Observer]
        Told of its messages and edge rounds.
    transport_of : Callable[[str], Transport], optional
        See `transports`.
    """
    make_edge = edges_here(scene, task, model, transport_of)
    # The cloud's own strategy may need more edges than this one.
    return algorithm_over(scene.case, PLAIN_MEAN, make_edge, scene.topology, scene.client_of, observers)


def metered_edge(
    scene: Scene, task: Task, model: nn.Module, streams: Streams | None, lanes: Lanes | None = None
) -> tuple[Hierarchical, ByteMeter, SecondsMeter]:
    """Return the algorithm of `one_edge`, and what counts its bytes and seconds."""
    meter, seconds = ByteMeter({"edge": "edge"}), SecondsMeter(scene.client_of)
    transport_of = transports(scene.case, meter, streams, lanes)
    return one_edge(scene, task, model, (meter, seconds), transport_of), meter, seconds
