"""Torchvision's data sets: MNIST and its kin, EMNIST, and CIFAR."""

from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from espalier.app.ground.errors import UserError
from espalier.app.tasks import image_data
from espalier.app.tasks.cache import fingerprint, load_or_build
from espalier.app.tasks.dataset import DataPlace, Dataset
from espalier.app.tasks.image_data import FORMAT_VERSION, ImageData, LabelledImages, classes_in

if TYPE_CHECKING:
    from torchvision.datasets import VisionDataset

EMNIST_SPLITS = ("balanced", "byclass", "bymerge", "digits", "letters", "mnist")


def torchvision_sets() -> list[Dataset]:
    """Return them: each one's class there, and where below data-dir its files are."""
    return [
        _torchvision("cifar10", "CIFAR10", "cifar-10-batches-py"),
        _torchvision("cifar100", "CIFAR100", "cifar-100-python"),
        _torchvision("mnist", "MNIST", "MNIST/raw"),
        _torchvision("fashion-mnist", "FashionMNIST", "FashionMNIST/raw"),
        *(_torchvision(f"emnist-{split}", "EMNIST", "EMNIST/raw", split=split) for split in EMNIST_SPLITS),
    ]


def _torchvision(name: str, kind: str, files: str, **options: Any) -> Dataset:
    return Dataset(name, partial(_load, name, kind, files, options))


def _load(name: str, kind: str, files: str, options: dict[str, Any], place: DataPlace) -> ImageData:
    """Return a data set, downloaded where its files are missing or damaged."""
    data_dir = place.data_dir or place.cache_dir / "downloads"
    folder = data_dir / files

    def open_pools() -> "list[VisionDataset]":
        return _open_torchvision(name, kind, options, folder, data_dir)

    if not folder.is_dir():
        open_pools()
    key = fingerprint(folder, (entry for entry in folder.iterdir() if entry.is_file()), FORMAT_VERSION)
    build = partial(_build, folder, open_pools)
    return load_or_build(place.cache_dir / f"{name}-{key}", build=build, load=image_data.load)


def _build(source: Path, open_pools: "Callable[[], list[VisionDataset]]", folder: Path) -> None:
    """Write the data set whose files are in `source` into `folder`."""
    opened = open_pools()
    first = int(opened[0].classes[0] == "N/A")  # before the letters of EMNIST, which are numbered from 1
    classes = opened[0].classes[first:]
    train, test = (LabelledImages(_pixels(pool), np.asarray(pool.targets) - first) for pool in opened)
    try:
        classes_in(train, test, len(classes))
    except ValueError as error:
        raise UserError(f"{source}: {error}: allowed are files of one data set, as they are published") from None
    image_data.save(
        folder,
        chain(train.images, test.images),
        train_labels=train.labels,
        test_labels=test.labels,
        classes=classes,
    )


def _pixels(pool: "VisionDataset") -> np.ndarray:
    """Return a pool's images, upright: the files of EMNIST have rows and columns the other way round."""
    images = np.asarray(pool.data).reshape(*pool.data.shape[:3], -1)
    return images.swapaxes(1, 2) if type(pool).__name__ == "EMNIST" else images


def _open_torchvision(
    name: str, kind: str, options: dict[str, Any], folder: Path, data_dir: Path
) -> "list[VisionDataset]":
    """Return torchvision's training and test pool; it downloads what is missing or damaged."""
    from espalier.app.tasks.torchvision_compat import torchvision

    dataset = getattr(torchvision.datasets, kind)
    try:
        return [dataset(data_dir, train=train, download=True, **options) for train in (True, False)]
    except Exception as error:  # no network, a damaged archive, a full disk: torchvision raises many kinds
        reason = " ".join(str(error).split())
        raise UserError(
            f"dataset = {name!r}: cannot be downloaded or read ({reason}): "
            f"put its files into {folder} or set data-dir to where they are"
        ) from error
