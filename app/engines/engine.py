"""What an engine is: where the clients of a run are, and where their state is kept."""

from collections.abc import Mapping
from typing import Any, Protocol

from flwr.serverapp import Grid


class Engine(Protocol):
    """Opens the grid of a run, and brings and takes the state of its clients for a resume."""

    @property
    def grid(self) -> Grid:
        """Reaches the clients."""

    def stream_patience_seconds(self, timeout_seconds: float) -> float:
        """Return how long to wait until all streams of a group of clients are open."""

    def clients_state(self) -> dict[str, Any]:
        """Return what the clients keep from round to round, where the engine can tell."""

    def load_clients_state(self, state: Mapping[str, Any]) -> None:
        """Give it back to them."""

    def close(self) -> None:
        """End what the engine has started."""
