"""All clients in this process, one after the other."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from espalier.app.engines.opening import Opening
from espalier.app.wiring.clients import client_half, looked_up_once
from espalier.clients.client_app import make_client_app
from espalier.clients.messages.seconds import tell_waiting
from espalier.clients.seconds import tell_seconds
from espalier.clients.shared.lanes import Lanes
from espalier.clients.stacked.stacking import TrainingStack
from espalier.sim.in_process_grid import InProcessGrid

# Clients take turns here: one without a stream by then waits for its turn, which comes only when the others give up.
PATIENCE_SECONDS = 1.0


class InProcess:
    """An engine whose clients run in this process.

    Parameters
    ----------
    grid : InProcessGrid
        Runs them.
    lanes : Lanes, optional (default: None)
        Where they find the edges of this process. None: they get a message for every mini-batch.
    """

    def __init__(self, grid: InProcessGrid, lanes: Lanes | None = None) -> None:
        self.grid = grid
        self.lanes = lanes

    @classmethod
    def open(cls, num_clients: int, run_config: Mapping[str, Any], seed: int, stack: int = 0) -> "InProcess":
        """Return an engine with `num_clients` new nodes that run the app's ClientApp with a run config.

        Of clients that train in one message, `stack` at a time do so side by side; 0: one after the other.
        """
        load_task, lanes = looked_up_once(), Lanes()
        client_app = make_client_app(load_task, durable=False, lanes=lanes, mods=[tell_seconds])
        together = TrainingStack(load_task, stack, lanes, client_half(run_config)) if stack else None
        grid = InProcessGrid(
            client_app,
            num_clients,
            run_config=dict(run_config),
            seed=seed,
            stack=together,
            on_waited=tell_waiting,
        )
        return cls(grid, lanes)

    def stream_patience_seconds(self, timeout_seconds: float) -> float:
        """Return a second, whatever the timeout: clients wait for each other."""
        return PATIENCE_SECONDS

    def clients_state(self) -> dict[str, Any]:
        """Return the state of all nodes."""
        return self.grid.state_dict()

    def load_clients_state(self, state: Mapping[str, Any]) -> None:
        """Give all nodes their state back."""
        self.grid.load_state_dict(state)


def opened(opening: Opening) -> AbstractContextManager[InProcess]:
    """Open it for a run."""
    return nullcontext(InProcess.open(opening.num_clients, opening.settings, opening.seed, opening.stack))
