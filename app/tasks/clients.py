"""The clients' tasks in a process, each built once."""

from functools import lru_cache

import torch
from flwr.app import Context

from app.config import RunConfig, parse_config
from app.errors import UserError
from app.tasks.common import compute_device
from app.tasks.family import family
from clients.task import ClientTask


def client_task(context: Context) -> ClientTask:
    """Return the task of the node that a context belongs to; a ClientApp calls it for every message."""
    partition_id = context.node_config.get("partition-id")
    if not isinstance(partition_id, int):
        raise UserError(f"partition-id = {partition_id!r} in the node's config: allowed is an integer")
    tasks = _tasks(tuple(sorted(context.run_config.items())))
    return tasks.of(partition_id, str(context.node_config.get("edge-name", "")))


@lru_cache(maxsize=1)
def _tasks(run_config: tuple[tuple[str, object], ...]) -> "ClientTasks":
    return ClientTasks(parse_config(dict(run_config)))


class ClientTasks:
    """The tasks of one run's clients that this process has met.

    Clients of one process run one after another, so they share a model to work on.

    Parameters
    ----------
    config : RunConfig
        The run.
    """

    def __init__(self, config: RunConfig) -> None:
        torch.set_num_threads(config.torch_threads)
        self._config = config
        self._model = family(config).new_model(config).to(compute_device(config))
        self._tasks: dict[int, ClientTask] = {}

    def of(self, partition_id: int, edge_name: str) -> ClientTask:
        """Return a client's task.

        Raises
        ------
        UserError
            If there is no such client.
        """
        if partition_id not in self._tasks:
            num_clients = self._config.num_clients
            if not 0 <= partition_id < num_clients:
                raise UserError(f"partition-id = {partition_id}: allowed is 0 to num-clients - 1 = {num_clients - 1}")
            self._tasks[partition_id] = family(self._config).new_client_task(
                self._config, self._model, partition_id, edge_name
            )
        return self._tasks[partition_id]
