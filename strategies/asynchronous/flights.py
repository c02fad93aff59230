"""What nodes of an asynchronous tier are at: flights, which begin with a model and end with an update."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from flwr.app import ArrayRecord, RecordDict

from espalier.clients.shared.records import records_in

from ..exchange import Exchanges
from ..outcomes import EVERYBODY, EdgeOutcome, Failure, Update, update_as_data

EDGE = -1  # what earlier editions called the edge itself in failures


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
class FlightPart:
    """What a node gave that began.

    Parameters
    ----------
    content : RecordDict, optional
        Of its reply; None if it failed.
    fault : str
        Why it failed.
    taken : Taken, optional
        How long it took; None: as long as the tier's clock shows.
    outcome : EdgeOutcome, optional (default: None)
        Where it is an edge.
    """

    content: RecordDict | None
    fault: str
    taken: Taken | None
    outcome: EdgeOutcome | None = None

    @property
    def seconds(self) -> float:
        """Seconds that it took, once they are known."""
        assert self.taken is not None
        return self.taken.seconds


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
    part : FlightPart, optional (default: None)
        What it gives; None while nobody knows.
    """

    node: int
    version: int
    began: float
    part: FlightPart | None = None

    @property
    def known(self) -> FlightPart:
        """What it gives, once that is known."""
        assert self.part is not None
        return self.part

    @property
    def ends(self) -> float:
        """The time of its end; infinite while nobody knows."""
        return inf if self.part is None else self.began + self.part.seconds

    def seconds_within(self, start: float, end: float) -> float:
        """Return how long it worked between two times."""
        return max(0.0, min(self.ends, end) - max(self.began, start))


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


Begin = Callable[[Mapping[int, int]], Exchanges[Mapping[int, FlightPart]]]
"""Lets nodes begin, with the number of their own rounds for each, and returns what they give."""


def flight_to_data(flight: Flight, position_of: Mapping[int, int]) -> dict[str, Any]:
    """Return a flight whose part is known as plain data; clients by their positions, not by their node ids."""
    part = flight.known
    assert part.taken is not None
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
        data["rounds"] = [update_as_data(update, position_of) for update in part.outcome.updates]
    return data


def flight_from_data(data: Mapping[str, Any], node_ids: Sequence[int]) -> Flight:
    """Return the flight that `flight_to_data` made plain, with the node ids of the positions."""
    content = None if data["content"] is None else RecordDict(dict(data["content"]))
    outcome = None
    if "rounds" in data:
        arrays = None if content is None else next(iter(records_in(content, ArrayRecord).values()))
        updates = [
            Update(
                arrays if one["trained"] else None,
                one["metrics"],
                one["weight"],
                [node_ids[position] for position in one["participants"]],
                [Failure(EVERYBODY if p in (None, EDGE) else node_ids[p], reason) for p, reason in one["failures"]],
            )
            for one in data["rounds"]
        ]
        outcome = EdgeOutcome(arrays, updates, 0.0)  # wall time is nobody's state
    part = FlightPart(content, data["fault"], Taken(data["seconds"], data["client_seconds"]), outcome)
    return Flight(data["node"], data["version"], data["began"], part)
