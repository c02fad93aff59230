"""Flower's own runtime: a simulation, or SuperNodes on devices."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from flwr.serverapp import Grid

from espalier.app.engines.opening import Opening


class Flower:
    """An engine that Flower runs; the clients' state is Flower's.

    Parameters
    ----------
    grid : Grid
        The one that Flower handed to the ServerApp.
    """

    lanes = None  # clients have processes of their own
    numbers = None  # they are asked

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def stream_patience_seconds(self, timeout_seconds: float) -> float:
        """Return the timeout: clients run side by side."""
        return timeout_seconds

    def clients_state(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load_clients_state(self, state: Mapping[str, Any]) -> None:
        """Do nothing: Flower's nodes begin anew."""


def opened(opening: Opening) -> AbstractContextManager[Flower]:
    """Open it with the grid that Flower handed over."""
    assert opening.grid is not None, "only Flower's runtime names this engine"
    return nullcontext(Flower(opening.grid))
