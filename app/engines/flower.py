"""Flower's own runtime: a simulation, or SuperNodes on devices."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from logging import getLogger
from typing import Any

from flwr.serverapp import Grid

from espalier.app.engines.engine import Reach
from espalier.app.engines.opening import Opening
from espalier.sim.flower_private import is_in_simulation

logger = getLogger("espalier")


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

    @contextmanager
    def staying(self, reach: Reach) -> Iterator["Flower"]:
        """Give an engine whose nodes stay, while the block lasts.

        In Flower's simulation it is the same one: nodes take turns in a few processes there, and one that stayed would
        keep the others out.
        """
        if is_in_simulation():
            reason = "in Flower's simulation no message starts a process"
            logger.warning("deploy.transport = 'stream' has no effect: %s", reason)
            yield self
        else:
            with reach(self.grid) as grid:
                yield Flower(grid)

    def clients_state(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load_clients_state(self, state: Mapping[str, Any]) -> bool:
        """Return False: Flower's nodes keep a state for one run, and this is another."""
        return False


def opened(opening: Opening) -> AbstractContextManager[Flower]:
    """Open it with the grid that Flower handed over."""
    assert opening.grid is not None, "only Flower's runtime names this engine"
    return nullcontext(Flower(opening.grid))
