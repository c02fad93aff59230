"""The image tasks: model, data and client tasks for a run config, each built once per process."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from flwr.app import Context
from torch import Tensor, nn

from app.config import RunConfig, parse_config
from app.errors import UserError, bad_value
from app.tasks.data import ImageData, LabelledImages, load_dataset
from app.tasks.models import build_model
from app.tasks.partition import ClientIndices, partition
from clients.task import ClientTask, Examples, LocalTraining


def load_data(config: RunConfig) -> ImageData:
    """Return the data set of a config."""
    folder = str(Path(config.data_dir).expanduser()) if config.data_dir else ""
    return _load_data(config.dataset, folder, config.image_size, str(cache_folder(config)))


@lru_cache(maxsize=1)
def _load_data(dataset: str, data_dir: str, image_size: int, cache_dir: str) -> ImageData:
    folder = Path(data_dir) if data_dir else None
    try:
        return load_dataset(dataset, data_dir=folder, image_size=image_size, cache_dir=Path(cache_dir))
    except (OSError, MemoryError) as error:
        raise UserError(f"data-dir = {data_dir!r}: can't be read ({error})") from None


def cache_folder(config: RunConfig) -> Path:
    """Return `cache-dir`; by default ``espalier`` in the user's cache folder."""
    if config.cache_dir:
        return Path(config.cache_dir).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "espalier"


def data_fingerprint(config: RunConfig) -> str:
    """Return a hash of the data set: of its labels, and of its pixels' statistics."""
    data = load_data(config)
    content = repr((data.classes, data.mean, data.std)).encode()
    return sha256(content + data.train.labels.tobytes() + data.test.labels.tobytes()).hexdigest()


@lru_cache(maxsize=1)
def client_indices(config: RunConfig) -> list[ClientIndices]:
    """Return every client's part of the data set."""
    data = load_data(config)
    return partition(
        data.train.labels,
        data.test.labels,
        scheme=config.partition,
        num_clients=config.num_clients,
        seed=config.seed,
        alpha=config.alpha,
        shards_per_client=config.shards_per_client,
        min_samples=config.min_samples,
    )


def new_model(config: RunConfig) -> nn.Sequential:
    """Return the config's model with the initial weights that its seed gives."""
    data = load_data(config)
    name = config.model if config.model != "auto" else "small-cnn" if config.dataset == "digits" else "cnn"
    return build_model(name, image_shape=input_shape(config), num_classes=len(data.classes), seed=config.seed)


def input_shape(config: RunConfig) -> tuple[int, int, int]:
    """Return channels, height and width of an image."""
    height, width, channels = load_data(config).train.images.shape[1:]
    return channels, height, width


def compute_device(config: RunConfig) -> torch.device:
    """Return the device that `device` names; "auto" takes a GPU where there is one."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise bad_value("device", "cuda", "'cpu' or 'auto': torch finds no GPU here")
    return torch.device("cpu" if config.device == "cpu" or not torch.cuda.is_available() else "cuda")


def normaliser(config: RunConfig) -> Callable[[Tensor], Tensor]:
    """Return the function from uint8 pixels (N, C, H, W) to the float32 input of the model.

    Channels get mean 0 and variance 1 over the training pool.
    """
    data, device = load_data(config), compute_device(config)
    std = torch.tensor(data.std, device=device).clamp_min(1e-6)
    scale = (1 / (255 * std)).view(1, -1, 1, 1)
    shift = (-torch.tensor(data.mean, device=device) / std).view(1, -1, 1, 1)
    return lambda pixels: pixels.to(torch.float32).mul_(scale).add_(shift)


def examples(pool: LabelledImages, indices: np.ndarray | slice = slice(None)) -> Examples:
    """Return images of a pool as uint8 tensors of shape (N, C, H, W), and their labels.

    They stay channels-last in memory, which makes `cnn` nearly twice as fast on a CPU.
    """
    pixels = torch.from_numpy(np.array(pool.images[indices])).permute(0, 3, 1, 2)
    return Examples(pixels, torch.from_numpy(np.array(pool.labels[indices])))


def local_training(config: RunConfig) -> LocalTraining:
    """Return how a client trains."""
    return LocalTraining(
        local_epochs=config.local_epochs,
        batches_per_epoch=config.batches_per_epoch,
        batch_size=config.batch_size,
        optimizer=config.optimizer,
        learning_rate=config.learning_rate,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
    )


def centralised_task(config: RunConfig) -> ClientTask:
    """Return the task of one client that has all the data, with as many mini-batches as all clients together."""
    data, training = load_data(config), local_training(config)
    train = examples(data.train)
    return ClientTask(
        model=new_model(config).to(compute_device(config)),
        train=train,
        test=examples(data.test),
        prepare=normaliser(config),
        training=replace(training, batches_per_epoch=training.batches_per_epoch * config.num_clients),
        seed=config.seed,
        partition_id=0,
        class_counts=tuple(np.bincount(data.train.labels, minlength=len(data.classes)).tolist()),
        device=compute_device(config),
    )


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
        self._model = new_model(config).to(compute_device(config))
        self._prepare = normaliser(config)
        self._tasks: dict[int, ClientTask] = {}

    def of(self, partition_id: int, edge_name: str) -> ClientTask:
        """Return a client's task.

        Raises
        ------
        UserError
            If there is no such client.
        """
        if partition_id not in self._tasks:
            self._tasks[partition_id] = self._new_task(partition_id, edge_name)
        return self._tasks[partition_id]

    def _new_task(self, partition_id: int, edge_name: str) -> ClientTask:
        config = self._config
        if not 0 <= partition_id < config.num_clients:
            allowed = f"0 to num-clients - 1 = {config.num_clients - 1}"
            raise UserError(f"partition-id = {partition_id}: allowed is {allowed}")
        data, indices = load_data(config), client_indices(config)[partition_id]
        train = examples(data.train, indices.train)
        return ClientTask(
            model=self._model,
            train=train,
            test=examples(data.test, indices.test),
            prepare=self._prepare,
            training=local_training(config),
            seed=config.seed,
            partition_id=partition_id,
            class_counts=tuple(np.bincount(train.labels.numpy(), minlength=len(data.classes)).tolist()),
            device=compute_device(config),
            edge_name=edge_name,
        )
