"""The run of an edge on a host of its own: with its own devices it serves the cloud's requests until it is stopped."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from espalier.app.algorithms import build_algorithm, check_averages, world_of
from espalier.app.checkpoint import from_bytes, to_bytes
from espalier.app.config import RunConfig, check_cell_size, check_strategies
from espalier.app.errors import UserError, bad_value
from espalier.app.federation import gather_devices
from espalier.app.memory import keep_memory
from espalier.app.reports.bytes import ByteMeter, nested
from espalier.app.reports.folder import ResultsFolder
from espalier.app.reports.metrics import edge_lines, personalised_line, reported
from espalier.app.streams import Streams, measures, streams_of, trains_by_stream
from espalier.app.tasks.common import set_up_torch
from espalier.app.tasks.family import family
from espalier.app.tiers.cloud import refuse_rules_over_all_cells
from espalier.app.tiers.listener import EdgeListener
from espalier.app.tiers.wire import Wire, evaluation_to_wire, heads_to_wire, outcome_to_wire, profile_to_wire
from espalier.app.wireless import World, check_deadline
from espalier.clients.messages.edge import EVALUATE_EDGE, QUERY_EDGE, TRAIN_EDGE, TRAIN_EDGE_HEADS
from espalier.strategies import EdgeOutcome, Evaluation, Profile, Round
from espalier.strategies.edges import innermost
from espalier.strategies.exchange import Exchanges, converse
from espalier.strategies.split import FineTuning, Personalised, SplitEdge
from espalier.strategies.views import MemberGrid

logger = getLogger("espalier")

LOOK_SECONDS = 2.0  # between two looks at who is connected


def run_edge(
    config: RunConfig,
    grid: Grid,
    results_parent: Path,
    is_over: Callable[[], bool] = lambda: False,
    look_seconds: float = LOOK_SECONDS,
) -> None:
    """Wait for the edge's devices, then serve the cloud's requests.

    Parameters
    ----------
    config : RunConfig
        The run, with ``role = "edge"``.
    grid : Grid
        Reaches the devices.
    results_parent : Path
        Where the results folder goes if `output-dir` names none.
    is_over : Callable[[], bool] (default: never)
        Asked between requests whether to stop.
    look_seconds : float (default: 2)
        How often to look for it, and at who is connected, while no request comes.

    Raises
    ------
    UserError
        For whatever the user has to change.
    """
    check_strategies(config)
    set_up_torch(config)
    refuse_rules_over_all_cells(config)
    family(config).check_data(config)
    check_averages(config, family(config).new_model(config))
    with EdgeListener(Path(config.edge_folder).expanduser()) as listener, streams_of(config) as streams:
        with streams.probes() if streams and measures(config) else nullcontext() as measure:
            profiles = gather_devices(grid, config, measure)
        edge = EdgeRun(config, grid, profiles, streams)
        edge.report_to(ResultsFolder.create(config, results_parent))
        logger.info("serving edge %r with clients %s", config.edge_name, ", ".join(map(str, edge.clients)))
        keep_memory()
        while not is_over():
            if not listener.serve_one(edge.answer, look_seconds):
                edge.look_who_is_connected()


class EdgeRun:
    """One edge that answers requests. It keeps nothing from one to the next: each brings the edge's state.

    Parameters
    ----------
    config : RunConfig
        The run.
    grid : Grid
        Reaches the devices.
    profiles : Sequence[Profile]
        The devices, in client order.
    streams : Streams, optional (default: None)
        Accepts the devices' streams.

    Raises
    ------
    UserError
        If the config does not suit these devices.
    """

    def __init__(
        self, config: RunConfig, grid: Grid, profiles: Sequence[Profile], streams: Streams | None = None
    ) -> None:
        self._config = config
        self._grid = grid
        self._profiles = profiles
        self._name = config.edge_name
        self._meter = ByteMeter({"edge": "edge"})
        self._folder: ResultsFolder | None = None
        self._round = 0  # the last one asked for, to report
        self._client_of = {profile.node_id: profile.partition_id for profile in profiles}
        topology = {self._name: [profile.node_id for profile in profiles]}
        # The cloud's strategy may need more edges than this one.
        config = config.model_copy(update={"cloud_strategy": "FedAvg"})
        self._world = None
        if config.is_planned:
            check_cell_size(config, len(profiles))
            self._world = world_of_edge(config, profiles)
            if config.resources == "simulated":  # then all edges' clients are known here
                check_deadline(config, self._world)
        try:
            self._hierarchical = build_algorithm(
                config,
                topology,
                self._client_of,
                self._world,
                partial(streams.transport, self._meter) if streams and trains_by_stream(config) else None,
                observers=(self._meter,),
                node_name=lambda node_id: f"client {self._client_of.get(node_id, node_id)}",
            )
        except ValueError as error:
            raise UserError(f"{error} (see edge-strategy and edge-clients)") from None
        self._edge = self._hierarchical.edges[self._name]
        self._initial_state = to_bytes(self._state())
        self._handlers = {
            QUERY_EDGE: self._introduce,
            TRAIN_EDGE: self._train,
            EVALUATE_EDGE: self._evaluate,
            TRAIN_EDGE_HEADS: self._personalise,
        }

    @property
    def clients(self) -> list[int]:
        """Numbers of its clients."""
        return [profile.partition_id for profile in self._profiles]

    def report_to(self, folder: ResultsFolder) -> None:
        """Write a line for every request to ``metrics.jsonl`` in this folder from now on."""
        self._folder = folder
        logger.info("results go to %s", folder.path)
        if self._world:
            folder.write_json("world.json", self._world.describe())

    def answer(self, message_type: str, request: bytes) -> bytes:
        """Serve a request; one that fails gives an answer that says why, and harms no other."""
        try:
            if message_type not in self._handlers:
                raise ValueError(f"no such request: {message_type!r}")
            return to_bytes(self._handlers[message_type](from_bytes(request)))
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            logger.warning("%s failed: %s", message_type, reason)
            return to_bytes({"error": reason})

    def look_who_is_connected(self) -> None:
        """Look through the view that logs devices which have left or come back."""
        self._hierarchical.members(self._name, self._grid).get_node_ids()

    def _introduce(self, request: Wire) -> Wire:
        logger.info("the cloud asked for edge %r", self._name)
        return {
            "name": self._name,
            "config": self._config.as_dict(),
            "clients": [profile_to_wire(profile) for profile in self._profiles],
            "state": from_bytes(self._initial_state),
        }

    def _train(self, request: Wire) -> Wire:
        self._round = number = request["round"]
        self._load_state(request["state"])
        logger.info("global round %d: started", number)
        rounds = self._hierarchical.train_edge(self._name, number, request["arrays"], request["config"], self._grid)
        outcome: EdgeOutcome = self._converse(rounds)
        took_part = {node_id for update in outcome.updates for node_id in update.participants}
        logger.info("global round %d: done, %d of %d clients took part", number, len(took_part), len(self._profiles))
        self._report_round(number, outcome)
        return outcome_to_wire(outcome, self._client_of) | {"state": self._state()}

    def _evaluate(self, request: Wire) -> Wire:
        number = request["round"]
        self._load_state(request["state"])
        evaluation: Evaluation = self._converse(
            self._hierarchical.evaluate_edge(self._name, number, request["arrays"], request["config"], self._grid)
        )
        self._hierarchical.log_failures(f"round {number}, evaluation", self._name, evaluation.failures)
        metrics = reported(evaluation.metrics or {})
        counts = nested(self._meter.take())
        self._write({"round": number, "scope": "evaluation", "edge": self._name, **metrics, "bytes": counts})
        return evaluation_to_wire(evaluation, self._client_of) | {"state": self._state()}

    def _personalise(self, request: Wire) -> Wire:
        self._load_state(request["state"])
        fine_tuning = FineTuning(request["num_steps"], request["learning_rate"])
        members = MemberGrid(self._grid, self._hierarchical.topology[self._name])
        edge: SplitEdge = innermost(self._edge)
        result: Personalised = self._converse(edge.personalise(request["arrays"], fine_tuning, members))
        self._hierarchical.log_failures("personalisation", self._name, result.failures)
        self._write(personalised_line(self._round, {self._name: result}, self._meter.take(), self._client_of))
        return heads_to_wire(result, self._client_of) | {"state": self._state()}

    def _converse(self, conversation: Exchanges[Any]) -> Any:
        return converse(
            self._grid,
            {self._name: conversation},
            timeout_seconds=self._config.reply_timeout or None,
            on_message=lambda *what: self._meter.on_message("edge", *what),
        )[self._name]

    def _state(self) -> dict[str, Any]:
        return {"edge": self._edge.state_dict(), "world": self._world.state_dict() if self._world else None}

    def _load_state(self, state: dict[str, Any]) -> None:
        self._edge.load_state_dict(state["edge"])
        if self._world:
            self._world.load_state_dict(state["world"])

    def _report_round(self, number: int, outcome: EdgeOutcome) -> None:
        edges = {self._name: outcome}
        (line,) = edge_lines(Round(number, outcome.arrays, None, None, edges), self._meter.take(), self._client_of)
        if self._world:
            line |= {"plans": self._world.edges[self._name].take_reports(), **self._world.end_round()}
        self._write(line)

    def _write(self, line: Wire) -> None:
        if self._folder:
            self._folder.append_metrics([line])


def world_of_edge(config: RunConfig, profiles: Sequence[Profile]) -> World:
    """Return what the plans of one edge are made for; they are those of a run that has all edges.

    The simulated radio world is drawn for all cells, whose clients are blocks of numbers.

    Parameters
    ----------
    config : RunConfig
        The edge's run.
    profiles : Sequence[Profile]
        Its devices, in client order.

    Raises
    ------
    UserError
        If the world is simulated and the devices are not one of the blocks.
    """
    own = {profile.partition_id: profile for profile in profiles}
    if config.resources == "measured":
        topology = {config.edge_name: [profile.node_id for profile in profiles]}
        return world_of(config, topology, {p.node_id: p.partition_id for p in profiles}, profiles)
    cells: dict[int, list[int]] = {}
    for client in range(config.num_clients):
        cells.setdefault(client * config.edges // config.num_clients, []).append(client)
    cell = min(own) * config.edges // config.num_clients
    if cells[cell] != list(own):
        blocks = ", ".join(f"{block[0]} to {block[-1]}" for block in cells.values())
        numbers = ", ".join(map(str, own))
        raise UserError(f"edge {config.edge_name!r} has clients {numbers}: allowed are whole radio cells, {blocks}")
    names = {i: config.edge_name if i == cell else f"edge-{i}" for i in cells}
    if len(set(names.values())) < len(names):
        raise bad_value("edge-name", config.edge_name, f"'edge-{cell}', or a name of another kind")
    # Nodes of other edges are not known here, and nothing of them matters but that they are in other cells.
    nobody = Profile(0, 0, "", 1, 1, ())
    everybody = [
        own.get(client) or replace(nobody, node_id=-client - 1, partition_id=client)
        for client in range(config.num_clients)
    ]
    topology = {names[i]: [everybody[client].node_id for client in block] for i, block in cells.items()}
    return world_of(config, topology, {p.node_id: p.partition_id for p in everybody}, everybody)
