"""Edges that any worker can serve: each global round, evaluation and personalisation is one request."""

import atexit
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from logging import getLogger
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from torch import nn

from espalier.app.config.parse import parse_config
from espalier.app.config.run_config import RunConfig
from espalier.app.engines.engine import App, Engine, ServesEdges
from espalier.app.engines.in_process import PATIENCE_SECONDS
from espalier.app.features.feature import Scene
from espalier.app.features.table import parts_of
from espalier.app.ground.checkpoint import to_bytes
from espalier.app.ground.errors import UserError, shown
from espalier.app.meters.bytes import ByteMeter
from espalier.app.meters.seconds import SecondsMeter
from espalier.app.planning.world import PlannedWorld
from espalier.app.tasks.common import set_up_torch
from espalier.app.tasks.task import Task
from espalier.app.tiers.edge_host import EdgeRun
from espalier.app.tiers.own_hosts import add_counted, tuned_head
from espalier.app.tiers.remote_edge import EdgeError, RemoteEdge, reply_of
from espalier.app.tiers.states import AtDriver, WholeState
from espalier.app.tiers.wire import node_of
from espalier.app.wiring.clients import client_half, looked_up_once
from espalier.app.wiring.edges import metered_edge
from espalier.app.wiring.federation import told_clients
from espalier.app.wiring.one_server import (
    Assembled,
    clients_and_edges,
    federation_over,
    streams_of,
)
from espalier.app.wiring.planning import planned_world
from espalier.app.wiring.streams import Streams
from espalier.app.wiring.task_of_run import build_task
from espalier.clients.client_app import make_client_app
from espalier.clients.messages.edge import PAYLOAD, QUERY_EDGE, EdgeRequest, to_payload
from espalier.clients.messages.profile import EDGE_NAME
from espalier.clients.messages.seconds import tell_waiting
from espalier.clients.seconds import tell_seconds
from espalier.clients.shared.lanes import Lanes
from espalier.clients.stacked.stacking import TrainingStack
from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies import Profile, group_by_edge
from espalier.strategies.exchange import ask
from espalier.strategies.profiles import clients_by_node, profiles_by_node

logger = getLogger("espalier")


@dataclass(frozen=True)
class MakeEdgeApp:
    """Makes, in a worker's process, what serves the edges of a run; it can be pickled.

    Parameters
    ----------
    run_config : Mapping[str, Any]
        The settings of the run by their keys.
    profiles : Sequence[Profile]
        All clients, in client order, as they are in one process.
    """

    run_config: Mapping[str, Any]
    profiles: Sequence[Profile]

    def __call__(self) -> App:
        """Return the app; data are loaded and edges made when they are first asked for."""
        return EdgeApp(parse_config(dict(self.run_config)), self.profiles)


class EdgeApp:
    """What the nodes that are edges run: an edge's request is answered with clients of this process.

    Parameters
    ----------
    config : RunConfig
        The run.
    profiles : Sequence[Profile]
        All clients, in client order.
    """

    def __init__(self, config: RunConfig, profiles: Sequence[Profile]) -> None:
        self._config = config
        self._run_config = config.as_dict()
        self._profiles = profiles_by_node(profiles)
        self._topology = group_by_edge(profiles, config.edges)
        self._load_task = looked_up_once()
        self._lanes = Lanes()
        self._client_app = make_client_app(self._load_task, durable=False, lanes=self._lanes, mods=[tell_seconds])
        self._edges: dict[str, EdgeRun] = {}

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a request to the edge that the node's config names."""
        request = EdgeRequest.from_content(message.content)
        with unheard():
            edge = self._edge(str(context.node_config[EDGE_NAME]))
            answer = edge.answer(message.metadata.message_type, request.payload)
        return Message(RecordDict({PAYLOAD: to_payload(answer)}), reply_to=message)

    def _edge(self, name: str) -> EdgeRun:
        if name not in self._edges:
            self._edges[name] = self._new_edge(name)
        return self._edges[name]

    def _new_edge(self, name: str) -> EdgeRun:
        config, members, stack = self._config, self._topology[name], self._config.decided.stack
        profiles = [self._profiles[node_id] for node_id in members]
        clients = [profile.partition_id for profile in profiles]
        grid = InProcessGrid(
            self._client_app,
            len(members),
            run_config=self._run_config,
            node_configs=[{"partition-id": client, "num-partitions": len(self._profiles)} for client in clients],
            node_ids=members,
            stack=TrainingStack(self._load_task, stack, self._lanes, client_half(self._run_config)) if stack else None,
            on_waited=tell_waiting,
        )
        task, model = self._task_and_model
        scene = Scene(config, list(self._profiles.values()), {name: members}, self._world, model)
        hierarchical, meter, seconds = metered_edge(scene, task, model, self._streams, self._lanes)
        state = WholeState(hierarchical.edges[name], self._world, grid, clients)
        return EdgeRun(
            name,
            {},
            grid,
            profiles,
            hierarchical,
            meter,
            seconds,
            self._world,
            state,
            timeout_seconds=None,
            figures=task.objective.figures,
        )

    @cached_property
    def _task_and_model(self) -> tuple[Task, nn.Module]:
        set_up_torch(self._config.device, self._config.train.torch_threads, self._config.train.precision)
        task = build_task(self._config)
        return task, task.new_model()

    @cached_property
    def _world(self) -> PlannedWorld | None:
        """The world of all cells, as in one process: each edge's plan is made here."""
        return planned_world(self._config, self._topology, list(self._profiles.values()), *self._task_and_model)

    @cached_property
    def _streams(self) -> Streams | None:
        """Accepts the streams of the clients, which are in this process: its port is its own."""
        if not self._config.trains_by_stream:
            return None
        stack = ExitStack()
        atexit.register(stack.close)
        stream = self._config.stream.model_copy(update={"port": 0})
        config = self._config.model_copy(update={"stream": stream})
        task, model = self._task_and_model
        return stack.enter_context(streams_of(config, model, task, lambda seconds: PATIENCE_SECONDS))


