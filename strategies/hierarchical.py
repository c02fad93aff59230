"""Hierarchical: edge strategies nested under a cloud strategy."""

import io
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from logging import INFO, WARNING, getLogger
from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from .attendance import Attendance
from .edges import (
    EVERYBODY,
    REFUSALS,
    EdgeRounds,
    Evaluation,
    Failure,
    StrategyEdge,
    Update,
    check_minimum,
    edge_of,
    forget_sent_model,
    innermost,
    needed_metrics,
    weight_key,
)
from .exchange import EDGE_FAILED, Direction, Exchanges, converse
from .randomness import derived_seed, seeded_globals
from .screening import all_finite, in_form_of, one_line, screen
from .state import built_attributes, restore_strategy_state, strategy_state
from .topology import Topology
from .views import EdgeGrid, MemberGrid

logger = getLogger("espalier")
flower_logger = getLogger("flwr")  # the figures of `start` go where those of Flower's strategies go

Tier = Literal["edge", "cloud"]
ARRAYS, METRICS = "arrays", "metrics"


class Observer:
    """Watches a run. Override what you need, and leave the messages as they are."""

    def on_message(self, tier: Tier, edge: str, direction: Direction, message: Message) -> None:
        """Notice a message between a node and its edge (tier "edge") or an edge and the cloud ("cloud")."""

    def on_edge_round(self, server_round: int, edge: str, update: Update) -> None:
        """Notice that an edge finished an edge round; `server_round` counts edge rounds from 1."""


@dataclass(frozen=True)
class EdgeOutcome:
    """What an edge did in one global round.

    Parameters
    ----------
    arrays : ArrayRecord, optional
        Its model at the end of its last edge round; None where no edge round succeeded.
    updates : Sequence[Update]
        One per edge round.
    seconds : float
        From the first message to the last reply.
    """

    arrays: ArrayRecord | None
    updates: Sequence[Update]
    seconds: float

    @property
    def weight(self) -> float:
        """Mean weight of its edge rounds that succeeded; 0 where none did."""
        weights = [update.weight for update in self.updates if update.arrays is not None]
        return sum(weights) / len(weights) if weights else 0.0

    @property
    def metrics(self) -> dict[str, Any]:
        """Training metrics of its last edge round that had any."""
        return next((dict(update.metrics) for update in reversed(self.updates) if update.metrics), {})


@dataclass(frozen=True)
class Round:
    """What one global round gave.

    Parameters
    ----------
    number : int
        Counts from 1.
    arrays : ArrayRecord
        The global model after it.
    train_metrics, evaluate_metrics : MetricRecord, optional
        What the cloud strategy made of the edges' metrics.
    edges : Mapping[str, EdgeOutcome]
        Training, by edge; edges that the cloud did not choose are not in it.
    evaluations : Mapping[str, Evaluation]
        Evaluation of the global model, by edge; empty in a round without one.
    seconds : float
        Wall time of the round.
    """

    number: int
    arrays: ArrayRecord
    train_metrics: MetricRecord | None
    evaluate_metrics: MetricRecord | None
    edges: Mapping[str, EdgeOutcome]
    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)
    seconds: float = 0.0


