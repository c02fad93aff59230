"""The image tasks: one data set, which a partition shares out to the clients."""

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from espalier.app.ground.errors import FAULTS, UserError, bad_value
from espalier.app.ground.registered import files_of
from espalier.app.settings.sections import Data
from espalier.app.tasks.augmentation import augmentation
from espalier.app.tasks.data import ImageData, LabelledImages, dataset_named, load_dataset
from espalier.app.tasks.dataset import told_of
from espalier.app.tasks.fitting import check_fit, check_outputs, try_cuts
from espalier.app.tasks.footprint import layer_bytes, refuse_too_large, weight_bytes
from espalier.app.tasks.held_back import kept_and_held
from espalier.app.tasks.models import AUTO, build_model
from espalier.app.tasks.node import ClientNode
from espalier.app.tasks.partition import ClientIndices, partition_of
from espalier.app.tasks.task import Task
from espalier.app.tasks.trial import MisfitError, Tried
from espalier.clients.messages.frames import Format
from espalier.clients.shared.cut import Cut
from espalier.clients.task import ClientTask, Examples, LocalTraining


class ImageTask(Task):
    """Images of a data set, in the parts that a partition gives the clients.

    Parameters
    ----------
    section : Data
        Which data set, partition and model.
    training : LocalTraining
        How clients train.
    num_clients : int
        Clients to share the data out to.
    seed : int
        Decides the partition, the initial weights and the clients' randomness.
    device : torch.device
        Where models compute.
    num_edges : int (default: 1)
        Edges, for partitions that share out to them first.
    are_clients_here : bool (default: False)
        All clients are in this process, with a copy of their data each.
    splits_for : str (default: "")
        The algorithm that splits the model; empty for one that does not.
    """

    def __init__(
        self,
        section: Data,
        training: LocalTraining,
        num_clients: int,
        seed: int,
        device: torch.device,
        *,
        num_edges: int = 1,
        are_clients_here: bool = False,
        splits_for: str = "",
    ) -> None:
        self.num_edges = num_edges
        self.are_clients_here = are_clients_here
        self.splits_for = splits_for
        self.section = section
        self.training = training
        self.num_clients = num_clients
        self.seed = seed
        self.device = device

    @cached_property
    def data(self) -> ImageData:
        """The data set."""
        given = self.section.data_dir
        folder = Path(given).expanduser() if given else None
        try:
            return load_dataset(
                self.section.dataset,
                data_dir=folder,
                image_size=self.section.image_size,
                cache_dir=cache_folder(self.section),
                check_size=self.refuse_too_large,
                told=told_of(self.section, self.seed),
            )
        except (OSError, MemoryError) as error:
            raise UserError(f"data-dir = {str(folder or '')!r}: can't be read ({error})") from None

    @cached_property
    def client_indices(self) -> list[ClientIndices]:
        """Every client's part of the data set."""
        return partition_of(
            self.section,
            self.data.train.labels,
            self.data.test.labels,
            num_clients=self.num_clients,
            num_edges=self.num_edges,
            seed=self.seed,
            columns=self.data.columns,
        )

    @property
    def classes(self) -> Sequence[str]:
        """The classes' names, in the order of the model's outputs."""
        return self.data.classes

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @property
    def mean_and_std(self) -> tuple[Sequence[float], Sequence[float]]:
        """What pixels from 0 to 1 are normalised by, per channel."""
        return self.data.mean, self.data.std

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        height, width, channels = self.data.train.images.shape[1:]
        return channels, height, width

    def check_data(self) -> None:
        """Load the data and share them out; UserError if they can't be, or a model of one's own does not fit them."""
        self.client_indices  # noqa: B018
        self.check_own_model()

    def check_own_model(self, *, has_pool: bool = True) -> None:
        """Raise UserError unless a model of one's own, if there is one, fits data and algorithm.

        Where the server's test pool is here, a step of training on some of it is tried.
        """
        if self.section.model.module:
            with self._model_fits() as tried:
                check_outputs(self.new_model(), self.example_input(), self.num_classes)
                splits_for = self.splits_for if has_pool else ""
                check_fit(self, tried, seed=self.seed, splits_for=splits_for, has_pool=has_pool)

    def try_cuts(self, cuts: Collection[Cut], form: Format | None) -> None:
        """Raise UserError unless a step through each cut of a model of one's own can be made; others need no trial."""
        if self.section.model.module:
            with self._model_fits() as tried:
                try_cuts(self, tried, cuts, form, seed=self.seed, splits_for=self.splits_for)

    @contextmanager
    def _model_fits(self) -> Iterator[Tried]:
        """Give what is to be tried beside a model of one's own; what does not fit becomes an error that names it."""
        spec, model = self.section.model, self.new_model()
        try:
            yield Tried(self.normaliser(), lambda outputs, labels: {}, files_of(spec.load(), model))
        except MisfitError as error:
            raise bad_value(spec.key, spec.text, str(error)) from None

    def data_fingerprint(self) -> str:
        """Return a hash of the data set: of its labels, and of its pixels' statistics."""
        content = repr((self.data.classes, self.data.mean, self.data.std)).encode()
        return sha256(content + self.data.train.labels.tobytes() + self.data.test.labels.tobytes()).hexdigest()

    def refuse_too_large(
        self, num_train: int, num_test: int, image_shape: tuple[int, int, int], num_classes: int
    ) -> None:
        """Raise UserError for images that take more memory than there is, at the least, before they are decoded.

        Where all clients are here, each has a copy of its images, and the server one of the test pool.
        """
        model = self._model_on_meta(image_shape, num_classes)
        takes = {"the model, twice": 2 * weight_bytes(model)}
        if self.are_clients_here:
            takes["images"] = (num_train + 2 * num_test) * prod(image_shape)
            takes["a mini-batch"] = self._batch_bytes(model, image_shape)
        refuse_too_large(image_shape, takes)

    def _batch_bytes(self, model: nn.Module, image_shape: tuple[int, int, int]) -> int:
        """Return what a mini-batch takes in a layer, where a CPU trains; `model` is on ``meta``."""
        if self.device.type != "cpu":
            return 0
        try:
            return self.training.batch_size * layer_bytes(model, torch.zeros(1, *image_shape, device="meta"))
        except FAULTS:  # of a model of one's own, which need not know this device; a trial shows what else is wrong
            return 0

    def _model_on_meta(self, image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
        """Return the model without its weights; one of one's own is made with them, on a device that it knows."""
        if self.section.model.module:
            return self.model_for(image_shape, num_classes).to("meta")
        with torch.device("meta"):
            return self.model_for(image_shape, num_classes)

    def new_model(self) -> nn.Module:
        """Return the model with the initial weights that the seed gives."""
        return self.training.arithmetic.of(self.model_for(self.image_shape, self.num_classes))

    def model_for(self, image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
        """Return the model for images of some shape."""
        return build_model(self.model_name, image_shape=image_shape, num_classes=num_classes, seed=self.seed)

    @property
    def model_name(self) -> str:
        """One of `espalier.app.tasks.models.MODELS`, or one's own as it is written."""
        if self.section.model.text == AUTO:
            dataset = dataset_named(self.section.dataset)
            return dataset.model if dataset else "cnn"
        return self.section.model.text

    def describe(self) -> dict[str, Any]:
        """Return the model's name, the shape (C, H, W) of images, the classes, and what pixels are normalised by."""
        mean, std = map(list, self.mean_and_std)
        about = {"model": self.model_name, "image_shape": list(self.image_shape), "classes": list(self.classes)}
        return {**about, "mean": mean, "std": std}

    def example_input(self) -> Tensor:
        """Return a blank image, which lies in memory as `examples` do."""
        channels, height, width = self.image_shape
        return torch.zeros(1, height, width, channels).permute(0, 3, 1, 2)

    def normaliser(self) -> Callable[[Tensor], Tensor]:
        """Return the function from uint8 pixels (N, C, H, W) to the float32 input of the model.

        Channels get mean 0 and variance 1 over the training pool.
        """
        return normalise_by(*self.mean_and_std, self.device)

    def test_examples(self) -> Examples:
        """Return the whole test pool."""
        return examples(self.data.test)

    def num_examples(self, client: int) -> tuple[int, int] | None:
        """Return how many images a client trains on, and is tested on."""
        return len(self._kept_by(client)), len(self.client_indices[client].test)

    def class_counts(self, client: int) -> tuple[int, ...]:
        """Return how many images of each class a client trains on."""
        return self._counts_of(self.data.train.labels[self._kept_by(client)])

    @cached_property
    def _bytes_of_a_batch(self) -> int:
        return self._batch_bytes(self._model_on_meta(self.image_shape, self.num_classes), self.image_shape)

    def new_client_task(self, model: nn.Module, node: ClientNode) -> ClientTask:
        """Return the task of one client, which works on `model`."""
        indices = self.client_indices[node.partition_id]
        if (dataset := dataset_named(self.section.dataset)) and dataset.resizes:
            images = (len(indices.train) + len(indices.test)) * prod(self.image_shape)
            refuse_too_large(self.image_shape, {"images": images, "a mini-batch": self._bytes_of_a_batch})
        kept, held = self.kept_and_held(len(indices.train), node.partition_id)
        return self.task_of(
            model,
            node,
            examples(self.data.train, indices.train[kept]),
            examples(self.data.test, indices.test),
            examples(self.data.train, indices.train[held]) if held is not None else None,
        )

    def _kept_by(self, client: int) -> np.ndarray:
        """Return which images of the training pool a client trains on."""
        indices = self.client_indices[client].train
        return indices[self.kept_and_held(len(indices), client)[0]]

    def _counts_of(self, labels: np.ndarray) -> tuple[int, ...]:
        return tuple(np.bincount(labels, minlength=self.num_classes).tolist())

    def kept_and_held(self, num_examples: int, client: int) -> tuple[np.ndarray | slice, np.ndarray | None]:
        """Return which of its training images a client trains on and holds back; all of them and None by default."""
        if not (share := self.section.validation_share):
            return slice(None), None
        return kept_and_held(num_examples, share, self.seed, client)

    def centralised_task(self) -> ClientTask:
        """Return the task of a client with all data, and as many mini-batches as all clients of a flat round."""
        everything = self.task_of(
            self.new_model().to(self.device),
            ClientNode(0),
            examples(self.data.train, self._kept_by_all()),
            self.test_examples(),
        )
        whole = replace(self.training, batches_per_epoch=self.training.batches_per_epoch * self.num_clients)
        return replace(everything, training=whole)

    def _kept_by_all(self) -> np.ndarray | slice:
        """Return which images of the training pool are trained on."""
        if not self.section.validation_share:
            return slice(None)
        return np.sort(np.concatenate([self._kept_by(client) for client in range(self.num_clients)]))

    def task_of(
        self, model: nn.Module, node: ClientNode, train: Examples, test: Examples, validation: Examples | None = None
    ) -> ClientTask:
        """Return the task of a client that has these examples."""
        return ClientTask(
            model=model,
            train=train,
            test=test,
            prepare=self.normaliser(),
            training=self.training,
            seed=self.seed,
            partition_id=node.partition_id,
            class_counts=self._counts_of(train.labels.numpy()),
            device=self.device,
            edge_name=node.edge_name,
            prepare_draws=False,
            augment=augmentation(names) if (names := self.section.augmentation.items) else None,
            validation=validation,
        )


def cache_folder(section: Data) -> Path:
    """Return `data.cache-dir`; by default ``espalier`` in the user's cache folder."""
    if section.cache_dir:
        return Path(section.cache_dir).expanduser()
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "espalier"
    except RuntimeError:
        raise bad_value("data.cache-dir", "", "a folder: there is no home folder of this user") from None


def normalise_by(mean: Sequence[float], deviation: Sequence[float], device: torch.device) -> Callable[[Tensor], Tensor]:
    """Return the function from uint8 pixels (N, C, H, W) to float32, by statistics of pixels in [0, 1] per channel."""
    std = torch.tensor(deviation, device=device).clamp_min(1e-6)
    scale = (1 / (255 * std)).view(1, -1, 1, 1)
    shift = (-torch.tensor(mean, device=device) / std).view(1, -1, 1, 1)
    return lambda pixels: pixels.to(torch.float32).mul_(scale).add_(shift)


def examples(pool: LabelledImages, indices: np.ndarray | slice = slice(None)) -> Examples:
    """Return images of a pool as uint8 tensors of shape (N, C, H, W), and their labels.

    They stay channels-last in memory, which makes `cnn` nearly twice as fast on a CPU.
    """
    pixels = torch.from_numpy(np.array(pool.images[indices])).permute(0, 3, 1, 2)
    return Examples(pixels, torch.from_numpy(np.array(pool.labels[indices])))
