"""A cloud that does not wait for its slowest edge."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from espalier.clients.messages.train import ARRAYS, METRICS

from ..edge_base import EdgeRounds
from ..exchange import Exchanges, Together
from ..hierarchical import Hierarchical, arrays_and_config, metrics_of_all
from ..outcomes import EdgeOutcome, Update
from ..topology import Topology
from .aggregation import Nodes, asynchronous_round
from .clocks import check_pace
from .flights import Arrival, FlightPart, Taken
from .tier import AsynchronousTier

EdgePace = Callable[[str, int, EdgeOutcome], Taken]
"""Returns how long an edge took for its own global round of a number, from 1, by what it did."""


class AsynchronousHierarchical(Hierarchical):
    """`Hierarchical` whose cloud does not wait for edges: a global round is an aggregation.

    An edge begins its edge rounds with the newest model as soon as it may, whatever the others do. Any strategy
    aggregates at the cloud and any edge trains below, split ones too: an edge's update is a model.

    Parameters
    ----------
    cloud, make_edge, topology
        As for `Hierarchical`.
    tier : AsynchronousTier
        When to aggregate, and the clock.
    pace : Callable[[str, int, EdgeOutcome], Taken], optional (default: None)
        How long an edge took; None: the clock shows it.
    **options : Any
        Other parameters of `Hierarchical`, `topology_of` excepted.

    Raises
    ------
    ValueError
        As `Hierarchical`, for `topology_of`, as edges are at work in different rounds, and if time is simulated and
        there is no pace.

    Notes
    -----
    An edge counts global rounds of its own, from 1, from which its `server_round` follows as in `Hierarchical`.
    """

    def __init__(
        self,
        cloud: Strategy,
        make_edge: Callable[[str, int], Strategy | EdgeRounds],
        topology: Topology,
        *,
        tier: AsynchronousTier,
        pace: EdgePace | None = None,
        **options: Any,
    ) -> None:
        if options.get("topology_of") is not None:
            raise ValueError("topology_of: nodes can't move between edges that are at work in different rounds")
        check_pace(tier.clock, pace)
        super().__init__(cloud, make_edge, topology, **options)
        self.tier = tier
        self._pace = pace
        self._nodes = [node_id for members in self.topology.values() for node_id in members]

    def train_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Exchanges[Update]:
        """Let edges train until it is time to aggregate, then do so."""

        def begin(instructions: Mapping[int, tuple[Message, int]]) -> Exchanges[Mapping[int, FlightPart]]:
            conversations = {}
            for node, (message, number) in instructions.items():
                name = self._edge_of_id[node + 1]
                self._place.notice(self._place.tier, self._place.path_to(name), "downlink", message)
                conversations[name] = self.train_edge(name, number, *arrays_and_config(message), grid)
            outcomes = yield Together(conversations)
            return {
                node: self._part(name, number, outcomes[name])
                for name, (node, (_, number)) in zip(conversations, instructions.items(), strict=True)
            }

        nodes = Nodes(tuple(self._edge_of_id), begin, self._contents, self._path_of_id)
        update, arrivals = yield from asynchronous_round(
            self._top, self.tier, nodes, server_round, arrays, config, self._edge_grid(grid)
        )
        self._notice_uplinks(arrivals)
        outcomes = self._outcomes(arrivals)
        failures = self._failures(self._place.when(server_round), update.failures, outcomes)
        return replace(update, participants=self._took_part(update, outcomes), failures=failures, edges=outcomes)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the strategies, and of the edges at work."""
        position_of = {node_id: i for i, node_id in enumerate(self._nodes)}
        return {**super().state_dict(), "tier": self.tier.state_dict(position_of)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned for the same strategies and edges."""
        super().load_state_dict(state)
        self.tier.load_state_dict(state["tier"], self._nodes)

    def _part(self, name: str, number: int, outcome: EdgeOutcome) -> FlightPart:
        taken = self._pace(name, number, outcome) if self._pace else None
        if outcome.arrays is None:
            return FlightPart(None, "no edge round gave a model", taken, outcome)
        metrics = self._metrics(outcome.metrics, outcome.weight)
        return FlightPart(RecordDict({ARRAYS: outcome.arrays.copy(), METRICS: metrics}), "", taken, outcome)

    def _contents(self, arrivals: Sequence[Arrival]) -> list[RecordDict]:
        """Return the edges' replies; one that kept its model has the mean of the others' metrics."""
        outcomes = [arrival.flight.known.outcome for arrival in arrivals]
        known = [outcome for outcome in outcomes if outcome is not None]
        return [
            RecordDict({**(arrival.flight.known.content or {}), METRICS: self._metrics(metrics, outcome.weight)})
            for arrival, outcome, metrics in zip(arrivals, known, metrics_of_all(known), strict=True)
        ]

    def _notice_uplinks(self, arrivals: Sequence[Arrival]) -> None:
        """Tell the observers of the edges' replies."""
        for arrival in arrivals:
            if (content := arrival.flight.known.content) is not None:
                name = self._edge_of_id[arrival.flight.node + 1]
                reply = Message(content, dst_node_id=arrival.flight.node + 1, message_type="train")
                self._place.notice(self._place.tier, self._place.path_to(name), "uplink", reply)

    def _outcomes(self, arrivals: Sequence[Arrival]) -> dict[str, EdgeOutcome]:
        """Return what edges have done whose parts are over; an edge that came twice has done both."""
        outcomes: dict[str, EdgeOutcome] = {}
        for arrival in arrivals:
            name, outcome = self._edge_of_id[arrival.flight.node + 1], arrival.flight.known.outcome
            assert outcome is not None
            arrays = None if arrival.fault else outcome.arrays
            if name in outcomes:
                before = outcomes[name]
                arrays = before.arrays if arrays is None else arrays
                outcome = EdgeOutcome(arrays, [*before.updates, *outcome.updates], before.seconds + outcome.seconds)
            outcomes[name] = replace(outcome, arrays=arrays)
        return outcomes
