"""Clients, or edges with their clients, in worker processes that Ray runs, on one machine or a cluster."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from logging import getLogger
from typing import Any

from espalier.app.config.sections import RayWorkers
from espalier.app.engines.in_process import PATIENCE_SECONDS
from espalier.app.engines.ray_cluster import is_connected, machine_here, machines_of_ray, places_of, started_ray
from espalier.app.errors import UserError
from espalier.app.tasks.clients import client_task
from espalier.clients.client_app import make_client_app
from espalier.sim.in_process_grid import GridLost
from espalier.sim.ray_grid import Place, RayGrid

logger = getLogger("espalier")


class Ray:
    """An engine whose clients are shared out to worker processes, where they stay.

    Ray and the workers start when somebody asks for the grid, and end with `close`.

    Parameters
    ----------
    num_clients : int
        Of the run.
    run_config : Mapping[str, Any]
        Settings of the run by their keys.
    seed : int
        Decides the node ids, as it does for `espalier.app.engines.in_process.InProcess`.
    section : RayWorkers
        How many workers, and where.
    threads : int
        PyTorch threads of a worker.
    on_gpu : bool
        Models compute on a GPU.
    sizes : Sequence[float], optional (default: None)
        How much work each client has. None: all alike.
    """

    def __init__(
        self,
        num_clients: int,
        run_config: Mapping[str, Any],
        seed: int,
        section: RayWorkers,
        *,
        threads: int,
        on_gpu: bool,
        sizes: Sequence[float] | None = None,
    ) -> None:
        self._num_clients = num_clients
        self._run_config = dict(run_config)
        self._seed = seed
        self._section = section
        self._threads = threads
        self._on_gpu = on_gpu
        self._sizes = sizes
        self._open = ExitStack()

    @cached_property
    def grid(self) -> RayGrid:
        """Reaches the clients; starts the workers when it is first asked for.

        Raises
        ------
        UserError
            If there is no cluster, too little of something, or a worker can't start.
        """
        places = self._places()
        # A client's session in a split round goes along with its state: it is the same in another process.
        make_app = partial(make_client_app, client_task)
        try:
            grid = RayGrid(
                make_app, self._num_clients, places, run_config=self._run_config, sizes=self._sizes, seed=self._seed
            )
        except GridLost as error:
            raise UserError(f"engine = 'ray': {error}") from None
        self._open.callback(grid.close)
        logger.info("%d workers on %s", len(places), ", ".join(sorted({worker["host"] for worker in grid.workers})))
        return grid

    def stream_patience_seconds(self, timeout_seconds: float) -> float:
        """Return the timeout where every client has a worker to itself; else a second: clients wait for each other."""
        return timeout_seconds if len(self.grid.workers) >= self._num_clients else PATIENCE_SECONDS

    def clients_state(self) -> dict[str, Any]:
        """Return the state of all nodes."""
        return self.grid.state_dict()

    def load_clients_state(self, state: Mapping[str, Any]) -> None:
        """Give all nodes their state back."""
        self.grid.load_state_dict(state)

    def close(self) -> None:
        """End the workers, and Ray where this engine started it."""
        self._open.close()

    def _places(self) -> list[Place]:
        """Connect to Ray, or start it, and return where the workers are to be."""
        section = self._section
        share_out = partial(
            places_of,
            num_workers=section.workers,
            gpus_per_worker=section.gpus_per_worker,
            threads=self._threads,
            on_gpu=self._on_gpu,
        )
        if is_connected() or section.address:
            owns_cores = not is_connected()  # Flower's simulation has taken them all
            self._open.enter_context(started_ray(section.address))
            return share_out(machines_of_ray(), counts_cores=owns_cores)
        places = share_out([machine_here()])
        self._open.enter_context(started_ray(""))
        return places
