"""Clients, or edges with their clients, in worker processes that Ray runs, on one machine or a cluster."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from logging import getLogger
from typing import Any

from espalier.app.config.parse import parse_config
from espalier.app.engines.engine import App, MakeApp
from espalier.app.engines.in_process import PATIENCE_SECONDS
from espalier.app.engines.opening import Opening
from espalier.app.engines.ray_cluster import (
    is_connected,
    machine_here,
    machines_of_ray,
    places_of,
    started_ray,
    store,
    stored,
)
from espalier.app.ground.errors import UserError
from espalier.app.ground.memory import keep_memory
from espalier.app.settings.sections import RayWorkers
from espalier.app.tasks.shared import from_arrays, to_arrays
from espalier.app.wiring.clients import client_task
from espalier.app.wiring.task_of_run import build_task
from espalier.clients.client_app import make_client_app
from espalier.clients.messages.profile import EDGE_NAME
from espalier.clients.messages.seconds import tell_waiting
from espalier.clients.seconds import tell_seconds
from espalier.sim.ray_grid import RayGrid, WorkerPlace, Workers
from espalier.sim.simulated_grid import GridLost

logger = getLogger("espalier")


@dataclass(frozen=True)
class InWorker:
    """Makes an app in a worker's process, ready for long work; it can be pickled.

    Parameters
    ----------
    make_app : MakeApp
        Makes the app.
    run_config : Mapping[str, Any]
        Settings of the run by their keys.
    data : ObjectRef, optional
        What `espalier.app.tasks.shared.to_arrays` made of the task's data, in Ray's object store. None: the task reads
        them itself.
    """

    make_app: MakeApp
    run_config: Mapping[str, Any]
    data: Any

    def __call__(self) -> App:
        """Return the app."""
        if self.data is not None:
            # One task is built in a process, and whoever asks for it gets this one.
            build_task(parse_config(dict(self.run_config))).take_loaded(from_arrays(*stored(self.data)))
        app = self.make_app()
        keep_memory()
        return app


class Ray:
    """An engine whose clients, or edges with their clients, are shared out to worker processes, where they stay.

    Ray and the workers start when somebody asks for the grid, and end with `close`.

    Parameters
    ----------
    num_clients : int
        Of the run.
    num_edges : int
        Its edges; 0 for a run without.
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
    """

    lanes = None  # clients are in the workers, edges here, or in workers with their clients

    def __init__(
        self,
        num_clients: int,
        num_edges: int,
        run_config: Mapping[str, Any],
        seed: int,
        section: RayWorkers,
        *,
        threads: int,
        on_gpu: bool,
    ) -> None:
        self._num_clients = num_clients
        self._num_edges = num_edges
        self._run_config = dict(run_config)
        self._seed = seed
        self._section = section
        self._threads = threads
        self._on_gpu = on_gpu
        self._open = ExitStack()

    @property
    def numbers(self) -> Mapping[int, int]:
        """Each client's number by its node id, in client order."""
        return self.grid.numbers

    @cached_property
    def grid(self) -> RayGrid:
        """Reaches the clients; starts the workers when it is first asked for.

        Raises
        ------
        UserError
            If there is no cluster, too little of something, or a worker can't start.
        """
        # Clients of one edge are where it will be. Unless they choose theirs, edges are blocks of clients.
        edges = self._num_edges or self._num_clients
        return self._new_grid(
            partial(
                make_client_app, client_task, mods=[tell_seconds]
            ),  # a client's session in a split round goes along with its state
            self._num_clients,
            run_config=self._run_config,
            groups=[client * edges // self._num_clients for client in range(self._num_clients)],
            seed=self._seed,
        )

    def serve_edges(self, make_app: MakeApp, sizes: Mapping[str, int]) -> RayGrid:
        """Return a grid whose nodes are edges; see `espalier.app.engines.engine.ServesEdges`."""
        configs = [{EDGE_NAME: name} for name in sizes]
        return self._new_grid(
            make_app, len(sizes), node_configs=configs, sizes=list(sizes.values()), moves=True, seed=self._seed
        )

    def stream_patience_seconds(self, timeout_seconds: float) -> float:
        """Return the timeout where every client has a worker to itself; else a second: clients wait for each other."""
        return timeout_seconds if len(self._workers.abouts) >= self._num_clients else PATIENCE_SECONDS

    def clients_state(self) -> dict[str, Any]:
        """Return the state of all nodes."""
        return self.grid.state_dict()

    def load_clients_state(self, state: Mapping[str, Any]) -> bool:
        """Give all nodes their state back; return True."""
        self.grid.load_state_dict(state)
        return True

    def close(self) -> None:
        """End the workers, and Ray where this engine started it."""
        self._open.close()

    def _new_grid(self, make_app: MakeApp, num_nodes: int, **options: Any) -> RayGrid:
        workers = self._workers
        try:
            return RayGrid(
                workers,
                InWorker(make_app, self._run_config, self._data),
                num_nodes,
                on_waited=tell_waiting,
                **options,
            )
        except GridLost as error:
            raise UserError(f"engine = 'ray': {error}") from None

    @cached_property
    def _data(self) -> Any:
        """The data of the task, once on each machine; None where they are memory maps."""
        loaded = build_task(parse_config(self._run_config)).loaded()
        return None if loaded is None else store(to_arrays(loaded))

    @cached_property
    def _workers(self) -> Workers:
        places = self._places()
        try:
            workers = Workers(places)
        except GridLost as error:
            raise UserError(f"engine = 'ray': {error}") from None
        self._open.callback(workers.close)
        hosts = sorted({about["host"] for about in workers.abouts})
        logger.info("%d workers on %s", len(places), ", ".join(hosts))
        return workers

    def _places(self) -> list[WorkerPlace]:
        """Connect to Ray, or start it, and return where the workers are to be."""
        section = self._section
        share_out = partial(
            places_of,
            num_workers=section.workers,
            gpus_per_worker=section.gpus_per_worker,
            threads=self._threads,
            on_gpu=self._on_gpu,
            enough=self._num_edges or self._num_clients,
        )
        if (has_ray := is_connected()) or section.address:
            self._open.enter_context(started_ray(section.address))
            return share_out(machines_of_ray(), counts_cores=not has_ray)  # Flower's simulation has taken all cores
        places = share_out([machine_here()])
        self._open.enter_context(started_ray(""))
        return places


@contextmanager
def opened(opening: Opening) -> Iterator[Ray]:
    """Open it for a run."""
    engine = Ray(
        opening.num_clients,
        opening.num_edges,
        opening.settings,
        opening.seed,
        parse_config(opening.settings).ray,
        threads=opening.threads,
        on_gpu=opening.on_gpu,
    )
    try:
        yield engine
    finally:
        engine.close()
