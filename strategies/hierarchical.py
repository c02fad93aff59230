"""Hierarchical: edge strategies nested under a cloud strategy."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from logging import INFO, WARNING, getLogger
from numbers import Integral
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from espalier.clients.messages.train import ARRAYS, METRICS
from espalier.clients.shared.records import config_in, records_in

from .attendance import Attendance
from .compression import PlainUplinks, Uplinks
from .edge_base import Edge, EdgeRounds
from .edges import at_once, check_makes_edges, edge_of
from .exchange import EDGE_FAILED, Conversations, Exchanges, Together, answered
from .flower_strategies import check_clipping, check_minimum
from .guards.bounds import Guard
from .guards.updates import UpdateGuard
from .outcomes import EVERYBODY, EdgeOutcome, Evaluation, Failure, Round, Update, is_evaluated
from .place import Observer, Place
from .start_log import EvaluateFn, StopFn, flower_logger, labelled, log_start, run_and_log
from .strategy_edge import StrategyEdge
from .topology import MOST_LINES, Topology, TopologyOf
from .topology_checks import check_regrouped, checked_topology
from .views import Connected, EdgeGrid, MemberGrid, terms_of

logger = getLogger("espalier")
NO_NODES = "all of its nodes are under other edges"


class AskedTwiceError(ValueError):
    """A strategy sends an edge two messages in a round.

    Parameters
    ----------
    strategy : Strategy
        The cloud's.
    edge : str
        The edge's name.
    """

    def __init__(self, strategy: Strategy, edge: str) -> None:
        super().__init__(f"{type(strategy).__name__} sends edge {edge!r} two messages in a round: one is allowed")
        self.strategy = strategy


class Hierarchical(Edge):
    """Tiers: nodes train under edges, edges under the cloud; any Flower strategy at every tier.

    In a global round the cloud strategy sends its model to the edges, each edge runs `edge_rounds` rounds of its
    own strategy with its own nodes, and the cloud strategy aggregates the edges' models, weighted by those who
    took part. Edges do not wait for each other. With one edge and one edge round this is the edge strategy alone.

    The cloud is itself an edge (`espalier.strategies.EdgeRounds`) whose nodes are edges, so `make_edge` may return
    another `Hierarchical`: a third tier.

    Parameters
    ----------
    cloud : Strategy
        Aggregates the edges: to it, an edge is a node that trains. Its limits must suit the number of edges
        (Flower's defaults ask for two nodes).
    make_edge : Callable[[str, int], Strategy | EdgeRounds]
        Called once per edge with its name and its number of nodes; returns a strategy of that edge's own, or a
        `Hierarchical` whose topology has the edge's nodes.
    topology : Mapping[str, Sequence[int]]
        Node ids by edge, in client order. Replies are averaged in this order, whatever order they arrive in.
    edge_rounds : int (default: 1)
        Edge rounds per global round; under another `Hierarchical`, per edge round of that one.
    evaluate_every : int (default: 1)
        The global model is evaluated on the nodes in every so many global rounds, and in the last; 0: only then.
    seed : int, optional (default: None)
        What the strategies draw, e.g. their samples of nodes, follows this seed. None is 0, and under another
        `Hierarchical` a seed that follows from that one's and the edge's name; then the noise of Flower's differential
        privacy strategies follows none, since who knows it can take it off again. With a seed it does, for experiments.
    poll_seconds : float (default: 0.05)
        Pause between two looks at the Grid.
    observers : Sequence[Observer] (default: ())
        Told of messages and edge rounds of all tiers.
    node_name : Callable[[int], str] (default: str)
        Name of a node in log lines.
    guard : Guard, optional (default: None)
        What one reply may do to a model, at every tier. None: anything that is finite.
    topology_of : Callable[[int], Mapping[str, Sequence[int]]], optional (default: None)
        Asked for the topology when a global round begins, by its number from 1, where nodes move between edges:
        `espalier.strategies.moving` makes one. It must be a function of the round alone, so that a resumed run
        goes on with the same bits. Edges and nodes are those of `topology`; an edge may have none for a while. None:
        nobody moves.
    uplinks : Uplinks, optional (default: None)
        How the models of this tier's edges come up to it. None: as they are.

    Raises
    ------
    ValueError
        If something is of another kind, there are no edges, a node is in two of them, an edge has fewer nodes than its
        strategy waits for, or other nodes than the `Hierarchical` under it, two edges share one strategy, or the
        cloud's strategy leaves the clipping to its nodes, as Flower's client-side differential privacy does.

    Notes
    -----
    An edge sees `server_round` count on over global rounds: ``(t - 1) * edge_rounds + e``, and the edges below it over
    its own in the same way. A node that fails, is late or sends what can't be averaged is left out of its edge round.
    An edge without a single good reply keeps its model; one without any good edge round is left out by the cloud.

    An edge whose nodes have all moved away keeps its state, is left out by the cloud and asked for no evaluation. While
    an edge has fewer nodes than Flower's limits of its strategy ask for, they are as low as the number of its nodes.

    Of tiers under others, `evaluate_every`, `poll_seconds`, `observers`, `node_name` and `guard` are those of the top.

    Examples
    --------
    ::

        topology = group_by_edge(ask_profiles(grid), num_edges=2)
        strategy = Hierarchical(
            cloud=FedAvg(),
            make_edge=lambda name, size: FedProx(proximal_mu=0.1, min_available_nodes=size),
            topology=topology,
            edge_rounds=3,
        )
        result = strategy.start(grid, initial_arrays=arrays, num_rounds=10)
    """

    def __init__(
        self,
        cloud: Strategy,
        make_edge: Callable[[str, int], Strategy | EdgeRounds],
        topology: Topology,
        *,
        edge_rounds: int = 1,
        evaluate_every: int = 1,
        seed: int | None = None,
        poll_seconds: float = 0.05,
        observers: Sequence[Observer] = (),
        node_name: Callable[[int], str] = str,
        guard: Guard | None = None,
        topology_of: TopologyOf | None = None,
        uplinks: Uplinks | None = None,
    ) -> None:
        if isinstance(cloud, type):
            raise ValueError(
                f"the cloud's strategy is the class {cloud.__name__}: it must be an object, {cloud.__name__}(...)"
            )
        if not isinstance(cloud, Strategy):
            raise ValueError(f"the cloud's strategy is a {type(cloud).__name__}: it must be a Flower strategy")
        check_makes_edges(make_edge)
        _check_whole("edge_rounds", edge_rounds, 1)
        _check_whole("evaluate_every", evaluate_every, 0)
        if not (guard is None or isinstance(guard, Guard)):
            raise ValueError(f"guard is {guard!r}: it must be an espalier.strategies.Guard")
        if not (seed is None or (isinstance(seed, Integral) and not isinstance(seed, bool))):
            raise ValueError(f"seed is {seed!r}: it must be a whole number, or None")
        if not (isinstance(poll_seconds, int | float) and poll_seconds >= 0):
            raise ValueError(f"poll_seconds is {poll_seconds!r}: it must be a number of 0 or more")
        if not callable(node_name):
            raise ValueError(f"node_name is {node_name!r}: it must be a function of a node id")
        if not (uplinks is None or hasattr(uplinks, "carried")):
            raise ValueError(f"uplinks is {uplinks!r}: it must be an espalier.strategies.compression.Uplinks")
        self.cloud = cloud
        self.topology = checked_topology(topology)
        self.edge_rounds = edge_rounds
        self.evaluate_every = evaluate_every
        self.seed = seed
        self.poll_seconds = poll_seconds
        self.edges: dict[str, Edge] = {}
        self._inner: dict[str, Edge] = {}
        for name, members in self.topology.items():
            self.edges[name] = edge_of(make_edge(name, len(members)))
            self._inner[name] = self.edges[name].inner
            self._inner[name].check_nodes(name, members)
        check_minimum("the cloud", cloud, len(self.edges), "edge")
        check_clipping("the cloud", cloud)
        tiers = list(self._tiers())
        edges = [edge.own for tier in tiers for edge in tier._inner.values() if not edge.is_tier]
        strategies = [*(tier.cloud for tier in tiers), *edges]
        if len(set(map(id, strategies))) < len(strategies):
            raise ValueError("make_edge must return a new strategy for every edge: strategies hold state")
        self._edge_of_id = dict(enumerate(self.edges, start=1))
        self._connected = Connected()
        self._topology_of = topology_of
        self._uplinks = uplinks or PlainUplinks()
        self._guardless = {name for name, edge in self._inner.items() if edge.is_guarded and edge.guard is None}
        self._move_to(Place("", seed or 0, seed is None, tuple(observers), node_name, guard or Guard("off")))

    def summary(self) -> None:
        """Log all tiers."""
        for tier in self._tiers():
            sizes = ", ".join(f"{name}: {len(members)}" for name, members in tier.topology.items())
            line = f"{len(tier.edges)} edges ({sizes}), {tier.edge_rounds} edge rounds per round"
            flower_logger.log(INFO, "\t├──> %s: %s", tier._place.path or "cloud", line)
        self.cloud.summary()

    # The run.

    def rounds(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int,
        *,
        first_round: int = 1,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
    ) -> Iterator[Round]:
        """Run global rounds one by one; whoever iterates can save, log or stop between them.

        Parameters
        ----------
        grid : Grid
            Carries messages to the nodes.
        initial_arrays : ArrayRecord
            The global model to start from.
        num_rounds : int
            The last global round.
        first_round : int (default: 1)
            The first global round; more than 1 where a run is resumed.
        timeout : float, optional (default: None)
            Seconds that an edge waits for the replies to all messages of its part of an edge round together. None waits
            for ever.
        train_config, evaluate_config : ConfigRecord, optional (default: None)
            Sent along with every instruction to train, or to evaluate.
        """
        _check_model(initial_arrays)
        train_config, evaluate_config = train_config or ConfigRecord(), evaluate_config or ConfigRecord()
        arrays = initial_arrays
        self.regroup(min(first_round, num_rounds))  # a run resumed after its last round knows where everybody is
        # Of all rounds: what a tier does not wait for goes on in the next, and ends with the last.
        with closing(self._conversations(grid, timeout)) as conversations:
            for number in range(first_round, num_rounds + 1):
                started = time.monotonic()
                training = self.train_round(number, arrays, train_config, grid)
                update: Update = _run(conversations, training, f"round {number}")
                if update.arrays is None:
                    logger.log(WARNING, "round %d: the cloud made no model, the global model stays as it is", number)
                else:
                    arrays = update.arrays
                seconds, failures = time.monotonic() - started, _own(update.failures)
                outcome = Round(
                    number,
                    arrays,
                    update.metrics,
                    None,
                    update.edges,
                    seconds=seconds,
                    failures=failures,
                    is_new=update.arrays is not None,
                )
                if is_evaluated(number, num_rounds, self.evaluate_every):
                    outcome = self._evaluated(outcome, conversations, evaluate_config, grid)
                yield outcome

    def evaluated(
        self,
        outcome: Round,
        grid: Grid,
        *,
        timeout: float | None = None,
        evaluate_config: ConfigRecord | None = None,
    ) -> Round:
        """Return a round with its model evaluated on the nodes, as that of a run's last round is.

        For whoever stops `rounds` after one that was not evaluated.

        Parameters
        ----------
        outcome : Round
            The last that `rounds` gave.
        grid, timeout, evaluate_config
            As for `rounds`.
        """
        with closing(self._conversations(grid, timeout)) as conversations:
            return self._evaluated(outcome, conversations, evaluate_config or ConfigRecord(), grid)

    def _conversations(self, grid: Grid, timeout: float | None) -> Conversations:
        return Conversations(
            grid,
            timeout_seconds=timeout,
            poll_seconds=self.poll_seconds,
            on_message=partial(self._place.notice, "edge"),
            on_trip=self._place.notice_trip,
        )

    def _evaluated(self, outcome: Round, conversations: Conversations, config: ConfigRecord, grid: Grid) -> Round:
        started = time.monotonic()
        evaluating = self.evaluate_round(outcome.number, outcome.arrays, config, grid)
        evaluation: Evaluation = _run(conversations, evaluating, f"round {outcome.number}, evaluation")
        return replace(
            outcome,
            evaluate_metrics=evaluation.metrics,
            evaluations=evaluation.edges,
            seconds=outcome.seconds + time.monotonic() - started,
            failures=[*outcome.failures, *_own(evaluation.failures)],
        )

    def regroup(self, number: int) -> None:
        """Put every node under the edge where `topology_of` says it is in a round of this tier.

        Raises
        ------
        ValueError
            If the edges or nodes are others, a node is under two edges, or has moved to another tier under this one.
        """
        if self._topology_of is None:
            return
        before = {node_id: name for name, members in self.topology.items() for node_id in members}
        topology = {name: tuple(members) for name, members in self._topology_of(number).items()}
        check_regrouped(number, before, self.topology.keys(), topology)
        topology = {name: topology[name] for name in self.topology}
        for name, inner in self._inner.items():
            if inner.is_tier:
                inner.check_nodes(name, topology[name])
        moved = [(n, name) for name, members in topology.items() for n in members if before[n] != name]
        when = self._place.when(number)
        for node_id, name in moved[:MOST_LINES]:
            paths = self._place.path_to(before[node_id]), self._place.path_to(name)
            logger.log(INFO, "%s: %s moves from %s to %s", when, self._place.node_name(node_id), *paths)
        if len(moved) > MOST_LINES:
            logger.log(INFO, "%s: %d clients move in all", when, len(moved))
        if moved:
            self.topology = topology
            self._attendance.regroup({self._place.path_to(name): members for name, members in topology.items()})
            for observer in self._place.observers:
                observer.on_regroup(number, self._place.path, topology)
        # A resumed run may begin with a move, of which only the edges' states know.
        for name, inner in self._inner.items():
            inner.take_members(topology[name])

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        should_stop: StopFn | None = None,
    ) -> Result:
        """Run all rounds, as `flwr.serverapp.strategy.Strategy.start` does, and return its kind of result.

        Whatever the version of Flower, `should_stop` is that of 1.43: it is called at the end of every round with the
        round's number and the result so far, which it must not change, and where it returns True that round was the
        last. The result is then that of a run of so many rounds: a model that `evaluate_every` has passed over is
        evaluated on the nodes.
        """
        _check_model(initial_arrays)
        log_start(type(self).__name__, num_rounds, initial_arrays)
        self.summary()
        rounds = self.rounds(
            grid,
            initial_arrays,
            num_rounds,
            timeout=timeout,
            train_config=train_config,
            evaluate_config=evaluate_config,
        )

        def as_last(outcome: Round) -> Round:
            if is_evaluated(outcome.number, num_rounds, self.evaluate_every):
                return outcome
            return self.evaluated(outcome, grid, timeout=timeout, evaluate_config=evaluate_config)

        return run_and_log(rounds, initial_arrays, num_rounds, evaluate_fn, should_stop, as_last)

    # The tier as an edge whose nodes are edges.

    is_tier = True

    def check_nodes(self, name: str, members: Sequence[int]) -> None:
        """Raise ValueError if these are other nodes than those under its edges."""
        inside = {node_id for nodes in self.topology.values() for node_id in nodes}
        if different := sorted(inside ^ set(members)):
            raise ValueError(
                f"edge {name!r} must have the nodes of the Hierarchical under it: "
                f"node {different[0]} is in one of them only"
            )

    def train_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Exchanges[Update]:
        """Run a round of this tier: its strategy instructs edges, they train, it aggregates."""
        self.regroup(server_round)
        outcomes: dict[str, EdgeOutcome] = {}

        def train(messages: list[Message]) -> Exchanges[list[Message]]:
            outcomes.update((yield self._together(self.train_edge, server_round, messages, grid)))
            with_model = {name: outcome for name, outcome in outcomes.items() if outcome.arrays is not None}
            metrics = metrics_of_all(with_model.values())
            started = {self._edge_of_id[m.metadata.dst_node_id]: arrays_and_config(m)[0] for m in messages}
            contents, sent, faults = dict[str, RecordDict](), dict[str, RecordDict](), dict[str, str]()
            for (name, outcome), own in zip(with_model.items(), metrics, strict=True):
                told = {METRICS: self._metrics(own, outcome.weight)}
                try:
                    up = self._uplinks.carried(self._place.path_to(name), server_round, started[name], outcome.arrays)  # type: ignore[arg-type]
                except ValueError as error:
                    faults[name] = str(error)
                else:
                    contents[name] = RecordDict({ARRAYS: up.arrived, **told})
                    sent[name] = RecordDict({**up.sent, **told})
            return self._replies(messages, contents, "no edge round gave a model", sent=sent, faults=faults)

        update = yield from answered(self._top.train_round(server_round, arrays, config, self._edge_grid(grid)), train)
        failures = self._failures(self._place.when(server_round), update.failures, outcomes)
        return replace(update, participants=self._took_part(update, outcomes), failures=failures, edges=outcomes)

    def evaluate_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Exchanges[Evaluation]:
        """Evaluate `arrays` on the nodes of the edges that this tier's strategy chooses."""
        self.regroup(server_round)
        evaluations: dict[str, Evaluation] = {}
        when = f"{self._place.when(server_round)}, evaluation"

        def evaluate(messages: list[Message]) -> Exchanges[list[Message]]:
            evaluations.update((yield self._together(self.evaluate_edge, server_round, messages, grid)))
            for name, one in evaluations.items():
                self.log_failures(when, name, _unlogged(one))
            contents = {
                name: RecordDict({METRICS: self._metrics(one.metrics or {}, one.weight)})
                for name, one in evaluations.items()
                if one.weight > 0
            }
            return self._replies(messages, contents, "nobody was evaluated")

        evaluation = yield from answered(
            self._top.evaluate_round(server_round, arrays, config, self._edge_grid(grid)), evaluate
        )
        replies = {node_id: own for one in evaluations.values() for node_id, own in one.replies.items()}
        # An edge without failures and replies has asked nobody.
        asking = {name: one for name, one in evaluations.items() if one.weight > 0 or one.failures}
        failures = self._failures(when, evaluation.failures, asking)
        return replace(evaluation, replies=replies, failures=failures, edges=evaluations)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the strategies of all tiers, as plain data."""
        return {
            "cloud": self._top.state_dict(),
            "edges": {name: edge.state_dict() for name, edge in self.edges.items()},
            **({"uplinks": kept} if (kept := self._uplinks.state_dict()) else {}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned for the same strategies and edges; ValueError for other edges."""
        if state["edges"].keys() != self.edges.keys():
            raise ValueError(
                f"the state is of the edges {', '.join(state['edges'])}, and here are {', '.join(self.edges)}"
            )
        self._top.load_state_dict(state["cloud"])
        self._uplinks.load_state_dict(state.get("uplinks", {}))
        for name, edge in self.edges.items():
            edge.load_state_dict(state["edges"][name])

    def clients_begin_anew(self) -> None:
        """Let all edges forget what goes by what clients keep."""
        for inner in self._inner.values():
            inner.clients_begin_anew()

    # One edge, for whoever runs it by itself.

    def members(self, name: str, grid: Grid) -> MemberGrid:
        """Return the view of an edge's nodes; who has left, and who is back, is logged when somebody looks through it.

        An edge looks when one of its rounds begins, and where it has a host of its own between requests, too.
        """
        # The tier under a Hierarchical looks by itself, and knows more exactly where a node is.
        return self._view(name, grid, None if self._inner[name].is_tier else partial(self._look, name))

    def _look(self, name: str, connected: Sequence[int]) -> None:
        """Take note of who is connected at an edge."""
        self._attendance.note(self._place.path_to(name), connected)
        if (guard := self._inner[name].guard) is not None:
            guard.count_nodes(len(connected))

    def train_edge(
        self, name: str, number: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Exchanges[EdgeOutcome]:
        """Run an edge's rounds of one global round; a conversation for `espalier.strategies.exchange.converse`.

        Parameters
        ----------
        name : str
            The edge.
        number : int
            The global round, from 1; of a tier under another, the edge round of that one.
        arrays : ArrayRecord
            The model that the cloud sent.
        config : ConfigRecord
            What the cloud sent along.
        grid : Grid
            Carries messages to the nodes.
        """
        started, path = time.monotonic(), self._place.path_to(name)
        members = self.members(name, grid)
        updates: list[Update] = []
        trained = False
        for e in range(1, self.edge_rounds + 1):
            server_round = (number - 1) * self.edge_rounds + e
            if self.topology[name]:
                update = yield from labelled(path, self.edges[name].train_round(server_round, arrays, config, members))
            else:
                update = Update(failures=[Failure(EVERYBODY, NO_NODES)])
            if update.arrays is not None and not update.weight > 0:
                fault = Failure(EVERYBODY, f"its model weighs {update.weight}: nothing can be averaged by that")
                update = replace(update, arrays=None, participants=(), failures=[*update.failures, fault])
            updates.append(update)
            if update.arrays is not None:
                arrays, trained = update.arrays, True
            self.log_failures(f"{self._place.when(number)}, edge round {e}", name, _unlogged(update))
            for observer in self._place.observers:
                observer.on_edge_round(server_round, path, update)
        return EdgeOutcome(arrays if trained else None, updates, time.monotonic() - started)

    def evaluate_edge(
        self, name: str, number: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Exchanges[Evaluation]:
        """Evaluate `arrays` on an edge's nodes after a global round; parameters as for `train_edge`."""
        if not self.topology[name]:
            return at_once(Evaluation())
        members = self._view(name, grid)
        evaluation = self.edges[name].evaluate_round(number * self.edge_rounds, arrays, config, members)
        return labelled(self._place.path_to(name), evaluation)

    def log_failures(self, when: str, edge: str, failures: Sequence[Failure]) -> None:
        """Log a line for every node of an edge that was left out, and for the edge itself."""
        path = self._place.path_to(edge)
        for failure in failures:
            who = path if failure.node_id == EVERYBODY else f"{self._place.node_name(failure.node_id)} of {path}"
            logger.log(WARNING, "%s: %s left out: %s", when, who, failure.reason)

    # The tree.

    def _move_to(self, place: Place) -> None:
        """Take a place in the tree and give the edges theirs; a seed of its own an edge keeps."""
        self._place = place
        # Under another tier it is an edge by the name that the one above knows.
        name = None if place.path else "the cloud"
        # One edge has no others to be held against.
        guard = UpdateGuard(place.guard if len(self.topology) > 1 else Guard("off"), self._path_of_id)
        guard.count_nodes(len(self.topology))
        self._top = StrategyEdge(self.cloud, name=name, guard=guard)
        self._top.use_seed(f"{place.seed}/cloud", hides_noise=place.hides_noise)
        members = {place.path_to(name): members for name, members in self.topology.items()}
        self._attendance = Attendance(members, place.node_name)
        for name, inner in self._inner.items():
            if isinstance(inner, Hierarchical):
                inner._move_to(place.of_edge(name, inner.seed))
            inner.use_seed(place.seed_of(name), hides_noise=place.hides_noise)
            if name in self._guardless:
                inner.guard = UpdateGuard(place.guard, place.node_name)

    def _view(self, name: str, grid: Grid, on_look: Callable[[Sequence[int]], None] | None = None) -> MemberGrid:
        members = self.topology[name]
        terms = None if self._topology_of is None else replace(terms_of(grid), num_clients=len(members))
        return MemberGrid(grid, members, on_look, self._connected, terms)

    def _path_of_id(self, edge_id: int) -> str:
        return self._place.path_to(self._edge_of_id[edge_id])

    def _tiers(self) -> "Iterator[Hierarchical]":
        """Return this tier and all below."""
        yield self
        for inner in self._inner.values():
            if isinstance(inner, Hierarchical):
                yield from inner._tiers()

    # What travels between this tier and its edges.

    def _together(
        self, run_edge: Callable[..., Exchanges[Any]], number: int, messages: Sequence[Message], grid: Grid
    ) -> Together:
        """Return the conversations of the edges that messages are for."""
        conversations: dict[str, Exchanges[Any]] = {}
        for message in messages:
            name = self._edge_of_id[message.metadata.dst_node_id]
            if name in conversations:
                raise AskedTwiceError(self.cloud, name)
            self._place.notice(self._place.tier, self._place.path_to(name), "downlink", message)
            conversations[name] = run_edge(name, number, *arrays_and_config(message), grid)
        return Together(conversations)

    def _replies(
        self,
        messages: Sequence[Message],
        contents: Mapping[str, RecordDict],
        why: str,
        *,
        sent: Mapping[str, RecordDict] | None = None,
        faults: Mapping[str, str] | None = None,
    ) -> list[Message]:
        """Return the edges' replies; for those without content error replies that say why, by the fault of their own.

        What travels is what was `sent`, where that is of another form.
        """
        replies = []
        for message in messages:
            name = self._edge_of_id[message.metadata.dst_node_id]
            if name in contents:
                replies.append(Message(contents[name], reply_to=message))
                travels = replies[-1] if sent is None else Message(sent[name], reply_to=message)
                self._place.notice(self._place.tier, self._place.path_to(name), "uplink", travels)
            else:
                replies.append(Message(Error(EDGE_FAILED, (faults or {}).get(name, why)), reply_to=message))
        return replies

    def _took_part(self, update: Update, outcomes: Mapping[str, EdgeOutcome]) -> list[int]:
        """Return the nodes that took part in the edge rounds of those edges that took part."""
        by_those = [outcomes[self._edge_of_id[edge_id]].updates for edge_id in update.participants]
        those = {node_id for updates in by_those for one in updates for node_id in one.participants}
        return [node_id for members in self.topology.values() for node_id in members if node_id in those]

    def _failures(
        self, when: str, failures: Sequence[Failure], edges: Mapping[str, EdgeOutcome | Evaluation]
    ) -> list[Failure]:
        """Return a tier's failures for the one above: the nodes' under its edges, and its own.

        Edges that were left out are logged, unless a failure of their own has said why already.
        """
        for failure in failures:
            name = self._edge_of_id.get(failure.node_id)
            edge = None if name is None else edges.get(name)
            if name is not None and edge is not None and (edge.weight > 0 or not _own(edge.failures)):
                logger.log(WARNING, "%s: %s left out: %s", when, self._place.path_to(name), failure.reason)
        of_nodes = [f for edge in edges.values() for f in edge.failures if f.node_id != EVERYBODY]
        return [*of_nodes, *_own(failures)]

    def _metrics(self, metrics: Mapping[str, Any], weight: float) -> MetricRecord:
        return MetricRecord({**metrics, self._top.weight_key: weight})

    def _edge_grid(self, grid: Grid) -> EdgeGrid:
        return EdgeGrid(grid, tuple(self._edge_of_id))


def _check_whole(name: str, value: object, least: int) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} is {value!r}: it must be a whole number of {least} or more")


def _check_model(arrays: object) -> None:
    if not isinstance(arrays, ArrayRecord):
        allowed = "an ArrayRecord, such as ArrayRecord(model.state_dict())"
        raise ValueError(f"initial_arrays is a {type(arrays).__name__}: it must be {allowed}")


def _run(conversations: Conversations, conversation: Exchanges[Any], when: str) -> Any:
    """Run a conversation of the cloud's, and log what failed of its own."""
    result = conversations.run({"": labelled("cloud", conversation)})[""]
    for failure in _own(result.failures):
        logger.log(WARNING, "%s: %s", when, failure.reason)
    return result


def _own(failures: Sequence[Failure]) -> list[Failure]:
    """Return the failures that are an edge's own, not a node's."""
    return [failure for failure in failures if failure.node_id == EVERYBODY]


def _unlogged(result: Update | Evaluation) -> Sequence[Failure]:
    """Return the failures that the tiers below have not logged."""
    return _own(result.failures) if result.edges else result.failures


def arrays_and_config(message: Message) -> tuple[ArrayRecord, ConfigRecord]:
    """Return what a cloud strategy sent to an edge."""
    models = records_in(message.content, ArrayRecord)
    if len(models) != 1:
        raise ValueError(f"the cloud strategy sent {len(models)} array records to an edge, not 1")
    (arrays,) = models.values()
    return arrays, config_in(message.content)


def metrics_of_all(outcomes: Iterable[EdgeOutcome]) -> list[dict[str, Any]]:
    """Return the edges' metrics, each with all that most of those that trained have.

    An edge that kept its model has none, and what a strategy counts need not be there in each round, or has another
    length: the others' mean stands in, which leaves the mean as it is.
    """
    outcomes = list(outcomes)
    trained = [outcome for outcome in outcomes if outcome.metrics]
    forms = [{key: np.shape(value) for key, value in outcome.metrics.items()} for outcome in outcomes]
    means: dict[str, Any] = {}
    for (key, shape), count in Counter(part for form in forms for part in form.items()).items():
        if 2 * count > len(trained) and count < len(outcomes):
            have = [outcome for outcome, form in zip(outcomes, forms, strict=True) if form.get(key) == shape]
            values, weights = zip(*((outcome.metrics[key], outcome.weight) for outcome in have), strict=True)
            means[key] = np.average(values, axis=0, weights=weights).tolist()
    return [
        {**outcome.metrics, **{key: mean for key, mean in means.items() if form.get(key) != np.shape(mean)}}
        for outcome, form in zip(outcomes, forms, strict=True)
    ]
