"""The run of an edge on a host of its own: with its own devices it serves the cloud's requests until it is stopped."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from logging import getLogger
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from espalier.app.features.feature import Watcher
from espalier.app.ground.checkpoint import from_bytes, to_bytes
from espalier.app.ground.errors import FAULTS, UserError
from espalier.app.ground.object_spec import error_line
from espalier.app.meters.bytes import ByteMeter, Link, nested
from espalier.app.meters.seconds import OfEdge, SecondsMeter
from espalier.app.planning.plan_reports import of_a_line
from espalier.app.planning.world import PlannedWorld
from espalier.app.reports.folder import ResultsFolder
from espalier.app.reports.made_by import maker
from espalier.app.reports.metrics import edge_lines, personalised_line, reported
from espalier.app.tiers.listener import EdgeListener
from espalier.app.tiers.states import EdgeState
from espalier.app.tiers.wire import (
    Wire,
    counted_to_wire,
    evaluation_to_wire,
    heads_to_wire,
    outcome_to_wire,
    profile_to_wire,
)
from espalier.clients.messages.edge import EVALUATE_EDGE, QUERY_EDGE, TRAIN_EDGE, TRAIN_EDGE_HEADS
from espalier.strategies import EdgeOutcome, Evaluation, Failure, Hierarchical, Profile, Round
from espalier.strategies.compression import PlainUplinks, Uplinks
from espalier.strategies.deadline import Deadline
from espalier.strategies.exchange import Conversations, Exchanges
from espalier.strategies.outcomes import EVERYBODY
from espalier.strategies.profiles import clients_by_node
from espalier.strategies.split import FineTuning, Personalised
from espalier.strategies.views import MemberGrid

logger = getLogger("espalier")

LOOK_SECONDS = 2.0  # between two looks at who is connected


def serve(edge: "EdgeRun", listener: EdgeListener, is_over: Callable[[], bool], look_seconds: float) -> None:
    """Answer the cloud's requests until it is over."""
    logger.info("serving edge %r with clients %s", edge.name, ", ".join(map(str, edge.clients)))
    while not is_over():
        if not listener.serve_one(edge.answer, look_seconds):
            edge.look_who_is_connected()


