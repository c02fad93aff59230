"""The task of a run config."""

from functools import lru_cache
from typing import Any

from espalier.app.algorithms.algorithm import Algorithm
from espalier.app.config.run_config import RunConfig
from espalier.app.ground.errors import bad_value
from espalier.app.settings.section import Tag
from espalier.app.settings.sections import Split, TrainSettings
from espalier.app.tasks.adapted import AdaptedTask
from espalier.app.tasks.caching import CachingTask
from espalier.app.tasks.columns import ColumnsTask, holds_images
from espalier.app.tasks.common import compute_device, local_training
from espalier.app.tasks.images import ImageTask
from espalier.app.tasks.kinds import task_kind
from espalier.app.tasks.own_images import OwnImagesTask
from espalier.app.tasks.schedule import schedule_of
from espalier.app.tasks.task import Task
from espalier.clients.task import LocalTraining


def build_task(config: RunConfig) -> Task:
    """Return the task of a run config; the same one, with what it has loaded, as long as nothing that it needs changes.

    Raises
    ------
    UserError
        If `device` names a GPU and there is none, or a task of one's own can't be made or does not suit the algorithm.
    """
    kind: Any = task_kind(config.data)
    data, num_clients = config.data, config.federation.num_clients
    seed, device = config.seed, compute_device(config.device)
    schedule = schedule_of(config.train, config.federation.global_rounds, config.edge_rounds)
    training = local_training(config.train, schedule)
    if kind is CachingTask:
        per_round = config.federation.edge_rounds // config.edge_rounds
        return _built(kind, config.caching, training, config.federation, per_round, seed=seed, device=device)
    if kind is ColumnsTask and holds_images(data, seed):
        kind = ImageTask
    splits = {"splits_for": config.splits_for}
    beside = {"has_pool": config.here.has_cloud, **splits}  # an edge host evaluates on its devices only
    if issubclass(kind, AdaptedTask):
        task: AdaptedTask = _built(kind, data, training, num_clients, seed, device, num_edges=config.cells, **beside)
        check_optimizer(config.algorithm, data.source, config.train, config.split, task, training)
        return task
    if kind is OwnImagesTask:
        return _built(kind, data, training, seed, device, num_clients_here=config.num_clients_here, **beside)
    where = {"are_clients_here": config.engine.in_this_process, "num_edges": config.cells}
    return _built(kind, data, training, num_clients, seed, device, **where, **splits)


def check_optimizer(
    algorithm: Algorithm, source: str, train: TrainSettings, split: Split, task: AdaptedTask, training: LocalTraining
) -> None:
    """Refuse what has no use for an optimizer, or learning rates, of the task's own, or beside them.

    `source` names the task, and `training` is how clients train by `train` alone.
    """
    usual = {**TrainSettings().as_dict(), **Split().beside(TrainSettings()).as_dict()}
    given = {**train.as_dict(), **split.as_dict()}
    keys = (*TrainSettings.keys_tagged(Tag.OPTIMIZER), *Split.keys_tagged(Tag.OPTIMIZER))
    for key in keys if callable(task.training.optimizer) else ():
        if given[key] != usual[key]:
            allowed = f"{usual[key]!r} for {source}, which has an optimizer of its own"
            raise bad_value(key, given[key], allowed)
    if training.schedule and task.training.schedule != training.schedule:
        allowed = f"'constant' for {source}, which has learning rates of its own"
        raise bad_value("train.schedule", train.schedule, allowed)
    if algorithm.adds_gradients and task.training != training:
        what = "one without an optimizer or a learning rate of its own"
        raise task.refused(f"{what} for algorithm = {algorithm.text!r}, whose edges add up gradients")
    if algorithm.counts_gradients and callable(task.training.optimizer):
        what = "one without an optimizer of its own"
        raise task.refused(f"{what} for algorithm = {algorithm.text!r}, which counts gradients")


@lru_cache(maxsize=1)
def _built(kind: Any, *arguments: Any, **options: Any) -> Any:
    return kind(*arguments, **options)
