"""Who is at work in an asynchronous tier, since when and with which model; without I/O, as the clock says."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from logging import getLogger
from math import inf
from typing import Any, Protocol

import numpy as np
from flwr.app import ArrayRecord, RecordDict

from ..exchange import Exchanges
from ..outcomes import EdgeOutcome, Update
from ..randomness import derived_seed
from ..screening import Failure
from .modes import Mode

logger = getLogger("espalier")


class Clock(Protocol):
    """Says who has ended. Nodes are numbers from 0; who ends at one time comes in their order.

    Attributes
    ----------
    now : float
        Seconds since the start.
    at_work : list[int]
        Those who have begun and were not yet taken.
    """

    @property
    def now(self) -> float: ...  # noqa: D102

    @property
    def at_work(self) -> list[int]: ...  # noqa: D102

    def begin(self, node: int, seconds: float) -> None:
        """Let a node begin what takes so long."""

    def taken(self) -> int | None:
        """Return a node that has ended, once; None if there is none."""

    def wait(self, until: float = inf) -> None:
        """Let time pass until a node ends, or until a time."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""


@dataclass(frozen=True)
class Taken:
    """How long a node took.

    Parameters
    ----------
    seconds : float
        From its begin to its end.
    client_seconds : float, optional (default: None)
        Where it is an edge: the sum of what its clients worked in that time; None if nobody knows.
    """

    seconds: float
    client_seconds: float | None = None


Pace = Callable[[int, int], float]
"""Returns the seconds that a node, by its id, takes in its round of a number, from 1."""


@dataclass(frozen=True)
class Part:
    """What a node gave that began.

    Parameters
    ----------
    content : RecordDict, optional
        Of its reply; None if it failed.
    fault : str
        Why it failed.
    taken : Taken
        How long it took.
    outcome : EdgeOutcome, optional (default: None)
        Where it is an edge.
    """

    content: RecordDict | None
    fault: str
    taken: Taken
    outcome: EdgeOutcome | None = None


@dataclass(frozen=True)
class Flight:
    """A node's part, from its begin on.

    Parameters
    ----------
    node : int
        Its number in the tier.
    version : int
        Number of the aggregations before the model that it began with.
    began : float
        The time.
    part : Part
        What it will give.
    """

    node: int
    version: int
    began: float
    part: Part

    def seconds_within(self, start: float, end: float) -> float:
        """Return how long it worked between two times."""
        return max(0.0, min(self.began + self.part.taken.seconds, end) - max(self.began, start))


@dataclass(frozen=True)
class Arrival:
    """A flight that is over.

    Parameters
    ----------
    flight : Flight
        The flight.
    staleness : int
        Aggregations since it began.
    fault : str
        Why it can't be used; empty if it can.
    """

    flight: Flight
    staleness: int
    fault: str


Begin = Callable[[Mapping[int, int]], Exchanges[Mapping[int, Part]]]
"""Lets nodes begin, with the number of their own rounds for each, and returns what they give."""