class Hierarchical(Strategy):
    """Two tiers: nodes train under edges, edges under the cloud; any Flower strategy at either tier.

    In a global round the cloud strategy sends its model to the edges, each edge runs `edge_rounds` rounds of its
    own strategy with its own nodes, and the cloud strategy aggregates the edges' models, weighted by those who
    took part. Edges do not wait for each other. With one edge and one edge round this is the edge strategy alone.

    Parameters
    ----------
    cloud : Strategy
        Aggregates the edges: to it, an edge is a node that trains. Its limits must suit the number of edges
        (Flower's defaults ask for two nodes).
    make_edge : Callable[[str, int], Strategy | EdgeRounds]
        Called once per edge with its name and its number of nodes; returns a strategy of that edge's own.
    topology : Mapping[str, Sequence[int]]
        Node ids by edge, in client order. Replies are averaged in this order, whatever order they arrive in.
    edge_rounds : int (default: 1)
        Edge rounds per global round.
    evaluate_every : int (default: 1)
        The global model is evaluated on the nodes in every so many global rounds, and in the last; 0: only then.
    seed : int (default: 0)
        What the strategies draw, e.g. their samples of nodes, follows this seed.
    poll_seconds : float (default: 0.05)
        Pause between two looks at the Grid.
    observers : Sequence[Observer] (default: ())
        Told of messages and edge rounds.
    node_name : Callable[[int], str] (default: str)
        Name of a node in log lines.

    Raises
    ------
    ValueError
        If there are no edges, a node is in two of them, an edge has fewer nodes than its strategy waits for, or
        two edges share one strategy.

    Notes
    -----
    An edge sees `server_round` count on over global rounds: ``(t - 1) * edge_rounds + e``. A node that fails, is
    late or sends what can't be averaged is left out of its edge round. An edge without a single good reply keeps
    its model; one without any good edge round is left out by the cloud.

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
        seed: int = 0,
        poll_seconds: float = 0.05,
        observers: Sequence[Observer] = (),
        node_name: Callable[[int], str] = str,
    ) -> None:
        if edge_rounds < 1:
            raise ValueError(f"edge_rounds is {edge_rounds}: it must be 1 or more")
        _check_topology(topology)
        self.cloud = cloud
        self.topology = {name: tuple(members) for name, members in topology.items()}
        self.edge_rounds = edge_rounds
        self.evaluate_every = evaluate_every
        self.seed = seed
        self.poll_seconds = poll_seconds
        self.observers = tuple(observers)
        self.node_name = node_name
        self.edges: dict[str, EdgeRounds] = {}
        for name, members in self.topology.items():
            made = make_edge(name, len(members))
            if isinstance(made, Hierarchical):
                raise ValueError(f"edge {name!r} is itself hierarchical: there are two tiers")
            self.edges[name] = edge_of(made)
            if isinstance(inner := innermost(self.edges[name]), StrategyEdge):
                check_minimum(f"edge {name!r}", inner.strategy, len(members), "node")
                if inner.seed is None:
                    inner.seed = derived_seed(seed, "edge", name)
        check_minimum("the cloud", cloud, len(self.edges), "edge")
        innermost_edges = [innermost(edge) for edge in self.edges.values()]
        strategies = [getattr(edge, "strategy", edge) for edge in innermost_edges]
        if len(set(map(id, [cloud, *strategies]))) <= len(strategies):
            raise ValueError("make_edge must return a new strategy for every edge: strategies hold state")
        self._edge_of_id = dict(enumerate(self.edges, start=1))
        self._attendance = Attendance(self.topology, node_name)
        self._weight_key = weight_key(cloud)
        self._built = built_attributes(cloud)

    def summary(self) -> None:
        """Log both tiers."""
        sizes = ", ".join(f"{name}: {len(members)}" for name, members in self.topology.items())
        flower_logger.log(INFO, "%d edges (%s), %d edge rounds per round", len(self.edges), sizes, self.edge_rounds)
        self.cloud.summary()

    # The cloud tier: its "nodes" are the edges.

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the cloud strategy's messages to the edges it chooses."""
        forget_sent_model(self.cloud)
        with self._seeded("configure_train", server_round):
            return list(
                self.cloud.configure_train(server_round, arrays.copy(), ConfigRecord({**config}), self._edge_grid(grid))
            )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the cloud strategy aggregate the edges' models."""
        with self._seeded("aggregate_train", server_round):
            return self.cloud.aggregate_train(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the cloud strategy's messages to the edges that shall evaluate."""
        with self._seeded("configure_evaluate", server_round):
            return list(
                self.cloud.configure_evaluate(
                    server_round, arrays.copy(), ConfigRecord({**config}), self._edge_grid(grid)
                )
            )

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Let the cloud strategy aggregate the edges' evaluations."""
        with self._seeded("aggregate_evaluate", server_round):
            return self.cloud.aggregate_evaluate(server_round, replies)

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
            Seconds that an edge waits for the replies of one exchange. None waits for ever.
        train_config, evaluate_config : ConfigRecord, optional (default: None)
            Sent along with every instruction to train, or to evaluate.
        """
        arrays = initial_arrays
        for number in range(first_round, num_rounds + 1):
            started = time.monotonic()
            arrays, train_metrics, edges = self._train(number, arrays, train_config, grid, timeout)
            evaluate_metrics, evaluations = None, {}
            if self.evaluates_after(number, num_rounds):
                evaluate_metrics, evaluations = self._evaluate(number, arrays, evaluate_config, grid, timeout)
            seconds = time.monotonic() - started
            yield Round(number, arrays, train_metrics, evaluate_metrics, edges, evaluations, seconds)

    def evaluates_after(self, number: int, num_rounds: int) -> bool:
        """Return whether the global model is evaluated after a round."""
        return number == num_rounds or (self.evaluate_every > 0 and number % self.evaluate_every == 0)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run all rounds, as `flwr.serverapp.strategy.Strategy.start` does, and return its kind of result."""
        self.summary()
        result = Result()

        def evaluate_on_server(number: int, arrays: ArrayRecord) -> None:
            if evaluate_fn is not None and (metrics := evaluate_fn(number, arrays)) is not None:
                result.evaluate_metrics_serverapp[number] = metrics

        evaluate_on_server(0, initial_arrays)
        result.arrays = initial_arrays
        rounds = self.rounds(
            grid,
            initial_arrays,
            num_rounds,
            timeout=timeout,
            train_config=train_config,
            evaluate_config=evaluate_config,
        )
        for outcome in rounds:
            result.arrays = outcome.arrays
            if outcome.train_metrics is not None:
                result.train_metrics_clientapp[outcome.number] = outcome.train_metrics
            if outcome.evaluate_metrics is not None:
                result.evaluate_metrics_clientapp[outcome.number] = outcome.evaluate_metrics
            evaluate_on_server(outcome.number, outcome.arrays)
            flower_logger.log(INFO, "[ROUND %d/%d] %.1f s", outcome.number, num_rounds, outcome.seconds)
        for line in io.StringIO(str(result)):
            flower_logger.log(INFO, "\t%s", line.rstrip("\n"))
        return result

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the strategies of both tiers, as plain data."""
        return {
            "cloud": strategy_state(self.cloud),
            "edges": {name: edge.state_dict() for name, edge in self.edges.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned for the same strategies and edges."""
        restore_strategy_state(self.cloud, state["cloud"], self._built)
        for name, edge in self.edges.items():
            edge.load_state_dict(state["edges"][name])

    # One edge, for whoever runs it by itself.

    def members(self, name: str, grid: Grid) -> MemberGrid:
        """Return the view of an edge's nodes; who has left, and who is back, is logged when somebody looks through it.

        An edge looks when a round of its begins; a look of its own for the log would be dear with many nodes.
        """
        return MemberGrid(grid, self.topology[name], on_look=partial(self._attendance.note, name))

    def train_edge(
        self, name: str, number: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Exchanges[EdgeOutcome]:
        """Run an edge's rounds of one global round; a conversation for `espalier.strategies.exchange.converse`.

        Parameters
        ----------
        name : str
            The edge.
        number : int
            The global round, from 1.
        arrays : ArrayRecord
            The model that the cloud sent.
        config : ConfigRecord
            What the cloud sent along.
        grid : Grid
            Carries messages to the nodes.
        """
        started = time.monotonic()
        members = self.members(name, grid)
        updates: list[Update] = []
        trained = False
        for e in range(1, self.edge_rounds + 1):
            server_round = (number - 1) * self.edge_rounds + e
            update = yield from self.edges[name].train_round(server_round, arrays, config, members)
            if update.arrays is not None and not update.weight > 0:
                fault = Failure(EVERYBODY, f"its model weighs {update.weight}: nothing can be averaged by that")
                update = replace(update, arrays=None, participants=(), failures=[*update.failures, fault])
            updates.append(update)
            if update.arrays is not None:
                arrays, trained = update.arrays, True
            self.log_failures(f"round {number}, edge round {e}", name, update.failures)
            for observer in self.observers:
                observer.on_edge_round(server_round, name, update)
        return EdgeOutcome(arrays if trained else None, updates, time.monotonic() - started)

    def evaluate_edge(
        self, name: str, number: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Exchanges[Evaluation]:
        """Evaluate `arrays` on an edge's nodes after a global round; parameters as for `train_edge`."""
        members = MemberGrid(grid, self.topology[name])
        return self.edges[name].evaluate_round(number * self.edge_rounds, arrays, config, members)

    def log_failures(self, when: str, edge: str, failures: Sequence[Failure]) -> None:
        """Log a line for every node of an edge that was left out, and for the edge itself."""
        for failure in failures:
            who = edge if failure.node_id == EVERYBODY else f"{self.node_name(failure.node_id)} of {edge}"
            logger.log(WARNING, "%s: %s left out: %s", when, who, failure.reason)

    def _train(
        self, number: int, arrays: ArrayRecord, config: ConfigRecord | None, grid: Grid, timeout: float | None
    ) -> tuple[ArrayRecord, MetricRecord | None, dict[str, EdgeOutcome]]:
        """Run the training of one global round; return the new global model."""
        messages = self.configure_train(number, arrays, config or ConfigRecord(), grid)
        instructions = self._by_edge(messages)
        conversations = {
            name: self.train_edge(name, number, *_arrays_and_config(message), grid)
            for name, message in instructions.items()
        }
        outcomes: dict[str, EdgeOutcome] = self._converse(grid, conversations, instructions, timeout)
        with_model = {name: outcome for name, outcome in outcomes.items() if outcome.arrays is not None}
        contents = {
            name: RecordDict({ARRAYS: outcome.arrays.copy(), METRICS: self._metrics(metrics, outcome.weight)})  # type: ignore[union-attr]
            for (name, outcome), metrics in zip(with_model.items(), _metrics_of_all(with_model.values()), strict=True)
        }
        aggregate, metrics = None, None
        failures = {name: [f for u in outcome.updates for f in u.failures] for name, outcome in outcomes.items()}
        if replies := self._replies(instructions, contents, failures, f"round {number}", needed_metrics(self.cloud)):
            try:
                aggregate, metrics = self.aggregate_train(number, replies)
            except REFUSALS as refusal:
                logger.log(WARNING, "round %d: the cloud: %s", number, one_line(refusal))
        if aggregate is None or set(aggregate) != set(arrays) or not all_finite(aggregate, arrays):
            logger.log(WARNING, "round %d: the cloud made no model, the global model stays as it is", number)
            return arrays, metrics, outcomes
        return in_form_of(arrays, aggregate), metrics, outcomes

    def _evaluate(
        self, number: int, arrays: ArrayRecord, config: ConfigRecord | None, grid: Grid, timeout: float | None
    ) -> tuple[MetricRecord | None, dict[str, Evaluation]]:
        """Evaluate the global model on the nodes."""
        messages = self.configure_evaluate(number, arrays, config or ConfigRecord(), grid)
        instructions = self._by_edge(messages)
        conversations = {
            name: self.evaluate_edge(name, number, *_arrays_and_config(message), grid)
            for name, message in instructions.items()
        }
        evaluations: dict[str, Evaluation] = self._converse(grid, conversations, instructions, timeout)
        contents = {}
        for name, evaluation in evaluations.items():
            self.log_failures(f"round {number}, evaluation", name, evaluation.failures)
            if evaluation.weight > 0:
                contents[name] = RecordDict({METRICS: self._metrics(evaluation.metrics or {}, evaluation.weight)})
            elif not evaluation.failures:  # its strategy asked nobody
                del instructions[name]
        failures = {name: evaluation.failures for name, evaluation in evaluations.items()}
        if not (replies := self._replies(instructions, contents, failures, f"round {number}, evaluation")):
            return None, evaluations
        try:
            return self.aggregate_evaluate(number, replies), evaluations
        except REFUSALS as refusal:
            logger.log(WARNING, "round %d, evaluation: the cloud: %s", number, one_line(refusal))
            return None, evaluations

    def _converse(
        self,
        grid: Grid,
        conversations: Mapping[str, Exchanges[Any]],
        instructions: Mapping[str, Message],
        timeout: float | None,
    ) -> dict[str, Any]:
        """Run the edges' conversations, the observers watching the edge tier."""
        for name, message in instructions.items():
            self._notice("cloud", name, "downlink", message)
        return converse(
            grid,
            conversations,
            timeout_seconds=timeout,
            poll_seconds=self.poll_seconds,
            on_message=lambda *what: self._notice("edge", *what),
        )

    def _notice(self, tier: Tier, edge: str, direction: Direction, message: Message) -> None:
        for observer in self.observers:
            observer.on_message(tier, edge, direction, message)

    def _metrics(self, metrics: Mapping[str, Any], weight: float) -> MetricRecord:
        return MetricRecord({**metrics, self._weight_key: weight})

    def _replies(
        self,
        instructions: Mapping[str, Message],
        contents: Mapping[str, RecordDict],
        logged: Mapping[str, Sequence[Failure]],
        when: str,
        numbers: Sequence[str] = (),
    ) -> list[Message]:
        """Return the edges' replies to the cloud, error replies for the bad ones; nothing if none is good.

        An edge without a reply is logged, unless a failure of its own in `logged` has said why already.
        """
        replies = []
        for name, instruction in instructions.items():
            if name in contents:
                replies.append(Message(contents[name], reply_to=instruction))
                self._notice("cloud", name, "uplink", replies[-1])
            else:
                replies.append(Message(Error(EDGE_FAILED, "no edge round gave a model"), reply_to=instruction))
        screened, failures = screen(list(instructions.values()), replies, self._weight_key, numbers)
        for failure in failures:
            name = self._edge_of_id[failure.node_id]
            if name in contents or all(f.node_id != EVERYBODY for f in logged[name]):
                logger.log(WARNING, "%s: %s left out: %s", when, name, failure.reason)
        return screened if len(failures) < len(screened) else []

    def _by_edge(self, messages: Iterable[Message]) -> dict[str, Message]:
        """Return the cloud's messages by edge, in the order of the edges."""
        by_id = {message.metadata.dst_node_id: message for message in messages}
        return {name: by_id[i] for i, name in self._edge_of_id.items() if i in by_id}

    def _edge_grid(self, grid: Grid) -> EdgeGrid:
        return EdgeGrid(grid, tuple(self._edge_of_id))

    def _seeded(self, step: str, server_round: int):  # noqa: ANN202
        return seeded_globals(derived_seed(self.seed, "cloud", step, server_round))


def _arrays_and_config(message: Message) -> tuple[ArrayRecord, ConfigRecord]:
    """Return what a cloud strategy sent to an edge."""
    records = message.content
    if len(records.array_records) != 1:
        raise ValueError(f"the cloud strategy sent {len(records.array_records)} array records to an edge, not 1")
    (arrays,) = records.array_records.values()
    return arrays, next(iter(records.config_records.values()), ConfigRecord())


def _metrics_of_all(outcomes: Iterable[EdgeOutcome]) -> list[dict[str, Any]]:
    """Return the edges' metrics; for one that kept its model and has none the mean of the others', which leaves it."""
    outcomes = list(outcomes)
    trained = [outcome for outcome in outcomes if outcome.metrics]
    forms = [{key: np.shape(value) for key, value in outcome.metrics.items()} for outcome in trained]
    if not trained or len(trained) == len(outcomes) or any(form != forms[0] for form in forms):
        return [outcome.metrics for outcome in outcomes]
    weights = [outcome.weight for outcome in trained]
    mean = {
        key: np.average([outcome.metrics[key] for outcome in trained], axis=0, weights=weights).tolist()
        for key in trained[0].metrics
    }
    return [outcome.metrics or mean for outcome in outcomes]


def _check_topology(topology: Topology) -> None:
    if not topology:
        raise ValueError("the topology has no edges")
    seen: dict[int, str] = {}
    for name, members in topology.items():
        if not members:
            raise ValueError(f"edge {name!r} has no nodes")
        for node_id in members:
            if node_id in seen:
                raise ValueError(f"node {node_id} is in edge {seen[node_id]!r} and in edge {name!r}")
            seen[node_id] = name