@contextmanager
def unheard() -> Iterator[None]:
    """Keep back what an edge logs: whoever asked logs the same, from the answer."""
    was_disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was_disabled


class ServedEdges:
    """The engine of a run whose edges are served: it reaches edges, and keeps what their clients do.

    Parameters
    ----------
    grid : Grid
        Its nodes are edges.
    kept : dict[str, bytes]
        What clients keep from round to round, by their numbers.
    states : Mapping[str, AtDriver]
        The edges', by their names.
    node_of_edge : Mapping[str, int]
        Node ids by edge.
    """

    lanes = None  # clients are in the workers, with their edges
    numbers = None  # which were asked

    def __init__(
        self, grid: Grid, kept: dict[str, bytes], states: Mapping[str, AtDriver], node_of_edge: Mapping[str, int]
    ) -> None:
        self.grid = grid
        self.kept = kept
        self._states = states
        self._node_of_edge = node_of_edge

    def stream_patience_seconds(self, timeout_seconds: float) -> float:
        """Return a second: clients wait for each other."""
        return PATIENCE_SECONDS

    def clients_state(self) -> dict[str, Any]:
        """Return what the clients keep, in their order."""
        return {client: self.kept[client] for client in sorted(self.kept, key=int)}

    def load_clients_state(self, state: Mapping[str, Any]) -> bool:
        """Give it back, and let the edges try theirs; return True.

        Raises
        ------
        ValueError
            If it is of other clients, or an edge can't take the state that it would get.
        """
        known = {str(client) for edge in self._states.values() for client in edge.clients}
        if unknown := state.keys() - known:
            raise ValueError(f"states of unknown clients: {sorted(map(shown, unknown))}")
        self.kept.clear()
        self.kept.update(state)
        requests = [
            EdgeRequest(to_bytes({"state": self._states[name].to_request()}), 0, 0).to_message(node_id, QUERY_EDGE)
            for name, node_id in self._node_of_edge.items()
        ]
        for name, reply in zip(self._node_of_edge, ask(self.grid, requests), strict=True):
            try:
                reply_of(reply)
            except EdgeError as error:
                raise ValueError(f"edge {name!r}: {error}") from None
        return True


def assemble_served(
    config: RunConfig,
    engine: ServesEdges,
    task: Task,
    model: nn.Module,
    streams: Streams | None,
    observers: Sequence[Any],
) -> tuple[Assembled, Engine]:
    """Build the algorithm over edges that an engine's workers serve; parameters as of `assemble` in wiring.

    Returns
    -------
    tuple[Assembled, Engine]
        Who takes part, and the engine to run with: its nodes are the edges.
    """
    profiles, topology = clients_and_edges(config, engine.grid, streams, told_clients(task, engine.numbers))
    client_of = clients_by_node(profiles)
    clients = {name: [client_of[node_id] for node_id in members] for name, members in topology.items()}
    sizes = {name: len(members) for name, members in topology.items()}
    grid = engine.serve_edges(MakeEdgeApp(config.as_dict(), tuple(profiles)), sizes)
    kept = dict(engine.clients_state())
    # In answers a client goes by its number.
    profiles = [replace(profile, node_id=node_of(profile.partition_id)) for profile in profiles]
    topology = {name: list(map(node_of, numbers)) for name, numbers in clients.items()}
    by_number = {profile.partition_id: profile for profile in profiles}
    meter = ByteMeter({"cloud": "cloud"})  # the edges count theirs
    world = planned_world(config, topology, profiles, task, model)
    scene = Scene(config, profiles, topology, world, model)
    seconds = SecondsMeter(scene.client_of)
    states = {name: AtDriver(numbers, kept, world) for name, numbers in clients.items()}
    node_of_edge = introduced(grid, states)

    def make_edge(name: str, size: int) -> RemoteEdge:
        return RemoteEdge(
            name,
            node_of_edge[name],
            [by_number[client] for client in clients[name]],
            config.federation.edge_rounds,
            states[name],
            wait_seconds=0,
            reply_seconds=0,
            figures=task.objective.figures,
            head=tuned_head(config.algorithm, config.split, model),
            is_planned=world is not None,
            is_own=True,
            on_counted=partial(add_counted, meter, seconds, world),
        )

    federation = federation_over(scene, make_edge, meter, seconds, parts_of(scene), observers)
    return federation, ServedEdges(grid, kept, states, node_of_edge)


def introduced(grid: Grid, states: Mapping[str, AtDriver]) -> dict[str, int]:
    """Ask all edges for their state at the start, and return the node ids by edge.

    Raises
    ------
    UserError
        If an edge can't be made.
    """
    ids = list(grid.get_node_ids())
    request = EdgeRequest(to_bytes({}), 0, 0)
    nodes = {}
    for node_id, reply in zip(ids, ask(grid, [request.to_message(n, QUERY_EDGE) for n in ids]), strict=True):
        try:
            answer = reply_of(reply)
        except EdgeError as error:
            raise UserError(f"an edge can't be made: {error}") from None
        states[answer["name"]].from_answer(answer["state"])
        nodes[answer["name"]] = node_id
    return nodes
