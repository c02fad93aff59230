"""The clients' tasks in a process, each built once."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from threading import RLock
from typing import Any

from flwr.app import Context
from torch import nn

from espalier.app.algorithms.algorithm import Algorithm
from espalier.app.algorithms.auxiliary_heads import auxiliary_head
from espalier.app.config.parse import parse_config
from espalier.app.config.run_config import RunConfig
from espalier.app.features.table import check_node, half_of, outgoing_of
from espalier.app.ground.errors import UserError, bad_value
from espalier.app.tasks.common import compute_device, on_device_if_it_fits, room_for_examples, set_up_torch
from espalier.app.tasks.node import ClientNode, parse_node
from espalier.app.tasks.recording import gradients_of
from espalier.app.tasks.task import Task
from espalier.app.wiring.task_of_run import build_task
from espalier.clients.gradients import compute_gradients
from espalier.clients.half import PLAIN, ClientHalf
from espalier.clients.randomness import has_dropout, may_draw, may_draw_in_evaluations
from espalier.clients.shared.lazy_layers import lacks_weights
from espalier.clients.task import ClientTask
from espalier.sim.side_by_side import place_here


def client_task(context: Context) -> ClientTask:
    """Return the task of the node that a context belongs to; a ClientApp calls it for every message.

    Raises
    ------
    UserError
        If there is no such client, its data can't be had, or it takes no part in such runs.
    """
    node, tasks = parse_node(context.node_config), _tasks(tuple(sorted(context.run_config.items())))
    check_node(tasks.config, context.node_config)
    return tasks.of(node)


def looked_up_once() -> Callable[[Context], ClientTask]:
    """Return a `client_task` for an engine whose nodes keep their configs: it looks at each node's once in a thread."""
    tasks: dict[tuple[int, int], ClientTask] = {}

    def task_of_node(context: Context) -> ClientTask:
        where = place_here(), context.node_id
        if where not in tasks:
            tasks[where] = client_task(context)
        return tasks[where]

    return task_of_node


def why_in_turn(run_config: Mapping[str, Any]) -> str:
    """Return why the clients of a run are not to run at the same time, in threads; an empty text if they may."""
    return _tasks(tuple(sorted(run_config.items()))).in_turn


def client_half(run_config: Mapping[str, Any]) -> ClientHalf:
    """Return what the clients of a run do, by its settings."""
    return half_of(parse_config(dict(run_config)))


@lru_cache(maxsize=1)
def _tasks(run_config: tuple[tuple[str, object], ...]) -> "ClientTasks":
    return ClientTasks(parse_config(dict(run_config)))


class ClientTasks:
    """The tasks of one run's clients that this process has met.

    Clients that run one after another share a model to work on; each of the threads that work side by side has one.
    Their examples are put on a GPU once, as long as there is room; those of further clients go there mini-batch by
    mini-batch.

    Parameters
    ----------
    config : RunConfig
        The run.

    Attributes
    ----------
    config : RunConfig
        The run.
    in_turn : str
        Why clients are not to run at the same time, in threads; empty if they may.
    """

    def __init__(self, config: RunConfig) -> None:
        set_up_torch(config.device, config.train.torch_threads, config.train.precision)
        self.config, self._num_clients = config, config.federation.num_clients
        device = compute_device(config.device)
        self._task = build_task(config)
        self._device = device
        model = self._task.new_model().to(device)
        self._models = {place_here(): model}
        self._half = half_of(config)
        first, stays = model.state_dict(), self._half.stays(model)  # as the model's seed makes it
        if stays and lacks_weights(model):
            allowed = f"one without lazy layers: clients of {config.algorithm.text} begin with weights of their own"
            raise bad_value("task", config.data.task.text, allowed)
        self._own = {name: first[name].cpu().clone() for name in stays}
        self._outgoing = outgoing_of(config)
        self._head: nn.Sequential | None = None
        if config.algorithm.auxiliary:
            self._head = auxiliary_head(config.split, self._task, config.seed).to(device)
        self._model_draws = has_dropout(model) if self._task.side_by_side else may_draw(model)
        self.in_turn = _why_in_turn(config.algorithm, config.data.source, self._task, model)
        self._gradients = gradients_of(config.train, device) if config.decided.records else compute_gradients
        self._room_bytes = room_for_examples(device)
        self._tasks: dict[ClientNode, ClientTask] = {}
        self._lock = RLock()

    def of(self, node: ClientNode) -> ClientTask:
        """Return a client's task, for the thread that asks.

        Raises
        ------
        UserError
            If there is no such client, or its data can't be had.
        """
        with self._lock:  # who is first reads the data
            return replace(self._task_of(node), model=self._model_here())

    def _task_of(self, node: ClientNode) -> ClientTask:
        if node not in self._tasks:
            if not 0 <= node.partition_id < self._num_clients:
                allowed = f"0 to num-clients - 1 = {self._num_clients - 1}"
                raise UserError(f"partition-id = {node.partition_id}: allowed is {allowed}")
            made = self._task.new_client_task(self._model_here(), node)
            task = replace(
                made,
                gradients=self._gradients,
                half=self._half,
                own=self._own,
                model_draws=self._model_draws,
                outgoing=self._outgoing,
                auxiliary=self._head,
            )
            self._tasks[node], self._room_bytes = on_device_if_it_fits(task, self._room_bytes)
        return self._tasks[node]

    def _model_here(self) -> nn.Module:
        place = place_here()
        if place not in self._models:
            self._models[place] = self._task.new_model().to(self._device)
        return self._models[place]


def _why_in_turn(algorithm: Algorithm, source: str, task: Task, model: nn.Module) -> str:
    """Return why clients take turns where code that is not the package's, or draws of theirs, may need it."""
    if algorithm.written and algorithm.client != PLAIN:
        return f"algorithm = {algorithm.text!r} has clients of its own"
    if task.side_by_side is not None:
        return "" if task.side_by_side else f"{source} says so"
    if task.has_own_methods:
        return f"methods of {source} may need it (side_by_side = True in the task says that they don't)"
    if may_draw_in_evaluations(model):
        return "the model may draw from PyTorch's generator in evaluations"
    return ""
