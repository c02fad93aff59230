"""The clients' tasks in a process, each built once."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from flwr.app import Context

from espalier.app.config.parse import parse_config
from espalier.app.config.run_config import RunConfig
from espalier.app.ground.errors import UserError
from espalier.app.tasks.common import compute_device, on_device_if_it_fits, room_for_examples, set_up_torch
from espalier.app.tasks.node import ClientNode, parse_node
from espalier.app.tasks.recording import gradients_of
from espalier.app.wiring.task_of_run import build_task
from espalier.clients.gradients import compute_gradients
from espalier.clients.half import ClientHalf
from espalier.clients.task import ClientTask


def client_task(context: Context) -> ClientTask:
    """Return the task of the node that a context belongs to; a ClientApp calls it for every message."""
    node = parse_node(context.node_config)
    return _tasks(tuple(sorted(context.run_config.items()))).of(node)


def looked_up_once() -> Callable[[Context], ClientTask]:
    """Return a `client_task` for an engine whose nodes keep their configs: it looks at each node's once."""
    tasks: dict[int, ClientTask] = {}

    def task_of_node(context: Context) -> ClientTask:
        if context.node_id not in tasks:
            tasks[context.node_id] = client_task(context)
        return tasks[context.node_id]

    return task_of_node


def client_half(run_config: Mapping[str, Any]) -> ClientHalf:
    """Return what the clients of a run do, by its settings."""
    return parse_config(dict(run_config)).algorithm.client


@lru_cache(maxsize=1)
def _tasks(run_config: tuple[tuple[str, object], ...]) -> "ClientTasks":
    return ClientTasks(parse_config(dict(run_config)))


class ClientTasks:
    """The tasks of one run's clients that this process has met.

    Clients of one process run one after another, so they share a model to work on. Their examples are put on a GPU
    once, as long as there is room; those of further clients go there mini-batch by mini-batch.

    Parameters
    ----------
    config : RunConfig
        The run.
    """

    def __init__(self, config: RunConfig) -> None:
        set_up_torch(config.device, config.train.torch_threads)
        self._num_clients = config.federation.num_clients
        device = compute_device(config.device)
        self._task = build_task(config)
        self._model = self._task.new_model().to(device)
        self._half = config.algorithm.client
        state, stays = self._model.state_dict(), self._half.stays(self._model)
        self._own = {name: state[name].cpu().clone() for name in stays}  # as the model's seed makes them
        self._gradients = gradients_of(config.train, device) if config.decided.records else compute_gradients
        self._room_bytes = room_for_examples(device)
        self._tasks: dict[ClientNode, ClientTask] = {}

    def of(self, node: ClientNode) -> ClientTask:
        """Return a client's task.

        Raises
        ------
        UserError
            If there is no such client, or its data can't be had.
        """
        if node not in self._tasks:
            if not 0 <= node.partition_id < self._num_clients:
                allowed = f"0 to num-clients - 1 = {self._num_clients - 1}"
                raise UserError(f"partition-id = {node.partition_id}: allowed is {allowed}")
            made = self._task.new_client_task(self._model, node)
            task = replace(made, gradients=self._gradients, half=self._half, own=self._own)
            self._tasks[node], self._room_bytes = on_device_if_it_fits(task, self._room_bytes)
        return self._tasks[node]