class AsynchronousTier:
    """The state of a tier: flights, the models that they began with, and the time.

    Parameters
    ----------
    mode : Mode
        When to aggregate.
    clock : Clock
        Says who has ended; of this tier alone.
    num_nodes : int
        Nodes of the tier.
    unit : str
        What they are, for reports: ``"edges"`` or ``"clients"``.
    clients : int (default: 0)
        Clients under the nodes, where these are edges.
    concurrency : int (default: 0)
        The most nodes at work at a time, drawn from those who are not; 0: all.
    max_staleness : int (default: 0)
        An update that is older is left out; 0: none is.
    """

    def __init__(
        self,
        mode: Mode,
        clock: Clock,
        num_nodes: int,
        unit: str,
        *,
        clients: int = 0,
        concurrency: int = 0,
        max_staleness: int = 0,
    ) -> None:
        self.mode = mode
        self.clock = clock
        self._num_nodes = num_nodes
        self._unit = unit
        self._clients = clients
        self._concurrency = concurrency or num_nodes
        self._max_staleness = max_staleness
        self._flights: dict[int, Flight] = {}
        self._models: dict[int, ArrayRecord] = {}
        self._numbers: dict[int, int] = {}  # of rounds that each node has begun
        self._warned: set[int] = set()
        self._report: dict[str, Any] = {}

    def model_of(self, flight: Flight) -> ArrayRecord:
        """Return the model that a flight began with; until the next round begins."""
        return self._models[flight.version]

    def collected(
        self,
        version: int,
        arrays: ArrayRecord,
        ready: Sequence[int],
        begin: Begin,
        seed: str,
        name_of: Callable[[int], str],
    ) -> Exchanges[list[Arrival]]:
        """Let nodes work until it is time to aggregate, and return what has come in.

        What took no time, such as the part of an edge whose plans select nobody, comes in without being counted.

        Parameters
        ----------
        version : int
            Number of aggregations so far.
        arrays : ArrayRecord
            The model that nodes begin with.
        ready : Sequence[int]
            The nodes that may begin, in their order.
        begin : Begin
            Lets them.
        seed : str
            Decides who begins where not all may.
        name_of : Callable[[int], str]
            Name of a node in log lines.
        """
        mode, clock, start = self.mode, self.clock, self.clock.now
        self._models = {v: self._models[v] for v in {flight.version for flight in self._flights.values()}}
        self._models[version] = arrays
        size, until = mode.size or inf, start + mode.deadline_seconds
        arrivals: list[Arrival] = []
        waiting: set[int] = set()
        count, draws = 0, 0
        while True:
            while count < size and (node := clock.taken()) is not None:
                arrival = self._landed(node, version)
                arrivals.append(arrival)
                took_time = arrival.flight.part.taken.seconds > 0
                if took_time and not arrival.fault:
                    count += 1
                elif not took_time or arrival.flight.part.content is None:
                    # Not again before the next aggregation: at no time, it would fill every buffer by itself.
                    waiting.add(node)
            if count >= size or (count and clock.now >= until):
                break
            if not draws or mode.begins_again:
                at_work = set(clock.at_work)
                idle = [node for node in ready if node not in at_work and node not in waiting]
                beginning = self._drawn(idle, self._concurrency - len(at_work), f"{seed}/{version}/{draws}")
                draws += 1
                if beginning:
                    yield from self._begun(version, beginning, begin)
                    continue
            if not clock.at_work:
                break
            clock.wait(until if clock.now < until else inf)
        self._note(start, version, arrivals, name_of)
        return arrivals

    def take_report(self) -> dict[str, Any]:
        """Return the figures of the last round: staleness of its updates, and how long nodes did nothing."""
        report, self._report = self._report, {}
        return report

    def state_dict(self, position_of: Mapping[int, int]) -> dict[str, Any]:
        """Return what must survive an interruption; clients by their positions, not by their node ids."""
        return {
            "clock": self.clock.state_dict(),
            "numbers": dict(self._numbers),
            "models": {flight.version: self._models[flight.version] for flight in self._flights.values()},
            "flights": [_flight_to_data(self._flights[node], position_of) for node in sorted(self._flights)],
        }

    def load_state_dict(self, state: Mapping[str, Any], node_ids: Sequence[int]) -> None:
        """Take back what `state_dict` returned, with the node ids of the positions."""
        flights = [_flight_from_data(data, node_ids) for data in state["flights"]]
        self.clock.load_state_dict(state["clock"])
        self._numbers = dict(state["numbers"])
        self._models = dict(state["models"])
        self._flights = {flight.node: flight for flight in flights}

    def _drawn(self, idle: Sequence[int], room: int, seed: str) -> list[int]:
        if room >= len(idle):
            return list(idle)
        order = np.random.default_rng(derived_seed(seed)).permutation(len(idle))[: max(room, 0)]
        return [idle[i] for i in sorted(order.tolist())]

    def _begun(self, version: int, nodes: Sequence[int], begin: Begin) -> Exchanges[None]:
        """Let nodes begin; what they give is known from then on, and there when the clock says so."""
        for node in nodes:
            self._numbers[node] = self._numbers.get(node, 0) + 1
        parts = yield from begin({node: self._numbers[node] for node in nodes})
        for node in nodes:
            self._flights[node] = Flight(node, version, self.clock.now, parts[node])
            self.clock.begin(node, parts[node].taken.seconds)

    def _landed(self, node: int, version: int) -> Arrival:
        flight = self._flights.pop(node)
        staleness, fault = version - flight.version, flight.part.fault
        if not fault and self._max_staleness and staleness > self._max_staleness:
            limit = f"async.max-staleness = {self._max_staleness}"
            fault = f"its update began {staleness} aggregations ago ({limit})"
        return Arrival(flight, staleness, fault)

    def _note(self, start: float, version: int, arrivals: Sequence[Arrival], name_of: Callable[[int], str]) -> None:
        """Keep the round's figures; log who is at work with too old a model, once for each node."""
        end = self.clock.now
        too_old = {
            n for n, f in self._flights.items() if self._max_staleness and version - f.version >= self._max_staleness
        }
        for node in sorted(too_old - self._warned):
            logger.warning(
                "%s still trains on the model of %d aggregations ago: its update will be left out "
                "(async.max-staleness = %d)",
                name_of(node),
                version + 1 - self._flights[node].version,
                self._max_staleness,
            )
        self._warned |= too_old
        used = [arrival for arrival in arrivals if not arrival.fault]
        histogram = Counter(arrival.staleness for arrival in used)
        flights = [arrival.flight for arrival in arrivals] + list(self._flights.values())
        idle = {}
        if end > start:
            within = {id(flight): flight.seconds_within(start, end) for flight in flights}
            idle[self._unit] = 1 - sum(within.values()) / (self._num_nodes * (end - start))
            shares = [
                within[id(f)] / f.part.taken.seconds * f.part.taken.client_seconds
                for f in flights
                if f.part.taken.seconds > 0 and f.part.taken.client_seconds is not None
            ]
            if self._clients and len(shares) == len(flights):
                idle["clients"] = 1 - sum(shares) / (self._clients * (end - start))
        self._report = {
            "staleness": {str(staleness): histogram[staleness] for staleness in sorted(histogram)},
            "too_old": sum(bool(a.fault) and not a.flight.part.fault for a in arrivals),
            "at_work": len(self._flights),
            "idle_share": {unit: round(share, 6) for unit, share in idle.items()},
        }


