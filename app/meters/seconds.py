"""Seconds by client and by edge, in three parts, from the trips of messages."""

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from flwr.app import Message

from espalier.clients.messages import begins_round, ends_round, goes_on
from espalier.clients.messages.edge import TRAIN_EDGE
from espalier.strategies import EdgeOutcome, Observer, Update
from espalier.strategies.exchange import Trip

DIGITS = 6
PARTS = ("training", "waiting", "transfer")


@dataclass(frozen=True)
class Seconds:
    """Wall time of a client, or of an edge, in some edge rounds.

    Parameters
    ----------
    training : float (default: 0)
        A client computed. Of an edge: its slowest client of each edge round did.
    waiting : float (default: 0)
        A client waited for others: for the other half of a split model, for the others of its group, or for a turn of
        its process. Of an edge: all that is neither of the other two.
    transfer : float (default: 0)
        The rest, from the first message of an edge round until its last reply. Of an edge: its slowest client's of each
        edge round, and between the edge and the cloud where it is elsewhere.
    edge_rounds : int (default: 0)
        Edge rounds in which it was asked.
    """

    training: float = 0.0
    waiting: float = 0.0
    transfer: float = 0.0
    edge_rounds: int = 0

    def __add__(self, other: "Seconds") -> "Seconds":
        return Seconds(
            self.training + other.training,
            self.waiting + other.waiting,
            self.transfer + other.transfer,
            self.edge_rounds + other.edge_rounds,
        )

    @property
    def own(self) -> float:
        """How slow it was: what it did not wait for others."""
        return self.training + self.transfer

    @property
    def total(self) -> float:
        """All three parts."""
        return self.own + self.waiting

    @property
    def mean(self) -> "Seconds":
        """Of an edge round."""
        rounds = max(self.edge_rounds, 1)
        return Seconds(self.training / rounds, self.waiting / rounds, self.transfer / rounds, min(self.edge_rounds, 1))

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "Seconds":
        """Return what `as_data` made a line's fields of; ValueError, TypeError or KeyError if it did not."""
        training, waiting, transfer = (float(data[f"{part}_seconds"]) for part in PARTS)
        if not isinstance(rounds := data["edge_rounds"], int):
            raise TypeError(f"edge_rounds is {rounds!r}")
        return cls(training, waiting, transfer, rounds)

    def as_data(self) -> dict[str, float]:
        """Return the fields of a line."""
        parts = {f"{part}_seconds": round(getattr(self, part), DIGITS) for part in PARTS}
        return {"edge_rounds": self.edge_rounds, **parts}


@dataclass(frozen=True)
class OfEdge:
    """Times of an edge's clients, by their numbers, and its own."""

    clients: Mapping[int, Seconds]
    edge: Seconds


@dataclass
class _EdgeRound:
    """What was noticed of an edge in one edge round; of an edge that is elsewhere, its first has all of its part."""

    clients: dict[int, Seconds] = field(default_factory=dict)
    slowest: Seconds = field(default_factory=Seconds)
    elsewhere: Seconds | None = None  # what it says of itself, where it ran elsewhere
    waited: float | None = None  # before it was served, then; None: it was not asked by a message

    def __add__(self, other: "_EdgeRound") -> "_EdgeRound":
        clients = defaultdict[int, Seconds](Seconds, self.clients)
        for client, seconds in other.clients.items():
            clients[client] += seconds
        return _EdgeRound(
            clients,
            self.slowest + other.slowest,
            _sum(self.elsewhere, other.elsewhere, Seconds()),
            _sum(self.waited, other.waited, 0.0),
        )


class SecondsMeter(Observer):
    """Tells how long clients and edges took in training; evaluations are not in it.

    Parameters
    ----------
    client_of : Mapping[int, int]
        Client number by node id.
    """

    def __init__(self, client_of: Mapping[int, int]) -> None:
        self._client_of = client_of
        self._going = defaultdict[str, _EdgeRound](_EdgeRound)  # edge rounds that go on, by edge
        # Those that are over, by what came of each: an edge may be in its next part when one is taken.
        self._over: dict[int, tuple[Update, _EdgeRound]] = {}
        self._last_reply: dict[int, float] = {}  # when it came, by node id

    def on_trip(self, edge: str, message: Message, trip: Trip) -> None:
        """Add the seconds of a message by which a client trains, or an edge that is elsewhere."""
        kind, node_id = message.metadata.message_type, message.metadata.dst_node_id
        own, now = self._going[edge], time.monotonic()
        if kind == TRAIN_EDGE:
            own.waited = (own.waited or 0.0) + trip.waiting
        elif node_id in self._client_of and (begins_round(kind) or ends_round(kind) or goes_on(kind)):
            # Between the messages of one round the client waits for the edge, and for the others of its group.
            pause = max(now - trip.seconds - self._last_reply.get(node_id, now), 0.0) if goes_on(kind) else 0.0
            seconds = Seconds(trip.computing, trip.waiting + pause, trip.transfer)
            client = self._client_of[node_id]
            before = own.clients.get(client)
            own.clients[client] = replace(seconds, edge_rounds=1) if before is None else before + seconds
            self._last_reply[node_id] = now

    def on_edge_round(self, server_round: int, edge: str, update: Update) -> None:
        """Take the edge's slowest client, by its own seconds: an edge is as slow as that."""
        own = self._going.pop(edge, _EdgeRound())
        if own.elsewhere is None:
            slowest = max(own.clients.values(), key=lambda seconds: seconds.own, default=Seconds())
            own.slowest = Seconds(slowest.training, 0.0, slowest.transfer, 1)
        self._over[id(update)] = update, own

    def add(self, edge: str, told: OfEdge) -> None:
        """Add what an edge in another process, or on another host, has noticed of its clients and itself."""
        self._going[edge] += _EdgeRound(dict(told.clients), elsewhere=told.edge)

    def take(self, outcome: EdgeOutcome) -> OfEdge:
        """Return, once, the times of an edge in its part of a global round, or in several.

        Of edge rounds that nobody noticed, such as those before a resume, there are none.
        """
        rounds = [self._over.pop(id(update))[1] for update in outcome.updates if id(update) in self._over]
        return _of_edge(sum(rounds, _EdgeRound()), outcome.seconds)

    def forget(self) -> None:
        """Forget what was noticed of a part that came to nothing."""
        self._going.clear()
        self._over.clear()


def _sum(left: Any, right: Any, nothing: Any) -> Any:
    """Return the sum of what there may be; None of two that there are none of."""
    return None if left is None and right is None else (left or nothing) + (right or nothing)


def _of_edge(own: _EdgeRound, took: float) -> OfEdge:
    slowest = own.slowest
    if own.waited is None:  # it ran here
        waiting = max(took - slowest.own, 0.0) if slowest.edge_rounds else 0.0
        return OfEdge(own.clients, slowest + Seconds(waiting=waiting))
    there = own.elsewhere or Seconds(edge_rounds=slowest.edge_rounds)
    on_the_way = max(took - there.total - own.waited, 0.0)
    return OfEdge(own.clients, there + Seconds(waiting=own.waited, transfer=on_the_way))
