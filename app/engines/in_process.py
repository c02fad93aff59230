"""All clients in this process, one after the other."""

from collections.abc import Mapping
from typing import Any

from espalier.app.tasks.clients import looked_up_once
from espalier.clients.client_app import make_client_app
from espalier.clients.stacking import TrainingStack
from espalier.sim.in_process_grid import InProcessGrid

# Those that are not there yet will not come.
PATIENCE_SECONDS = 1.0


class InProcess:
    """An engine whose clients run in this process.

    Parameters
    ----------
    grid : InProcessGrid
        Runs them.
    """

    def __init__(self, grid: InProcessGrid) -> None:
        self.grid = grid

    @classmethod
    def open(cls, num_clients: int, run_config: Mapping[str, Any], seed: int, stack: int = 0) -> "InProcess":
        """Return an engine with `num_clients` new nodes that run the app's ClientApp with a run config.

        Of clients that train whole models, `stack` at a time do so side by side; 0: one after the other.
        """
        load_task = looked_up_once()
        client_app = make_client_app(load_task, durable=False)
        together = TrainingStack(load_task, stack) if stack else None
        return cls(InProcessGrid(client_app, num_clients, run_config=dict(run_config), seed=seed, stack=together))

    def stream_patience_seconds(self, timeout_seconds: float) -> float:
        """Return a second, whatever the timeout: clients wait for each other."""
        return PATIENCE_SECONDS

    def clients_state(self) -> dict[str, Any]:
        """Return the state of all nodes."""
        return self.grid.state_dict()

    def load_clients_state(self, state: Mapping[str, Any]) -> None:
        """Give all nodes their state back."""
        self.grid.load_state_dict(state)
