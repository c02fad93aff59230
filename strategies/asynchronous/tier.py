"""Who is at work in an asynchronous tier, since when and with which model; without I/O, as the clock says."""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from logging import getLogger
from math import inf
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from ..exchange import Exchanges
from ..randomness import derived_seed
from .clocks import Clock
from .flights import Arrival, Begin, Flight, FlightPart, Taken, flight_from_data, flight_to_data
from .modes import Mode

logger = getLogger("espalier")
MOST_REPORTED = 100_000  # arrivals: who never takes a report shall not fill the memory


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
        self._window: tuple[float, float] | None = None  # since the last report, from the first begin to the last end
        self._arrived: deque[Arrival] = deque(maxlen=MOST_REPORTED)  # in that time, without what they hold
        self._lines: deque[dict[str, Any]] = deque(maxlen=MOST_REPORTED)

    def model_of(self, flight: Flight) -> ArrayRecord:
        """Return the model that a flight began with; until the next round begins."""
        return self._models[flight.version]

    def numbers_at_work(self) -> dict[int, int]:
        """Return the number of the round, of its own, that each node at work is in."""
        return {node: self._numbers[node] for node in sorted(self._flights)}

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
                took_time = arrival.flight.known.seconds > 0
                if took_time and not arrival.fault:
                    count += 1
                elif not took_time or arrival.flight.known.content is None:
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
            yield from clock.wait(until if clock.now < until else inf)
        self._note(start, version, arrivals, name_of)
        return arrivals

    def take_report(self, until: float | None = None) -> dict[str, Any]:
        """Return the figures of the rounds since the last report: updates, their staleness, how long nodes did nothing.

        Parameters
        ----------
        until : float, optional (default: None)
            The time that they end with; None: the last aggregation.
        """
        start, end = self._window or (self.clock.now, self.clock.now)
        end = end if until is None else until
        landed, lines, self._window = list(self._arrived), list(self._lines), None
        self._arrived.clear()
        self._lines.clear()
        came = [arrival for arrival in landed if not arrival.fault and arrival.flight.known.seconds > 0]
        histogram = Counter(arrival.staleness for arrival in came)
        flights = [arrival.flight for arrival in landed] + list(self._flights.values())
        return {
            "staleness": {str(staleness): histogram[staleness] for staleness in sorted(histogram)},
            "too_old": sum(bool(a.fault) and not a.flight.known.fault for a in landed),
            "arrivals": lines,
            "at_work": len(self._flights),
            "idle_share": {unit: round(share, 6) for unit, share in self._idle(start, end, flights).items()},
        }

    def state_dict(self, position_of: Mapping[int, int]) -> dict[str, Any]:
        """Return what must survive an interruption; clients by their positions, not by their node ids.

        Nodes that nobody knows yet what they give are not in it: they begin the same round of theirs anew.
        """
        known = {node: flight for node, flight in sorted(self._flights.items()) if flight.part is not None}
        unknown = self._flights.keys() - known.keys()
        return {
            "clock": self.clock.state_dict(),
            "numbers": {node: number - (node in unknown) for node, number in self._numbers.items()},
            "models": {flight.version: self._models[flight.version] for flight in known.values()},
            "flights": [flight_to_data(flight, position_of) for flight in known.values()],
        }

    def load_state_dict(self, state: Mapping[str, Any], node_ids: Sequence[int]) -> None:
        """Take back what `state_dict` returned, with the node ids of the positions."""
        flights = [flight_from_data(data, node_ids) for data in state["flights"]]
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
        """Let nodes begin; what they give is there when the clock says so."""
        for node in nodes:
            self._numbers[node] = self._numbers.get(node, 0) + 1
            self._flights[node] = Flight(node, version, self.clock.now)
        yield from self.clock.begin({node: self._numbers[node] for node in nodes}, begin, self._note_part)

    def _note_part(self, node: int, part: FlightPart) -> FlightPart:
        """Keep what a node gives; how long it took is what the clock shows, unless that is known."""
        if part.taken is None:
            part = replace(part, taken=Taken(self.clock.now - self._flights[node].began))
        self._flights[node] = replace(self._flights[node], part=part)
        return part

    def _landed(self, node: int, version: int) -> Arrival:
        flight = self._flights.pop(node)
        staleness, fault = version - flight.version, flight.known.fault
        if not fault and self._max_staleness and staleness > self._max_staleness:
            limit = f"async.max-staleness = {self._max_staleness}"
            fault = f"its update began {staleness} aggregations ago ({limit})"
        return Arrival(flight, staleness, fault)

    def _note(self, start: float, version: int, arrivals: Sequence[Arrival], name_of: Callable[[int], str]) -> None:
        """Keep what the round's figures need; log who is at work with too old a model, once for each node."""
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
        self._window = (self._window[0] if self._window else start, self.clock.now)
        self._arrived += map(_without_content, arrivals)
        self._lines += [_arrival_line(a, name_of) for a in sorted(arrivals, key=lambda a: a.flight.ends)]

    def _idle(self, start: float, end: float, flights: Sequence[Flight]) -> dict[str, float]:
        """Return the share of a time in which nodes did nothing, and clients under them where that is known."""
        if not end > start:
            return {}
        within = {id(flight): flight.seconds_within(start, end) for flight in flights}
        idle = {self._unit: 1 - sum(within.values()) / (self._num_nodes * (end - start))}
        taken = [(within[id(f)], f.part.taken) for f in flights if f.part is not None and f.part.taken is not None]
        shares = [
            part / own.seconds * own.client_seconds
            for part, own in taken
            if own.seconds > 0 and own.client_seconds is not None
        ]
        if self._clients and len(shares) == len(flights):
            idle["clients"] = 1 - sum(shares) / (self._clients * (end - start))
        return idle


def _without_content(arrival: Arrival) -> Arrival:
    part = replace(arrival.flight.known, content=None, outcome=None)
    return replace(arrival, flight=replace(arrival.flight, part=part))


def _arrival_line(arrival: Arrival, name_of: Callable[[int], str]) -> dict[str, Any]:
    """Return what is reported of what came in: who, when by the tier's clock, and how old its model is."""
    line = {
        "who": name_of(arrival.flight.node),
        "seconds": round(arrival.flight.ends, 4),
        "staleness": arrival.staleness,
    }
    return line | ({"left_out": arrival.fault} if arrival.fault else {})
