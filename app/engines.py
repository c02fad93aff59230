"""Where the clients run."""

from flwr.serverapp import Grid

from espalier.app.config.sections import RunConfig
from espalier.app.tasks.clients import client_task
from espalier.clients.client_app import make_client_app
from espalier.sim.in_process_grid import InProcessGrid


def in_process_grid(config: RunConfig) -> InProcessGrid:
    """Return a Grid of `num-clients` nodes that run the ClientApp in this process."""
    client_app = make_client_app(client_task, durable=False)
    return InProcessGrid(client_app, config.federation.num_clients, run_config=config.as_dict(), seed=config.seed)


def grid_for(config: RunConfig, flower: Grid) -> Grid:
    """Return the Grid of the `engine` that the config names; `flower` is the one that Flower handed over."""
    return in_process_grid(config) if config.engine == "in-process" else flower
