"""Views of a Grid: what one edge, or the cloud, gets to see of the nodes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid


class Connected:
    """Answers which of some nodes are connected; as long as nobody comes or goes, a look costs next to nothing.

    With a thousand edges that look in every edge round, a new set of all nodes each time would take longer than the
    rounds. A Grid that knows it at once, as simulated ones do, has ``connected_of(node_ids)``, which returns those of
    some nodes that are connected, in their order.
    """

    def __init__(self) -> None:
        self._last: list[int] = []
        self._all: frozenset[int] = frozenset()

    def among(self, members: Sequence[int], grid: Grid) -> list[int]:
        """Return those of `members` that are connected to a grid, in their order."""
        if connected_of := getattr(grid, "connected_of", None):
            return connected_of(members)
        node_ids = list(grid.get_node_ids())
        if node_ids != self._last:
            self._last, self._all = node_ids, frozenset(node_ids)
        return [node_id for node_id in members if node_id in self._all]


@dataclass(frozen=True)
class RoundTerms:
    """What those in front of an edge, and above it, tell it of its rounds, beside the model and who may be asked.

    Parameters
    ----------
    num_clients : int, optional (default: None)
        Number of clients of an edge whose clients change, or of whom only some are shown: its strategy waits for no
        more. None: for as many as it says.
    wanted : int, optional (default: None)
        Number of results that make a round whole where more clients are asked, as some may be late. None: one of each.
    local_rounds : Mapping[int, int], optional (default: None)
        Local rounds that a plan gives each client, by node id. None: there is no plan.
    """

    num_clients: int | None = None
    wanted: int | None = None
    local_rounds: Mapping[int, int] | None = None


class ThroughGrid(Grid):
    """A Grid that passes everything on to another one, for those that change a part of it.

    Parameters
    ----------
    grid : Grid
        The other one.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes of the underlying Grid."""
        return self._grid.get_node_ids()

    def set_run(self, run: Any) -> None:
        """Set the run of the underlying Grid."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """The run of the underlying Grid."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message through the underlying Grid."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages through the underlying Grid."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull messages through the underlying Grid."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages through the underlying Grid and wait for their replies."""
        return self._grid.send_and_receive(messages, timeout=timeout)


class MemberGrid(ThroughGrid):
    """The part of a Grid that belongs to one edge: its connected members, in client order.

    Parameters
    ----------
    grid : Grid
        The Grid of all nodes; messages go through it.
    members : Sequence[int]
        Node ids of the edge, in client order.
    on_look : Callable[[Sequence[int]], None], optional (default: None)
        Told which members are connected, whenever somebody asks.
    connected : Connected, optional (default: None)
        Shared by views of one Grid, so that a look is cheap. None is one of its own.
    terms : RoundTerms, optional (default: None)
        What is told of the round. None: those of `grid`, if it is such a view too, else nothing is.
    """

    def __init__(
        self,
        grid: Grid,
        members: Sequence[int],
        on_look: Callable[[Sequence[int]], None] | None = None,
        connected: Connected | None = None,
        terms: RoundTerms | None = None,
    ) -> None:
        super().__init__(grid)
        self.terms: RoundTerms = terms or terms_of(grid)
        self._members = tuple(members)
        self._on_look = on_look
        self._connected = connected or Connected()

    def get_node_ids(self) -> list[int]:
        """Return the members that are connected, in client order."""
        present = self._connected.among(self._members, self._grid)
        if self._on_look is not None:
            self._on_look(present)
        return present

    @property
    def num_clients(self) -> int:
        """How many clients the edge has, connected or not: as is told, else all members."""
        return len(self._members) if self.terms.num_clients is None else self.terms.num_clients

    def narrowed(self, members: Sequence[int], **told: Any) -> "MemberGrid":
        """Return a view of some members, as of an edge that has as many clients; `told` are other terms."""
        return MemberGrid(self, members, terms=replace(self.terms, num_clients=self.num_clients, **told))

    def as_of_now(self) -> "MemberGrid":
        """Return a view whose members are those connected now.

        Flower's strategies look several times while they configure a round, and wait, blocking all edges, if a node
        is gone between two looks.
        """
        return FixedGrid(self._grid, self.get_node_ids(), terms=self.terms)

    def in_client_order(self, messages: Iterable[Message]) -> list[Message]:
        """Sort messages by their destination's place among the members."""
        messages = list(messages)
        if len(messages) < 2:
            return messages
        place = {node_id: i for i, node_id in enumerate(self._members)}
        return sorted(messages, key=lambda m: place.get(m.metadata.dst_node_id, len(place)))


def terms_of(grid: Grid) -> RoundTerms:
    """Return what is told of a round with a grid: nothing where it is no view of an edge's clients."""
    return grid.terms if isinstance(grid, MemberGrid) else RoundTerms()


class FixedGrid(MemberGrid):
    """A view whose members are all taken to be connected."""

    def get_node_ids(self) -> list[int]:
        """Return the members, in client order."""
        return list(self._members)

    def as_of_now(self) -> MemberGrid:
        """Return itself."""
        return self


class EdgeGrid(FixedGrid):
    """What a cloud strategy sees: one node per edge, always connected.

    A cloud strategy's messages never travel: `Hierarchical` hands them to the edges itself.
    """

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Refuse: edges are reached through `configure_train` and `configure_evaluate` only."""
        raise RuntimeError("a cloud strategy can't send messages of its own to edges")

    pull_messages = push_messages  # type: ignore[assignment]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Refuse: edges are reached through `configure_train` and `configure_evaluate` only."""
        return self.push_messages(messages)  # type: ignore[return-value]