class EdgeRun:
    """One edge that answers requests. It keeps late results alone from one to the next: each brings the edge's state.

    Parameters
    ----------
    name : str
        Of the edge.
    config : Mapping[str, Any]
        The settings of its run by their keys, for the cloud to compare.
    grid : Grid
        Reaches the devices.
    profiles : Sequence[Profile]
        The devices, in client order.
    hierarchical : Hierarchical
        Has this one edge.
    meter : ByteMeter
        Counts bytes.
    seconds : SecondsMeter
        Tells how long its clients take.
    world : PlannedWorld, optional
        What plans are made for.
    state : EdgeState
        What outlives a request.
    timeout_seconds : float, optional
        How long the edge waits for replies.
    figures : Sequence[str]
        What every evaluation tells.
    deadline : Deadline, optional (default: None)
        That of its plans, where it is in real time: results that are late come between requests, too.
    uplinks : Uplinks, optional (default: None)
        Carries its models to the cloud, which has one of its own to read them. None: as they are.
    """

    def __init__(
        self,
        name: str,
        config: Mapping[str, Any],
        grid: Grid,
        profiles: Sequence[Profile],
        hierarchical: Hierarchical,
        meter: ByteMeter,
        seconds: SecondsMeter,
        world: PlannedWorld | None,
        state: EdgeState,
        *,
        timeout_seconds: float | None,
        figures: Sequence[str],
        deadline: Deadline | None = None,
        uplinks: Uplinks | None = None,
    ) -> None:
        self.name = name
        self._config = dict(config)
        self._grid = grid
        self._profiles = profiles
        self._hierarchical = hierarchical
        self._meter = meter
        self._seconds = seconds
        self._world = world
        self._state = state
        self._timeout_seconds = timeout_seconds
        self._deadline = deadline
        self._uplinks = uplinks or PlainUplinks()
        self._figures = dict.fromkeys(figures, 0.0)
        self._conversations = self._new_conversations()
        self._folder: ResultsFolder | None = None
        self._watchers: Sequence[Watcher] = ()
        self._is_unwritable = False
        self._round = 0  # the last one asked for, to report
        self._client_of = clients_by_node(profiles)
        self._edge = hierarchical.edges[name]
        self._initial_state = to_bytes(state.to_answer())
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

    def report_to(self, folder: ResultsFolder, watchers: Sequence[Watcher] = ()) -> None:
        """Write a line for every request to ``metrics.jsonl`` in this folder from now on, and tell watchers of it."""
        self._folder, self._watchers = folder, watchers
        logger.info("results go to %s", folder.path)
        if self._world:
            folder.write_json("world.json", self._world.describe())

    def answer(self, message_type: str, request: bytes) -> bytes:
        """Serve a request; one that fails gives an answer that says why, and harms no other."""
        try:
            if message_type not in self._handlers:
                raise ValueError(f"no such request: {message_type!r}")
            return to_bytes(self._handlers[message_type](from_bytes(request)))
        except FAULTS as error:
            reason = error_line(error)
            logger.warning("%s failed: %s", message_type, reason)
            self._forget_counts()
            return to_bytes({"error": reason})

    def look_who_is_connected(self) -> None:
        """Look through the view that logs devices which have left or come back, and for results that were late."""
        self._hierarchical.members(self.name, self._grid).get_node_ids()
        if self._deadline:
            # The next request brings the state that their times go into; its answer tells what came up now, too.
            with self._deadline.held():
                self._conversations.advance()

    def _introduce(self, request: Wire) -> Wire:
        logger.info("the cloud asked for edge %r", self.name)
        # What was late in another run is none of this one's.
        self._begin_conversations()
        self._forget_counts()
        if self._deadline:
            self._deadline.forget()
        if "state" in request:  # asked whether it can be taken
            self._load_state(request["state"])
        return {
            "name": self.name,
            "config": self._config,
            "clients": [profile_to_wire(profile) for profile in self._profiles],
            "state": from_bytes(self._initial_state),
            "version": maker()["version"],
        }

    def _train(self, request: Wire) -> Wire:
        self._round = number = request["round"]
        self._load_state(request["state"])
        self._state.before_training()
        logger.info("global round %d: started", number)
        config = self._told(request)
        rounds = self._hierarchical.train_edge(self.name, number, request["arrays"], config, self._grid)
        outcome: EdgeOutcome = self._converse(rounds)
        seconds = self._seconds.take(outcome)
        sent = None
        if outcome.arrays is not None:
            try:
                sent = self._uplinks.carried(self.name, number, request["arrays"], outcome.arrays).sent
            except ValueError as error:
                outcome = _without_model(outcome, str(error))
        took_part = {node_id for update in outcome.updates for node_id in update.participants}
        logger.info("global round %d: done, %d of %d clients took part", number, len(took_part), len(self._profiles))
        counts = self._meter.drain()
        plans = self._world.edges[self.name].take_rounds() if self._world else []
        self._report_round(number, outcome, counts, of_a_line(plans, self._hierarchical.edge_rounds))
        return outcome_to_wire(outcome, sent, self._client_of) | self._rest(counts, plans, seconds)

    def _evaluate(self, request: Wire) -> Wire:
        number = request["round"]
        self._load_state(request["state"])
        config = self._told(request)
        evaluation: Evaluation = self._converse(
            self._hierarchical.evaluate_edge(self.name, number, request["arrays"], config, self._grid)
        )
        self._hierarchical.log_failures(f"round {number}, evaluation", self.name, evaluation.failures)
        metrics = reported(evaluation.metrics or {})
        counts = self._meter.drain()
        self._write({"round": number, "scope": "evaluation", "edge": self.name, **metrics, "bytes": nested(counts)})
        return evaluation_to_wire(evaluation, self._client_of) | self._rest(counts)

    def _personalise(self, request: Wire) -> Wire:
        self._load_state(request["state"])
        fine_tuning = FineTuning(request["num_steps"], request["learning_rate"])
        members = MemberGrid(self._grid, self._hierarchical.topology[self.name])
        given: Personalised = self._converse(self._edge.personalise(request["arrays"], fine_tuning, members))
        result = given.judged_by(self._figures)
        self._hierarchical.log_failures("personalisation", self.name, result.failures)
        counts = self._meter.drain()
        self._write(personalised_line(self._round, {self.name: result}, counts, self._client_of, self._figures))
        return heads_to_wire(result, self._client_of) | self._rest(counts)

    def _converse(self, conversation: Exchanges[Any]) -> Any:
        """Run a conversation; what it does not wait for, such as late results, goes on in the next request's."""
        try:
            return self._conversations.run({self.name: conversation})[self.name]
        except BaseException:
            self._begin_conversations()  # nothing of it goes on
            raise

    def _begin_conversations(self) -> None:
        self._conversations.close()
        self._conversations = self._new_conversations()

    def _new_conversations(self) -> Conversations:
        return Conversations(
            self._grid,
            timeout_seconds=self._timeout_seconds,
            on_message=lambda *what: self._meter.on_message("edge", *what),
            on_trip=self._seconds.on_trip,
        )

    def _load_state(self, state: dict[str, Any]) -> None:
        """Take the state that came with a request; the plans of a request that failed are none of this one's."""
        self._state.from_request(state)
        if self._deadline:
            self._deadline.release()
        if self._world:
            self._world.edges[self.name].take_rounds()

    def _told(self, request: Wire) -> ConfigRecord:
        """Return what a request tells clients, and the edge's own state."""
        return ConfigRecord({**request["config"], **self._state.told})

    def _forget_counts(self) -> None:
        self._meter.drain()
        self._seconds.forget()

    def _rest(
        self,
        counts: Counter[Link],
        plans: Sequence[tuple[int, dict[str, Any]]] = (),
        seconds: OfEdge | None = None,
    ) -> Wire:
        """Return what every answer holds besides its result."""
        counted = counted_to_wire(counts, plans, seconds)
        return {"counted": counted, "state": self._state.to_answer(), "config": self._config}

    def _report_round(
        self, number: int, outcome: EdgeOutcome, counts: Counter[Link], plans: list[dict[str, Any]]
    ) -> None:
        only = Round(number, outcome.arrays or ArrayRecord(), None, None, {self.name: outcome})
        (line,) = edge_lines(only, counts, self._client_of)
        if self._world:
            line |= {"plans": plans, **self._world.end_round()}
        self._write(line)

    def _write(self, line: Wire) -> None:
        for watcher in self._watchers:
            watcher.lines_over([line])
        if not self._folder:
            return
        try:
            self._folder.append_metrics([line])
        except (OSError, UserError) as error:  # the cloud gets its answer without this host's own report of it
            if not self._is_unwritable:
                logger.warning("%s: can't be written, the edge goes on: %s", self._folder.path, error_line(error))
            self._is_unwritable = True
        else:
            if self._is_unwritable:
                logger.warning("%s: can be written again, and lacks what came meanwhile", self._folder.path)
            self._is_unwritable = False


def _without_model(outcome: EdgeOutcome, why: str) -> EdgeOutcome:
    """Return an edge's rounds of which no model comes up."""
    *others, last = [replace(update, arrays=None) for update in outcome.updates]
    last = replace(last, failures=[*last.failures, Failure(EVERYBODY, why)])
    return replace(outcome, arrays=None, updates=[*others, last])
