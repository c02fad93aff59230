"""Where in the tree of tiers a `Hierarchical` is, and who watches the run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from flwr.app import Message

from .exchange import Direction, Trip, path_of
from .guards.bounds import Guard
from .outcomes import Update
from .randomness import derived_seed
from .topology import Topology

Tier = Literal["edge", "middle", "cloud"]


class Observer:
    """Watches a run. Override what you need, and leave the messages as they are.

    An edge is named by its path from the top: ``"edge-1"`` under the cloud, ``"site-1/room-2"`` in three tiers.
    """

    def on_message(self, tier: Tier, edge: str, direction: Direction, message: Message) -> None:
        """Notice a message.

        Parameters
        ----------
        tier : "edge", "middle" or "cloud"
            Between a node and its edge, between an edge and one above it that is not the cloud, or between an edge and
            the cloud.
        edge : str
            The edge; of two edges the lower one.
        direction : "downlink" or "uplink"
            Away from the cloud, or towards it.
        message : Message
            The message.
        """

    def on_trip(self, edge: str, message: Message, trip: Trip) -> None:
        """Notice how long a message took that an edge sent to one of its nodes, and its reply.

        Parameters
        ----------
        edge : str
            The edge; one that is reached through a node, which then is asked by this message.
        message : Message
            What was sent.
        trip : Trip
            How long it took, and who told what of it.
        """

    def on_edge_round(self, server_round: int, edge: str, update: Update) -> None:
        """Notice that an edge finished an edge round; `server_round` counts edge rounds from 1."""

    def on_regroup(self, server_round: int, path: str, topology: Topology) -> None:
        """Notice that nodes have moved between edges, and who is under each of them from a round on.

        Parameters
        ----------
        server_round : int
            The round of the tier that the edges are under.
        path : str
            That tier's; empty is the cloud.
        topology : Mapping[str, Sequence[int]]
            Node ids by edge.
        """


@dataclass(frozen=True)
class Place:
    """A place in the tree, and what is the same in all of it.

    Parameters
    ----------
    path : str
        Names from the top, e.g. ``"site-1"``; empty at the top.
    seed : int
        What the strategies here and below draw follows it.
    hides_noise : bool
        But for the noise of differential privacy, which follows no seed.
    observers : Sequence[Observer]
        Told of messages and edge rounds.
    node_name : Callable[[int], str]
        Name of a node in log lines.
    guard : Guard
        What a reply may do to a model.
    """

    path: str
    seed: int
    hides_noise: bool
    observers: Sequence[Observer]
    node_name: Callable[[int], str]
    guard: Guard

    @property
    def tier(self) -> Tier:
        """The tier of messages between here and the edges below."""
        return "middle" if self.path else "cloud"

    def path_to(self, edge: str) -> str:
        """Return the path of an edge below."""
        return path_of(self.path, edge)

    def of_edge(self, edge: str, seed: int | None) -> "Place":
        """Return the place of a `Hierarchical` that is an edge below, by the seed that it was given."""
        own = self.seed_of(edge) if seed is None else seed
        return replace(self, path=self.path_to(edge), seed=own, hides_noise=self.hides_noise and seed is None)

    def seed_of(self, edge: str) -> int:
        """Return the seed of an edge below."""
        return derived_seed(self.seed, "edge", edge)

    def when(self, server_round: int) -> str:
        """Return a round's name in log lines."""
        return f"round {server_round} of {self.path}" if self.path else f"round {server_round}"

    def notice(self, tier: Tier, path: str, direction: Direction, message: Message) -> None:
        """Tell the observers of a message."""
        for observer in self.observers:
            observer.on_message(tier, path, direction, message)

    def notice_trip(self, path: str, message: Message, trip: Trip) -> None:
        """Tell the observers how long a message took."""
        for observer in self.observers:
            observer.on_trip(path, message, trip)
