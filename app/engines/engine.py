"""What an engine is: where the clients of a run are, and where their state is kept."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeGuard

from flwr.app import Context, Message
from flwr.serverapp import Grid

from espalier.clients.shared.lanes import Lanes

# What a node runs, and what makes it in the process where the node is; it can be pickled.
App = Callable[[Message, Context], Message]
MakeApp = Callable[[], App]

# Returns what reaches the nodes of a grid by streams that stay open, while the block lasts.
Reach = Callable[[Grid], AbstractContextManager[Grid]]


class Engine(Protocol):
    """Opens the grid of a run, and brings and takes the state of its clients for a resume."""

    @property
    def grid(self) -> Grid:
        """Reaches the clients."""

    @property
    def lanes(self) -> Lanes | None:
        """Where clients look for an edge of this process; None if they run elsewhere."""

    @property
    def numbers(self) -> Mapping[int, int] | None:
        """Each client's number by its node id, in client order, where this process has their data; else None."""

    def stream_patience_seconds(self, timeout_seconds: float) -> float:
        """Return how long to wait until all streams of a group of clients are open."""

    def clients_state(self) -> dict[str, Any]:
        """Return what the clients keep from round to round, where the engine can tell."""

    def load_clients_state(self, state: Mapping[str, Any]) -> bool:
        """Give it back to them; return whether they have it, and do not begin anew."""


class ServesEdges(Engine, Protocol):
    """An engine whose workers serve the edges of two tiers, each with its clients; `grid` is for profiles alone."""

    def serve_edges(self, make_app: MakeApp, sizes: Mapping[str, int]) -> Grid:
        """Return a grid with a node for each edge, whose config has its name as ``edge-name``.

        Any worker can answer any message of any node, one at a time, and answer it again: an answer depends on the
        message alone, and nodes keep no state.

        Parameters
        ----------
        make_app : Callable[[], App]
            Makes what the nodes run, once in every worker.
        sizes : Mapping[str, int]
            Number of clients by edge.
        """


class KeepsNodes(Engine, Protocol):
    """An engine of Flower's runtime, whose nodes can keep a stream open."""

    def staying(self, reach: Reach) -> AbstractContextManager[Engine]:
        """Return the engine with nodes that stay while the block lasts; itself where that would be of no use."""


def keeps_nodes(engine: Engine) -> TypeGuard[KeepsNodes]:
    """Return whether an engine is one of `KeepsNodes`."""
    return callable(getattr(type(engine), "staying", None))


def serves_edges(engine: Engine) -> TypeGuard[ServesEdges]:
    """Return whether an engine is one of `ServesEdges`; its grid is not asked for, which may start workers."""
    return callable(getattr(type(engine), "serve_edges", None))