def _flight_to_data(flight: Flight, position_of: Mapping[int, int]) -> dict[str, Any]:
    part = flight.part
    data: dict[str, Any] = {
        "node": flight.node,
        "version": flight.version,
        "began": flight.began,
        "content": None if part.content is None else dict(part.content),
        "fault": part.fault,
        "seconds": part.taken.seconds,
        "client_seconds": part.taken.client_seconds,
    }
    if part.outcome is not None:
        data["rounds"] = [
            {
                "trained": update.arrays is not None,
                "metrics": update.metrics,
                "weight": float(update.weight),
                "participants": [position_of[n] for n in update.participants],
                "failures": [(position_of.get(f.node_id, -1), f.reason) for f in update.failures],
            }
            for update in part.outcome.updates
        ]
    return data


def _flight_from_data(data: Mapping[str, Any], node_ids: Sequence[int]) -> Flight:
    content = None if data["content"] is None else RecordDict(dict(data["content"]))
    outcome = None
    if "rounds" in data:
        arrays = None if content is None else next(iter(content.array_records.values()))
        updates = [
            Update(
                arrays if one["trained"] else None,
                one["metrics"],
                one["weight"],
                [node_ids[position] for position in one["participants"]],
                [Failure(node_ids[p] if p >= 0 else 0, reason) for p, reason in one["failures"]],
            )
            for one in data["rounds"]
        ]
        outcome = EdgeOutcome(arrays, updates, 0.0)  # wall time is nobody's state
    part = Part(content, data["fault"], Taken(data["seconds"], data["client_seconds"]), outcome)
    return Flight(data["node"], data["version"], data["began"], part)
